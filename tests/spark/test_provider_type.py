"""The provider has the type of Spark's RocksDB provider, which joins of state formats 3 and 4 need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.counting import Program
from tests.spark.harness import Provider
from tests.support.spark_versions import NEWEST_JOIN_FORMAT


def test_stores_of_a_join_are_apart_below_checkpoints_dir(spark: Any, tmp_path: Path) -> None:
    query = tmp_path / "query"
    query.mkdir()
    (query / "metadata").write_text('{"id": "00000000-0000-0000-0000-000000000007"}')
    names = ("default", "left-keyToNumValues", "right-keyToNumValues")

    def opened(name: str) -> Provider:
        elsewhere = {"backend__checkpointsDir": f"file:{tmp_path}/elsewhere"}
        return Provider(spark, f"file:{query}", store=name, **elsewhere)

    for number, name in enumerate(names):
        store = opened(name).open(0)
        store.put(("k", 0), (number, name))
        store.commit()
    for number, name in enumerate(names):
        assert opened(name).open(1).rows() == [(("k", 0), (number, name))]


@pytest.mark.spark
def test_read_store_rejects_writes(spark: Any, tmp_path: Path) -> None:
    provider = Provider(spark, str(tmp_path))._harness.provider()
    store = provider.getReadStore(0, getattr(spark._jvm, "scala.None$").__getattr__("MODULE$"))
    with pytest.raises(Exception, match="this store is read-only: version 0 of state store operator 0"):
        store.remove(None, "default")
    store.release()


@pytest.mark.slow
def test_join_of_the_newest_format_loads_no_native_library(built: Path, tmp_path: Path) -> None:
    newest = f"{NEWEST_JOIN_FORMAT}"
    with Program("newest_join", checkpoint=str(tmp_path), format=newest) as program:
        assert program.next("formats") == [newest]
        assert program.next("rocksdb") == []

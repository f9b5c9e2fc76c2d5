"""The provider has the type of Spark's RocksDB provider, and each store of a join its own directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.counting import Program
from tests.spark.harness import Provider
from tests.spark.test_state_table import put
from tests.support.spark_versions import NEWEST_JOIN_FORMAT


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


def test_stores_of_an_operator_have_directories_of_their_own(spark: Any, tmp_path: Path) -> None:
    # As a join has them.
    names = ["left-keyToNumValues", "left-keyWithIndexToValue"]
    (tmp_path / "query").mkdir()
    (tmp_path / "query/metadata").write_text('{"id":"0b94b1d4-5f3c-4b9c-8b39-0d1b5a1c4b11"}')

    def opened(name: str) -> Provider:
        return Provider(
            spark, f"file:{tmp_path}/query", store=name, backend__checkpointsDir=f"file:{tmp_path}/state"
        )

    for name in names:
        put(opened(name), 0, {("k", 1): (1, name)})
    assert [dict(opened(name).open_read(1).rows()) for name in names] == [
        {("k", 1): (1, name)} for name in names
    ]

"""The provider that has the type of Spark's RocksDB provider, for joins of state formats 3 and 4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.counting import Program
from tests.spark.harness import Provider
from tests.spark.queries import OURS, OURS_FOR_JOINS
from tests.support.spark_versions import NEWEST_JOIN_FORMAT


@pytest.mark.spark
def test_join_provider_and_provider_open_each_others_state(spark: Any, tmp_path: Path) -> None:
    rows = []
    for version, kind in enumerate([OURS_FOR_JOINS, OURS, OURS_FOR_JOINS]):
        provider = Provider(spark, str(tmp_path), provider=kind)
        read = provider.open_read(version)
        assert sorted(read.rows()) == rows
        store = provider.upgrade(read, version)
        store.put(("k", version), (version, "v"))
        rows = sorted(store.rows())
        # A store opened for reading can still be read while the store upgraded from it writes.
        assert sorted(read.rows()) == rows
        store.commit()
        provider.close()
    assert len(rows) == 3


def test_stores_of_a_join_are_apart_below_checkpoints_dir(spark: Any, tmp_path: Path) -> None:
    query = tmp_path / "query"
    query.mkdir()
    (query / "metadata").write_text('{"id": "00000000-0000-0000-0000-000000000007"}')
    names = ("default", "left-keyToNumValues", "right-keyToNumValues")

    def opened(name: str) -> Provider:
        elsewhere = {"backend__checkpointsDir": f"file:{tmp_path}/elsewhere"}
        return Provider(spark, f"file:{query}", store=name, provider=OURS_FOR_JOINS, **elsewhere)

    for number, name in enumerate(names):
        store = opened(name).open(0)
        store.put(("k", 0), (number, name))
        store.commit()
    for number, name in enumerate(names):
        assert opened(name).open(1).rows() == [(("k", 0), (number, name))]


def test_join_provider_read_store_rejects_writes(spark: Any, tmp_path: Path) -> None:
    provider = Provider(spark, str(tmp_path), provider=OURS_FOR_JOINS)._harness.provider()
    store = provider.getReadStore(0, getattr(spark._jvm, "scala.None$").__getattr__("MODULE$"))
    with pytest.raises(Exception, match="this store is read-only: version 0 of state store operator 0"):
        store.remove(None, "default")
    store.release()


@pytest.mark.slow
def test_join_provider_loads_no_native_library(built: Path, tmp_path: Path) -> None:
    newest = f"{NEWEST_JOIN_FORMAT}"
    with Program("join_provider", checkpoint=str(tmp_path), format=newest) as program:
        assert program.next("formats") == [newest]
        assert program.next("rocksdb") == []

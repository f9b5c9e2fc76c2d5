"""The provider that has the type of Spark's RocksDB provider, for joins of state formats 3 and 4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.counting import Program
from tests.spark.harness import Provider
from tests.spark.queries import OURS, OURS_FOR_JOINS


def test_either_class_opens_what_the_other_wrote(spark: Any, tmp_path: Path) -> None:
    rows = []
    for version, kind in enumerate([OURS_FOR_JOINS, OURS, OURS_FOR_JOINS]):
        provider = Provider(spark, str(tmp_path), provider=kind)
        read = provider.open_read(version)
        assert sorted(read.rows()) == rows
        store = provider.upgrade(read, version)
        store.put(("k", version), (version, "v"))
        rows = sorted(store.rows())
        # What was opened to be read goes on reading while the store that it became writes.
        assert sorted(read.rows()) == rows
        store.commit()
        provider.close()
    assert len(rows) == 3


def test_a_read_store_cannot_be_changed(spark: Any, tmp_path: Path) -> None:
    provider = Provider(spark, str(tmp_path), provider=OURS_FOR_JOINS)._harness.provider()
    store = provider.getReadStore(0, getattr(spark._jvm, "scala.None$").__getattr__("MODULE$"))
    with pytest.raises(
        Exception, match="opened to be read, and cannot be changed: version 0 of state store operator 0"
    ):
        store.remove(None, "default")
    store.release()


@pytest.mark.slow
def test_nothing_native_is_loaded(built: Path, tmp_path: Path) -> None:
    with Program("join_provider", checkpoint=str(tmp_path), format="4") as program:
        assert program.next("formats") == ["4"]
        assert program.next("rocksdb") == []

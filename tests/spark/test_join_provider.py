"""The provider that has the type of Spark's RocksDB provider, for joins of state formats 3 and 4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark import events
from tests.spark.counting import Program
from tests.spark.harness import Provider
from tests.spark.queries import OURS, OURS_FOR_JOINS, SPARKS, Query, run_with_restarts


def near(stream: Any) -> Any:
    from pyspark.sql import functions as F

    timely = stream.withWatermark("ts", "15 minutes")
    left = timely.selectExpr("id % 40 as l", "ts as left_ts", "who")
    right = timely.where("k is not null").selectExpr("id % 40 as r", "ts as right_ts", "k")
    return left.join(
        right,
        F.expr("l = r and right_ts between left_ts and left_ts + interval 5 minutes"),
        "left_outer",
    )


@pytest.mark.slow
def test_a_join_is_as_on_sparks_own_store(spark: Any, tmp_path: Path) -> None:
    parts = [[batch] for batch in events.batches(2)]
    outputs, states = [], []
    for number, provider in enumerate([SPARKS, OURS_FOR_JOINS]):
        query = Query(spark, tmp_path / str(number), near, "append", events.SCHEMA, provider=provider)
        outputs.append(run_with_restarts(query, parts))
        states.append(query.state())
    assert outputs[0] == outputs[1]
    assert states[0] == states[1]
    assert sum(states[1].values()) > 0


def test_either_class_opens_what_the_other_wrote(spark: Any, tmp_path: Path) -> None:
    rows = []
    for version, kind in enumerate([OURS_FOR_JOINS, OURS, OURS_FOR_JOINS]):
        provider = Provider(spark, str(tmp_path), provider=kind)
        read = provider.open_read(version)
        assert read.rows() == rows
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
    with Program("join_provider", checkpoint=str(tmp_path), format="2") as program:
        assert program.next("formats") == ["2"]
        assert program.next("rocksdb") == []

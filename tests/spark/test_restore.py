"""Queries that go on from a copy of their checkpoint, or are set back, put out what they did without."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from spark_statestore.checkpoint.query import QueryCheckpoint
from spark_statestore.savepoint.content import read_store
from spark_statestore.savepoint.restore import clone
from spark_statestore.savepoint.rollback import rollback
from tests.spark import events
from tests.spark.processors_query import NO_EMPTY_BATCHES
from tests.spark.queries import JOIN_FORMAT, OURS, OURS_FOR_JOINS, Query, side_by_side

pytestmark = pytest.mark.slow

WATERMARK = "15 minutes"
RESULT = "k string, n bigint, latest bigint"


def in_pandas(stream: Any) -> Any:
    def update(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        n, latest = state.get if state.exists else (0, 0)
        if state.hasTimedOut:
            state.remove()
        else:
            for frame in frames:
                n, latest = n + len(frame), max(latest, int(frame["seconds"].max()))
            state.update((n, latest))
            end = latest * 1000 + 600_000
            if end > state.getCurrentWatermarkMs():
                state.setTimeoutTimestamp(end)
        yield pd.DataFrame({"k": [key[0]], "n": [n], "latest": [latest]})

    return stream.groupBy("k").applyInPandasWithState(
        update, RESULT, "n bigint, latest bigint", "append", "EventTimeTimeout"
    )


def processed(stream: Any) -> Any:
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    # In here, so that Spark's workers get it by value.
    class Visits(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._handle = handle
            self._seen = handle.getListState("seen", "seconds bigint")
            self._totals = handle.getMapState("totals", "parity bigint", "n bigint")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            for row in sorted(rows, key=lambda row: row.seconds):
                self._seen.appendValue((row.seconds,))
                parity = (row.seconds % 2,)
                (n,) = self._totals.getValue(parity) if self._totals.containsKey(parity) else (0,)
                self._totals.updateValue(parity, (n + 1,))
                self._handle.registerTimer(row.seconds * 1000 + 1_200_000)
            yield self._told(key)

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            yield self._told(key)

        def _told(self, key: Any) -> Any:
            n = sum(n for _, (n,) in self._totals.iterator())
            return Row(k=key[0], n=n, latest=sum(seconds for (seconds,) in self._seen.get()))

    return stream.groupBy("k").transformWithState(Visits(), RESULT, "append", "eventTime")


def every_operator(stream: Any) -> Any:
    from pyspark.sql import functions as F

    timely = stream.withWatermark("ts", WATERMARK)
    left = timely.selectExpr("id % 40 as l", "ts as left_ts", "amount")
    right = timely.where("k is not null").selectExpr("id % 40 as r", "ts as right_ts", "k")
    near = F.expr("l = r and right_ts between left_ts and left_ts + interval 5 minutes")
    keyed = timely.selectExpr("concat(coalesce(k, 'none'), id % 3) as k", "ts", "unix_seconds(ts) as seconds")
    return side_by_side(
        {
            "windows": timely.groupBy(F.window("ts", "10 minutes"), "k").agg(F.count("*"), F.sum("big")),
            "sessions": timely.groupBy(F.session_window("ts", "2 minutes"), "k").agg(F.count("*")),
            "joined": left.join(right, near, "left_outer"),
            "pandas": in_pandas(keyed),
            "processed": processed(keyed),
        }
    )


def contents(query: Query) -> dict[str, list[Any]]:
    """Every row of every store, as the newest batch left them."""
    checkpoint = QueryCheckpoint(str(query.checkpoint))
    found: dict[str, list[Any]] = {}
    for version in checkpoint.stores():
        for state, rows in read_store(checkpoint, version).rows():
            keys, values = (column.to_pylist() for column in rows.columns)
            found[f"{version.store}, {state}"] = sorted(zip(keys, values, strict=True))
    return found


def at(query: Query, checkpoint: Path) -> Query:
    """The same query with another checkpoint."""
    other = copy(query)
    other.checkpoint = checkpoint
    return other


@pytest.mark.parametrize(
    ("checkpoint_format", "provider", "join_format"), [(1, OURS, "2"), (2, OURS_FOR_JOINS, "4")]
)
def test_a_copy_and_a_query_that_is_set_back_put_out_the_same(
    spark: Any, tmp_path: Path, checkpoint_format: int, provider: str, join_format: str
) -> None:
    original = Query(
        spark,
        tmp_path,
        every_operator,
        "append",
        events.SCHEMA,
        provider=provider,
        checkpoint_format=checkpoint_format,
        confs=NO_EMPTY_BATCHES | {JOIN_FORMAT: join_format},
    )
    # Half an hour from batch to batch.
    first, second, third = events.batches(7)[::3]
    original.feed(first, second)
    outputs = original.run()
    twin = at(original, tmp_path / "twin")
    assert clone(str(original.checkpoint), str(twin.checkpoint)) == 1

    original.feed(third)
    outputs += original.run()
    assert [number for number, _ in outputs] == [0, 1, 2]
    assert twin.run() == outputs[2:]
    assert contents(twin) == contents(original)
    for name in ("windows", "sessions", "joined", "pandas", "processed"):
        assert any(f"{name}=Row(" in row for row in outputs[2][1]), name

    known = contents(original)
    rollback(str(original.checkpoint), 0)
    assert original.run() == outputs[1:]
    assert contents(original) == known

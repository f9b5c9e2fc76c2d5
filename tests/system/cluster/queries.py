"""Queries of every kind, each with the equivalent batch query. Sent to executors by value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.window import Window

from tests.system.cluster.data import WATERMARK

_TOTAL = "k string, part bigint, n bigint, s bigint"


@dataclass(frozen=True)
class Kind:
    """A stateful query in which every row, and so all of its state, depends on all earlier input.

    It is built out of the stream of the input, and out of the whole input as a batch. In update mode its rows
    are running totals by ``k`` and ``part``. In `stores` rows expire once the watermark has passed them.
    """

    stream: Callable[[Any], Any]
    batch: Callable[[Any], Any]
    mode: str = "append"
    stores: tuple[str, ...] = ()


def windows(rows: Any) -> Any:
    counts = (
        rows.withWatermark("ts", WATERMARK)
        .groupBy(F.window("ts", "4 minutes", "2 minutes"), "k")
        .agg(F.count("*").alias("n"), F.sum("v").alias("s"), F.max("id").alias("newest"))
    )
    return counts.selectExpr("string(window.start) as start", "k", "n", "s", "newest")


def sessions(rows: Any) -> Any:
    counts = (
        rows.withWatermark("ts", WATERMARK)
        .groupBy(F.session_window("ts", "20 seconds"), "k")
        .agg(F.count("*").alias("n"), F.sum("v").alias("s"))
    )
    return counts.selectExpr("string(session_window.start) as start", "k", "n", "s")


def distinct(rows: Any) -> Any:
    return rows.withWatermark("ts", WATERMARK).dropDuplicates(["id", "ts"]).select("k", "id")


def joined(rows: Any) -> Any:
    timed = rows.withWatermark("ts", WATERMARK)
    left = timed.where("id % 3 = 0").selectExpr("k", "id as l", "ts as left_ts")
    right = timed.where("id % 3 > 0").selectExpr("k as right_k", "id as r", "ts as right_ts")
    near = F.expr("k = right_k and right_ts between left_ts and left_ts + interval 30 seconds")
    return left.join(right, near, "left_outer").select("k", "l", "r")


def counted(rows: Any) -> Any:
    def update(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        n, s = state.get if state.exists else (0, 0)
        part = -1
        for frame in frames:
            n, s, part = n + len(frame), s + int(frame["v"].sum()), max(part, int(frame["part"].max()))
        state.update((n, s))
        yield pd.DataFrame({"k": [key[0]], "part": [part], "n": [n], "s": [s]})

    return rows.groupBy("k").applyInPandasWithState(
        update, _TOTAL, "n bigint, s bigint", "update", "NoTimeout"
    )


class Counter(StatefulProcessor):
    """Counts in a value, in a list and in a map, so that the three can be compared."""

    def init(self, handle: Any) -> None:
        self._value = handle.getValueState("value", "n bigint, s bigint")
        self._list = handle.getListState("list", "id bigint")
        self._map = handle.getMapState("map", "digit bigint", "n bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        n, s = self._value.get() if self._value.exists() else (0, 0)
        part = -1
        for row in rows:
            n, s, part = n + 1, s + row.v, max(part, row.part)
            self._list.appendValue((row.id,))
            digit = (row.v % 10,)
            before = self._map.getValue(digit)[0] if self._map.containsKey(digit) else 0
            self._map.updateValue(digit, (before + 1,))
        self._value.update((n, s))
        listed = sum(1 for _ in self._list.get())
        mapped = sum(value[0] for value in self._map.values())
        yield Row(k=key[0], part=part, n=n, s=s, listed=listed, mapped=mapped)


def processed(rows: Any) -> Any:
    columns = f"{_TOTAL}, listed bigint, mapped bigint"
    return rows.groupBy("k").transformWithState(Counter(), columns, "update", "None")


def running_totals(rows: Any, *more: str) -> Any:
    """Compute the output of `counted` for each batch: each part of the input is one."""
    so_far = Window.partitionBy("k").orderBy("part")
    parts = rows.groupBy("k", "part").agg(F.count("*").alias("n"), F.sum("v").alias("s"))
    totals = parts.select("k", "part", F.sum("n").over(so_far).alias("n"), F.sum("s").over(so_far).alias("s"))
    return totals.select("*", *(F.col("n").alias(name) for name in more))


_OF_A_JOIN = tuple(
    f"{side}-{store}" for side in ("left", "right") for store in ("keyToNumValues", "keyWithIndexToValue")
)

KINDS = {
    "windows": Kind(windows, windows, stores=("default",)),
    "distinct": Kind(distinct, distinct, stores=("default",)),
    "sessions": Kind(sessions, sessions, stores=("default",)),
    "joined": Kind(joined, joined, stores=_OF_A_JOIN),
    "counted": Kind(counted, running_totals, "update"),
    "processed": Kind(processed, lambda rows: running_totals(rows, "listed", "mapped"), "update"),
}
IN_PYTHON = ("counted", "processed")
"""Kinds that run functions in Spark's Python workers."""

"""Stateful operators over a known input, with the rows and the state that each has after each batch.

Batch ``b`` has a row for each key ``k`` below the number of keys, at ten seconds of event time for each
batch. ``id`` is ``k`` moved up by half of the keys for each batch, so that half of the ids of a batch were in
the batch before, and no other. A value contains its key: a row that was taken for another one differs.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

COLUMNS = "k bigint, batch bigint, ts timestamp"

START = datetime(2024, 1, 1, tzinfo=UTC)

SECONDS = 10
"""Seconds of event time from one batch to the next."""

EXPIRY = 24
"""Watermark delay of ids that expire: six batches later, and never exactly at a batch's time."""

LATE = 4
"""Watermark delay of session windows."""

GAP = 15
"""Seconds between rows from which on a session window ends: the rows of two batches are together."""

Rows = Iterator[tuple[Any, ...]]


def write_input(directory: Path, batches: int, keys: int) -> None:
    """Write one file of input for each batch, to be read one by one in this order."""
    directory.mkdir(parents=True)
    schema = pa.schema([("k", pa.int64()), ("batch", pa.int64()), ("ts", pa.timestamp("us", tz="UTC"))])
    for batch in range(batches):
        at = START + timedelta(seconds=SECONDS * batch)
        columns = [list(range(keys)), [batch] * keys, [at] * keys]
        path = directory / f"{batch:05}.parquet"
        pq.write_table(pa.table(columns, schema), path)
        os.utime(path, (1_700_000_000 + batch, 1_700_000_000 + batch))


@dataclass(frozen=True)
class Operator:
    """A query, its output and its state.

    Attributes
    ----------
    build
        Builds the query from the stream of its input and the number of its keys.
    rows
        Returns the output of a batch, by its number and the number of keys.
    state
        Returns the state after a batch, in the same way.
    columns
        Expressions over the rows of Spark's state data source that give `state`.
    mode
        Output mode.
    options
        Options of the data source.
    decode
        Turns a row of the data source into one of `state`.
    share
        The operator gets one of this number of keys: Python takes a millisecond for each.
    refused
        Ways of reading a batch with which the query fails on Spark's RocksDB store, too: there one task waits
        for itself.
    """

    build: Callable[[Any, int], Any]
    rows: Callable[[int, int], Rows]
    state: Callable[[int, int], Rows]
    columns: tuple[str, ...]
    mode: str = "update"
    options: dict[str, str] = field(default_factory=dict)
    decode: Callable[[Any], tuple[Any, ...]] = tuple
    share: int = 1
    refused: tuple[str, ...] = ()


def counts(stream: Any, keys: int) -> Any:
    value = F.col("batch") * keys + F.col("k")
    return stream.groupBy("k").agg(F.count("*").alias("n"), F.sum(value).alias("s"))


def totals(batch: int, keys: int) -> Rows:
    before = keys * batch * (batch + 1) // 2
    return ((k, batch + 1, before + k * (batch + 1)) for k in range(keys))


def sets(stream: Any, keys: int) -> Any:
    """Collect a set of up to eight numbers, all of which belong to the key."""
    members = F.array_sort(F.collect_set(F.col("k") * 8 + F.col("batch") % 8))
    return stream.groupBy("k").agg(F.array_join(members.cast("array<string>"), " ").alias("members"))


def members(batch: int, keys: int) -> Rows:
    for k in range(keys):
        yield k, " ".join(str(k * 8 + number) for number in range(min(batch + 1, 8)))


def decode_set(row: Any) -> tuple[Any, ...]:
    """Decode the buffer of `collect_set`: a row with an array of numbers, in the order of a hash set."""
    key, buffer = row
    (length,) = struct.unpack_from("<q", buffer, 16)
    numbers = struct.unpack_from(f"<{length}q", buffer, 24 + (length + 63) // 64 * 8)
    return key, " ".join(map(str, sorted(numbers)))


def with_id(stream: Any, keys: int, delay: int | None = None) -> Any:
    rows = stream.withColumn("id", F.col("batch") * (keys // 2) + F.col("k"))
    return rows if delay is None else rows.withWatermark("ts", f"{delay} seconds")


def first_ids(batch: int, keys: int) -> range:
    """Return the ids of a batch that no earlier one had."""
    half = keys // 2
    return range(batch * half + half if batch else 0, batch * half + keys)


def repeated_ids(batch: int, keys: int) -> range:
    """Return the ids of a batch that the batch before had."""
    return range(batch * (keys // 2), first_ids(batch, keys).start)


def new_ids(batch: int, keys: int) -> Rows:
    return ((number,) for number in first_ids(batch, keys))


def expiring_ids(batch: int, keys: int) -> Rows:
    for first in range(max(0, batch - 5), batch + 1):
        expires = START + timedelta(seconds=SECONDS * first + EXPIRY)
        yield from ((number, int(expires.timestamp()) * 1_000_000) for number in first_ids(first, keys))


def joined(stream: Any, keys: int) -> Any:
    rows = with_id(stream, keys)
    left = rows.selectExpr("id", "batch as l")
    right = rows.selectExpr("id as right_id", "batch as r")
    return left.join(right, F.expr("id = right_id")).select("id", "l", "r")


def pairs(batch: int, keys: int) -> Rows:
    for number in repeated_ids(batch, keys):
        yield from ((number, batch - 1, batch), (number, batch, batch - 1))
    for number in range(batch * (keys // 2), first_ids(batch, keys).stop):
        yield number, batch, batch


def left_rows(batch: int, keys: int) -> Rows:
    for before in range(batch + 1):
        yield from ((before * (keys // 2) + k, before) for k in range(keys))


def sessions(stream: Any, keys: int) -> Any:
    windows = F.session_window("ts", f"{GAP} seconds")
    counted = with_id(stream, keys, LATE).groupBy(windows.alias("window"), "id").agg(F.count("*").alias("n"))
    return counted.selectExpr("id", "unix_seconds(window.start) as start", "n")


def _open_sessions(batch: int, keys: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield all sessions that began until a batch, with the batch that ends them."""
    for first in range(batch + 1):
        start = int(START.timestamp()) + SECONDS * first
        for number in first_ids(first, keys):
            is_alone = number < keys // 2
            yield number, start, 1 if is_alone or first == batch else 2, 3 if is_alone else first + 4


def ended_sessions(batch: int, keys: int) -> Rows:
    return (session[:3] for session in _open_sessions(batch, keys) if session[3] == batch)


def kept_sessions(batch: int, keys: int) -> Rows:
    return (session[:3] for session in _open_sessions(batch, keys) if session[3] > batch)


def in_pandas(stream: Any, keys: int) -> Any:
    def update(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        n, s = state.get if state.exists else (0, 0)
        for frame in frames:
            n, s = n + len(frame), s + int((frame["batch"] * keys + frame["k"]).sum())
        state.update((n, s))
        yield pd.DataFrame({"k": [key[0]], "n": [n], "s": [s]})

    return stream.groupBy("k").applyInPandasWithState(
        update, "k bigint, n bigint, s bigint", "n bigint, s bigint", "update", "NoTimeout"
    )


class Totals(StatefulProcessor):
    """Counts the rows of a key."""

    def __init__(self, keys: int) -> None:
        self._keys = keys

    def init(self, handle: Any) -> None:
        self._totals = handle.getValueState("totals", "n bigint, s bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        n, s = self._totals.get() if self._totals.exists() else (0, 0)
        for row in rows:
            n, s = n + 1, s + row.batch * self._keys + row.k
        self._totals.update((n, s))
        yield Row(k=key[0], n=n, s=s)


def processed(stream: Any, keys: int) -> Any:
    return stream.groupBy("k").transformWithState(
        Totals(keys), "k bigint, n bigint, s bigint", "update", "None"
    )


OPERATORS = {
    "count": Operator(counts, totals, totals, ("key.*", "value.*")),
    "collect_set": Operator(sets, members, members, ("key.*", "value.*"), decode=decode_set),
    "dropDuplicatesWithinWatermark": Operator(
        lambda stream, keys: with_id(stream, keys, EXPIRY).dropDuplicatesWithinWatermark(["id"]).select("id"),
        new_ids,
        expiring_ids,
        ("key.*", "value.*"),
        mode="append",
        refused=("one_task",),
    ),
    "join": Operator(
        joined, pairs, left_rows, ("value.*",), mode="append", options={"joinSide": "left"}, share=4
    ),
    "session_window": Operator(
        sessions,
        ended_sessions,
        kept_sessions,
        ("value.id", "unix_seconds(value.session_window.start)", "value.count"),
        mode="append",
    ),
    "applyInPandasWithState": Operator(in_pandas, totals, totals, ("key.*", "value.groupState.*"), share=10),
    "transformWithState": Operator(
        processed, totals, totals, ("key.*", "value.*"), options={"stateVarName": "totals"}, share=10
    ),
}

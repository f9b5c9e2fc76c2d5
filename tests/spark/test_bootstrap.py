"""Queries that start with state from a batch job, and go on as if they had processed all of it."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from spark_statestore import bootstrap, read_state, verify
from tests.spark.processors import OUTPUT, Interpreter
from tests.spark.queries import Query, Rows
from tests.support.spark_versions import since

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("t", pa.timestamp("us", tz="UTC"))])
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)


def event(key: str, value: int, seconds: int) -> dict[str, Any]:
    return {"k": key, "v": value, "t": BEGIN + timedelta(seconds=seconds)}


HISTORY = [event("abcde"[n % 5], n % 17 - 3, 10 * n) for n in range(120)]
"""Twenty minutes, in the order of time."""

LATER = [
    [event("abcdefg"[(n + part) % 7], n, 1200 + 200 * part + 10 * n) for n in range(20)] for part in (0, 1)
]
CLOSING = [event("z", 0, 7200)]

Build = Callable[[Any], Any]


def outputs(
    spark: Any,
    directory: Path,
    build: Build,
    mode: str,
    state: Callable[[pa.Table], Mapping[Any, Any]],
    form: int,
    watermark: datetime | None = None,
    column_family: str | None = None,
) -> tuple[list[Any], list[Any]]:
    """Return the output of a query after its history, and of one that starts with the history's state."""

    def query(name: str) -> Query:
        return Query(spark, directory / name, build, mode, SCHEMA, checkpoint_format=form)

    def run(query: Query, *parts: Rows) -> list[Any]:
        query.feed(*parts)
        return query.run()

    whole = query("whole")
    after = len(run(whole, HISTORY))
    expected = run(whole, *LATER, CLOSING)
    started = query("started")
    run(started, [event("sample", 1, 0)])
    target = directory / "target"
    schema = read_state(str(started.checkpoint), column_family=column_family).schema
    bootstrap(str(started.checkpoint), str(target), state(schema), watermark=watermark)
    assert not verify(str(target)).problems
    started.checkpoint = target
    actual = run(started, *LATER, CLOSING)
    assert after
    return [rows for _, rows in expected], [rows for _, rows in actual]


def aggregates(events: Any) -> Any:
    return events.groupBy("k").agg(
        F.count("*").alias("n"),
        F.sum("v").alias("s"),
        F.avg("v").alias("m"),
        F.min("v").alias("low"),
        F.max("v").alias("high"),
        F.first("v").alias("first"),
    )


def rows_of(schema: pa.Schema, rows: Iterable[tuple[tuple[Any, ...], tuple[Any, ...]]]) -> pa.Table:
    """Return rows of a key and a value, whose fields are in the order of the schema."""
    columns = []
    for name, parts in zip(("key", "value"), zip(*rows, strict=True), strict=True):
        kind = schema.field(name).type
        names = [field.name for field in kind]
        columns.append(pa.array([dict(zip(names, part, strict=True)) for part in parts], kind))
    return pa.table(columns, ["key", "value"])


def state_of_aggregates(schema: pa.Schema) -> Mapping[int, pa.Table]:
    values = defaultdict(list)
    for row in HISTORY:
        values[row["k"],].append(row["v"])
    buffers = {
        key: (len(v), sum(v), float(sum(v)), len(v), min(v), max(v), v[0], True) for key, v in values.items()
    }
    return {0: rows_of(schema, buffers.items())}


@pytest.mark.spark
@pytest.mark.oldest
def test_aggregates_start_with_a_batch_job(spark: Any, tmp_path: Path) -> None:
    expected, actual = outputs(spark, tmp_path, aggregates, "update", state_of_aggregates, 1)
    assert actual == expected
    assert any(rows for rows in actual)


def windows(events: Any) -> Any:
    late = events.withWatermark("t", "5 minutes")
    return late.groupBy(F.window("t", "2 minutes"), "k").count()


def state_of_windows(schema: pa.Schema) -> Mapping[int, pa.Table]:
    """Windows that have not ended at the watermark of the history."""
    counts: dict[tuple[datetime, str], int] = defaultdict(int)
    for row in HISTORY:
        counts[row["t"] - (row["t"] - BEGIN) % timedelta(minutes=2), row["k"]] += 1
    length = timedelta(minutes=2)
    there = [
        (({"start": start, "end": start + length}, key), (count,))
        for (start, key), count in counts.items()
        if start + length > watermark()
    ]
    return {0: rows_of(schema, there)}


def watermark() -> datetime:
    return max(row["t"] for row in HISTORY) - timedelta(minutes=5)


def test_windows_start_with_a_watermark(spark: Any, tmp_path: Path) -> None:
    expected, actual = outputs(spark, tmp_path, windows, "append", state_of_windows, 2, watermark())
    assert actual == expected
    assert sum(map(len, actual)) > 10


def processed(events: Any) -> Any:
    steps = events.selectExpr("k", "unix_seconds(t) as seq", "v as n", "v", "'set' as op")
    return steps.groupBy("k").transformWithState(Interpreter("bigint"), OUTPUT, "update", "none")


def state_of_variables(schema: pa.Schema) -> Mapping[tuple[int, str], pa.Table]:
    return {(0, "one"): rows_of(schema, {(row["k"],): (row["v"],) for row in HISTORY}.items())}


@pytest.mark.soak
@since("4.1", "transformWithState of rows in Python")
def test_variables_start_with_the_history(spark: Any, tmp_path: Path) -> None:
    expected, actual = outputs(
        spark, tmp_path, processed, "update", state_of_variables, 2, column_family="one"
    )
    assert actual == expected


@pytest.mark.spark
@pytest.mark.oldest
def test_query_reads_on_from_given_offsets(spark: Any, tmp_path: Path) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", 2)
    session.conf.set("spark.sql.shuffle.partitions", "2")

    def run(checkpoint: Path) -> dict[int, int]:
        numbers = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 10)
        counts = numbers.load().selectExpr("value % 3 as k").groupBy("k").count()
        last: dict[int, int] = {}
        query = (
            counts.writeStream.outputMode("complete")
            .option("checkpointLocation", str(checkpoint))
            .foreachBatch(lambda batch, _: last.update({row["k"]: row["count"] for row in batch.collect()}))
            .trigger(once=True)
            .start()
        )
        assert query.awaitTermination(60)
        return last

    run(tmp_path / "started")
    schema = read_state(str(tmp_path / "started")).schema
    state = {0: rows_of(schema, [((k,), (1000 + k,)) for k in range(3)])}
    offsets = {"0": {"offset": 3000, "timestamp": 0}}
    bootstrap(str(tmp_path / "started"), str(tmp_path / "target"), state, offsets=offsets)
    # The next ten numbers, and not those before.
    assert run(tmp_path / "target") == {0: 1004, 1: 1004, 2: 1005}


@pytest.mark.spark
@pytest.mark.oldest
def test_files_that_are_done_are_not_read(spark: Any, tmp_path: Path) -> None:
    incoming = tmp_path / "incoming"
    (incoming / "day=1").mkdir(parents=True)

    def add(name: str, word: str) -> None:
        number = sum(path.is_file() for path in incoming.rglob("*"))
        (incoming / name).write_text(word)
        os.utime(incoming / name, ns=(0, 1_700_000_000_123_456_789 + number * 10**9))

    def run(checkpoint: Path) -> dict[str, int]:
        words = spark.readStream.schema("value string, day int").text(str(incoming))
        last: dict[str, int] = {}
        query = (
            words.groupBy("value")
            .count()
            .writeStream.outputMode("complete")
            .option("checkpointLocation", str(checkpoint))
            .foreachBatch(lambda batch, _: last.update({row[0]: row[1] for row in batch.collect()}))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
        return last

    add("day=1/sample", "sample")
    run(tmp_path / "started")
    add("day=1/a b%ä[\u00a0{1}]+~,=@.txt", "a")
    add("day=1/_hidden", "hidden")
    add("day=1/c", "c")
    run(tmp_path / "whole")
    for target, files in {"target": [str(incoming)], "again": []}.items():
        bootstrap(str(tmp_path / "started"), str(tmp_path / target), {}, offsets={"0": files})
    assert (tmp_path / "target/sources/0/0").read_bytes() == (tmp_path / "whole/sources/0/0").read_bytes()
    add("day=1/later", "later")
    assert run(tmp_path / "target") == {"later": 1}
    assert run(tmp_path / "again") == {"sample": 1, "a": 1, "c": 1, "later": 1}

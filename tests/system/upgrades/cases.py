"""The queries of the matrix of upgrades: each stateful operator, and their input."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

import spark_statestore
from tests.spark import events, processors_query, test_queries
from tests.spark.processors import DAY, OUTPUT
from tests.spark.processors_query import in_scala
from tests.spark.queries import JOIN_FORMAT, Rows
from tests.system.upgrades.processors import PlainInterpreter

WRITTEN, CONTINUED = (0, 1), (3, 8)
"""Generated batches of the two halves of a query: the gaps make watermarks pass what is in the state."""

EVENTS, OPERATIONS, BY_THE_CLOCK = "events", "operations", "by-the-clock"
"""The inputs: rows with keys of many types, or operations with timers by event time or by the clock."""

SCHEMAS: Final[Mapping[str, pa.Schema]] = {
    EVENTS: events.SCHEMA,
    OPERATIONS: processors_query.SCHEMA,
    BY_THE_CLOCK: processors_query.SCHEMA,
}

# By the clock, timers are due either before the next batch or long after the test.
_TIMERS = {
    OPERATIONS: [number * 400_000 + number % 4 for number in range(8)],
    BY_THE_CLOCK: [1, 2, 3, DAY, 2 * DAY],
}


@dataclass(frozen=True)
class Case:
    """A query over the stream of its input, and the oldest Spark that has the operator."""

    build: Callable[[Any], Any]
    mode: str = "append"
    reads: str = EVENTS
    since: str = "4.0"
    provider: str = spark_statestore.PROVIDER_CLASS
    confs: Mapping[str, str] = field(default_factory=dict)
    starts_python: bool = False
    """Spark starts a Python process for each batch of the query: one such query runs at a time."""


def input_of(name: str) -> list[Rows]:
    """Return an input, a list of rows for each micro-batch."""
    if name == EVENTS:
        batches = events.batches(CONTINUED[-1] + 1)
    else:
        batches = processors_query.batches(CONTINUED[-1] + 1, _TIMERS[name])
    return [batches[number] for number in WRITTEN + CONTINUED]


def _distinct(stream: Any) -> Any:
    # Not by numbers with fractions: Spark 4.2 and later take 0.0 and -0.0 for the same, with any state store.
    return stream.select("k", "who", "tags").dropDuplicates(["k", "who", "tags"])


def _distinct_by_many(stream: Any) -> Any:
    # Spark 4.2 and before orders more than four key columns by the hashes of their names.
    text = "concat(coalesce(k, 'none'), '{0}') as {0}"
    names = ["second", "first", "third", "sixth", "fourth", "fifth"]
    return stream.selectExpr(*(text.format(name) for name in names)).dropDuplicates(names)


def _inner_join(stream: Any) -> Any:
    from pyspark.sql import functions as F

    timed = stream.withWatermark("ts", "2 hours")
    left = timed.selectExpr("id % 40 as l", "ts as left_ts", "who")
    right = timed.where("k is not null").selectExpr("id % 40 as r", "ts as right_ts", "k")
    return left.join(right, F.expr("l = r and right_ts between left_ts and left_ts + interval 30 minutes"))


def _named_state(processor: PlainInterpreter, time: str, *, pandas: bool) -> Callable[[Any], Any]:
    def build(stream: Any) -> Any:
        steps = stream.withWatermark("ts", "5 minutes") if time == "eventTime" else stream
        groups = steps.groupBy("k")
        run = groups.transformWithStateInPandas if pandas else groups.transformWithState
        return run(processor, OUTPUT, "update", time)

    return build


def _in_scala(ttl: int, time: str) -> Callable[[Any], Any]:
    build = in_scala(["one,many,named"], [""], [ttl], time, "update")
    return lambda stream: build(stream, 0)


def _join(build: Callable[[Any], Any], state_format: int, since: str) -> Case:
    return Case(build, since=since, confs={JOIN_FORMAT: str(state_format)})


_PANDAS_TIMERS = PlainInterpreter("string", timers="event", pandas=True)
_PANDAS_TTL = PlainInterpreter("string", ttl=DAY, timers="processing", pandas=True)
# Expired when the next batch begins, which removes it.
_PANDAS_EXPIRED = PlainInterpreter("string", ttl=1, timers="processing", pandas=True)

CASES: Final[Mapping[str, Case]] = {
    "aggregation, update mode": Case(test_queries.aggregate, "update"),
    "aggregation, complete mode": Case(test_queries.totals, "complete"),
    "aggregation without keys": Case(test_queries.aggregate_all, "update"),
    "windows with watermark": Case(test_queries.windows),
    "session windows": Case(test_queries.sessions),
    "dropDuplicates": Case(_distinct),
    "dropDuplicates, six columns": Case(_distinct_by_many),
    "dropDuplicatesWithinWatermark": Case(test_queries.distinct_within_watermark),
    "limit": Case(test_queries.first_rows),
    "inner join": Case(_inner_join),
    "outer join": Case(test_queries.late_and_on_time),
    "inner join, state format 3": _join(_inner_join, 3, "4.1"),
    "outer join, state format 3": _join(test_queries.late_and_on_time, 3, "4.1"),
    "outer join, state format 4": _join(test_queries.late_and_on_time, 4, "4.3"),
    "applyInPandasWithState, event time": Case(test_queries.visits_until_event_time, "update"),
    "applyInPandasWithState, processing time": Case(test_queries.visits_until_the_next_batch),
    "flatMapGroupsWithState, Scala": Case(test_queries.counts_in_scala),
    "transformWithStateInPandas, timers": Case(
        _named_state(_PANDAS_TIMERS, "eventTime", pandas=True), "update", OPERATIONS, starts_python=True
    ),
    "transformWithStateInPandas, TTL of a day": Case(
        _named_state(_PANDAS_TTL, "processingTime", pandas=True), "update", BY_THE_CLOCK, starts_python=True
    ),
    "transformWithStateInPandas, TTL that passes": Case(
        _named_state(_PANDAS_EXPIRED, "processingTime", pandas=True),
        "update",
        BY_THE_CLOCK,
        starts_python=True,
    ),
    "transformWithState, rows, timers": Case(
        _named_state(PlainInterpreter("string", timers="event"), "eventTime", pandas=False),
        "update",
        OPERATIONS,
        since="4.1",
        starts_python=True,
    ),
    "transformWithState, Scala, timers": Case(_in_scala(0, "eventTime"), "update", OPERATIONS),
    "transformWithState, Scala, TTL of a day": Case(_in_scala(DAY, "processingTime"), "update", BY_THE_CLOCK),
}


def start(spark: Any, case: Case, source: str, checkpoint: str, sink: Callable[[Any, int], None]) -> Any:
    """Start a query that ends with its input, of which each file is a batch."""
    stream = spark.readStream.schema(spark.read.parquet(source).schema).option("maxFilesPerTrigger", 1)
    return (
        case.build(stream.parquet(source))
        .writeStream.outputMode(case.mode)
        .option("checkpointLocation", checkpoint)
        .foreachBatch(sink)
        .trigger(availableNow=True)
        .start()
    )


def write_input(directory: Path, name: str, numbers: Iterable[int]) -> None:
    """Write batches of an input as files in a directory of its name."""
    batches = input_of(name)
    (directory / name).mkdir(parents=True, exist_ok=True)
    for number in numbers:
        path = directory / name / f"{number}.parquet"
        pq.write_table(pa.Table.from_pylist(batches[number], SCHEMAS[name]), path)
        # Spark reads files in the order of their modification times.
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def cases_of(minor: str) -> Sequence[str]:
    """Return the queries that a Spark has."""
    return [name for name, case in CASES.items() if case.since <= minor]

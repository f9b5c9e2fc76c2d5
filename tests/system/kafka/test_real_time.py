"""Stateful queries in real-time mode from Kafka to Kafka, and those that Spark refuses."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming import StatefulProcessor

from spark_statestore import PROVIDER_CLASS
from spark_statestore.options import OPTION_PREFIX, PROVIDER_KEY
from spark_statestore.query import QueryCheckpoint
from spark_statestore.query.query_checkpoint import COMMITS
from tests.spark.counting import wait_until
from tests.spark.queries import unload_all
from tests.support.services.kafka import Broker
from tests.support.spark_versions import since
from tests.system.kafka.queries import Rows, Topics, feed, parsed, read_topic, results_of
from tests.system.kafka.runs import records_read

pytestmark = [pytest.mark.kafka, since("4.3", "stateful queries in real-time mode")]

ALLOWLIST = "spark.sql.streaming.realTimeMode.allowlistCheck"

EVENTS = 300
"""Events of each run of a query."""

_GROUPS = 7


@dataclass(frozen=True)
class Operator:
    """A stateful operator: its query over events, and a batch that finds the keys and values it emits."""

    build: Callable[[DataFrame], DataFrame]
    answer: Callable[[DataFrame], set[tuple[str, str]]]
    settings: Mapping[str, str] = field(default_factory=dict)


def counted(events: DataFrame) -> DataFrame:
    return events.groupBy("user").agg(f.count("*").cast("string").alias("value")).toDF("key", "value")


def deduplicated(events: DataFrame) -> DataFrame:
    return events.dropDuplicates(["id"]).select(f.col("user").alias("key"), f.col("id").alias("value"))


def transformed(events: DataFrame) -> DataFrame:
    spark = events.sparkSession
    processors = spark._jvm.org.apache.spark.sql.statestore.transform.Processors
    counts = processors.counted(events.selectExpr("cast(id as int) as value")._jdf, _GROUPS)
    return (
        DataFrame(counts, spark)
        .select(f.col("k").cast("string"), f.col("n").cast("string"))
        .toDF("key", "value")
    )


def each_count_of(key: str) -> Callable[[DataFrame], set[tuple[str, str]]]:
    """Return a function that finds the counts of a key; real-time mode emits one for each event."""

    def answer(events: DataFrame) -> set[tuple[str, str]]:
        counts = events.groupBy(f.expr(key).cast("string").alias("key")).count().collect()
        return {(row.key, str(n)) for row in counts for n in range(1, row["count"] + 1)}

    return answer


def each_event(events: DataFrame) -> set[tuple[str, str]]:
    return {(row.user, row.id) for row in events.select("user", "id").distinct().collect()}


OPERATORS = {
    "aggregation": Operator(counted, each_count_of("user")),
    "dropDuplicates": Operator(deduplicated, each_event),
    # Spark's list of operators has the class of its own operator only.
    "transformWithState": Operator(
        transformed, each_count_of(f"cast(id as int) % {_GROUPS}"), {ALLOWLIST: "false"}
    ),
}


@dataclass(frozen=True)
class RealTimeQuery:
    """A query from one topic to another, in sessions that set no provider class."""

    spark: Any
    topics: Topics
    checkpoint: Path
    build: Callable[..., DataFrame]
    mode: str = "update"
    settings: Mapping[str, str] = field(default_factory=dict)
    sources: int = 1

    @contextlib.contextmanager
    def running(self, seconds: int) -> Iterator[Any]:
        session = self.spark.newSession()
        session.conf.unset(PROVIDER_KEY)
        session.conf.set(OPTION_PREFIX + "realTimeMode", "true")
        session.conf.set("spark.sql.streaming.realTimeMode.minBatchDuration", "1s")
        for key, value in self.settings.items():
            session.conf.set(key, value)
        rows = self.build(*(self._source(session) for _ in range(self.sources)))
        sink = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", self.topics.servers)
        sink = sink.option("topic", self.topics.topic_of("real-time")).outputMode(self.mode)
        sink = sink.option("checkpointLocation", str(self.checkpoint))
        query = sink.trigger(realTime=f"{seconds} seconds").start()
        try:
            yield query
        finally:
            query.stop()
            # Otherwise the next run continues with the state in memory.
            unload_all(self.spark)

    def _source(self, session: Any) -> DataFrame:
        source = session.readStream.format("kafka").option("kafka.bootstrap.servers", self.topics.servers)
        source = source.option("subscribe", self.topics.events).option("startingOffsets", "earliest")
        return parsed(source.load()).withWatermark("time", "3 hours")

    def committed(self) -> int:
        """Return the number of records that committed batches have read."""
        checkpoint = QueryCheckpoint(str(self.checkpoint))
        batch = max(checkpoint.logged(COMMITS), default=-1)
        return records_read(checkpoint, self.topics, batch) if batch >= 0 else 0

    def results(self) -> Rows:
        return results_of(self.spark, self.topics, "real-time")

    def events(self) -> DataFrame:
        return parsed(read_topic(self.spark, self.topics, self.topics.events))


def wait(query: Any, condition: Callable[[], bool]) -> None:
    """Wait for a condition; raise the query's error if it ends before."""

    def check() -> bool:
        if not query.isActive and query.exception() is not None:
            raise query.exception()
        return condition()

    assert wait_until(check, 120), query.lastProgress


def joined(events: DataFrame, other_events: DataFrame) -> DataFrame:
    return events.join(other_events.select("id"), "id").selectExpr("id as key", "user as value")


def deduplicated_within_watermark(events: DataFrame) -> DataFrame:
    return events.dropDuplicatesWithinWatermark(["id"]).selectExpr("id as key", "user as value")


def grouped(events: DataFrame) -> DataFrame:
    columns = "key string, value string"
    users = events.groupBy("user")
    return users.applyInPandasWithState(lambda *_: iter(()), columns, "n long", "update", "NoTimeout")


class Processor(StatefulProcessor):
    """A processor that emits nothing."""

    def init(self, handle: Any) -> None:
        handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        return iter(())

    def close(self) -> None:
        pass


def transformed_in_python(events: DataFrame) -> DataFrame:
    columns = "key string, value string"
    return events.groupBy("user").transformWithState(Processor(), columns, "update", "none")


NOT_IN_LIST = "STREAMING_REAL_TIME_MODE.OPERATOR_OR_SINK_NOT_IN_ALLOWLIST"

# The condition of Spark's error, and the parameters of the query. Scala's transformWithState is in
# tests/spark/test_real_time.py.
REFUSED: Mapping[str, tuple[str, dict[str, Any]]] = {
    "append mode": (
        "STREAMING_REAL_TIME_MODE.OUTPUT_MODE_NOT_SUPPORTED",
        {"build": deduplicated, "mode": "append"},
    ),
    "complete mode": (
        "STREAMING_REAL_TIME_MODE.OUTPUT_MODE_NOT_SUPPORTED",
        {"build": counted, "mode": "complete"},
    ),
    "join": (NOT_IN_LIST, {"build": joined, "sources": 2}),
    "dropDuplicatesWithinWatermark": (NOT_IN_LIST, {"build": deduplicated_within_watermark}),
    "applyInPandasWithState": (NOT_IN_LIST, {"build": grouped}),
    # Spark writes no metadata of this operator for a real-time query, and requires it; on its RocksDB store
    # too.
    "transformWithState in Python": (
        "STDS_FAILED_TO_READ_OPERATOR_METADATA",
        {"build": transformed_in_python, "settings": {ALLOWLIST: "false"}},
    ),
    "more partitions than slots": (
        "CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT",
        {"build": counted, "settings": {"spark.sql.shuffle.partitions": "8"}},
    ),
}


@pytest.mark.parametrize("operator", OPERATORS)
def test_real_time_query_from_kafka_to_kafka_equals_the_batch_answer(
    spark: Any, broker: Broker, tmp_path: Path, operator: str
) -> None:
    topics = Topics.new(broker.servers)
    tested = OPERATORS[operator]
    query = RealTimeQuery(spark, topics, tmp_path / "checkpoint", tested.build, settings=tested.settings)
    committed: set[tuple[str, str]] = set()
    emitted: Counter[tuple[str, str]] = Counter()
    for number, seconds in enumerate((2, 600, 2)):
        feed(spark, topics, seed=number, first=number * EVENTS, count=EVENTS)
        expected = tested.answer(query.events())
        # A batch that was interrupted runs again.
        emitted.update(expected - committed)
        records, before = query.events().count(), query.committed()
        with query.running(seconds) as running:
            if seconds == 600:
                # Its results are in the topic long before the end of the batch.
                wait(running, lambda expected=expected: expected <= set(query.results()))
                assert query.committed() == before
            else:
                wait(running, lambda records=records: query.committed() == records)
                committed = expected
        assert Counter(query.results()) == emitted
    assert max(emitted.values()) == 2
    last = {key: max((n for k, n in expected if k == key), key=int) for key, _ in expected}
    assert operator == "dropDuplicates" or dict(query.results()) == last
    checkpoint = QueryCheckpoint(str(query.checkpoint))
    assert checkpoint.offsets(checkpoint.newest_batch()).metadata["conf"][PROVIDER_KEY] == PROVIDER_CLASS


@pytest.mark.parametrize("reason", REFUSED)
def test_refused_real_time_query_fails_before_it_has_state(
    spark: Any, broker: Broker, tmp_path: Path, reason: str
) -> None:
    condition, parameters = REFUSED[reason]
    topics = Topics.new(broker.servers)
    feed(spark, topics, seed=1, count=10)
    query = RealTimeQuery(spark, topics, tmp_path / "checkpoint", **parameters)
    with pytest.raises(PySparkException, match=re.escape(f"[{condition}]")), query.running(2) as running:
        wait(running, lambda: query.committed() > 0)
    assert not list(query.checkpoint.glob("state/*/*/chk-*"))

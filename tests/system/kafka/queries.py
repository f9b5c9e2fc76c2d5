"""Two stateful queries from a Kafka topic to two others, their input, and the topic's batch answer."""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

EVENTS = 3000

_SECONDS = 30
"""Event time from one event to the next."""

_DISORDER = 300
"""Seconds by which an event may be early."""

# Longer than a batch while a query is disturbed, even if that has one partition alone: so no event is late.
_DELAY = "3 hours"

_USERS = 20
_CLOSING = "closing"

Rows = list[tuple[str, str]]
"""The keys and values of a topic, in the order of each partition; a key is always in the same one."""


@dataclass(frozen=True)
class Topics:
    """A broker's address and the topics of one run of the queries; `results` is a prefix."""

    servers: str
    events: str
    results: str

    @classmethod
    def new(cls, servers: str) -> Topics:
        """Return topics that do not exist yet."""
        name = uuid.uuid4().hex
        return cls(servers, f"events-{name}", f"results-{name}")

    def topic_of(self, query: str) -> str:
        return f"{self.results}-{query}"

    def as_json(self) -> dict[str, str]:
        return asdict(self)


def feed(spark: SparkSession, topics: Topics, seed: int, first: int = 0, count: int = EVENTS) -> None:
    """Write events to the topic; each tenth is there twice."""
    generator = random.Random(seed)
    rows = []
    for number in range(first, first + count):
        user = f"user-{generator.randrange(_USERS)}"
        time = number * _SECONDS + generator.randrange(_DISORDER)
        rows.extend([(user, f"{number},{user},{time}")] * (2 if number % 10 == 0 else 1))
    _write(spark, topics, rows)


def close(spark: SparkSession, topics: Topics) -> None:
    """Write an event of a later year, after which all sessions have ended."""
    _write(spark, topics, [(_CLOSING, f"{_CLOSING},{_CLOSING},{10**8}")])


def _write(spark: SparkSession, topics: Topics, rows: Rows) -> None:
    # One task, so that the topic has the order of the events.
    frame = spark.createDataFrame(rows, "key string, value string").coalesce(1)
    frame.write.format("kafka").option("kafka.bootstrap.servers", topics.servers).option(
        "topic", topics.events
    ).save()


def parsed(frame: DataFrame) -> DataFrame:
    """Return the id, user and time of the events in the records of a topic."""
    fields = f.split(f.col("value").cast("string"), ",")
    return frame.select(
        fields[0].alias("id"),
        fields[1].alias("user"),
        f.timestamp_seconds(fields[2].cast("long")).alias("time"),
    )


def _counts(events: DataFrame) -> DataFrame:
    return _counted(events, f.window("time", "10 minutes"))


def _sessions(events: DataFrame) -> DataFrame:
    return _counted(events, f.session_window("time", "5 minutes"))


def _counted(events: DataFrame, window: Column) -> DataFrame:
    counted = events.groupBy(window.alias("period"), "user").agg(f.count("*").alias("events"))
    key = f.concat_ws("@", "user", f.col("period.start").cast("long"))
    value = f.concat_ws(",", f.col("events"), f.col("period.end").cast("long"))
    return counted.select(key.alias("key"), value.alias("value"))


QUERIES: Mapping[str, tuple[Any, str]] = {"counts": (_counts, "update"), "sessions": (_sessions, "append")}
"""By name: what follows the deduplication of events, and the output mode."""


def start(
    spark: SparkSession,
    topics: Topics,
    query: str,
    checkpoint: str,
    limit: int,
    options: Mapping[str, str],
    *,
    available_now: bool,
) -> Any:
    """Start a query that reads at most `limit` events in a batch."""
    build, mode = QUERIES[query]
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", topics.servers)
    source = (
        source.option("subscribe", topics.events).option("startingOffsets", "earliest").options(**options)
    )
    events = parsed(source.option("maxOffsetsPerTrigger", limit).load()).withWatermark("time", _DELAY)
    rows = build(events.dropDuplicatesWithinWatermark(["id"]))
    sink = (
        rows.writeStream.format("kafka").option("kafka.bootstrap.servers", topics.servers).options(**options)
    )
    sink = (
        sink.option("topic", topics.topic_of(query)).option("checkpointLocation", checkpoint).outputMode(mode)
    )
    return (sink.trigger(availableNow=True) if available_now else sink).queryName(query).start()


def answer(spark: SparkSession, topics: Topics, query: str) -> dict[str, str]:
    build, _ = QUERIES[query]
    rows = build(parsed(read_topic(spark, topics, topics.events)).dropDuplicates(["id"])).collect()
    # The stream's session of the closing event is still open.
    return {row.key: row.value for row in rows if query == "counts" or not row.key.startswith(_CLOSING)}


def results_of(spark: SparkSession, topics: Topics, query: str) -> Rows:
    """Return what a query has written, as a consumer that skips aborted transactions reads it."""
    frame = read_topic(spark, topics, topics.topic_of(query)).orderBy("partition", "offset")
    return [
        (row.key, row.value)
        for row in frame.selectExpr("cast(key as string) key", "cast(value as string) value").collect()
    ]


def read_topic(spark: SparkSession, topics: Topics, topic: str) -> DataFrame:
    """Return the records of a topic, as a batch."""
    source = spark.read.format("kafka").option("kafka.bootstrap.servers", topics.servers)
    return source.option("subscribe", topic).option("kafka.isolation.level", "read_committed").load()


def assert_exact(expected: Mapping[str, str], rows: Rows, query: str) -> None:
    """Check the output of a sink that delivers at least once.

    In append mode the distinct records are the answer: a batch that runs again writes the same ones. In
    update mode the last value of each key is; no earlier one counts more events, nor fewer than one.
    """
    assert len(expected) > 300
    if query == "sessions":
        assert set(rows) == set(expected.items())
        return
    assert dict(rows) == expected
    for key, value in rows:
        assert 1 <= _events(value) <= _events(expected[key]), (key, value, expected[key])


def _events(value: str) -> int:
    return int(value.partition(",")[0])

"""Spark's benchmarks of stateful queries in real-time mode, from Kafka to Kafka, beside RocksDB."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import report, streaming
from benchmarks.report import Criterion, Result, figures, median
from benchmarks.sessions import Remote, SessionProcess, SessionSettings, log, session_processes
from benchmarks.stores import CHANGELOG, LIMIT, LIMIT_EXTENSIONS, OURS, PREFIX, bench, turns
from benchmarks.streaming import StoreConfig
from spark_statestore.options import OPTION_PREFIX, PROVIDER_KEY
from tests.spark.queries import configured
from tests.support.paths import TEST_JAR
from tests.support.services.kafka import connector, kafka

ROCKSDB = f"{CHANGELOG}, unforked"
STORES = (OURS, LIMIT, ROCKSDB)

MOST_P99 = 0.75
"""Largest p99 as a share of RocksDB's."""

FEEDER = "feeder"
"""Name of the session that writes the input and reads the output."""

PARTITIONS = 5
"""Partitions of each topic, and of the state; each has a task that runs for the whole batch."""

# As in Spark's benchmark: of the source and of the query.
_SOURCE_OPTIONS = {
    "startingOffsets": "earliest",
    "kafka.fetch.max.wait.ms": "10",
    "kafka.max.partition.fetch.bytes": "10485760",
}
_SINK_OPTIONS = {"kafka.buffer.memory": "67108864", "kafka.compression.type": "snappy"}
_CONFS = {
    "spark.sql.streaming.pollingDelay": "10ms",
    "spark.sql.streaming.realTimeMode.minBatchDuration": "1s",
    # Spark's list of operators has the class of its own transformWithState only.
    "spark.sql.streaming.realTimeMode.allowlistCheck": "false",
    "spark.sql.shuffle.partitions": str(PARTITIONS),
    # The merge of snapshots would fall into the batches of any store, without attribution.
    f"{PREFIX}maintenanceInterval": "1h",
}

_COMMIT_SECONDS = 120
_LEADER_SECONDS = 30

STEPS = ("latestOffset", "queryPlanning", "addBatch", "walCommit", "commitOffsets", "triggerExecution")
"""Steps of a batch in the order in which Spark takes them, and all of them; tasks run in `addBatch`."""

ABOUT = """The three stateful benchmarks of Spark's connector (`RTMKafkaStatefulBenchmarkBase`), from Kafka to
Kafka in real-time mode, at {rate:,} records a second, {partitions} partitions of each topic and of the state,
on a state of {fill:,} records. The broker and the feed run on the same machine. The latency of a record is
the time from its Kafka timestamp at the source to that of its result; with batches of {seconds} s, the
records that arrive between two batches are the slowest. *Pause* is the longest time without a result around
the start of each batch, the median of all; the steps of a batch are medians of Spark's progress. Each store
has a JVM of its own. They take turns, each for {turn} s, of which the first {warmup} s do not count, nor does
the first turn: {rounds} turns in changing order. The store that *{limit}* is a map in memory, with Spark's
own files written by the backend, as with this store; RocksDB has changelog checkpoints, and local files
without Hadoop's programs. No maintenance in the background. Milliseconds."""


@dataclass(frozen=True)
class Work:
    """A query over records of `key`, `value` and `source_millis`, the time of the record in milliseconds."""

    name: str
    build: Callable[[Any], Any]
    """Builds `key`, `value` and `source_millis` of the output."""
    keys: int
    """Number of different keys in the input."""
    repeated: int = 0
    """Each so manieth record has the key of the one before; 0 for none."""

    def num_results(self, records: int) -> int:
        """Return the number of output records for a number of input records."""
        return records - records // self.repeated if self.repeated else records


@dataclass(frozen=True)
class Size:
    """Amount of work."""

    rate: int = 500
    """Records a second."""
    fill: int = 50_000
    """Records before the first turn."""
    batch_seconds: int = 3
    turn_seconds: int = 26
    warmup_seconds: int = 8
    """Time at the start of a turn that does not count: about the first two batches."""
    rounds: int = 2


FULL = Size()
QUICK = Size(rate=200, fill=1_000, batch_seconds=2, turn_seconds=7, warmup_seconds=2, rounds=1)


def deduplicated(records: Any) -> Any:
    return records.selectExpr("cast(key as string) as id", "*").dropDuplicates(["id"])


def counted_by_window(records: Any) -> Any:
    from pyspark.sql import functions as F

    window = F.window(F.timestamp_millis("source_millis"), "1 minute")
    counts = records.groupBy(window, F.col("key").cast("string").alias("key"))
    counts = counts.agg(F.count(F.lit(1)).alias("count"), F.max("source_millis").alias("source_millis"))
    return counts.selectExpr("key", "cast(count as string) as value", "source_millis")


def transformed(records: Any) -> Any:
    from pyspark.sql import DataFrame

    spark = records.sparkSession
    keyed = records.selectExpr("cast(key as string) as key", "value", "source_millis as sourceMillis")
    results = DataFrame(bench(spark).CountedRecords.transform(keyed._jdf), spark)
    return results.withColumnRenamed("sourceMillis", "source_millis")


WORKS = (
    Work("dropDuplicates", deduplicated, keys=1 << 62, repeated=5),
    Work("window count", counted_by_window, keys=1_000),
    Work("transformWithState", transformed, keys=50_000),
)


@dataclass
class Measured:
    """Latencies of records, and the pauses between two batches, in milliseconds."""

    latencies: list[float] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    steps: list[dict[str, float]] = field(default_factory=list)
    """Durations of the steps of each batch, by their names in Spark's progress."""

    def latency(self, percent: int) -> float:
        return report.percentile(self.latencies, percent)

    @property
    def pause(self) -> float:
        return median(self.pauses)

    def step(self, name: str) -> float:
        return median([steps.get(name, 0.0) for steps in self.steps])


@dataclass(frozen=True)
class Turn:
    """A turn of a store: when the time that counts begins and ends, and the starts of batches in it."""

    begin: float
    end: float
    batches: dict[float, dict[str, float]]
    """Starts of batches, and the durations of their steps."""


Results = dict[str, dict[str, Measured]]
"""Measurements by query and store."""


def run(scratch: Path, quick: bool) -> Result:
    """Run every query on all stores."""
    size = QUICK if quick else FULL
    results: Results = {}
    with kafka() as broker, session_processes(scratch / "sessions", settings()) as processes:
        for number, work in enumerate(WORKS[-1:] if quick else WORKS):
            directory = scratch / f"{number}"
            results[work.name] = measure(processes, broker.servers, directory, work, size)
            log(table_of(work.name, results[work.name]))
    return Result(
        "\n\n".join([about(size), *(table_of(*entry) for entry in results.items())]), judge(results)
    )


def settings() -> dict[str, SessionSettings]:
    """Return the session of each store, and that of the feeder."""
    jars = ",".join(map(str, (*sorted(connector().glob("*.jar")), TEST_JAR)))
    # A slot for each task of source and state.
    own: Mapping[str, str] = {"spark.master": f"local[{2 * PARTITIONS}]", "spark.jars": jars} | _CONFS
    sessions = streaming.sessions_of(STORES)
    sessions[LIMIT] = replace(sessions[LIMIT], confs={"spark.sql.extensions": LIMIT_EXTENSIONS})
    sessions[FEEDER] = SessionSettings(memory="2g", spark_files="hadoop")
    return {name: replace(each, confs={**each.confs, **own}) for name, each in sessions.items()}


def measure(
    processes: Mapping[str, SessionProcess], servers: str, directory: Path, work: Work, size: Size
) -> dict[str, Measured]:
    """Run a query on each store in turn, and return its measurements."""
    queries: dict[str, Remote] = {}
    feeds: dict[str, Remote] = {}
    runs: dict[str, list[Turn]] = {name: [] for name in STORES}
    with ExitStack() as stack:
        for number, name in enumerate(STORES):
            topic = f"{directory.name}-{number}"
            config = streaming.config_of(name)
            feeds[name] = processes[FEEDER].create(Feed, servers, topic, work)
            feeds[name].write(size.fill, 0)
            stack.callback(feeds[name].close)
            checkpoint = directory / str(number)
            queries[name] = processes[name].create(
                RealTimeQuery, servers, topic, work, config, checkpoint, size.batch_seconds
            )
        for number, _, order in turns(STORES, 1 + size.rounds):
            for name in order:
                turn = run_turn(queries[name], feeds[name], size)
                if number > 0:
                    runs[name].append(turn)
        return {name: feeds[name].measured(runs[name]) for name in STORES}


def run_turn(query: Remote, feed: Remote, size: Size) -> Turn:
    """Run a query on a store for one turn."""
    begin = time.time()
    query.start()
    feed.write(size.turn_seconds * size.rate, size.rate)
    end = time.time()
    batches = query.stop_after(feed.count())
    counted = begin + size.warmup_seconds
    in_turn = {start: steps for start, steps in batches.items() if counted < start / 1000 < end}
    return Turn(1000 * counted, 1000 * end, in_turn)


class Feed:
    """The input of one query on one store, and its output."""

    def __init__(self, spark: Any, servers: str, topic: str, work: Work) -> None:
        self._spark = spark
        self._servers = servers
        self._topic = topic
        self._work = work
        create_topics(spark, servers, topic, output_of(topic))
        self._feed = bench(spark).PacedFeed(servers, topic, work.keys, work.repeated)

    def write(self, records: int, per_second: int) -> None:
        """Write records at a rate; 0 a second are as many as Kafka takes."""
        self._feed.write(records, per_second)

    def count(self) -> int:
        """Return the number of records that were written."""
        return int(self._feed.count())

    def measured(self, runs: list[Turn]) -> Measured:
        """Return the latencies of the records of turns.

        Raises
        ------
        RuntimeError
            The number of output records is wrong, so their times mean nothing.
        """
        output = self._spark.read.format("kafka").option("kafka.bootstrap.servers", self._servers)
        output = output.option("subscribe", output_of(self._topic)).option("includeHeaders", "true").load()
        columns = (
            "unix_millis(timestamp) as result_millis",
            "cast(cast(headers[0].value as string) as long) as source_millis",
        )
        rows = output.selectExpr(*columns).toArrow()
        records = self.count()
        expected = self._work.num_results(records)
        if rows.num_rows != expected:
            raise RuntimeError(
                f"{self._work.name} has {rows.num_rows:,} results of {records:,} records, not {expected:,}"
            )
        result_millis, source_millis = (rows[name].to_numpy() for name in ("result_millis", "source_millis"))
        measured = Measured()
        for turn in runs:
            counted = (source_millis >= turn.begin) & (source_millis < turn.end)
            measured.latencies += (result_millis[counted] - source_millis[counted]).tolist()
            measured.pauses += pauses(np.sort(result_millis), turn.batches)
            measured.steps += turn.batches.values()
        return measured

    def close(self) -> None:
        self._feed.close()


def pauses(result_millis: npt.NDArray[np.int64], starts: Iterable[float], around: int = 1_000) -> list[float]:
    """Return the longest time without a result around the start of each batch."""
    times = []
    for start in starts:
        near = result_millis[(result_millis > start - around) & (result_millis < start + around)]
        if len(near) > 1:
            times.append(float(np.diff(near).max()))
    return times


class RealTimeQuery:
    """A query on one store in real-time mode, which continues where it was stopped."""

    def __init__(
        self,
        spark: Any,
        servers: str,
        topic: str,
        work: Work,
        store: StoreConfig,
        checkpoint: Path,
        batch_seconds: int,
    ) -> None:
        self._spark = spark
        self._topic = topic
        self._query: Any = None
        self._confs = confs_of(store)
        # A query that is stopped logs an error for each task of its last batch; its failure is raised.
        spark.sparkContext.setLogLevel("OFF")
        # Spark refuses any class but RocksDB's; queries on the other stores get theirs when they start.
        spark.conf.unset(PROVIDER_KEY)
        source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
        source = source.options(**_SOURCE_OPTIONS).option("subscribe", topic).load()
        records = source.selectExpr("key", "value", "unix_millis(timestamp) as source_millis")
        header = "struct('source_millis' as key, cast(cast(source_millis as string) as binary) as value)"
        output = work.build(records).selectExpr(
            "cast(key as binary) as key", "cast(value as binary) as value", f"array({header}) as headers"
        )
        sink = output.writeStream.format("kafka").option("kafka.bootstrap.servers", servers)
        sink = sink.options(**_SINK_OPTIONS).option("topic", output_of(topic)).outputMode("update")
        sink = sink.option("checkpointLocation", str(checkpoint))
        self._sink = sink.trigger(realTime=f"{batch_seconds} seconds")

    def start(self) -> None:
        with configured(self._spark, self._confs):
            self._query = self._sink.start()

    def stop_after(self, records: int) -> dict[float, dict[str, float]]:
        """Wait for the commit of a number of records, stop, and return the batches as a `Turn` has them."""
        deadline = time.monotonic() + _COMMIT_SECONDS
        while self._committed() < records:
            if self._query.exception() is not None:
                raise self._query.exception()
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self._committed():,} of {records:,} records are committed")
            time.sleep(0.1)
        progress = list(self._query.recentProgress)
        self._query.stop()
        return {
            1000 * datetime.fromisoformat(batch["timestamp"]).timestamp(): dict(batch["durationMs"])
            for batch in progress
        }

    def _committed(self) -> int:
        last = self._query.lastProgress
        with suppress(TypeError, KeyError):
            return sum(json.loads(last["sources"][0]["endOffset"])[self._topic].values())
        return 0


def confs_of(store: StoreConfig) -> dict[str, str]:
    """Return the settings of a session while a query on a store starts."""
    if store.name == OURS:
        return {OPTION_PREFIX + "realTimeMode": "true"}
    if store.name == LIMIT:
        return {f"{PREFIX}bench.realTimeMode": "true"}
    return {PREFIX + key: value for key, value in store.settings.items()} | {PROVIDER_KEY: store.provider}


def output_of(topic: str) -> str:
    """Return the name of the topic with the results of those in a topic."""
    return f"{topic}-results"


def create_topics(spark: Any, servers: str, *names: str) -> None:
    """Create topics with `PARTITIONS` partitions, and wait until the broker leads each of them."""
    kafka = spark._jvm.org.apache.kafka
    admin = kafka.clients.admin
    settings = spark._jvm.java.util.HashMap()
    settings.put("bootstrap.servers", servers)
    topics, partitions = spark._jvm.java.util.ArrayList(), spark._jvm.java.util.HashMap()
    for name in names:
        topics.add(admin.NewTopic(name, PARTITIONS, 1))
        for number in range(PARTITIONS):
            partitions.put(kafka.common.TopicPartition(name, number), admin.OffsetSpec.latest())
    client = admin.AdminClient.create(settings)
    try:
        client.createTopics(topics).all().get()
        # A producer that meets a partition without a leader may wait for it for ever.
        _await_leaders(client, partitions)
    finally:
        client.close()


def _await_leaders(client: Any, partitions: Any) -> None:
    from py4j.protocol import Py4JJavaError

    deadline = time.monotonic() + _LEADER_SECONDS
    while True:
        try:
            client.listOffsets(partitions).all().get()
        except Py4JJavaError as error:
            # The broker does not know a new topic at once.
            if "UnknownTopicOrPartition" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def judge(results: Results) -> list[Criterion]:
    """Compare p99 of each query with RocksDB's."""
    return [
        Criterion(
            f"real-time mode, {name}: p99",
            measured[OURS].latency(99),
            MOST_P99,
            "ms",
            measured[ROCKSDB].latency(99),
            ROCKSDB,
        )
        for name, measured in results.items()
    ]


def table_of(name: str, stores: Mapping[str, Measured]) -> str:
    """Return the tables of a query: latencies, and the steps of a batch."""
    rows, steps = [], []
    for store, measured in stores.items():
        latencies = [measured.latency(percent) for percent in (50, 95, 99)]
        ratio = latencies[-1] / stores[ROCKSDB].latency(99)
        counts = [f"{len(measured.latencies):,}", str(len(measured.pauses))]
        rows.append([store, *counts, *figures(*latencies, ratio, measured.pause)])
        steps.append([store, *figures(*map(measured.step, STEPS))])
    header = ["store", "records", "batches", "p50", "p95", "p99", "p99 to RocksDB's", "pause"]
    latency = report.table(name, header, rows)
    return f"{latency}\n\n{report.table(f'{name}, steps of a batch', ['store', *STEPS], steps, level=4)}"


def about(size: Size) -> str:
    """Describe the measurement."""
    return ABOUT.format(
        rate=size.rate,
        partitions=PARTITIONS,
        fill=size.fill,
        seconds=size.batch_seconds,
        turn=size.turn_seconds,
        warmup=size.warmup_seconds,
        rounds=size.rounds,
        limit=LIMIT,
    )

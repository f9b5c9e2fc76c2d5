"""End-to-end latency of stateful queries in real-time mode from a Kafka topic to another, on this store and Spark's RocksDB."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import race_apart, report, session
from benchmarks.contest import OURS, PREFIX, PROVIDERS, ROCKSDB, UNFORKED, UNFORKED_FILES, turns
from benchmarks.race_apart import Host
from benchmarks.report import figures
from benchmarks.result import Criterion, Result
from spark_statestore.options import OPTION_PREFIX, PROVIDER_KEY
from tests.spark.queries import unload_all
from tests.support.paths import TEST_JAR
from tests.support.services.kafka import connector, kafka

TUNED = "RocksDB, changelog, unforked"
STORES = (OURS, ROCKSDB, TUNED)

KEYS = 1_000
"""Number of keys; event number ``i`` has key ``i % KEYS``."""

ABOUT = """{rate} events a second from one Kafka topic to another, on one broker, with 2 partitions of the topic and 2 of the state, after
{fill:,} events that fill the state. Each store has a JVM of its own, ours as `configure` sets it; they take turns, {rounds} rounds of {seconds} s each,
after {warmup} s to warm up. Batches of {batch} s: several commits fall in each round, and the events that wait for them count. An event's latency
begins when its producer sends it, and ends when the broker appends the result; milliseconds, medians of the rounds."""


@dataclass(frozen=True)
class Plan:
    """Amount of work.

    Parameters
    ----------
    queries
        Names of `QUERIES`.
    rounds
        Number of rounds of each store.
    warmup, seconds
        Seconds of a round before those that count, and of those that do.
    rate
        Events in a second.
    batch
        Seconds of a batch.
    fill
        Number of events that fill the state.
    """

    queries: tuple[str, ...] = ("count by key", "dedup", "transformWithState")
    rounds: int = 3
    warmup: int = 6
    seconds: int = 15
    rate: int = 200
    batch: int = 5
    fill: int = 50_000


FULL = Plan()
QUICK = Plan(queries=("count by key",), rounds=1, seconds=6, fill=1_000)


@dataclass(frozen=True)
class Round:
    """Latencies in milliseconds of the events of a round, in their order."""

    latencies: list[int]

    def percentile(self, percent: int) -> float:
        return report.percentile(list(map(float, self.latencies)), percent)


Rounds = dict[str, list[Round]]
"""By store."""


def counted(events: Any) -> Any:
    return events.groupBy((events.number % KEYS).alias("k")).count()


def deduplicated(events: Any) -> Any:
    return events.dropDuplicates(["number"]).selectExpr(f"number % {KEYS}", f"number div {KEYS} + 1")


def transformed(events: Any) -> Any:
    from pyspark.sql import DataFrame

    spark = events.sparkSession
    processors = spark._jvm.org.apache.spark.sql.statestore.transform.Processors
    return DataFrame(processors.counted(events._jdf, KEYS), spark)


QUERIES: Mapping[str, Callable[[Any], Any]] = {
    "count by key": counted,
    "dedup": deduplicated,
    "transformWithState": transformed,
}
"""Queries that emit a key and its number of events, for each event."""


@dataclass(frozen=True)
class Run:
    """A query on one store: its topics, its checkpoint, and the settings of its session."""

    query: str
    servers: str
    name: str
    checkpoint: str
    settings: Mapping[str, str]

    @property
    def events(self) -> str:
        return f"{self.name}-events"

    @property
    def results(self) -> str:
        return f"{self.name}-results"


def run(scratch: Path, quick: bool) -> Result:
    """Run each query on all stores in turn."""
    plan = QUICK if quick else FULL
    jars = ",".join(map(str, (TEST_JAR, *sorted(connector().glob("*.jar")))))
    confs = {"master": "local[6]", "sql__shuffle__partitions": "2", "jars": jars}
    hosts = {
        name: Host(memory="1g", spark_files="backend" if name == OURS else "hadoop", confs=confs)
        for name in STORES
    }
    found: dict[str, Rounds] = {}
    with kafka() as broker, race_apart.hosting(scratch / "hosts", hosts) as running:
        for query in plan.queries:
            found[query] = {name: [] for name in STORES}
            runs = {}
            for number, name in enumerate(STORES):
                topic = f"{number}-{query.replace(' ', '-')}"
                runs[name] = Run(query, broker.servers, topic, str(scratch / topic), settings_of(name))
                running.ask(name, _fill, runs[name], plan)
            for turn, _, order in turns(STORES, plan.rounds):
                for name in order:
                    first = plan.fill + turn * plan.rate * (plan.warmup + plan.seconds)
                    found[query][name].append(running.ask(name, _round, runs[name], plan, first))
                    p50, p99 = (found[query][name][-1].percentile(percent) for percent in (50, 99))
                    session.log(f"{query}, {name}: p50 {p50:.0f} ms, p99 {p99:.0f} ms")
    samples = {
        query: {name: list(map(asdict, of)) for name, of in rounds.items()} for query, rounds in found.items()
    }
    return Result(
        "real_time", tables(found, plan), criteria(found), {"plan": asdict(plan), "latencies": samples}
    )


def settings_of(name: str) -> dict[str, str]:
    """Return the settings of a store's session, which real-time mode permits for Spark's RocksDB provider only."""
    if name == OURS:
        return {OPTION_PREFIX + "realTimeMode": "true"}
    provider, settings = (PROVIDERS | UNFORKED)[name]
    own = {key if key in UNFORKED_FILES else PREFIX + key: value for key, value in settings.items()}
    return own | {PROVIDER_KEY: provider}


def typical(rounds: list[Round], percent: int) -> float:
    """Return the median of a percentile of each round."""
    return report.median([found.percentile(percent) for found in rounds])


def criteria(found: dict[str, Rounds]) -> list[Criterion]:
    """Require each query to be at most as late as on the better RocksDB."""
    judged = []
    for query, rounds in found.items():
        for percent in (50, 99):
            of = {name: typical(rounds[name], percent) for name in STORES}
            best = min((ROCKSDB, TUNED), key=of.__getitem__)
            work = f"real-time {query}, end to end: p{percent}"
            judged.append(Criterion(work, of[OURS], 1, "ms", of[best], best))
    return judged


def tables(found: dict[str, Rounds], plan: Plan) -> str:
    """Return a table of all queries and stores."""
    header = ["query, store", "events", "p50", "p99", "maximum", "p50 to ours", "p99 to ours"]
    rows = []
    for query, rounds in found.items():
        for name, of in rounds.items():
            measured = [typical(of, percent) for percent in (50, 99, 100)]
            ratios = (typical(of, percent) / typical(rounds[OURS], percent) for percent in (50, 99))
            events = sum(len(one.latencies) for one in of)
            rows.append(
                [f"{query}, {name}", f"{events:,}", *(f"{ms:,.0f}" for ms in measured), *figures(*ratios)]
            )
    return "\n\n".join(
        [ABOUT.format(**asdict(plan)), report.table("Latency in real-time mode", header, rows)]
    )


# The following functions run in the process of a host.


def _fill(spark: Any, run: Run, plan: Plan) -> None:
    """Create the topics, and write the events that fill the state."""
    clients = spark._jvm.org.apache.kafka.clients
    absent = spark._jvm.java.util.Optional.empty()
    admin = clients.admin.AdminClient.create({"bootstrap.servers": run.servers})
    # The broker's time, as the producer's is that of the call which sends a record.
    stamped = {run.events: "CreateTime", run.results: "LogAppendTime"}
    made = [
        clients.admin.NewTopic(topic, absent, absent).configs({"message.timestamp.type": stamp})
        for topic, stamp in stamped.items()
    ]
    admin.createTopics(made).all().get()
    admin.close()
    events = spark.range(plan.fill).selectExpr(f"cast(id % {KEYS} as string) key", "cast(id as string) value")
    sink = events.write.format("kafka").option("kafka.bootstrap.servers", run.servers)
    sink.option("topic", run.events).save()


def _round(spark: Any, run: Run, plan: Plan, first: int) -> Round:
    """Run the query while events are written at a steady rate, from one number on; the first round begins with the fill."""
    from pyspark.sql import functions

    query = _start(spark, run, plan)
    try:
        _wait(spark, query, run, first - 1)
        _feed(spark, run, plan, first)
        last = first + plan.rate * (plan.warmup + plan.seconds) - 1
        _wait(spark, query, run, last)
    finally:
        query.stop()
        unload_all(spark)
    measured = first + plan.rate * plan.warmup
    sent = _read(spark, run, run.events).selectExpr(
        "cast(cast(value as string) as int) number", "timestamp sent"
    )
    rows = sent.where(f"number >= {measured}").join(_results(spark, run), "number")
    # A round ends within a batch, whose results the next round writes again.
    latency = "min(unix_millis(written)) - min(unix_millis(sent)) as latency"
    found = rows.groupBy("number").agg(functions.expr(latency)).orderBy("number").collect()
    if len(found) != last - measured + 1:
        raise RuntimeError(f"{run.name}: {len(found)} events of {last - measured + 1} have a result.")
    return Round([row.latency for row in found])


def _start(spark: Any, run: Run, plan: Plan) -> Any:
    real_time = spark.newSession()
    real_time.conf.unset(PROVIDER_KEY)
    # Spark's list has the class of its own operator of transformWithState only.
    settings = {"spark.sql.streaming.realTimeMode.allowlistCheck": "false"} | dict(run.settings)
    for key, value in settings.items():
        real_time.conf.set(key, value)
    source = real_time.readStream.format("kafka").option("kafka.bootstrap.servers", run.servers)
    source = source.option("subscribe", run.events).option("startingOffsets", "earliest")
    events = source.load().selectExpr("cast(cast(value as string) as int) as number")
    rows = QUERIES[run.query](events).toDF("key", "value")
    rows = rows.selectExpr("cast(key as string) key", "cast(value as string) value")
    sink = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", run.servers)
    sink = sink.option("topic", run.results).option("checkpointLocation", run.checkpoint).outputMode("update")
    return sink.trigger(realTime=f"{plan.batch} seconds").start()


def _feed(spark: Any, run: Run, plan: Plan, first: int) -> None:
    clients = spark._jvm.org.apache.kafka.clients.producer
    text = spark._jvm.org.apache.kafka.common.serialization.StringSerializer
    producer = clients.KafkaProducer({"bootstrap.servers": run.servers}, text(), text())
    begin = time.monotonic()
    for sent in range(plan.rate * (plan.warmup + plan.seconds)):
        time.sleep(max(0, begin + sent / plan.rate - time.monotonic()))
        number = first + sent
        producer.send(clients.ProducerRecord(run.events, str(number % KEYS), str(number)))
    producer.close()


def _wait(spark: Any, query: Any, run: Run, number: int) -> None:
    """Wait until the results of an event and of the last one before it of each other key are in the topic."""
    for _ in range(60):
        time.sleep(1)
        if query.exception() is not None:
            raise query.exception()
        last = _results(spark, run).where(f"number > {number - KEYS}").select("number")
        if last.distinct().count() == KEYS:
            return
    raise RuntimeError(f"{run.name}: no result of event {number} in time: {query.lastProgress}")


def _results(spark: Any, run: Run) -> Any:
    """Return the numbers of the events with a result, and its time."""
    number = f"(cast(cast(value as string) as int) - 1) * {KEYS} + cast(cast(key as string) as int) number"
    return _read(spark, run, run.results).selectExpr(number, "timestamp written")


def _read(spark: Any, run: Run, topic: str) -> Any:
    source = spark.read.format("kafka").option("kafka.bootstrap.servers", run.servers)
    return source.option("subscribe", topic).load()

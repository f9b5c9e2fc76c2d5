"""Test program: stateful queries on two executors, with every fault that can affect a task.

The only argument is a JSON object: ``directory`` to work in, ``jar``, and ``operators`` to run in both
checkpoint formats: lists of those that run concurrently. The session is one of a standalone cluster with two
workers of different addresses: Spark starts no speculative copy on the host of the first attempt.
"""

import contextlib
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psutil
import pyarrow as pa
from pyspark import SparkConf, SparkContext
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import spark_statestore
from spark_statestore.options import StorageOptions
from spark_statestore.storage.checkpoint_storage import CheckpointName
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.metadata import StoreId
from spark_statestore.store.reader import read_version
from tests.spark.counting import jvm_of, report, runs, wait_until
from tests.spark.harness import IMMEDIATE_CLEANUP
from tests.spark.queries import OURS, Query
from tests.support.services.service import free_port
from tests.support.sessions import local_builder

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts", pa.timestamp("us", tz="UTC"))])
START = datetime(2024, 1, 1, tzinfo=UTC)
FAULTS = "0=raise+after+kill,1=twice,2=lose"
RETAINED = 1


def rows(number):
    """Return the rows of a batch: new keys and old ones, an hour after the batch before."""
    ts = START + timedelta(hours=number)
    return [
        {"k": key, "v": 1000 * number + key, "ts": ts + timedelta(minutes=key % 60)}
        for key in range(number * 10, number * 10 + 40)
    ]


def counts(stream):
    return stream.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("v"))


def counts_of(batches):
    totals, out = {}, Counter()
    for batch in batches:
        for row in batch:
            n, v = totals.get(row["k"], (0, 0))
            totals[row["k"]] = n + 1, v + row["v"]
            out[row["k"], n + 1, v + row["v"]] += 1
    return out


def distinct(stream):
    return stream.dropDuplicates(["k"]).select("k")


def distinct_of(batches):
    return Counter({(row["k"],): 1 for batch in batches for row in batch})


def joined(stream):
    timed = stream.withWatermark("ts", "0 seconds")
    left = timed.where("v % 2 = 0").selectExpr("k as l", "v as lv", "ts as left_ts")
    right = timed.where("v % 3 > 0").selectExpr("k as r", "v as rv", "ts as right_ts")
    near = F.expr("l = r and right_ts between left_ts and left_ts + interval 90 minutes 30 seconds")
    return left.join(right, near, "left_outer").select("lv", "rv")


def joined_of(batches):
    """Return the matches, and the unmatched rows that the watermark of the last batch has passed."""
    every = [row for batch in batches for row in batch]
    end = max(row["ts"] for row in batches[-2])
    out = Counter()
    for left in every:
        if left["v"] % 2:
            continue
        last = left["ts"] + timedelta(minutes=90, seconds=30)
        near = [
            right["v"]
            for right in every
            if right["v"] % 3 and right["k"] == left["k"] and left["ts"] <= right["ts"] <= last
        ]
        out.update((left["v"], right) for right in near)
        if not near and last < end:
            out[left["v"], None] += 1
    return out


def processed(stream):
    # A local function, so that Spark's workers receive it by value and need not import this program.
    class Counts(StatefulProcessor):
        def init(self, handle):
            self._state = handle.getValueState("counts", "n bigint, v bigint")

        def handleInputRows(self, key, rows, timerValues):
            n, v = self._state.get() or (0, 0)
            for row in rows:
                n, v = n + 1, v + row.v
            self._state.update((n, v))
            yield Row(k=key[0], n=n, v=v)

    return stream.groupBy("k").transformWithState(
        Counts(), "k bigint, n bigint, v bigint", outputMode="Update", timeMode="None"
    )


@dataclass(frozen=True)
class Operator:
    """A query, its complete expected output, and the reader of its state."""

    build: Callable[[Any], Any]
    mode: str
    expected: Callable[[list[Any]], Counter[Any]]
    reading: dict[str, str] = field(default_factory=dict)
    provider: str = OURS
    join_format: str = "2"


OPERATORS = {
    "aggregation": Operator(counts, "update", counts_of),
    "dropDuplicates": Operator(distinct, "append", distinct_of),
    "join, state format 2": Operator(joined, "append", joined_of, {"storeName": "left-keyWithIndexToValue"}),
    "join, state format 4": Operator(
        joined, "append", joined_of, {"storeName": "left-keyWithTsToValues"}, OURS, "4"
    ),
    "transformWithState": Operator(processed, "update", counts_of, {"stateVarName": "counts"}),
}


def live(spark, directory, name, checkpoint_format):
    """Run one query from its first batch to the cleanup of the files that its failures left."""
    operator = OPERATORS[name]
    markers = directory / "markers"
    markers.mkdir(parents=True)
    strike = f"reflect('org.apache.spark.sql.statestore.TaskFaults', 'strike', '{markers}', '{FAULTS}') = ''"
    query = Query(
        spark,
        directory,
        lambda stream: operator.build(stream).where(strike),
        operator.mode,
        SCHEMA,
        provider=operator.provider,
        checkpoint_format=checkpoint_format,
        confs={
            "spark.sql.streaming.minBatchesToRetain": str(RETAINED),
            "spark.sql.streaming.noDataMicroBatches.enabled": "false",
            "spark.sql.streaming.join.stateFormatVersion": operator.join_format,
        }
        | IMMEDIATE_CLEANUP,
        collect=lambda batch: [tuple(row) for row in batch.collect()],
    )
    put_out = {}
    again = []

    def run(*numbers):
        query.feed(*(rows(number) for number in numbers))
        for number, output in query.run():
            if number in put_out:
                again.append(put_out[number] == output)
            put_out[number] = output

    run(0, 1)
    # As if the driver had died between the commits of state and the entry in its commit log.
    query.forget_newest_commit()
    with watched(query) as stored_attempts:
        run(2)
    run(3, 4, 5)
    # Cleanups run in Spark's maintenance, which may end with a query before the last one.
    for number in (6, 7, 8):
        # The newest but one is the newest version known to be committed.
        oldest = int(query.commits[-1].name) - RETAINED
        cleaned = wait_until(lambda oldest=oldest: oldest <= oldest_version(query), 30)
        if cleaned:
            break
        run(number)
    out = Counter()
    for output in put_out.values():
        out.update(output)
    batches = [rows(number) for number in put_out]
    return {
        "operator": name,
        "format": checkpoint_format,
        "faults": sorted(marker.name for marker in markers.iterdir() if marker.name[0].isdigit()),
        "output is exact": out == Counter({repr(row): n for row, n in operator.expected(batches).items()}),
        "output was the same again": again,
        "most attempts of a version": max(
            Counter((store, version) for store, version, _ in stored_attempts).values()
        ),
        "old attempts are removed": cleaned,
        # Metadata is deleted first, and then the streams.
        "old streams are removed": wait_until(lambda: streams(query, oldest) <= used_streams(query), 120),
        "batches that load": [
            int(commit.name) - oldest for commit in query.commits if loads(query, int(commit.name), operator)
        ],
    }


def loads(query, batch, operator):
    """Return whether the state after a batch can be read."""
    reader = query.spark.read.format("statestore").options(batchId=batch, **operator.reading)
    return reader.load(str(query.checkpoint)).count() > 0


def slug(name):
    """Return a directory name: Spark's reader of state cannot handle blanks."""
    return "".join(filter(str.isalnum, name))


def stored(query):
    """Return every file of a query's state; files may be deleted concurrently."""
    return [Path(root, name) for root, _, names in os.walk(query.checkpoint / "state") for name in names]


def attempts(query):
    """Return the stored attempts of a query: store, version, and the name of the attempt's directory."""
    directories = [path.parent for path in stored(query) if path.name == "_metadata"]
    names = [
        (path.parent, CheckpointName.parse(path.name)) for path in directories if path.name[:4] == "chk-"
    ]
    return [(store, name.version, name) for store, name in names]


@contextlib.contextmanager
def watched(query):
    """Collect the attempts that a query stores meanwhile: a cleanup may remove some of them at once."""
    stored_attempts, ended = set(attempts(query)), Event()

    def watch():
        while not ended.wait(0.05):
            with contextlib.suppress(OSError):
                stored_attempts.update(attempts(query))

    thread = Thread(target=watch)
    thread.start()
    try:
        yield stored_attempts
    finally:
        ended.set()
        thread.join()
    stored_attempts.update(attempts(query))


def oldest_version(query):
    return min(version for _, version, _ in attempts(query))


def streams(query, before):
    """Return the state files written for versions before this one."""
    names = [path.name for path in stored(query) if path.parent.name == "shared"]
    return {name for name in names if int(name.lstrip(".").partition("-")[0]) < before}


def used_streams(query):
    """Return the state files used by stored attempts; reads them all."""
    names = set()
    for directory, _, name in attempts(query):
        operator, partition, *named = directory.relative_to(query.checkpoint / "state").parts
        store = StoreDirectory(
            StoreId(int(operator), int(partition), *named), str(directory), StorageOptions()
        )
        metadata = store.load(name)
        for _ in read_version(store, name, metadata):
            pass
        names |= {Path(entry.state.stream_state_handle_id).name for entry in metadata.handle}
    return names


def start_cluster(builder, directory):
    """Start a session with two executors, on workers with different addresses."""
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    builder.config("spark.master", url)
    conf = SparkConf()
    conf.setAll([(key, str(value)) for key, value in builder._options.items()])
    SparkContext._ensure_initialized(conf=conf)
    jvm = SparkContext._jvm
    deploy, none = jvm.org.apache.spark.deploy, getattr(jvm.scala, "None$").__getattr__("MODULE$")
    settings = jvm.org.apache.spark.SparkConf()
    deploy.master.Master.startRpcEnvAndEndpoint("127.0.0.1", port, 0, settings)
    urls = SparkContext._gateway.new_array(jvm.java.lang.String, 1)
    urls[0] = url
    for number in (1, 2):
        work = str(directory / f"work-{number}")
        deploy.worker.Worker.startRpcEnvAndEndpoint(
            f"127.0.0.{number}", 0, 0, 24, 1024, urls, work, jvm.scala.Some(number), settings, none
        )
    return builder.getOrCreate()


def executors(spark):
    """Return the processes of the running executors."""
    kind = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
    return [p for p in psutil.Process(jvm_of(spark)).children() if runs(p, kind)]


def do_harm(spark, directory, lives, ended):
    """Kill the tasks that request it, and all executors once both tasks of every query wait for that."""
    killed = set()
    lost = False
    while not ended.wait(0.1):
        for marker in set(directory.glob("*/markers/kill-*")) - killed:
            killed.add(marker)
            spark.sparkContext._jsc.sc().killTaskAttempt(
                int(marker.name[5:]), True, "this task is killed once"
            )
        if not lost and len(list(directory.glob("*/markers/*-lose-*"))) == 2 * lives:
            lost = True
            for process in executors(spark):
                process.kill()
            for markers in directory.glob("*/markers"):
                (markers / "lost").touch()


def live_together(spark, directory, operators):
    """Run operators in both checkpoint formats concurrently, and report their results."""
    chosen = [(name, number) for name in operators for number in (1, 2)]
    ended = Event()
    harm = Thread(target=do_harm, args=(spark, directory, len(chosen), ended))
    harm.start()
    try:
        with ThreadPoolExecutor(len(chosen)) as pool:
            lives = [
                pool.submit(live, spark.newSession(), directory / f"{slug(name)}-{number}", name, number)
                for name, number in chosen
            ]
            for life in lives:
                report("life", life.result())
    finally:
        ended.set()
        harm.join()


def main():
    arguments = json.loads(sys.argv[1])
    directory = Path(arguments["directory"])
    builder = local_builder("faults", memory="1g")
    settings = {
        "spark.executor.memory": "700m",
        # Spark starts speculative copies only in stages with no more tasks than an executor has cores.
        "spark.executor.cores": "24",
        "spark.ui.showConsoleProgress": "false",
        "spark.task.maxFailures": "20",
        "spark.locality.wait": "0",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.task.duration.threshold": "2s",
        # Spark otherwise requests blocks of a lost executor again and again.
        "spark.shuffle.io.maxRetries": "1",
        "spark.shuffle.io.retryWait": "100ms",
        "spark.sql.streaming.stateStore.maintenanceInterval": "4s",
        "spark.jars": arguments["jar"],
        "spark.pyspark.python": sys.executable,
    }
    for key, value in settings.items():
        builder.config(key, value)
    spark = start_cluster(spark_statestore.configure(builder), directory)
    spark.sparkContext.setLogLevel("ERROR")
    assert wait_until(lambda: spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() == 3, 60)
    try:
        for number, operators in enumerate(arguments["operators"]):
            live_together(spark, directory / str(number), operators)
    finally:
        spark.stop()
    report("stopped")
    sys.stdin.readline()


main()

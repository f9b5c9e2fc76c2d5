"""Test program: each stateful operator below ``foreachBatch``, which reads its batch in every way.

Rows and state are compared.

    python -m tests.spark.programs.foreach_batch --batches 1000 --master 'local[4,4]'

Each batch is read in another way, see `READS`. Without ``--directory`` the checkpoints are in a temporary
one. The last line is a summary, and the exit code 1 if a query failed, or a row or a state was not what the
input makes it.
"""

import argparse
import os
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from pyspark import cloudpickle
from pyspark.sql import functions as F

import spark_statestore
from spark_statestore.options import PROVIDER_KEY
from tests.spark import batch_operators
from tests.spark.batch_operators import COLUMNS, OPERATORS, write_input
from tests.spark.counting import cluster_environment, failure_of
from tests.spark.queries import OURS, ROCKSDB, SPARKS, STATE_STORE
from tests.support.paths import TEST_JAR
from tests.support.sessions import local_builder

PROVIDERS = {"statestore": OURS, "rocksdb": ROCKSDB, "hdfs": SPARKS}

SETTINGS = {
    "spark.ui.showConsoleProgress": "false",
    # Fewer than half of the cores, so that two tasks read one partition at once.
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    STATE_STORE + "maintenanceInterval": "2s",
    STATE_STORE + "minDeltasForSnapshot": "3",
    # A store of RocksDB that another task has makes a task wait; some of Spark's own operators wait for
    # themselves.
    STATE_STORE + "rocksdb.lockAcquireTimeoutMs": "20000",
}


@dataclass
class Life:
    """One query: its reads and what was wrong about them."""

    session: object
    checkpoint: str
    operator: object
    keys: int
    reads: tuple[str, ...]
    batches: int = 0
    read: int = 0
    wrong: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    beside: list[threading.Thread] = field(default_factory=list)

    def sink(self, batch, number):
        way = self.reads[number % len(self.reads)]
        for rows in READS[way](self, batch, number):
            self.compare(rows, self.operator.rows(number, self.keys), f"batch {number} ({way})")
        self.batches += 1

    def read_state(self, session, number):
        """Compare the state after a batch, as Spark's data source reads it, with what the input makes it."""
        reader = session.read.format("statestore").options(batchId=number, **self.operator.options)
        found = reader.load(self.checkpoint).selectExpr(*self.operator.columns).collect()
        self.compare(
            map(self.operator.decode, found),
            self.operator.state(number, self.keys),
            f"state after batch {number}",
        )

    def compare(self, rows, expected, what):
        rows, expected = Counter(map(tuple, rows)), Counter(expected)
        self.read += 1
        if rows != expected:
            surplus, missing = rows - expected, expected - rows
            some = [sorted(one)[:1] for one in (surplus, missing)]
            self.wrong.append(
                f"{what}: {surplus.total()} rows too many, {missing.total()} missing; such as {some[0]}, "
                f"{some[1]}"
            )


def once(life, batch, number):
    yield batch.collect()


def twice(life, batch, number):
    yield batch.collect()
    yield batch.collect()


def in_a_job_group(life, batch, number):
    batch.sparkSession.sparkContext.setJobGroup(f"batch {number}", "a job group of the sink")
    yield batch.collect()


def beside_its_state(life, batch, number):
    """Read the state of the batch before, within the sink, before and after the batch's own."""
    if number:
        life.read_state(batch.sparkSession, number - 1)
    rows = batch.collect()
    if number:
        life.read_state(batch.sparkSession, number - 1)
    yield rows


def beside_a_thread(life, batch, number):
    """Read the state of the batch before in another thread, which may go on until the next batch."""

    def read():
        try:
            for _ in range(3):
                life.read_state(life.session, number - 1)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
            life.errors.append(f"the state cannot be read beside batch {number}: {error}")

    if number:
        life.beside.append(threading.Thread(target=read))
        life.beside[-1].start()
    yield batch.collect()


def in_threads(count):
    def read(life, batch, number):
        with ThreadPoolExecutor(count) as pool:
            yield from [job.result() for job in [pool.submit(batch.collect) for _ in range(count)]]

    return read


def in_one_action(life, batch, number):
    """Join two aggregates of the batch: two stages over each partition, which run concurrently."""
    yield joined(batch.repartition(2), batch.repartition(3))


def in_one_task(life, batch, number):
    """Do the same without a shuffle where the operator's key is the group's.

    One task opens a partition twice.
    """
    yield joined(batch, batch)


def joined(left, right):
    columns = left.columns
    counted = left.groupBy(columns).agg(F.count("*").alias("times"))
    largest = right.groupBy(columns).agg(F.max(F.struct(columns)).alias("largest"))
    return counted.join(largest, columns).where("times = 1").select(columns).collect()


READS = {
    "once": once,
    "twice": twice,
    "job_group": in_a_job_group,
    "state": beside_its_state,
    "state_in_thread": beside_a_thread,
    "2_threads": in_threads(2),
    "8_threads": in_threads(8),
    "one_action": in_one_action,
    "one_task": in_one_task,
}
"""Ways of reading a batch.

That after `twice` reads once, so that what it loads is for the sake of the batch before.
"""


def live(spark, asked, directory, name, checkpoint_format, reads):
    """Run one query over all input, and return its life."""
    operator = OPERATORS[name]
    session = spark.newSession()
    session.conf.set(STATE_STORE + "checkpointFormatVersion", str(checkpoint_format))
    session.conf.set(PROVIDER_KEY, PROVIDERS[asked.provider])
    keys = asked.keys // operator.share
    life = Life(session, f"{directory}/{name}-{checkpoint_format}-{reads[0]}", operator, keys, reads)
    rows = session.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(f"{directory}/input")
    query = (
        operator.build(rows.where(F.col("k") < keys), keys)
        .writeStream.outputMode(operator.mode)
        .option("checkpointLocation", life.checkpoint)
        .foreachBatch(life.sink)
        .trigger(availableNow=True)
        .start()
    )
    try:
        if not query.awaitTermination(asked.timeout):
            life.errors.append(f"the query does not end within {asked.timeout} s")
    except Exception:  # noqa: BLE001 - the JVM's has all messages
        way = reads[life.batches % len(reads)]
        life.errors.append(f"the query failed in batch {life.batches} ({way}): {reason(query)}")
    query.stop()
    for thread in life.beside:
        thread.join()
    if not life.errors:
        life.read_state(session, life.batches - 1)
    if asked.provider == "statestore" and life.batches:
        problems = spark_statestore.verify(life.checkpoint).problems
        life.errors += [f"the last batch is not intact: {problem.message}" for problem in problems]
    life.errors += reloads(query, asked, reads)
    return life


def reason(query):
    """Return the lines of a failed query's messages that name an error, without repetitions."""
    lines = re.findall(
        r"^.*(?:Exception|Error|Caused by|\[[A-Z_.]+\]).*$", failure_of(query) or "", re.MULTILINE
    )
    told = dict.fromkeys(
        line.strip() for line in lines if "FOREACH_BATCH_USER" not in line and "File " not in line
    )
    return " | ".join(told)


def reloads(query, asked, reads):
    """Return an error for each batch that loaded state again since the batch before was read twice."""
    errors = []
    if asked.provider == "statestore" and asked.master.startswith("local["):
        for progress in query.recentProgress:
            before = reads[(progress.batchId - 1) % len(reads)]
            loaded = sum(node.customMetrics.get("checkpointLoadBytes", 0) for node in progress.stateOperators)
            if progress.batchId and before == "twice" and loaded:
                errors.append(
                    f"batch {progress.batchId} loads {loaded} bytes after a batch that was read twice"
                )
    return errors


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=160, help="batches of all queries together (160)")
    parser.add_argument("--master", default="local[4]")
    parser.add_argument("--provider", choices=PROVIDERS, default="statestore")
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--timeout", type=int, default=600, help="seconds of one query (600)")
    parser.add_argument("--directory", help="for input and checkpoints")
    parser.add_argument(
        "--commit", choices=["batch", "task"], help="the option commit (by default that of the master)"
    )
    names = {"nargs": "+", "metavar": "NAME"}
    parser.add_argument("--operators", choices=OPERATORS, default=list(OPERATORS), **names)
    parser.add_argument("--formats", type=int, choices=[1, 2], default=[1, 2], nargs="+")
    parser.add_argument("--reads", choices=READS, default=list(READS), **names)
    parser.add_argument("--each", action="store_true", help="a query for each way of reading")
    return parser.parse_args()


def main():
    asked = parse()
    with nullcontext(asked.directory) if asked.directory else tempfile.TemporaryDirectory() as directory:
        sys.exit(run(asked, directory))


def run(asked, directory):
    orders = [(way,) for way in asked.reads] if asked.each else [tuple(asked.reads)]
    queries = [
        (name, number, reads)
        for name, number, order in product(asked.operators, asked.formats, orders)
        if (reads := tuple(way for way in order if way not in OPERATORS[name].refused))
    ]
    write_input(Path(directory, "input"), -(-asked.batches // len(queries)), asked.keys)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.update(cluster_environment(Path(directory)))
    # Executors cannot import it.
    cloudpickle.register_pickle_by_value(batch_operators)
    builder = local_builder("foreachBatch", memory="2g", master=asked.master).config("spark.jars", TEST_JAR)
    for key, value in SETTINGS.items():
        builder.config(key, value)
    options = {"commit": asked.commit} if asked.commit else {}
    spark = spark_statestore.configure(builder, **options).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    batches = read = wrong = failed = 0
    for name, checkpoint_format, reads in queries:
        start = time.monotonic()
        life = live(spark, asked, directory, name, checkpoint_format, reads)
        batches, read = batches + life.batches, read + life.read
        wrong, failed = wrong + len(life.wrong), failed + bool(life.errors)
        verdict = (
            f"{len(life.wrong)} of {life.read} reads wrong" if life.wrong else f"{life.read} reads right"
        )
        seconds = time.monotonic() - start
        ways = " ".join(reads) if asked.each else "in turns"
        print(
            f"{name} v{checkpoint_format} {ways}: {life.batches} batches, {verdict} ({seconds:.0f} s)",
            flush=True,
        )
        for text in life.wrong[:3] + life.errors[:3]:
            print("   ", " ".join(text.split())[:600], flush=True)
    spark.stop()
    print(
        f"{asked.provider} on {asked.master}: {len(queries)} queries, {batches} batches, {read} reads: "
        f"{failed} queries failed, {wrong} reads wrong",
        flush=True,
    )
    return 1 if failed or wrong else 0


if __name__ == "__main__":
    main()

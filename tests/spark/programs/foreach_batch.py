"""Test program: each stateful operator below ``foreachBatch``, which reads its batch in every way.

Rows and state are compared.

    python -m tests.spark.programs.foreach_batch --batches 1000 --master 'local[8,8]'

Each batch is read in another way, see `READS`. The last line is a summary, and the exit code 1 if a query
failed, or a row or a state was not what the input makes it.
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
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from pyspark import cloudpickle
from pyspark.sql import functions as F

import spark_statestore
from tests.spark import batch_operators
from tests.spark.batch_operators import COLUMNS, OPERATORS, write_input
from tests.spark.counting import cluster_environment, failure_of
from tests.spark.queries import STATE_STORE
from tests.support.paths import TEST_JAR
from tests.support.sessions import local_builder

KEYS = 2_000

SECONDS = 600
"""Limit of one query."""

SETTINGS = {
    "spark.ui.showConsoleProgress": "false",
    # Fewer than half of the cores, so that two tasks read one partition at once.
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    STATE_STORE + "maintenanceInterval": "2s",
    STATE_STORE + "minDeltasForSnapshot": "3",
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
    read_count: int = 0
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
        rows = reader.load(self.checkpoint).selectExpr(*self.operator.columns).collect()
        self.compare(
            map(self.operator.decode, rows),
            self.operator.state(number, self.keys),
            f"state after batch {number}",
        )

    def compare(self, rows, expected, subject):
        rows, expected = Counter(map(tuple, rows)), Counter(expected)
        self.read_count += 1
        if rows != expected:
            surplus, missing = rows - expected, expected - rows
            some = [sorted(counter)[:1] for counter in (surplus, missing)]
            self.wrong.append(
                f"{subject}: {surplus.total()} rows too many, {missing.total()} missing; such as {some[0]}, "
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


def live(spark, directory, name, checkpoint_format, is_local):
    """Run one query over all input, and return its life."""
    operator = OPERATORS[name]
    reads = tuple(way for way in READS if way not in operator.refused)
    session = spark.newSession()
    session.conf.set(STATE_STORE + "checkpointFormatVersion", str(checkpoint_format))
    keys = KEYS // operator.share
    life = Life(session, f"{directory}/{name}-{checkpoint_format}", operator, keys, reads)
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
        if not query.awaitTermination(SECONDS):
            life.errors.append(f"the query does not end within {SECONDS} s")
    except Exception:  # noqa: BLE001 - the JVM's has all messages
        way = reads[life.batches % len(reads)]
        life.errors.append(f"the query failed in batch {life.batches} ({way}): {reason(query)}")
    query.stop()
    for thread in life.beside:
        thread.join()
    if not life.errors:
        life.read_state(session, life.batches - 1)
    if life.batches:
        problems = spark_statestore.verify(life.checkpoint).problems
        life.errors += [f"the last batch is not intact: {problem.message}" for problem in problems]
    if is_local:
        life.errors += reloads(query, reads)
    return life


def reason(query):
    """Return the lines of a failed query's messages that name an error, without repetitions."""
    lines = re.findall(
        r"^.*(?:Exception|Error|Caused by|\[[A-Z_.]+\]).*$", failure_of(query) or "", re.MULTILINE
    )
    reasons = dict.fromkeys(
        line.strip() for line in lines if "FOREACH_BATCH_USER" not in line and "File " not in line
    )
    return " | ".join(reasons)


def reloads(query, reads):
    """Return an error for each batch that loaded state again since the batch before was read twice."""
    errors = []
    for progress in query.recentProgress:
        before = reads[(progress.batchId - 1) % len(reads)]
        loaded = sum(node.customMetrics.get("checkpointLoadBytes", 0) for node in progress.stateOperators)
        if progress.batchId and before == "twice" and loaded:
            errors.append(f"batch {progress.batchId} loads {loaded} bytes after a batch that was read twice")
    return errors


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=160, help="batches of all queries together (160)")
    parser.add_argument("--master", default="local[4]")
    parser.add_argument("--operators", choices=OPERATORS, default=list(OPERATORS), nargs="+", metavar="NAME")
    parser.add_argument("--formats", type=int, choices=[1, 2], default=[1, 2], nargs="+")
    return parser.parse_args()


def main():
    arguments = parse()
    with tempfile.TemporaryDirectory() as directory:
        sys.exit(run(arguments, directory))


def run(arguments, directory):
    queries = list(product(arguments.operators, arguments.formats))
    write_input(Path(directory, "input"), -(-arguments.batches // len(queries)), KEYS)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.update(cluster_environment(Path(directory)))
    # Executors cannot import it.
    cloudpickle.register_pickle_by_value(batch_operators)
    builder = local_builder("foreachBatch", memory="2g", master=arguments.master).config(
        "spark.jars", TEST_JAR
    )
    for key, value in SETTINGS.items():
        builder.config(key, value)
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    batches = read_count = wrong = failed = 0
    for name, checkpoint_format in queries:
        start = time.monotonic()
        life = live(spark, directory, name, checkpoint_format, arguments.master.startswith("local["))
        batches, read_count = batches + life.batches, read_count + life.read_count
        wrong, failed = wrong + len(life.wrong), failed + bool(life.errors)
        print(
            f"{name} v{checkpoint_format}: {life.batches} batches, {len(life.wrong)} of {life.read_count} "
            f"reads wrong ({time.monotonic() - start:.0f} s)",
            flush=True,
        )
        for text in life.wrong[:3] + life.errors[:3]:
            print("   ", " ".join(text.split())[:600], flush=True)
    spark.stop()
    print(
        f"{arguments.master}: {len(queries)} queries, {batches} batches, {read_count} reads: "
        f"{failed} queries failed, {wrong} reads wrong"
    )
    return 1 if failed or wrong else 0


if __name__ == "__main__":
    main()

"""Test program: a session that counts the input of a directory, controlled by lines on its standard input.

The argument is a JSON object: ``session``, its name, ``input`` and ``barriers``, directories, and the option
``commit``. While the file ``<session>-stop`` is in ``barriers``, a batch waits before it changes state, and
creates ``<session>-waiting``.

Each line is a JSON object with ``do``: ``start`` the query on a ``checkpoint`` in checkpoint ``format``;
``reach`` a ``batch``; ``fail``, wait for the query's end; ``rows``, return its counts; ``stop`` it.
"""

import json
import sys
import time
from pathlib import Path

import spark_statestore
from spark_statestore.options import OPTION_PREFIX
from tests.spark.counting import failure_of, report, wait_until
from tests.support.sessions import local_builder


def paused_at_barrier(barriers, name):
    def wait(tables):
        stop, waiting = Path(barriers, f"{name}-stop"), Path(barriers, f"{name}-waiting")
        tables = list(tables)
        if tables:
            while stop.exists():
                waiting.touch()
                time.sleep(0.02)
        yield from tables

    return wait


def start(spark, arguments, order):
    from pyspark.sql import functions as F

    spark.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", str(order["format"]))
    schema = "k bigint, v bigint"
    lines = spark.readStream.schema(schema).json(arguments["input"])
    counts = lines.mapInArrow(paused_at_barrier(arguments["barriers"], arguments["session"]), schema)
    counts = counts.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("v"))
    return (
        counts.writeStream.outputMode("complete")
        .format("memory")
        .queryName(arguments["session"])
        .option("checkpointLocation", order["checkpoint"])
        .start()
    )


def reach(query, batch):
    """Wait until a batch is done; an idle query reports progress of the next one."""

    def has_batch():
        if not query.isActive and query.exception() is not None:
            raise query.exception()
        return any(progress.batchId >= batch and progress.numInputRows for progress in query.recentProgress)

    assert wait_until(has_batch, 120), f"batch {batch} was not reached: {query.lastProgress}"


def answer(spark, arguments, query, order):
    if order["do"] == "reach":
        reach(query, order["batch"])
        return order["batch"]
    if order["do"] == "fail":
        assert wait_until(lambda: not query.isActive, 90), "the query continues"
        return failure_of(query) or ""
    if order["do"] == "rows":
        return sorted(list(row) for row in spark.table(arguments["session"]).collect())
    if order["do"] == "stop":
        active = query.isActive
        query.stop()
        return active
    raise ValueError(order)


def main():
    arguments = json.loads(sys.argv[1])
    builder = local_builder(arguments["session"], memory="512m")
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.conf.set(OPTION_PREFIX + "commit", arguments["commit"])
    report("ready")
    query = None
    for line in sys.stdin:
        order = json.loads(line)
        try:
            if order["do"] == "start":
                query = start(spark, arguments, order)
                result = query.runId
            else:
                result = answer(spark, arguments, query, order)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test wants to know
            result = f"{type(error).__name__}: {error}"
        report(order["do"], result)
    spark.stop()


main()

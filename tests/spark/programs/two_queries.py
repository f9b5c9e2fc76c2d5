"""A session that counts what it finds in a directory, and does what the lines of its standard input say.

The argument is a JSON object: ``who`` this program is, ``input`` and ``gates``, directories. While the file
``<who>-stop`` is in ``gates``, a batch stops before it changes state, and says so by ``<who>-waiting``.

Each line is a JSON object with ``do``: ``start`` the query on a ``checkpoint`` in checkpoint ``format``; ``reach`` a
``batch``; ``fail``, wait for the query's end; ``rows``, what it has counted; ``stop`` it.
"""

import json
import sys
import time
from pathlib import Path

import spark_statestore
from tests.sessions import local_builder
from tests.spark.counting import messages, say, wait_until


def gated(gates, name):
    def wait(tables):
        stop, waiting = Path(gates, f"{name}-stop"), Path(gates, f"{name}-waiting")
        tables = list(tables)
        if tables:
            while stop.exists():
                waiting.touch()
                time.sleep(0.02)
        yield from tables

    return wait


def start(spark, asked, order):
    from pyspark.sql import functions as F

    spark.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", str(order["format"]))
    schema = "k bigint, v bigint"
    lines = spark.readStream.schema(schema).json(asked["input"])
    counts = lines.mapInArrow(gated(asked["gates"], asked["who"]), schema)
    counts = counts.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("v"))
    return (
        counts.writeStream.outputMode("complete")
        .format("memory")
        .queryName(asked["who"])
        .option("checkpointLocation", order["checkpoint"])
        .start()
    )


def reach(query, batch):
    """Wait until a batch is done; while there is nothing to do Spark reports progress of the next one."""

    def done():
        if not query.isActive and query.exception() is not None:
            raise query.exception()
        return any(said.batchId >= batch and said.numInputRows for said in query.recentProgress)

    assert wait_until(done, 120), f"batch {batch} was not reached: {query.lastProgress}"


def answer(spark, asked, query, order):
    if order["do"] == "reach":
        reach(query, order["batch"])
        return order["batch"]
    if order["do"] == "fail":
        assert wait_until(lambda: not query.isActive, 90), "the query goes on"
        failure = query._jsq.exception()
        return messages(failure.get()) if failure.isDefined() else ""
    if order["do"] == "rows":
        return sorted(list(row) for row in spark.table(asked["who"]).collect())
    if order["do"] == "stop":
        active = query.isActive
        query.stop()
        return active
    raise ValueError(order)


def main():
    asked = json.loads(sys.argv[1])
    builder = local_builder(asked["who"], memory="512m")
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    say("ready")
    query = None
    for line in sys.stdin:
        order = json.loads(line)
        try:
            if order["do"] == "start":
                query = start(spark, asked, order)
                done = query.runId
            else:
                done = answer(spark, asked, query, order)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test wants to know
            done = f"{type(error).__name__}: {error}"
        say(order["do"], done)
    spark.stop()


main()

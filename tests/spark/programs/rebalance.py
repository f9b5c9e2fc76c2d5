"""Test program: queries on two executors, which two more join, and of which one leaves.

The only argument is a JSON object: ``checkpoint``, a directory of the queries' checkpoints, and ``events``.
If it is not 0, so many executors join, leave or are killed instead, two batches apart, by ``seed``.
"""

import json
import os
import random
import signal
import statistics
import sys

from pyspark.sql import functions as f

import spark_statestore
from spark_statestore.options import OPTION_PREFIX
from tests.spark.counting import executors_of, report, wait_for_batch, wait_until
from tests.support.sessions import cluster_builder

PARTITIONS = 8
ROWS = 2_000


def numbers_of(session):
    """Return ROWS numbers of each second of event time, a second in each batch."""
    rows = session.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
    return rows.withWatermark("timestamp", "0 seconds")


def moving(session):
    """Count the pairs of a join by second: an operator with several stores, and one in another stage."""
    pairs = numbers_of(session).join(numbers_of(session), ["value", "timestamp"])
    return pairs.groupBy(f.window("timestamp", "1 second")).count()


def still(session):
    return numbers_of(session).groupBy(f.window("timestamp", "1 second")).count()


class Query:
    def __init__(self, spark, checkpoint, name, build, rebalance):
        self.name = name
        self.session = spark.newSession()
        self.session.conf.set(OPTION_PREFIX + "rebalance", str(rebalance).lower())
        self.session.conf.set("spark.sql.shuffle.partitions", str(PARTITIONS))
        self.query = (
            build(self.session)
            .writeStream.outputMode("append")
            .format("memory")
            .queryName(name)
            .option("checkpointLocation", f"{checkpoint}/{name}")
            .start()
        )

    def batch(self):
        return self.query.lastProgress.batchId if self.query.lastProgress else -1

    def wait(self, batches):
        wait_for_batch(self.query, self.batch() + batches)

    def shares(self):
        """Return the numbers of partitions on executors that have any, by Spark's coordinator."""
        jvm = self.session._jvm
        state = jvm.org.apache.spark.sql.execution.streaming.state
        run = jvm.java.util.UUID.fromString(str(self.query.runId))
        coordinator = self.session._jsparkSession.streams().stateStoreCoordinator()
        root = self.query._jsq.streamingQuery().resolvedCheckpointRoot() + "/state"
        shares = {}
        for number, operator in enumerate(self.query.lastProgress.stateOperators):
            name = "left-keyToNumValues" if "Join" in operator.operatorName else "default"
            stores = [state.StateStoreId(root, number, partition, name) for partition in range(PARTITIONS)]
            places = [
                coordinator.getLocation(state.StateStoreProviderId(store, run)).getOrElse(None)
                for store in stores
            ]
            shares[str(number)] = sorted(places.count(place) for place in set(places))
        return shares

    def bytes(self, name, since=-1):
        """Return a metric of each batch after one."""
        return [
            sum(operator.customMetrics[name] for operator in progress.stateOperators)
            for progress in self.query.recentProgress
            if progress.batchId > since
        ]

    def finish(self):
        rebalancer = self.session._jvm.org.apache.spark.sql.statestore.driver.Rebalancer
        places = rebalancer.placesOf(str(self.query.runId)).size()
        self.query.stop()
        assert self.query.exception() is None
        counts = [row["count"] for row in self.session.table(self.name).orderBy("window").collect()]
        seconds, batches = len(counts), self.batch() + 1
        report(
            self.name,
            {"places": places, "counts": sorted(set(counts)), "seconds": seconds, "batches": batches},
        )


def happen(spark, query, executors, events, chance):
    context = spark._jsc.sc()
    wanted = 2
    context.requestExecutors(wanted)
    for number in range(events):
        event = chance.choice(["join", "leave", "kill"])
        if event == "kill":
            # Spark replaces it.
            os.kill(chance.choice(executors_of(spark)), signal.SIGKILL)
        elif wanted < 4 and (event == "join" or wanted == 1):
            wanted += 1
            context.requestExecutors(1)
        else:
            wanted -= 1
            context.killExecutor(chance.choice(executors()))
        query.wait(2)
        report("event", [number, event, wanted, query.shares()])
    query.finish()


def main():
    asked = json.loads(sys.argv[1])
    builder = cluster_builder().master("local-cluster[4,1,1024]")
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    context = spark._jsc.sc()

    def executors():
        ids = context.getExecutorIds()
        return sorted((ids.apply(i) for i in range(ids.size())), key=int)

    assert wait_until(lambda: len(executors()) == 4, 60)
    for executor in executors()[2:]:
        context.killExecutor(executor)
    assert wait_until(lambda: len(executors()) == 2, 60)

    moved = Query(spark, asked["checkpoint"], "moving", moving, True)
    if asked["events"]:
        happen(spark, moved, executors, asked["events"], random.Random(asked["seed"]))
        spark.stop()
        report("stopped")
        return

    def wait_for(share):
        wait_until(lambda: moved.shares() == {"0": share, "1": share}, 60)

    moved.wait(5)
    wait_for([4, 4])
    report("two executors", moved.shares())

    since = moved.batch()
    # Without a target before, the kills have left none.
    context.requestExecutors(4)
    assert wait_until(lambda: len(executors()) == 4, 60)
    wait_for([2, 2, 2, 2])
    report(
        "four executors",
        {
            "shares": moved.shares(),
            "loaded": moved.bytes("checkpointLoadBytes", since),
            "written": statistics.median(moved.bytes("checkpointBytesWritten")),
        },
    )

    context.killExecutor(executors()[-1])
    assert wait_until(lambda: len(executors()) == 3, 60)
    wait_for([2, 3, 3])
    report("three executors", moved.shares())
    moved.wait(1)
    moved.finish()

    stays = Query(spark, asked["checkpoint"], "still", still, False)
    stays.wait(2)
    stays.finish()
    spark.stop()
    report("stopped")


main()

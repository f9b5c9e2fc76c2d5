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

import spark_statestore
from spark_statestore.options import OPTION_PREFIX
from tests.spark.counting import executors_of, report, wait_for_batch, wait_until
from tests.support.sessions import cluster_builder

PARTITIONS = 8
ROWS = 2_000


def numbers_of(session):
    return session.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load().select("value")


def moving(session):
    """Join distinct numbers with themselves: two operators in one stage, one with several stores."""
    return numbers_of(session).dropDuplicates(["value"]).join(numbers_of(session), "value")


def still(session):
    return numbers_of(session).dropDuplicates(["value"])


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
        wait_for_batch(self.query, self.batch() + batches, 300)

    def shares(self):
        """Return the numbers of partitions on executors that have any, by Spark's coordinator."""
        jvm = self.session._jvm
        state = jvm.org.apache.spark.sql.execution.streaming.state
        run = jvm.java.util.UUID.fromString(str(self.query.runId))
        coordinator = self.session._jsparkSession.streams().stateStoreCoordinator()
        root = self.query._jsq.streamingQuery().resolvedCheckpointRoot() + "/state"
        shares = {}

        def place(*store):
            location = coordinator.getLocation(
                state.StateStoreProviderId(state.StateStoreId(root, *store), run)
            )
            return location.get() if location.isDefined() else None

        for operator in range(len(self.query.lastProgress.stateOperators)):
            places = [
                place(operator, partition, "default") or place(operator, partition, "left-keyToNumValues")
                for partition in range(PARTITIONS)
            ]
            shares[str(operator)] = sorted(places.count(place) for place in set(places))
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
        rows = self.session.table(self.name)
        figures = {"places": places, "rows": rows.count(), "distinct": rows.distinct().count()}
        report(self.name, figures | {"expected": (self.batch() + 1) * ROWS})


def happen(spark, query, executors, events, chance):
    context = spark._jsc.sc()
    executor_count = 2
    context.requestExecutors(executor_count)
    for number in range(events):
        event = chance.choice(["join", "leave", "kill"])
        if event == "kill":
            # Spark replaces it.
            os.kill(chance.choice(executors_of(spark)), signal.SIGKILL)
        elif executor_count < 4 and (event == "join" or executor_count == 1):
            executor_count += 1
            context.requestExecutors(1)
        else:
            executor_count -= 1
            context.killExecutor(chance.choice(executors()))
        query.wait(2)
        report("event", [number, event, executor_count, query.shares()])
    query.finish()


def main():
    arguments = json.loads(sys.argv[1])
    builder = cluster_builder().master("local-cluster[4,1,1024]")
    # On a busy machine tasks would go elsewhere before the executor of their state is free.
    builder.config("spark.locality.wait", "20s")
    # Spark's master may replace an executor that leaves, and stop the new one, several times.
    builder.config("spark.task.maxFailures", "20").config("spark.stage.maxConsecutiveAttempts", "20")
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

    moved = Query(spark, arguments["checkpoint"], "moving", moving, True)
    if arguments["events"]:
        happen(spark, moved, executors, arguments["events"], random.Random(arguments["seed"]))
        spark.stop()
        report("stopped")
        return

    def wait_for(share):
        wait_until(lambda: moved.shares() == {"0": share, "1": share}, 120)

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

    stays = Query(spark, arguments["checkpoint"], "still", still, False)
    stays.wait(2)
    stays.finish()
    spark.stop()
    report("stopped")


main()

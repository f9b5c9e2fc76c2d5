"""Test program: the counting query in a session that retries failed tasks, with events as lines of JSON.

The only argument is a JSON object: ``checkpoint``, and ``configure``, the options. The query waits for a line
of input after its second batch; then it runs three more batches.
"""

import json
import sys

import spark_statestore
from tests.spark.counting import finish, report, start_counting, wait_for_batch
from tests.support.sessions import local_builder


def main():
    asked = json.loads(sys.argv[1])
    builder = local_builder("hanging", memory="512m", master="local[2,3]")
    # This storage's driver is installed for the backend alone.
    options = dict(asked["configure"])
    builder.config("spark.sql.streaming.stateStore.backend.checkpointsDir", options.pop("checkpointsDir"))
    spark = spark_statestore.configure(builder, **options).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    query = start_counting(spark, asked["checkpoint"])
    wait_for_batch(query, 1)
    report("running")
    sys.stdin.readline()
    last = query.lastProgress.batchId
    wait_for_batch(query, last + 2)
    report("resumed", query.lastProgress.batchId)
    finish(spark, query, last + 3)
    report("exact", True)
    report("failed tasks", failed_tasks(spark.sparkContext))
    spark.stop()
    sys.stdin.readline()


def failed_tasks(context):
    """Return the number of failed tasks of all stages that Spark retains."""
    stages = map(context.statusTracker().getStageInfo, range(1000))
    return sum(stage.numFailedTasks for stage in stages if stage is not None)


main()

"""Test program: queries on two executors without the plugin, with events as lines of JSON.

The only argument is a JSON object: ``checkpoint``, and ``python``, which works on executors alone. With
``storage=memory`` two queries are refused: one when it is planned, one because its option was set too late
for that. So is a query with a directory of an unknown scheme. The counting query uses the interpreter.
"""

import json
import sys

import spark_statestore
from spark_statestore.options import OPTION_PREFIX
from tests.spark.counting import failure_of, report, run_to, start_counting, wait_for_batch
from tests.support.sessions import cluster_builder

STORAGE = OPTION_PREFIX + "storage"


def main():
    arguments = json.loads(sys.argv[1])
    checkpoint = arguments["checkpoint"]
    spark = spark_statestore.configure(cluster_builder()).config("spark.plugins", "").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    session = spark.newSession()
    session.conf.set(STORAGE, "memory")
    try:
        spark_statestore.attach(session)
    except spark_statestore.SessionError as error:
        report("refused", str(error))
    report_failure(lambda: start_counting(session, f"{checkpoint}-planned"))
    report_failure(lambda: start_late(spark.newSession(), f"{checkpoint}-late"))
    elsewhere = {OPTION_PREFIX + "checkpointsDir": "nowhere://bucket/x"}
    report_failure(lambda: start_counting(spark.newSession(), f"{checkpoint}-nowhere", confs=elsewhere))
    run_to(spark.newSession(), checkpoint, 3, python=arguments["python"])
    report("counted")
    spark.stop()
    sys.stdin.readline()


def start_late(session, checkpoint):
    numbers = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    sink = numbers.groupBy("value").count().writeStream.format("noop").outputMode("update")
    session.conf.set(STORAGE, "memory")
    return sink.option("checkpointLocation", checkpoint).start()


def report_failure(start):
    """Report the error of a query, when it starts or later."""
    query = None
    try:
        query = start()
        wait_for_batch(query, 0)
        report("accepted")
    except Exception as error:  # noqa: BLE001 - whatever it is, the test wants to know
        report("refused", (query is not None and failure_of(query)) or str(error))


main()

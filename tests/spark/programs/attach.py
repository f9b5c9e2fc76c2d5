"""Test program: attach to a session without this project's jar, with settings, and optionally run a query."""

import json
import sys

import spark_statestore
from tests.spark.counting import failure_of, report, start_counting
from tests.support.sessions import local_builder

asked = json.loads(sys.argv[1])
builder = local_builder("attach", memory="512m")
for key, value in asked.get("confs", {}).items():
    builder.config(key, value)
spark = builder.getOrCreate()
if "checkpoint" in asked:
    query = start_counting(spark, asked["checkpoint"])
    try:
        query.awaitTermination(60)
        report("ended")
    except Exception:  # noqa: BLE001 - whatever it is, the test wants to know
        report("failed", failure_of(query))
try:
    spark_statestore.attach(spark)
    report("accepted")
except spark_statestore.SessionError as error:
    report("refused", str(error))
spark.stop()
sys.stdin.readline()

"""Test program: attach to a session without this project's jar, before and after its provider is set.

The only argument is a JSON object: ``checkpoint``, of a query that is started in between.
"""

import json
import sys

import spark_statestore
from spark_statestore.options import PROVIDER_KEY
from tests.spark.counting import failure_of, report, start_counting
from tests.support.sessions import local_builder


def attach(spark):
    try:
        spark_statestore.attach(spark)
        report("accepted")
    except spark_statestore.SessionError as error:
        report("refused", str(error))


builder = local_builder("attach", memory="512m")
spark = builder.config("spark.sql.extensions", spark_statestore.EXTENSIONS_CLASS).getOrCreate()
attach(spark)
spark.conf.set(PROVIDER_KEY, spark_statestore.PROVIDER_CLASS)
query = start_counting(spark, json.loads(sys.argv[1])["checkpoint"])
try:
    query.awaitTermination(60)
    report("ended")
except Exception:  # noqa: BLE001 - whatever it is, the test wants to know
    report("failed", failure_of(query))
attach(spark)
spark.stop()
sys.stdin.readline()

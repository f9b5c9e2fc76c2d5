"""Test program: commits a batch on a store in a process of its own.

The only argument is a JSON object: ``location`` of the query, ``confs`` of the provider, ``version`` to open
and ``rows`` to put. It reports the rows before and the metrics of the commit, once local copies are written.
"""

import json
import sys

import spark_statestore
from tests.spark.counting import report
from tests.spark.harness import Provider
from tests.support.paths import TEST_JAR
from tests.support.sessions import local_builder

arguments = json.loads(sys.argv[1])
builder = local_builder("copy", memory="512m").config("spark.jars", str(TEST_JAR))
spark = spark_statestore.configure(builder).getOrCreate()
provider = Provider(spark, arguments["location"], **arguments["confs"])
store = provider.open(arguments["version"])
before = store.rows()
for key, value in arguments["rows"]:
    store.put(tuple(key), tuple(value))
store.commit()
provider.await_background()
report("committed", [before, store.metrics])
sys.stdin.readline()

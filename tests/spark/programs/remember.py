"""Runs queries with ``storage=memory``, with and without a directory for metadata, and ends.

The only argument is a JSON object: ``directory``, below which everything goes.
"""

import json
import sys

from pyspark.sql import SparkSession

import spark_statestore
from tests.spark.counting import run_to

directory = json.loads(sys.argv[1])["directory"]
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
for key, value in {
    "spark.driver.memory": "512m",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}.items():
    builder.config(key, value)
spark = spark_statestore.configure(builder, storage="memory").getOrCreate()
for checkpoint_format in "1", "2":
    for kept in "kept", "lost":
        session = spark.newSession()
        session.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", checkpoint_format)
        options = {"checkpointsDir": f"file:{directory}/metadata"} if kept == "kept" else {}
        run_to(session, f"{directory}/{kept}-{checkpoint_format}", 2, **options)
spark.stop()
print(json.dumps({"event": "done", "value": None}), flush=True)
sys.stdin.readline()

"""Attaches to a session that has nothing of this project."""

import json
import sys

from pyspark.sql import SparkSession

import spark_statestore

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
try:
    spark_statestore.attach(spark)
    print(json.dumps({"event": "accepted", "value": None}), flush=True)
except spark_statestore.SessionError as error:
    print(json.dumps({"event": "refused", "value": str(error)}), flush=True)
spark.stop()
sys.stdin.readline()

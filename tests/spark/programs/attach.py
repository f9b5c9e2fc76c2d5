"""Attaches to a session that has nothing of this project."""

import sys

import spark_statestore
from tests.sessions import local_builder
from tests.spark.counting import say

spark = local_builder("attach", memory="512m").getOrCreate()
try:
    spark_statestore.attach(spark)
    say("accepted")
except spark_statestore.SessionError as error:
    say("refused", str(error))
spark.stop()
sys.stdin.readline()

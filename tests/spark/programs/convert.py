"""Test program: a conversion in a separate session.

The only argument is a JSON object: ``source``, ``target``, ``to`` and ``partitions``.
"""

import json
import sys

import spark_statestore
from tests.spark.counting import report
from tests.support.sessions import local_builder


def main():
    asked = json.loads(sys.argv[1])
    spark = spark_statestore.configure(local_builder("convert", memory="512m")).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    report("started", True)
    done = spark_statestore.convert(
        spark, asked["source"], asked["target"], asked["to"], partitions=asked["partitions"], stopped=True
    )
    report("converted", done.rows)
    spark.stop()


main()

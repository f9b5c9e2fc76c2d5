"""Test program: conversions in a separate session, one after another.

The only argument is a JSON object: ``conversions``, a list of the arguments of `spark_statestore.convert`.
"""

import json
import sys

import spark_statestore
from tests.spark.counting import report
from tests.support.sessions import local_builder


def main():
    spark = spark_statestore.configure(local_builder("convert", memory="512m")).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    report("started", True)
    for conversion in json.loads(sys.argv[1])["conversions"]:
        report("converted", spark_statestore.convert(spark, **conversion, stopped=True).rows)
    spark.stop()


main()

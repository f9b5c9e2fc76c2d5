"""Test program: the queries of tests/system/kafka in a session of their own, with events as lines of JSON.

The only argument is a JSON object: ``topics``, ``checkpoints`` (by query), ``provider`` of new queries,
``limit`` (events of a batch), ``options`` of Kafka's clients, ``jars`` of the connector, and ``end``: whether
all input is read and closed, and the program ends. Otherwise it runs until it is killed, until a query fails,
or until a line of input.
"""

import json
import select
import sys

import spark_statestore
from spark_statestore.options import PROVIDER_KEY
from tests.spark.counting import failure_of, report
from tests.support.sessions import local_builder
from tests.system.kafka.queries import Topics, close, start


def main():
    arguments = json.loads(sys.argv[1])
    topics = Topics(**arguments["topics"])
    builder = local_builder("kafka", memory="768m").config("spark.jars", arguments["jars"])
    builder.config("spark.sql.session.timeZone", "UTC")
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.conf.set(PROVIDER_KEY, arguments["provider"])

    def run(*, available_now):
        return [
            start(
                spark,
                topics,
                name,
                checkpoint,
                arguments["limit"],
                arguments["options"],
                available_now=available_now,
            )
            for name, checkpoint in arguments["checkpoints"].items()
        ]

    if arguments["end"]:
        for is_closed in (False, True):
            if is_closed:
                close(spark, topics)
            for query in run(available_now=True):
                query.awaitTermination()
        report("ended")
    else:
        queries = run(available_now=False)
        report("running")
        while all(query.isActive for query in queries):
            if select.select([sys.stdin], [], [], 0.2)[0]:
                sys.stdin.readline()
                break
        for query in queries:
            query.stop()
        failures = map(failure_of, queries)
        report("stopped", [failure for failure in failures if failure is not None])
    spark.stop()
    sys.stdin.readline()


main()

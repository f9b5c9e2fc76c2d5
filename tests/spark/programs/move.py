"""Test program: the counting query on Spark's RocksDB store, moved to this store and back.

Events are lines of JSON. The only argument is a JSON object: ``places`` (URLs of the three checkpoints),
``confs`` of the session, and ``cluster``, whether it has separate executors. There a line of input is awaited
before each conversion, which reports its executors.
"""

import json
import sys

import spark_statestore
from spark_statestore.options import PROVIDER_KEY
from spark_statestore.query import QueryCheckpoint
from spark_statestore.query.query_checkpoint import COMMITS
from tests.spark.counting import executors_of, report, run_to
from tests.spark.queries import OURS, ROCKSDB
from tests.support.sessions import cluster_builder, local_builder


def main():
    arguments = json.loads(sys.argv[1])
    builder = cluster_builder() if arguments["cluster"] else local_builder("move", memory="512m")
    for key, value in arguments["confs"].items():
        builder.config(key, value)
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    places = arguments["places"]

    def run(place, batch, provider):
        session = spark.newSession()
        session.conf.set(PROVIDER_KEY, provider)
        run_to(session, place, batch)

    run(places[0], 2, ROCKSDB)
    for number, (to, provider) in enumerate((("statestore", OURS), ("rocksdb", ROCKSDB))):
        source, target = places[number : number + 2]
        if arguments["cluster"]:
            report("converting", executors_of(spark))
            sys.stdin.readline()
        # The query is stopped within a batch.
        batch = max(QueryCheckpoint(source).logged(COMMITS))
        conversion = spark_statestore.convert(spark, source, target, to, batch=batch, stopped=True)
        assert conversion.provider == provider
        report("converted", conversion.rows)
        run(target, conversion.batch + 2, provider)
        report("continued", conversion.batch)
    sys.stdin.readline()
    spark.stop()


main()

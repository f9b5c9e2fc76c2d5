"""Runs the counting query in a session of its own and tells of it in lines of JSON.

The only argument is a JSON object: ``configure`` (options), ``confs`` (Spark settings), ``checkpoint``,
``batch`` to run to, ``hold`` to wait for a line of input while the query runs, ``plain`` to leave out
`spark_statestore.configure`, and ``directory`` to work in.
"""

import json
import os
import sys

import spark_statestore
from tests.sessions import local_builder
from tests.spark.counting import (
    backends_of,
    finish,
    jvm_of,
    messages,
    say,
    socket_of,
    start_counting,
    wait_for_batch,
)


def main():
    asked = json.loads(sys.argv[1])
    os.chdir(asked.get("directory", "."))
    builder = local_builder("count", memory="512m")
    for key, value in asked.get("confs", {}).items():
        builder.config(key, value)
    if not asked.get("plain"):
        spark_statestore.configure(builder, **asked.get("configure", {}))
    try:
        spark = builder.getOrCreate()
    except Exception as error:  # noqa: BLE001 - whatever it is, the test wants to know
        say("refused", str(error))
        sys.stdin.readline()
        return
    spark.sparkContext.setLogLevel("ERROR")
    query = start_counting(spark, asked["checkpoint"])
    try:
        wait_for_batch(query, 1)
        backends = backends_of(jvm_of(spark))
        say(
            "running",
            {
                "jvm": jvm_of(spark),
                "python": os.getpid(),
                "backends": [p.pid for p in backends],
                "sockets": [str(socket_of(p)) for p in backends],
                "commands": [p.cmdline() for p in backends],
                "paths": [p.environ().get("PYTHONPATH", "") for p in backends],
            },
        )
        if asked.get("hold"):
            sys.stdin.readline()
        finish(spark, query, max(asked.get("batch", 0), query.lastProgress.batchId))
        say("result", query.lastProgress.batchId)
    except Exception as error:  # noqa: BLE001 - whatever it is, the test wants to know
        failure = query._jsq.exception()
        say("failed", messages(failure.get()) if failure.isDefined() else str(error))
    spark.stop()
    say("stopped")
    sys.stdin.readline()


main()

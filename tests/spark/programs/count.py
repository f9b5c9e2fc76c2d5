"""Test program: the counting query in a separate session, with events as lines of JSON.

The only argument is a JSON object: ``configure`` (options), ``confs`` (Spark settings), ``checkpoint``,
``batch`` to run to, ``hold`` to wait for a line of input while the query runs, ``plain`` to leave out
`spark_statestore.configure`, ``directory`` to work in, and ``task``, the location of operator state that a
task uses.
"""

import json
import os
import sys

import spark_statestore
from tests.spark.counting import (
    backends_of,
    failure_of,
    finish,
    jvm_of,
    report,
    socket_of,
    start_counting,
    wait_for_batch,
)
from tests.support.sessions import local_builder


def use_operator_state(location):
    """Run in an executor's Python worker, as the writer of a Python data source does."""
    import pyarrow as pa

    import spark_statestore
    from spark_statestore.operator_state import ListStateDescriptor, QueryOperatorState

    state = QueryOperatorState(location, "sink")
    for batch in range(3):
        with state.batch(batch) as store:
            store.get_list_state(ListStateDescriptor("numbers", pa.int64())).add(batch)
            numbers = list(store.get_list_state(ListStateDescriptor("numbers", pa.int64())).get())
    try:
        refused = str(spark_statestore.write_state)
    except ModuleNotFoundError as error:
        refused = str(error)
    worker = sys.modules["__main__"].__spec__.name, "PYTHON_UNIX_DOMAIN_ENABLED" in os.environ
    return {"module": spark_statestore.__file__, "numbers": numbers, "refused": refused, "worker": worker}


def main():
    arguments = json.loads(sys.argv[1])
    os.chdir(arguments.get("directory", "."))
    builder = local_builder("count", memory="512m")
    for key, value in arguments.get("confs", {}).items():
        builder.config(key, value)
    if not arguments.get("plain"):
        spark_statestore.configure(builder, **arguments.get("configure", {}))
    try:
        spark = builder.getOrCreate()
    except Exception as error:  # noqa: BLE001 - whatever it is, the test wants to know
        report("refused", str(error))
        sys.stdin.readline()
        return
    spark.sparkContext.setLogLevel("ERROR")
    query = start_counting(spark, arguments["checkpoint"])
    try:
        wait_for_batch(query, 1)
        backends = backends_of(jvm_of(spark))
        report(
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
        if arguments.get("task"):
            tasks = spark.sparkContext.parallelize([arguments["task"]], 1).map(use_operator_state)
            report("task", tasks.collect()[0])
        if arguments.get("hold"):
            sys.stdin.readline()
        finish(spark, query, max(arguments.get("batch", 0), query.lastProgress.batchId))
        report("result", query.lastProgress.batchId)
    except Exception as error:  # noqa: BLE001 - whatever it is, the test wants to know
        report("failed", failure_of(query) or str(error))
    spark.stop()
    report("stopped")
    sys.stdin.readline()


main()

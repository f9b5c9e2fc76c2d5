"""Test program: a counting query in a session with Spark's UI, for tests that look at it over HTTP.

The only argument is a JSON object: ``directory`` to work in, ``confs`` (Spark settings), the name of the
``query``, and ``jar``, which is on the class path as well. It reports the UI's address and the query's
progress when all input is counted, then obeys a line of input: ``fail`` makes the query fail, ``stop`` stops
it, anything else ends the program.
"""

import contextlib
import json
import sys
from pathlib import Path

import spark_statestore
from tests.spark.counting import report
from tests.support.sessions import local_builder

BATCHES = 4
GROUPS = 50


def main():
    arguments = json.loads(sys.argv[1])
    directory = Path(arguments["directory"])
    builder = local_builder("observe", memory="512m")
    builder.config("spark.ui.enabled", "true").config("spark.ui.port", "0")
    for key, value in arguments.get("confs", {}).items():
        builder.config(key, value)
    if "jar" in arguments:
        builder.config("spark.jars", arguments["jar"])
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    for batch in range(BATCHES):
        spark.range(batch * 10, GROUPS).coalesce(1).write.parquet(str(directory / "input" / str(batch)))
    counts = (
        spark.readStream.schema("id long")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(directory / "input" / "*"))
        .where("assert_true(id >= 0) IS NULL")
        .selectExpr(f"id % {GROUPS} AS k")
        .groupBy("k")
        .count()
    )
    query = (
        counts.writeStream.outputMode("update")
        .format("noop")
        .queryName(arguments["query"])
        .option("checkpointLocation", str(directory / "checkpoint"))
        .start()
    )
    query.processAllAvailable()
    listeners = spark.sparkContext._jsc.sc().listenerBus()
    listeners.waitUntilEmpty(30_000)
    progress = [json.loads(entry.json) for entry in query.recentProgress]
    report(
        "counted",
        {"url": spark.sparkContext.uiWebUrl, "progress": [p for p in progress if p["numInputRows"]]},
    )
    while (order := sys.stdin.readline().strip()) in ("fail", "stop"):
        if order == "fail":
            spark.range(1).selectExpr("-1 AS id").write.parquet(str(directory / "input" / "bad"))
            # The test looks at the error in the UI.
            with contextlib.suppress(Exception):
                query.processAllAvailable()
        query.stop()
        listeners.waitUntilEmpty(30_000)
        report("ended")
    spark.stop()


main()

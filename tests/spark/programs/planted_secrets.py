"""Test program: queries whose storage needs a password, and all outputs that users can see.

The only argument is a JSON object: ``confs`` (Spark settings), ``directory``, ``storage`` (URL of the state),
``wrong`` (URLs that cannot hold state).
"""

import json
import os
import sys
import urllib.request

import spark_statestore
from spark_statestore.options import OPTION_PREFIX
from tests.spark.counting import backends_of, failure_of, finish, jvm_of, report, start_counting
from tests.support.sessions import local_builder

PAGES = [
    "/environment/",
    "/jobs/",
    "/SQL/",
    "/StreamingQuery/",
    "/executors/",
    "/executors/threadDump/?executorId=driver",
]


def main():
    arguments = json.loads(sys.argv[1])
    builder = local_builder("secrets", memory="512m")
    for key, value in arguments["confs"].items():
        builder.config(key, value)
    spark = spark_statestore.configure(builder).getOrCreate()
    # The root logger's level is INFO from the start and a filter of PySpark's driver hides messages below
    # WARN: only a change of level removes that filter.
    spark.sparkContext.setLogLevel("WARN")
    spark.sparkContext.setLogLevel("INFO")
    spark.conf.set(OPTION_PREFIX + "checkpointsDir", arguments["storage"])
    query = start_counting(spark, f"{arguments['directory']}/checkpoint")
    finish(spark, query, 2)
    processes = [" ".join(p.cmdline()) for p in backends_of(jvm_of(spark))]
    errors = []
    for number, url in enumerate(arguments["wrong"]):
        spark.conf.set(OPTION_PREFIX + "checkpointsDir", url)
        try:
            failing = start_counting(spark, f"{arguments['directory']}/wrong-{number}", name=f"wrong{number}")
            failing.awaitTermination(60)
        except Exception as error:  # noqa: BLE001 - all of it is looked at
            errors.append(str(error))
            errors.append(failure_of(failing) or "")
    pages = {}
    ui = spark.sparkContext.uiWebUrl
    api = f"/api/v1/applications/{spark.sparkContext.applicationId}"
    for page in [*PAGES, f"{api}/environment", f"{api}/sql?details=true", f"{api}/allexecutors"]:
        with urllib.request.urlopen(ui + page) as answer:
            pages[page] = answer.read().decode()
    report("seen", {"processes": processes, "errors": errors, "pages": pages, "pid": os.getpid()})
    spark.stop()
    report("stopped")
    sys.stdin.readline()


main()

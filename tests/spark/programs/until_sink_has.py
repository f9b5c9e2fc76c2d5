"""Test program: a windowed count from Parquet files to a sink, killed once the sink has a batch.

The only argument is a JSON object: ``directory``, ``format`` and ``target`` of the sink, ``file`` whose
appearance means that the sink has the batch, and ``confs`` of the session.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import spark_statestore
from tests.spark.counting import jvm_of, report
from tests.support.sessions import local_builder
from tests.support.windows import run_windows


def main():
    arguments = json.loads(sys.argv[1])
    builder = local_builder("until-sink-has", memory="768m", with_hadoop_defaults=True)
    for key, value in arguments["confs"].items():
        builder.config(key, value)
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    jvm, awaited = jvm_of(spark), Path(arguments["file"])

    def watch():
        while not awaited.exists():
            time.sleep(0.0002)
        os.kill(jvm, signal.SIGKILL)
        report("killed")
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
    run_windows(spark, Path(arguments["directory"]), arguments["format"], arguments.get("target"))


main()

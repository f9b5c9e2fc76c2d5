"""Test program: queries with ``storage=memory``, with and without a directory for metadata.

The only argument is a JSON object: ``directory``, below which everything goes.
"""

import json
import sys

import spark_statestore
from tests.spark.counting import report, run_to
from tests.support.sessions import local_builder

directory = json.loads(sys.argv[1])["directory"]
builder = local_builder("remember", memory="512m")
spark = spark_statestore.configure(builder, storage="memory").getOrCreate()
for checkpoint_format in "1", "2":
    for case in "kept", "lost":
        session = spark.newSession()
        session.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", checkpoint_format)
        options = {"checkpointsDir": f"file:{directory}/metadata"} if case == "kept" else {}
        run_to(session, f"{directory}/{case}-{checkpoint_format}", 2, **options)
spark.stop()
report("done")
sys.stdin.readline()

"""Test program: a query with `foreachBatch` in two applications, one after the other in one JVM.

The only argument is a JSON object: ``directory``, below which everything goes.
"""

import json
import sys

import pandas as pd

import spark_statestore
from tests.spark.counting import report
from tests.support.sessions import local_builder

directory = json.loads(sys.argv[1])["directory"]
settings: list[tuple[str, str]] = []
for application in "first", "second":
    builder = local_builder(application, memory="512m")
    if settings:
        # The JVM has loaded the jar already.
        for key, value in settings:
            builder.config(key, value)
    else:
        builder = spark_statestore.configure(builder)
    spark = builder.getOrCreate()
    own = ("spark.app.", "spark.driver.port")
    settings = [(k, v) for k, v in spark.sparkContext.getConf().getAll() if not k.startswith(own)]
    spark.createDataFrame(pd.DataFrame({"k": [1, 2, 2]})).coalesce(1).write.parquet(
        f"{directory}/input", "append"
    )
    counts = spark.readStream.schema("k long").parquet(f"{directory}/input").groupBy("k").count()
    found: list[list[int]] = []
    query = (
        counts.writeStream.outputMode("complete")
        .foreachBatch(lambda batch, _, to=found: to.extend(sorted(map(list, batch.collect()))))
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    report(application, found)
    spark.stop()
sys.stdin.readline()

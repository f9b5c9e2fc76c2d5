"""Test program: two applications, one after the other in one JVM.

So runs a notebook that stops its session and starts another. The only argument is a JSON object:
``directory``, below which local files go, and ``bucket``, the name of one on S3. Each application takes the
same queries one batch further, reads their state, and takes a savepoint.
"""

import json
import sys
from typing import Any

import spark_statestore
from spark_statestore.options import OPTION_PREFIX
from tests.spark.counting import backends_of, jvm_of, report
from tests.support.sessions import local_builder

arguments = json.loads(sys.argv[1])
directory = arguments["directory"]
URLS = {
    "local": f"{directory}/checkpoint",
    "s3": f"s3://{arguments['bucket']}/checkpoint",
}


def state_of(spark, url):
    rows = spark.read.format("statestore").load(url).select("key.k", "value.count").collect()
    return sorted(map(list, rows))


def run(spark, url):
    counts = spark.readStream.schema("k long").parquet(f"{directory}/input").groupBy("k").count()
    rows: list[list[int]] = []
    query = (
        counts.writeStream.outputMode("complete")
        .foreachBatch(lambda batch, _: rows.extend(sorted(map(list, batch.collect()))))
        .option("checkpointLocation", url)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return rows


for application in "first", "second":
    builder = local_builder(application, memory="512m").config("spark.plugins", spark_statestore.PLUGIN_CLASS)
    # The cell of a notebook that is changed and run again.
    options = {"storage_retries": 7} if application == "first" else {}
    spark = spark_statestore.configure(builder, **options).getOrCreate()
    spark_statestore.attach(spark)
    spark.createDataFrame([(1,), (2,), (2,)], "k long").coalesce(1).write.parquet(
        f"{directory}/input", "append"
    )
    values: dict[str, Any] = {"storageRetries": spark.conf.get(OPTION_PREFIX + "storageRetries", None)}
    for name, url in URLS.items():
        batch = run(spark, url)
        values[name] = [
            batch,
            state_of(spark, url),
            spark_statestore.savepoint(url, f"{url}-savepoints").batch,
        ]
    jvm = jvm_of(spark)
    values["backends"] = len(backends_of(jvm))
    spark.stop()
    values["backends after"] = len(backends_of(jvm))
    report(application, values)
sys.stdin.readline()

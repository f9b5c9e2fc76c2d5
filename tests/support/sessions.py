"""Local Spark sessions for tests and benchmarks: small, without a web interface, on the loopback."""

from __future__ import annotations

import json
from typing import Any, Final

UNCONNECTED: Final = "Python worker failed to connect back"
"""Error of Spark on a busy machine: a worker has ten seconds to start, which no setting changes."""

STARTS: Final = 5
"""Number of times that a query is started if this error ends it."""


def local_builder(
    name: str, memory: str, master: str = "local[2]", *, with_hadoop_defaults: bool = False
) -> Any:
    """Return the builder of such a session, for further configuration by the caller.

    Parameters
    ----------
    name
        Name of the application.
    memory
        Heap of its driver.
    master
        Its master.
    with_hadoop_defaults
        Keep the properties of `core-default.xml`, as users' sessions do.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    class Builder(SparkSession.Builder):
        def getOrCreate(self) -> SparkSession:
            is_first = SparkContext._active_spark_context is None
            session = super().getOrCreate()
            if is_first and not with_hadoop_defaults:
                _drop_hadoop_defaults(session)
            return session

    builder = Builder().master(master).appName(name)
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": memory,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }
    return builder.config(map=settings)


def _drop_hadoop_defaults(session: Any) -> None:
    """Leave only the Hadoop properties that something has set; Hadoop's code has the same defaults.

    Spark serializes a thousand properties into each task, each read of files or of state, and each join:
    a sixth of the processor time of tests.
    """
    jvm = session._jvm
    hadoop, text = session.sparkContext._jsc.hadoopConfiguration(), jvm.java.io.StringWriter()
    jvm.org.apache.hadoop.conf.Configuration.dumpConfiguration(hadoop, text)
    properties = {
        entry["key"]: hadoop.getRaw(entry["key"])
        for entry in json.loads(text.toString())["properties"]
        if not entry["resource"].endswith("-default.xml")
    }
    hadoop.clear()
    for key, value in properties.items():
        hadoop.set(key, value)


def cluster_builder() -> Any:
    """Return the builder of a session with two executors, which are killed and replaced."""
    builder = local_builder("cluster", memory="512m", master="local-cluster[2,1,1024]")
    builder.config("spark.sql.shuffle.partitions", "4")
    # Spark otherwise requests blocks of a lost executor again and again.
    return builder.config("spark.shuffle.io.maxRetries", "1").config("spark.shuffle.io.retryWait", "100ms")

"""Local Spark sessions for tests and benchmarks: small, without a web interface, on the loopback."""

from __future__ import annotations

from typing import Any


def local_builder(name: str, memory: str, master: str = "local[2]") -> Any:
    """Return the builder of such a session, for further configuration by the caller."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName(name)
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": memory,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }
    for key, value in settings.items():
        builder.config(key, value)
    return builder


def cluster_builder() -> Any:
    """Return the builder of a session with two executors, which are killed and replaced."""
    builder = local_builder("cluster", memory="512m", master="local-cluster[2,1,1024]")
    builder.config("spark.sql.shuffle.partitions", "4")
    # Spark otherwise requests blocks of a lost executor again and again.
    return builder.config("spark.shuffle.io.maxRetries", "1").config("spark.shuffle.io.retryWait", "100ms")

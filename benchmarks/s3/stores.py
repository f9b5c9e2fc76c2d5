"""The compared stores, with their whole checkpoint on S3: sessions, class paths and settings."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyspark

from benchmarks.sessions import SessionSettings
from benchmarks.stores import BY_TASK, CHANGELOG, HDFS, LIMIT, LIMIT_EXTENSIONS, OURS
from benchmarks.streaming import CONFS, StoreConfig, config_of
from tests.spark.queries import JOIN_FORMAT
from tests.support.services import Service
from tests.support.services.hdfs import hadoop_version
from tests.support.services.service import fetched, run_client

MINE = (OURS, BY_TASK)

WITH_BACKEND = (*MINE, LIMIT)
"""Those with Spark's own files written by the backend."""

STORES = (*WITH_BACKEND, HDFS, CHANGELOG)

CLOUD = "org.apache.spark:spark-hadoop-cloud_2.13:4.1.2"
"""Spark's checkpoint file manager for S3. Spark 4.3's own is not on Maven Central; the class fits."""

_OTHER_CLOUDS = (
    "com.google.*:*",
    "org.apache.hadoop:hadoop-azure*",
    "org.apache.hadoop:hadoop-h*",
    "org.apache.hadoop:hadoop-cl*",
    "org.apache.spark:spark-[!h]*",
    "com.fasterxml*:*",
    "com.squareup*:*",
    "org.eclipse*:*",
    "org.apache.httpcomponents:*",
    "joda-time:*",
)
"""Dependencies of `CLOUD` that are not fetched: connectors of other clouds, and jars that PySpark has."""

_FILE_MANAGER = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"

SHARED = CONFS | {
    "spark.master": "local[8]",
    # So that batches remove old ones after a short warm-up.
    "spark.sql.streaming.minBatchesToRetain": "2",
    # Each input is one batch. Those without data cost less, so requests a batch are an upper limit.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}
"""Settings of all sessions."""

_S3A = "spark.hadoop.fs.s3a."
_HADOOP = {
    "spark.sql.streaming.checkpointFileManagerClass": _FILE_MANAGER,
    f"{_S3A}path.style.access": "true",
    f"{_S3A}connection.ssl.enabled": "false",
    f"{_S3A}aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    # Faster than the defaults, which wait for a response before each upload, and buffer it on disk.
    f"{_S3A}connection.expect.continue": "false",
    f"{_S3A}fast.upload.buffer": "bytebuffer",
}


def connector() -> list[Path]:
    """Return the jars of hadoop-aws for PySpark's Hadoop, and of Spark's file manager, fetched on first use.

    Raises
    ------
    ServiceUnavailableError
        If they cannot be fetched here.
    """
    home = Path(pyspark.__path__[0])
    aws = f"org.apache.hadoop:hadoop-aws:{hadoop_version()}"

    def fetch(directory: Path) -> None:
        settings = {
            "spark.jars.ivy": str(directory),
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
        }
        program = directory / "nothing.py"
        program.touch()
        run_client(
            [
                str(home / "bin" / "spark-submit"),
                *("--packages", f"{aws},{CLOUD}", "--exclude-packages", ",".join(_OTHER_CLOUDS)),
                *(part for key, value in settings.items() for part in ("--conf", f"{key}={value}")),
                str(program),
            ],
            {"SPARK_HOME": str(home)},
        )
        # It has another copy of each jar, of 650 MiB.
        shutil.rmtree(directory / "cache")

    return sorted((fetched(aws.partition(":")[2].replace(":", "-"), fetch) / "jars").glob("*.jar"))


def session_settings(service: Service, endpoint: str, confs: Mapping[str, str]) -> dict[str, SessionSettings]:
    """Return the session of each store with further settings, which reaches the service by an endpoint."""
    shared = SHARED | dict(confs)
    reached = {"FSSPEC_S3_ENDPOINT_URL": endpoint, "AWS_ENDPOINT_URL": endpoint}
    environment = {**service.environment, **reached}
    hadoop = _HADOOP | {
        "spark.driver.extraClassPath": ":".join(map(str, connector())),
        f"{_S3A}endpoint": endpoint,
        f"{_S3A}access.key": environment["AWS_ACCESS_KEY_ID"],
        f"{_S3A}secret.key": environment["AWS_SECRET_ACCESS_KEY"],
    }
    with_backend = SessionSettings("3g", "backend", shared, environment=environment)
    with_hadoop = SessionSettings("3g", "hadoop", shared | hadoop)
    return {
        **dict.fromkeys(MINE, with_backend),
        LIMIT: replace(with_backend, confs=shared | {"spark.sql.extensions": LIMIT_EXTENSIONS}),
        HDFS: with_hadoop,
        CHANGELOG: with_hadoop,
    }


def store_configs(buckets: Mapping[str, str], *, is_join: bool) -> tuple[StoreConfig, ...]:
    """Return stores with their buckets; of a join each has the newest format that it supports."""
    configs = []
    for name, bucket in buckets.items():
        scheme = "s3" if name in WITH_BACKEND else "s3a"
        config = replace(config_of(name), checkpoints=f"{scheme}://{bucket}")
        if is_join and name not in (HDFS, LIMIT):
            config = replace(config, confs={JOIN_FORMAT: "4"})
        configs.append(config)
    return tuple(configs)


def require_isolation(spark: Any, name: str) -> None:
    """Raise an error unless hadoop-aws is on the class path of Spark's own stores, and only there."""
    loader = spark._jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        spark._jvm.java.lang.Class.forName("org.apache.hadoop.fs.s3a.S3AFileSystem", False, loader)
        present = True
    except Exception:  # noqa: BLE001 - of py4j
        present = False
    if present == (name in WITH_BACKEND):
        raise RuntimeError(f"{name}: hadoop-aws is {'' if present else 'not '}on the class path")

"""The compared stores, with their whole checkpoint on S3: sessions, class paths and settings."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyspark

import spark_statestore
from benchmarks.contest import BY_TASK, CHANGELOG, HDFS, LIMIT, LIMIT_EXTENSIONS, OURS
from benchmarks.race import Entrant, entrant_of
from benchmarks.race_apart import CONFS, Host
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
    "master": "local[8]",
    # So that batches remove old ones after a short warm-up.
    "sql__streaming__minBatchesToRetain": "2",
    # Each input is one batch. Those without data cost less, so requests a batch are an upper limit.
    "sql__streaming__noDataMicroBatches__enabled": "false",
}

_HADOOP = {
    "sql__streaming__checkpointFileManagerClass": _FILE_MANAGER,
    "hadoop__fs__s3a__path__style__access": "true",
    "hadoop__fs__s3a__connection__ssl__enabled": "false",
    "hadoop__fs__s3a__aws__credentials__provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    # Faster than the defaults, which wait for a response before each upload, and buffer it on disk.
    "hadoop__fs__s3a__connection__expect__continue": "false",
    "hadoop__fs__s3a__fast__upload__buffer": "bytebuffer",
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


def hosts(service: Service, endpoint: str, confs: Mapping[str, str]) -> dict[str, Host]:
    """Return the session of each store with further settings, which reaches the service by an endpoint."""
    shared = {**SHARED, **confs}
    reached = {"FSSPEC_S3_ENDPOINT_URL": endpoint, "AWS_ENDPOINT_URL": endpoint}
    environment = {**service.environment, **reached}
    hadoop = _HADOOP | {
        "driver__extraClassPath": ":".join(map(str, connector())),
        "hadoop__fs__s3a__endpoint": endpoint,
        "hadoop__fs__s3a__access__key": environment["AWS_ACCESS_KEY_ID"],
        "hadoop__fs__s3a__secret__key": environment["AWS_SECRET_ACCESS_KEY"],
    }
    with_backend = Host(spark_files="backend", confs=shared, environment=environment)
    return {
        **dict.fromkeys(MINE, with_backend),
        LIMIT: replace(with_backend, confs=shared | {"sql__extensions": LIMIT_EXTENSIONS}),
        HDFS: Host(confs=shared | hadoop),
        CHANGELOG: Host(confs=shared | hadoop),
    }


def entrants(buckets: Mapping[str, str], *, is_join: bool) -> tuple[Entrant, ...]:
    """Return stores with their buckets; of a join each has the newest format that it supports."""
    found = []
    for name, bucket in buckets.items():
        scheme = "s3" if name in WITH_BACKEND else "s3a"
        entrant = replace(entrant_of(name), checkpoints=f"{scheme}://{bucket}")
        if is_join and name not in (HDFS, LIMIT):
            entrant = replace(entrant, confs={JOIN_FORMAT: "4"})
            if name in MINE:
                entrant = replace(entrant, provider=spark_statestore.JOIN_PROVIDER_CLASS)
        found.append(entrant)
    return tuple(found)


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

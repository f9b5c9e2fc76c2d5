"""Jars of Delta Lake and Apache Iceberg for the installed Spark, from Maven's repository."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.support.paths import SPARK_MINOR
from tests.support.services.service import ServiceUnavailableError, fetched, maven_jars

DELTA_VERSIONS: Final = {"4.0": "4.4.0", "4.1": "4.4.0", "4.2": "4.4.0"}
"""By Spark's minor version, the newest release that Maven Central has."""

ICEBERG_VERSIONS: Final = {"4.0": "1.11.0", "4.1": "1.12.0"}


def _version(name: str, versions: dict[str, str]) -> str:
    if SPARK_MINOR not in versions:
        raise ServiceUnavailableError(f"Maven Central has no {name} for Spark {SPARK_MINOR}")
    return versions[SPARK_MINOR]


def delta() -> Path:
    version = _version("Delta Lake", DELTA_VERSIONS)
    jars = [
        f"io.delta:delta-spark_{SPARK_MINOR}_2.13:{version}",
        *(f"io.delta:{name}:{version}" for name in ("delta-storage", "delta-kernel-api")),
        *(f"io.delta:{name}:{version}" for name in ("delta-kernel-defaults", "delta-kernel-unitycatalog")),
    ]
    return fetched(f"delta-{version}-spark-{SPARK_MINOR}", lambda directory: maven_jars(directory, *jars))


def iceberg() -> Path:
    version = _version("Iceberg", ICEBERG_VERSIONS)
    jar = f"org.apache.iceberg:iceberg-spark-runtime-{SPARK_MINOR}_2.13:{version}"
    return fetched(f"iceberg-{version}-spark-{SPARK_MINOR}", lambda directory: maven_jars(directory, jar))

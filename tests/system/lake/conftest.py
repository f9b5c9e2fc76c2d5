"""A session with Delta Lake and Iceberg beside this store, as far as they support the installed Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import spark_statestore
from tests.support.services import ServiceUnavailableError
from tests.support.services.lake import delta, iceberg
from tests.support.sessions import local_builder

EXTENSIONS = "spark.sql.extensions"

DELTA = {
    EXTENSIONS: "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Small tables otherwise have fifty tasks for their log.
    "spark.databricks.delta.snapshotPartitions": "1",
}


def iceberg_settings(warehouse: Path) -> dict[str, str]:
    return {
        EXTENSIONS: "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        # A catalog keeps a table for 30 s as it was. The session of a foreachBatch function has its own one.
        "spark.sql.catalog.lake.cache-enabled": "false",
        "spark.sql.catalog.lake.warehouse": str(warehouse),
    }


def settings(fetches: dict[str, Callable[[], Path]], warehouse: Path) -> dict[str, str]:
    """Return the settings of a session with those formats whose jars can be fetched."""
    combined: dict[str, str] = {}
    jars: list[str] = []
    for name, fetch in fetches.items():
        try:
            jars += map(str, sorted(fetch().glob("*.jar")))
        except ServiceUnavailableError as error:
            print(f"{name}: {error}")
            continue
        confs = DELTA if name == "delta" else iceberg_settings(warehouse)
        extensions = filter(None, [combined.get(EXTENSIONS), confs[EXTENSIONS]])
        combined |= confs | {EXTENSIONS: ",".join(extensions)}
    return combined | {"spark.jars": ",".join(jars)}


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the settings of a session with the formats."""
    return settings({"delta": delta, "iceberg": iceberg}, tmp_path_factory.mktemp("warehouse"))


@pytest.fixture(scope="session")
def spark(built: Path, lake: dict[str, str]) -> Iterator[Any]:
    """Start a session with the formats, configured for this store."""
    # Delta Lake needs a file system of core-default.xml.
    builder = local_builder("lake-tests", memory="1g", with_hadoop_defaults=True)
    for key, value in lake.items():
        builder.config(key, value)
    builder.config("spark.sql.session.timeZone", "UTC")
    session = spark_statestore.configure(builder).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(params=["delta", "iceberg"])
def sink(request: pytest.FixtureRequest, lake: dict[str, str]) -> str:
    if request.param not in lake[EXTENSIONS].lower():
        pytest.skip(f"the jars of {request.param} cannot be fetched for this Spark")
    return str(request.param)

"""Tests of the settings that `configure` adds to a session builder."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import spark_statestore
from spark_statestore import IncompatibleSparkError, SessionError
from spark_statestore.errors import OptionError
from spark_statestore.options import OPTION_PREFIX
from tests.support.paths import ROOT

CUSTOM_METRICS = "spark.sql.streaming.ui.enabledCustomMetricList"
DRIVER_PYTHON = f"{OPTION_PREFIX}driverPython"
FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
OURS = spark_statestore.PROVIDER_CLASS
PLUGIN = spark_statestore.PLUGIN_CLASS
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
SHIM = ROOT / "jvm-shim/src/main/scala/org/apache/spark/sql/statestore"


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A new builder, in the environment of spark-submit, where no JVM is required."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr("spark_statestore.spark_settings._submitted_settings", dict)
    fresh = SparkSession.Builder()
    monkeypatch.setattr(fresh, "_options", {}, raising=False)
    return fresh


MEMORY = {"storage": "memory"}


@pytest.mark.parametrize(
    ("before", "arguments", "name", "value"),
    [
        pytest.param({}, MEMORY, "spark.plugins", PLUGIN, id="plugin for memory"),
        pytest.param({"spark.plugins": "A"}, MEMORY, "spark.plugins", f"A,{PLUGIN}", id="other plugins"),
        pytest.param({}, {}, "spark.plugins", None, id="no plugin for files"),
        pytest.param(
            {}, MEMORY | {"checkpoints_dir": "/x"}, "spark.plugins", None, id="no plugin with a directory"
        ),
        pytest.param(
            {f"{OPTION_PREFIX}checkpointsDir": "/x"}, MEMORY, "spark.plugins", None, id="directory was set"
        ),
        pytest.param({CUSTOM_METRICS: "a"}, {}, CUSTOM_METRICS, "a", id="list of metrics was set"),
        pytest.param({}, {}, PROVIDER, OURS, id="provider"),
        pytest.param(
            {}, {}, FILE_MANAGER, spark_statestore.FILE_MANAGER_CLASS, id="files through the backend"
        ),
        pytest.param({}, {}, DRIVER_PYTHON, sys.executable, id="interpreter of the driver"),
        pytest.param({}, {"spark_files": "hadoop"}, FILE_MANAGER, None, id="files through Hadoop"),
        pytest.param({}, {"spark_files": "hadoop"}, DRIVER_PYTHON, None, id="no interpreter for Hadoop"),
        pytest.param({FILE_MANAGER: "A"}, {}, FILE_MANAGER, "A", id="file manager was set"),
    ],
)
def test_configure_adds_what_is_not_set(
    builder: Any, before: Mapping[str, str], arguments: Mapping[str, str], name: str, value: str | None
) -> None:
    builder.config(map=before)
    for _ in range(2):
        spark_statestore.configure(builder, **arguments)
        assert builder._options.get(name) == value


def test_configure_lists_every_custom_metric_for_sparks_page(builder: Any) -> None:
    spark_statestore.configure(builder)
    source = (SHIM / "provider/StoreMetrics.scala").read_text()
    assert builder._options[CUSTOM_METRICS].split(",") == re.findall(r'Metric\(\s*"(\w+)"', source)


def test_configure_refuses_another_provider(builder: Any) -> None:
    builder.config(PROVIDER, "com.example.AnotherProvider")
    with pytest.raises(SessionError, match="AnotherProvider"):
        spark_statestore.configure(builder)


def test_configure_leaves_python_workers_of_a_submitted_application_to_spark(builder: Any) -> None:
    # Its master may be a cluster's.
    spark_statestore.configure(builder)
    assert "spark.python.daemon.module" not in builder._options
    with pytest.raises(OptionError, match="python_workers is 'slow', but it must be 'fast' or 'spark'"):
        spark_statestore.configure(builder, python_workers="slow")


def test_configure_rejects_unknown_spark_files(builder: Any) -> None:
    with pytest.raises(OptionError, match="spark_files is 'fsspec', but it must be 'backend' or 'hadoop'"):
        spark_statestore.configure(builder, spark_files="fsspec")
    assert builder._options == {}


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("3.5.6", r"does not support Spark 3\.5\.6, only Spark 4\.0, 4\.1, 4\.2, 4\.3"),
        ("4.0.0", r"Spark 4\.0\.0 lacks an interface .*pip install 'pyspark>=4\.0\.1,<4\.1'"),
        ("4.4.0", r"does not support Spark 4\.4\.0"),
    ],
)
def test_unsupported_spark_is_rejected(version: str, message: str) -> None:
    with pytest.raises(IncompatibleSparkError, match=message):
        spark_statestore.jar_path(version)


def test_jar_that_was_not_built_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-statestore-spark-4.3.jar").touch()
    monkeypatch.setattr("spark_statestore.session.__file__", str(tmp_path / "session.py"))
    assert spark_statestore.jar_path("4.3.0").startswith(str(tmp_path))
    missing = r"jars for Spark 4\.3 alone, not for Spark 4\.1\.4.*make wheel"
    with pytest.raises(IncompatibleSparkError, match=missing):
        spark_statestore.jar_path("4.1.4")


@pytest.fixture
def unlaunched(builder: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A new builder, in a process that has not launched a JVM."""
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT")
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    monkeypatch.setattr("pyspark.core.context.SparkContext._gateway", None)
    monkeypatch.setattr("spark_statestore.session._shipped_directories", {})
    return builder


@pytest.mark.parametrize("name", ["a#b", "a,b", "a*b", "a?b", "a[b]", "a{b}", "a\\b"])
def test_configure_ships_a_copy_of_a_jar_whose_path_spark_cannot_take(
    unlaunched: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    jar = tmp_path / name / "jars" / Path(spark_statestore.jar_path()).name
    jar.parent.mkdir(parents=True)
    jar.write_bytes(name.encode())
    monkeypatch.setattr("spark_statestore.session.__file__", str(tmp_path / name / "session.py"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    spark_statestore.configure(unlaunched)
    shipped = Path(unlaunched._options["spark.jars"])
    assert shipped.read_bytes() == name.encode()
    assert re.fullmatch(r"[\w/.-]+", str(shipped.relative_to(tmp_path)))


def test_configure_ships_the_jar_itself_from_other_paths(unlaunched: Any) -> None:
    spark_statestore.configure(unlaunched)
    assert unlaunched._options["spark.jars"] == spark_statestore.jar_path()


def test_configure_refuses_temporary_files_below_a_path_that_spark_cannot_take(
    unlaunched: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    directory = tmp_path / "a,b"
    directory.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(directory))
    with pytest.raises(SessionError, match=r"a,b, has one of .*set the environment variable TMPDIR"):
        spark_statestore.configure(unlaunched)


def test_configure_continues_the_extensions_of_spark_submit(
    builder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "spark_statestore.spark_settings._submitted_settings", lambda: {"spark.sql.extensions": "A,B"}
    )
    spark_statestore.configure(builder)
    assert builder._options["spark.sql.extensions"] == f"A,B,{spark_statestore.EXTENSIONS_CLASS}"


@pytest.mark.parametrize("flag", ["--conf", "-c"])
def test_configure_continues_the_extensions_of_submit_arguments(
    unlaunched: Any, monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    arguments = f"{flag} 'spark.sql.extensions=A,B' pyspark-shell"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", arguments)
    spark_statestore.configure(unlaunched)
    assert unlaunched._options["spark.sql.extensions"] == f"A,B,{spark_statestore.EXTENSIONS_CLASS}"

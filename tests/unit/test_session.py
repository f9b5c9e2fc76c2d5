"""Tests of the settings that `configure` adds to a session builder."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import spark_statestore
from spark_statestore.errors import OptionError
from spark_statestore.options import OPTION_PREFIX
from tests.support.paths import ROOT

ANOTHER = "com.example.AnotherPlugin"
CUSTOM_METRICS = "spark.sql.streaming.ui.enabledCustomMetricList"
SHIM = ROOT / "jvm-shim/src/main/scala/org/apache/spark/sql/statestore"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A new builder, in the environment of spark-submit, where no JVM is required."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    fresh = SparkSession.Builder()
    monkeypatch.setattr(fresh, "_options", {}, raising=False)
    return fresh


def test_configure_adds_plugin_for_memory_without_a_directory(builder: Any) -> None:
    spark_statestore.configure(builder, storage="memory")
    assert builder._options["spark.plugins"] == spark_statestore.PLUGIN_CLASS


def test_configure_keeps_other_plugins(builder: Any) -> None:
    builder.config("spark.plugins", ANOTHER)
    for _ in range(2):
        spark_statestore.configure(builder, storage="memory")
    assert builder._options["spark.plugins"] == f"{ANOTHER},{spark_statestore.PLUGIN_CLASS}"


@pytest.mark.parametrize("options", [{}, {"storage": "memory", "checkpoints_dir": "/somewhere"}])
def test_configure_adds_no_plugin_for_state_in_files(builder: Any, options: dict[str, str]) -> None:
    spark_statestore.configure(builder, **options)
    assert "spark.plugins" not in builder._options


def test_configure_adds_no_plugin_if_a_directory_is_set_on_the_builder(builder: Any) -> None:
    builder.config(OPTION_PREFIX + "checkpointsDir", "/somewhere")
    spark_statestore.configure(builder, storage="memory")
    assert "spark.plugins" not in builder._options


def test_configure_lists_every_custom_metric_for_sparks_page(builder: Any) -> None:
    spark_statestore.configure(builder)
    source = (SHIM / "provider/StoreMetrics.scala").read_text()
    assert builder._options[CUSTOM_METRICS].split(",") == re.findall(r'Metric\(\s*"(\w+)"', source)


def test_configure_keeps_the_users_list_of_custom_metrics(builder: Any) -> None:
    builder.config(CUSTOM_METRICS, "storageRetries")
    spark_statestore.configure(builder)
    assert builder._options[CUSTOM_METRICS] == "storageRetries"


def test_configure_sets_the_main_provider_by_default(builder: Any) -> None:
    spark_statestore.configure(builder)
    assert builder._options[PROVIDER] == spark_statestore.PROVIDER_CLASS


def test_configure_keeps_the_join_provider(builder: Any) -> None:
    builder.config(PROVIDER, spark_statestore.JOIN_PROVIDER_CLASS)
    spark_statestore.configure(builder)
    assert builder._options[PROVIDER] == spark_statestore.JOIN_PROVIDER_CLASS


def test_configure_keeps_the_join_provider_of_spark_defaults(
    builder: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(f"{PROVIDER} {spark_statestore.JOIN_PROVIDER_CLASS}\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    spark_statestore.configure(builder)
    assert builder._options[PROVIDER] == spark_statestore.JOIN_PROVIDER_CLASS


def test_configure_refuses_another_provider(builder: Any) -> None:
    builder.config(PROVIDER, "com.example.AnotherProvider")
    with pytest.raises(spark_statestore.SessionError, match="AnotherProvider"):
        spark_statestore.configure(builder)


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("3.5.6", r"does not support Spark 3\.5\.6, only Spark 4\.0, 4\.1, 4\.2, 4\.3"),
        ("4.0.0", r"Spark 4\.0\.0 lacks an interface .*pip install 'pyspark>=4\.0\.1,<4\.1'"),
        ("4.4.0", r"does not support Spark 4\.4\.0"),
    ],
)
def test_unsupported_spark_is_rejected(version: str, message: str) -> None:
    with pytest.raises(spark_statestore.IncompatibleSparkError, match=message):
        spark_statestore.jar_path(version)


def test_jar_that_was_not_built_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-statestore-spark-4.3.jar").touch()
    monkeypatch.setattr("spark_statestore.session.__file__", str(tmp_path / "session.py"))
    assert spark_statestore.jar_path("4.3.0").startswith(str(tmp_path))
    with pytest.raises(
        spark_statestore.IncompatibleSparkError,
        match=r"jars for Spark 4\.3 alone, not for Spark 4\.1\.4.*make wheel",
    ):
        spark_statestore.jar_path("4.1.4")


@pytest.fixture
def unlaunched(builder: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A new builder, in a process that has not launched a JVM."""
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT")
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    monkeypatch.setattr("pyspark.core.context.SparkContext._gateway", None)
    return builder


@pytest.mark.parametrize("name", ["a#b", "a,b", "a*b", "a?b", "a[b]", "a{b}", "a\\b"])
def test_configure_ships_a_copy_of_a_jar_whose_path_spark_cannot_take(
    unlaunched: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    jar = tmp_path / name / "jars" / Path(spark_statestore.jar_path()).name
    jar.parent.mkdir(parents=True)
    jar.write_bytes(name.encode())
    monkeypatch.setattr("spark_statestore.session.__file__", str(tmp_path / name / "session.py"))
    monkeypatch.setattr("spark_statestore.session._shipped_directories", {})
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
    monkeypatch.setattr("spark_statestore.session._shipped_directories", {})
    monkeypatch.setattr("tempfile.tempdir", str(directory))
    with pytest.raises(
        spark_statestore.SessionError, match=r"a,b, has one of .*set the environment variable TMPDIR"
    ):
        spark_statestore.configure(unlaunched)


FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"


def test_configure_leaves_sparks_files_to_hadoop_if_asked(builder: Any) -> None:
    spark_statestore.configure(builder, spark_files="hadoop")
    assert FILE_MANAGER not in builder._options
    assert OPTION_PREFIX + "driverPython" not in builder._options


def test_configure_sets_file_manager_and_the_drivers_interpreter(builder: Any) -> None:
    spark_statestore.configure(builder)
    assert builder._options[FILE_MANAGER] == spark_statestore.FILE_MANAGER_CLASS
    assert builder._options[OPTION_PREFIX + "driverPython"] == sys.executable


def test_configure_keeps_another_file_manager(builder: Any) -> None:
    builder.config(FILE_MANAGER, "com.example.Manager")
    spark_statestore.configure(builder)
    assert builder._options[FILE_MANAGER] == "com.example.Manager"


def test_configure_rejects_unknown_spark_files(builder: Any) -> None:
    with pytest.raises(OptionError, match="spark_files is 'fsspec', but it must be 'backend' or 'hadoop'"):
        spark_statestore.configure(builder, spark_files="fsspec")
    assert builder._options == {}

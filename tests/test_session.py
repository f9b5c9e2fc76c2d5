"""What `configure` adds to a session for state in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import spark_statestore
from spark_statestore.options import OPTION_PREFIX

ANOTHER = "com.example.AnotherPlugin"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A builder of its own, as in a program that spark-submit runs: no JVM is looked for."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    fresh = SparkSession.Builder()
    monkeypatch.setattr(fresh, "_options", {}, raising=False)
    return fresh


def test_memory_without_a_directory_needs_the_plugin(builder: Any) -> None:
    spark_statestore.configure(builder, storage="memory")
    assert builder._options["spark.plugins"] == spark_statestore.PLUGIN_CLASS


def test_other_plugins_are_kept(builder: Any) -> None:
    builder.config("spark.plugins", ANOTHER)
    for _ in range(2):
        spark_statestore.configure(builder, storage="memory")
    assert builder._options["spark.plugins"] == f"{ANOTHER},{spark_statestore.PLUGIN_CLASS}"


@pytest.mark.parametrize("options", [{}, {"storage": "memory", "checkpoints_dir": "/somewhere"}])
def test_state_in_files_does_not(builder: Any, options: dict[str, str]) -> None:
    spark_statestore.configure(builder, **options)
    assert "spark.plugins" not in builder._options


def test_a_directory_that_was_set_before_counts(builder: Any) -> None:
    builder.config(OPTION_PREFIX + "checkpointsDir", "/somewhere")
    spark_statestore.configure(builder, storage="memory")
    assert "spark.plugins" not in builder._options


def test_the_main_provider_is_the_default(builder: Any) -> None:
    spark_statestore.configure(builder)
    assert builder._options[PROVIDER] == spark_statestore.PROVIDER_CLASS


def test_the_provider_for_joins_is_kept(builder: Any) -> None:
    builder.config(PROVIDER, spark_statestore.JOIN_PROVIDER_CLASS)
    spark_statestore.configure(builder)
    assert builder._options[PROVIDER] == spark_statestore.JOIN_PROVIDER_CLASS


def test_the_provider_for_joins_is_kept_in_spark_defaults(
    builder: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(f"{PROVIDER} {spark_statestore.JOIN_PROVIDER_CLASS}\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    spark_statestore.configure(builder)
    assert builder._options[PROVIDER] == spark_statestore.JOIN_PROVIDER_CLASS


def test_another_provider_is_a_contradiction(builder: Any) -> None:
    builder.config(PROVIDER, "com.example.AnotherProvider")
    with pytest.raises(spark_statestore.SessionError, match="AnotherProvider"):
        spark_statestore.configure(builder)

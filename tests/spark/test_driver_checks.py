"""Validation of settings that `configure` did not see, by the driver before the first task of a query."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import spark_statestore
from spark_statestore.options import OPTION_PREFIX
from tests.spark.counting import messages, run_to, start_counting, wait_for_batch
from tests.spark.queries import SPARKS

PROVIDER = "spark.sql.streaming.stateStore.providerClass"


def failure(query: Any) -> str:
    """Return all messages of the error with which a query fails before it runs a job."""
    try:
        with pytest.raises(StreamingQueryException):
            assert query.awaitTermination(15)
        tracker = SparkSession.active().sparkContext.statusTracker()
        assert tracker.getJobIdsForGroup(str(query.runId)) == []
        return messages(query._jsq.exception().get())
    finally:
        query.stop()


def numbers(session: Any) -> Any:
    return session.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()


def counts(session: Any) -> Any:
    return numbers(session).groupBy("value").count().writeStream.outputMode("complete")


# Storage and interpreter


@pytest.mark.parametrize(
    ("option", "url", "expected"),
    [
        ("checkpointsDir", "oci://bucket/x", r"needs the driver for 'oci'.*Install ocifs"),
        ("savepointsDir", "s3://", r"names no directory"),
    ],
)
def test_unusable_directory_fails_the_query_without_a_task(
    spark: Any, tmp_path: Path, option: str, url: str, expected: str
) -> None:
    session = spark.newSession()
    query = start_counting(session, tmp_path, confs={OPTION_PREFIX + option: url})
    message = failure(query)
    assert re.search(f"'{OPTION_PREFIX}{option}'.*{expected}", message), message


def test_unusable_interpreter_fails_the_query_without_a_task(spark: Any, tmp_path: Path) -> None:
    query = start_counting(spark.newSession(), tmp_path, confs={OPTION_PREFIX + "python": "/nowhere/python3"})
    message = failure(query)
    assert "'/nowhere/python3' cannot be run" in message
    assert f"Set {OPTION_PREFIX}python" in message
    # The checkpoint is unaffected.
    run_to(spark.newSession(), tmp_path, 1)


def test_query_without_state_in_the_store_needs_no_interpreter(spark: Any, tmp_path: Path) -> None:
    session = spark.newSession()
    session.conf.set(OPTION_PREFIX + "python", "/nowhere/python3")
    run_one_batch(numbers(session).writeStream.format("noop"), tmp_path / "stateless")
    session.conf.set(PROVIDER, SPARKS)
    run_to(session, tmp_path / "other", 1)


# Options of the state store that are given to a sink


def to_memory(writer: Any) -> Any:
    return writer.format("memory").queryName("sink")


def to_a_function(writer: Any) -> Any:
    return writer.foreachBatch(lambda batch, batch_id: None)


def to_nowhere(writer: Any) -> Any:
    return writer.format("noop")


@pytest.mark.parametrize(
    ("sink", "option", "value", "suggested"),
    [
        (to_memory, OPTION_PREFIX + "checkpointsDir", "s3://bucket/x", "checkpointsDir"),
        (to_a_function, (OPTION_PREFIX + "storageRetries").upper(), "5", "storageRetries"),
        (to_nowhere, "checkpointsdir", "/data", "checkpointsDir"),
    ],
)
def test_sink_rejects_a_store_option(
    spark: Any, tmp_path: Path, sink: Callable[..., Any], option: str, value: str, suggested: str
) -> None:
    writer = sink(counts(spark)).option("checkpointLocation", str(tmp_path / "checkpoint"))
    message = failure(writer.option(option, value).start())
    assert f"'{option}' was given to writeStream.option" in message, message
    assert f'spark.conf.set("{OPTION_PREFIX}{suggested}", "{value}")' in message


def test_sink_rejects_a_provider_option(spark: Any, tmp_path: Path) -> None:
    session = spark.newSession()
    session.conf.set(PROVIDER, SPARKS)
    writer = to_memory(counts(session)).option(PROVIDER, spark_statestore.PROVIDER_CLASS)
    message = failure(writer.option("checkpointLocation", str(tmp_path)).start())
    assert f'spark.conf.set("{PROVIDER}", "{spark_statestore.PROVIDER_CLASS}")' in message


def test_sink_option_error_redacts_passwords(spark: Any, tmp_path: Path) -> None:
    writer = to_memory(counts(spark)).option("checkpointsDir", "s3://user:hunter2@bucket/x")
    message = failure(writer.option("checkpointLocation", str(tmp_path)).start())
    assert "was given to writeStream.option" in message
    assert "hunter2" not in message


def run_one_batch(writer: Any, checkpoint: Path) -> None:
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        wait_for_batch(query, 0)
    finally:
        query.stop()


def test_sink_keeps_its_own_options(spark: Any, tmp_path: Path) -> None:
    writer = numbers(spark).writeStream.format("parquet").option("path", str(tmp_path / "out"))
    for name, value in {"compression": "gzip", "storage": "x", "python": "x", "fsync": "x"}.items():
        writer = writer.option(name, value)
    run_one_batch(writer, tmp_path / "checkpoint")
    assert any(name.endswith(".gz.parquet") for name in os.listdir(tmp_path / "out"))


def test_sink_keeps_state_options_with_another_provider(spark: Any, tmp_path: Path) -> None:
    session = spark.newSession()
    session.conf.set(PROVIDER, SPARKS)
    run_one_batch(to_nowhere(counts(session)).option("maxStateSize", "5m"), tmp_path)

"""Validation of settings that `configure` did not see, by the driver before the first task of a query."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import spark_statestore
from spark_statestore.options import OPTION_PREFIX
from tests.spark.counting import Program, messages, run_to, start_counting, wait_for_batch
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


@pytest.mark.parametrize("option", ["checkpointsDir", "savepointsDir"])
@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("nowhere://bucket/x", r"'nowhere://bucket/x' cannot hold state.*Use file:"),
        ("oci://bucket/x", r"needs the driver for 'oci'.*Install ocifs"),
        ("s3://", r"names no directory"),
    ],
)
def test_unusable_directory_fails_the_query_without_a_task(
    spark: Any, tmp_path: Path, option: str, url: str, expected: str
) -> None:
    session = spark.newSession()
    query = start_counting(session, tmp_path, confs={OPTION_PREFIX + option: url})
    message = failure(query)
    assert re.search(f"'{OPTION_PREFIX}{option}'.*{expected}", message), message
    # The query's data is unaffected.
    run_to(spark.newSession(), tmp_path, 2)


def test_unusable_interpreter_fails_the_query_without_a_task(spark: Any, tmp_path: Path) -> None:
    query = start_counting(spark.newSession(), tmp_path, confs={OPTION_PREFIX + "python": "/nowhere/python3"})
    message = failure(query)
    assert "'/nowhere/python3' cannot be run" in message
    assert f"Set {OPTION_PREFIX}python" in message


def test_query_without_state_needs_no_interpreter(spark: Any, tmp_path: Path) -> None:
    session = spark.newSession()
    session.conf.set(OPTION_PREFIX + "python", "/nowhere/python3")
    query = numbers(session).writeStream.format("memory").queryName("stateless").start()
    try:
        wait_for_batch(query, 1)
    finally:
        query.stop()


def test_query_of_another_provider_needs_no_interpreter(spark: Any, tmp_path: Path) -> None:
    session = spark.newSession()
    session.conf.set(PROVIDER, SPARKS)
    run_to(session, tmp_path, 1, python="/nowhere/python3")


def cluster(tmp_path: Path, **confs: str) -> Program:
    import pyspark

    environment = {
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
    }
    given = {"spark.master": "local-cluster[1,2,1024]"} | {OPTION_PREFIX + k: v for k, v in confs.items()}
    return Program("count", environment, confs=given, checkpoint=str(tmp_path / "checkpoint"))


@pytest.mark.slow
def test_interpreter_on_executors_only_is_accepted(built: Path, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n"
        "grep -qa CoarseGrainedExecutorBackend /proc/$PPID/cmdline || exit 1\n"
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    with cluster(tmp_path, python=str(python)) as program:
        program.next("running")
        program.next("result")
        program.next("stopped")
        program.end()


@pytest.mark.slow
def test_unknown_scheme_fails_a_cluster_query_without_a_task(built: Path, tmp_path: Path) -> None:
    with cluster(tmp_path, checkpointsDir="nowhere://bucket/x") as program:
        message = program.next("failed")
        assert f"'{OPTION_PREFIX}checkpointsDir' cannot be used" in message


# Options of the state store that are given to a sink


def to_memory(writer: Any, directory: Path) -> Any:
    return writer.format("memory").queryName("sink")


def to_a_function(writer: Any, directory: Path) -> Any:
    return writer.foreachBatch(lambda batch, batch_id: None)


def to_nowhere(writer: Any, directory: Path) -> Any:
    return writer.format("noop")


@pytest.mark.parametrize("sink", [to_memory, to_a_function, to_nowhere])
@pytest.mark.parametrize(
    ("option", "value", "line"),
    [
        (
            OPTION_PREFIX + "checkpointsDir",
            "s3://bucket/x",
            f'spark.conf.set("{OPTION_PREFIX}checkpointsDir", "s3://bucket/x")',
        ),
        (
            (OPTION_PREFIX + "numRetained").upper(),
            "5",
            f'spark.conf.set("{OPTION_PREFIX}numRetained", "5")',
        ),
        (OPTION_PREFIX + "nope", "5", f'spark.conf.set("{OPTION_PREFIX}nope", "5")'),
        ("checkpointsdir", "/data", f'spark.conf.set("{OPTION_PREFIX}checkpointsDir", "/data")'),
        ("fileStateThreshold", "1m", f'spark.conf.set("{OPTION_PREFIX}fileStateThreshold", "1m")'),
    ],
)
def test_sink_rejects_a_store_option(
    spark: Any, tmp_path: Path, sink: Callable[..., Any], option: str, value: str, line: str
) -> None:
    writer = sink(counts(spark), tmp_path).option("checkpointLocation", str(tmp_path / "checkpoint"))
    message = failure(writer.option(option, value).start())
    assert f"'{option}' was given to writeStream.option" in message, message
    assert line in message


def test_sink_rejects_a_provider_option(spark: Any, tmp_path: Path) -> None:
    session = spark.newSession()
    session.conf.set(PROVIDER, SPARKS)
    writer = to_memory(counts(session), tmp_path).option(PROVIDER, spark_statestore.PROVIDER_CLASS)
    message = failure(writer.option("checkpointLocation", str(tmp_path)).start())
    assert f'spark.conf.set("{PROVIDER}", "{spark_statestore.PROVIDER_CLASS}")' in message


def test_sink_option_error_redacts_passwords(spark: Any, tmp_path: Path) -> None:
    writer = to_memory(counts(spark), tmp_path).option("checkpointsDir", "s3://user:hunter2@bucket/x")
    message = failure(writer.option("checkpointLocation", str(tmp_path)).start())
    assert "was given to writeStream.option" in message
    assert "hunter2" not in message


def test_sink_keeps_its_own_options(spark: Any, tmp_path: Path) -> None:
    writer = numbers(spark).writeStream.format("parquet").option("path", str(tmp_path / "out"))
    for name, value in {"compression": "gzip", "storage": "x", "python": "x", "fsync": "x"}.items():
        writer = writer.option(name, value)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        wait_for_batch(query, 1)
    finally:
        query.stop()
    assert any(name.endswith(".gz.parquet") for name in os.listdir(tmp_path / "out"))


def test_sink_keeps_state_options_with_another_provider(spark: Any, tmp_path: Path) -> None:
    session = spark.newSession()
    session.conf.set(PROVIDER, SPARKS)
    writer = to_nowhere(counts(session), tmp_path).option("maxStateSize", "5m")
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    try:
        wait_for_batch(query, 1)
    finally:
        query.stop()

"""Settings of Spark's Python workers: only such as no worker fails with, and none that is present."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spark_statestore.python_workers import DAEMON_KEY, SOCKETS_KEY, settings_of_workers

DAEMON = {DAEMON_KEY: "spark_statestore.worker_daemon"}
SOCKETS = {SOCKETS_KEY: "true"}
PLACED = {"spark.python.unix.domain.socket.dir": "/x"}
MOVED = {"spark.driver.extraJavaOptions": "-Djava.io.tmpdir=/a/long/path"}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)


@pytest.mark.parametrize(
    ("present", "has_unix_sockets", "expected"),
    [
        pytest.param({}, True, DAEMON | SOCKETS, id="nothing is set"),
        pytest.param({}, False, DAEMON, id="Spark without such sockets"),
        pytest.param({DAEMON_KEY: "mine"}, True, SOCKETS, id="daemon is set"),
        pytest.param({SOCKETS_KEY: "false"}, True, DAEMON, id="sockets are set"),
        pytest.param(MOVED, True, DAEMON, id="sockets could have long paths"),
        pytest.param(PLACED, True, DAEMON, id="place of sockets is set"),
        pytest.param({"spark.pyspark.python": "/no/such/python"}, True, SOCKETS, id="no such interpreter"),
    ],
)
def test_settings_of_workers_are_those_that_a_worker_can_use(
    present: dict[str, str], has_unix_sockets: bool, expected: dict[str, str]
) -> None:
    assert settings_of_workers(present, has_unix_sockets=has_unix_sockets) == expected


@pytest.mark.parametrize("script", ["exit 1", "sleep 60"], ids=["without the package", "hangs"])
def test_daemon_is_left_out_if_the_interpreter_cannot_import_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str
) -> None:
    monkeypatch.setattr("spark_statestore.python_workers._PROBE_SECONDS", 0.5)
    interpreter = tmp_path / "python"
    interpreter.write_text(f"#!/bin/sh\n{script}\n")
    interpreter.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(interpreter))
    assert settings_of_workers({}, has_unix_sockets=False) == {}


def test_places_of_sockets_in_the_environment_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-Djava.io.tmpdir=/x")
    assert settings_of_workers({}, has_unix_sockets=True) == DAEMON

"""Settings of Spark's Python workers: only such as no worker fails with, and none that is present."""

from __future__ import annotations

import os

import pytest

from spark_statestore.python_workers import INTERPRETER_KEY, SOCKETS_KEY, settings_of_workers

INTERPRETER = {INTERPRETER_KEY: "/opt/python"}
SOCKETS = {SOCKETS_KEY: "true"}
PLACED = {"spark.python.unix.domain.socket.dir": "/x"}
MOVED = {"spark.driver.extraJavaOptions": "-Djava.io.tmpdir=/a/long/path"}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name, value in os.environ.items() if "java.io.tmpdir" in value]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")


@pytest.mark.parametrize(
    ("present", "has_executors", "has_unix_sockets", "expected"),
    [
        pytest.param({}, False, True, INTERPRETER | SOCKETS, id="nothing is set"),
        pytest.param({}, True, True, INTERPRETER, id="executors decide"),
        pytest.param({}, False, False, INTERPRETER, id="Spark without such sockets"),
        pytest.param({SOCKETS_KEY: "false"}, False, True, INTERPRETER, id="sockets are set"),
        pytest.param(MOVED, False, True, INTERPRETER, id="sockets could have long paths"),
        pytest.param(PLACED, False, True, INTERPRETER, id="place of sockets is set"),
    ],
)
def test_settings_of_workers_are_those_that_a_worker_can_use(
    present: dict[str, str], has_executors: bool, has_unix_sockets: bool, expected: dict[str, str]
) -> None:
    assert settings_of_workers(present, has_executors, has_unix_sockets=has_unix_sockets) == expected


def test_interpreter_of_workers_is_pysparks_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON")
    assert settings_of_workers({}, True, has_unix_sockets=True) == {INTERPRETER_KEY: "python3"}


@pytest.mark.parametrize(
    "name", ["JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS", "PYSPARK_SUBMIT_ARGS"]
)
def test_places_of_sockets_in_the_environment_count(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "-Djava.io.tmpdir=/x")
    assert settings_of_workers({}, False, has_unix_sockets=True) == INTERPRETER

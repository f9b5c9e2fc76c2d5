"""The tab "State" in Spark's history server, for an application that has ended."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import spark_statestore
from tests.spark.counting import wait_until
from tests.spark.ui import cells, observed
from tests.support.services.service import PYSPARK_JARS, free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

FIGURES = ("numRowsTotal", "memoryUsedBytes")
CUSTOM_FIGURES = ("stateTableMaxRows", "checkpointBytesWritten", "checkpointMaxChainLength")

# The server keeps the figures beyond its end, in the format for which this package has a serializer.
STORE = ("spark.history.store.path={directory}/store", "spark.history.store.serializer=PROTOBUF")

Ended = tuple[Path, list[dict[str, Any]]]


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read().decode()


@pytest.fixture(scope="module")
def ended(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Return a directory with the events of an application, and the progress of each batch of its query."""
    directory = tmp_path_factory.mktemp("observed")
    log = directory / "events"
    log.mkdir()
    confs = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": log.as_uri()}
    with observed(directory, confs=confs) as query:
        query.order("stop")
        query.program.end()
        return log, query.progress


@contextmanager
def history(events: Path, classes: list[str], settings: tuple[str, ...] = ()) -> Iterator[str]:
    """Run a history server that has read the application's events, and yield the application's address."""
    port = free_port()
    options = [
        f"spark.history.fs.logDirectory={events.as_uri()}",
        f"spark.history.ui.port={port}",
        "spark.history.fs.update.interval=1s",
        *settings,
    ]
    server = subprocess.Popen(
        [
            *("java", "-Xmx512m", *(f"-D{option}" for option in options)),
            *("-cp", os.pathsep.join([*classes, f"{PYSPARK_JARS}/*"])),
            "org.apache.spark.deploy.history.HistoryServer",
        ],
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    applications: list[dict[str, Any]] = []

    def listed() -> bool:
        assert server.poll() is None
        try:
            applications[:] = json.loads(get(f"{address}/api/v1/applications?status=completed"))
        except (urllib.error.URLError, json.JSONDecodeError):
            # The server answers with its first page until its API is attached.
            return False
        return bool(applications)

    try:
        assert wait_until(listed, 60)
        yield f"{address}/history/{applications[0]['id']}"
    finally:
        server.kill()
        server.wait()


def test_history_server_shows_the_figures_of_every_batch(ended: Ended, tmp_path: Path) -> None:
    events, progress = ended
    settings = tuple(setting.format(directory=tmp_path) for setting in STORE)
    with history(events, [spark_statestore.jar_path()], settings) as application:
        (run,) = {batch["id"] for batch in progress}
        page = get(f"{application}/state/query/?id={run}")
        assert "Status: </strong><span>stopped" in page
        assert "Status: </strong><span>stopped" in get(f"{application}/state/")
    operators = [batch["stateOperators"][0] for batch in reversed(progress)]
    for name in FIGURES + CUSTOM_FIGURES:
        values = [
            operator[name] if name in FIGURES else operator["customMetrics"][name] for operator in operators
        ]
        # The first table has the last batch, the second one all, the newest first.
        assert cells(page, name) == [values[0], *values], name


@pytest.mark.soak
def test_history_server_without_the_jar_shows_the_application(ended: Ended) -> None:
    with history(ended[0], []) as application:
        jobs = get(f"{application}/jobs/")
        assert "Completed Jobs" in jobs
        assert "/state/" not in jobs

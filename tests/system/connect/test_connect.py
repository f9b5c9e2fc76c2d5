"""A Spark Connect server with a file of `conf/`, and a client that sets nothing."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

import spark_statestore
from tests.support.commands import run
from tests.support.paths import ROOT
from tests.support.services.service import free_port, listens, running

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("built")]

CLIENT = Path(__file__).with_name("client.py")

# A key, and the second of its event, by id.
EVENTS = [(number, f"key-{number * 7 % 5}", 100 + number // 2) for number in range(60)]
HALF = 30
CLOSING = (1000, "closing", 10**6)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a server as `conf/` configures it, and return its address."""
    port = free_port()
    command = [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *("--properties-file", str(ROOT / "conf" / "spark-defaults-local.conf")),
        *("--jars", spark_statestore.jar_path()),
        *("--master", "local[2]", "--driver-memory", "1g"),
        *("--conf", "spark.sql.shuffle.partitions=2"),
        *("--conf", "spark.sql.session.timeZone=UTC"),
        *("--conf", "spark.ui.enabled=false"),
        *("--conf", "spark.connect.grpc.binding.address=127.0.0.1"),
        *("--conf", f"spark.connect.grpc.binding.port={port}"),
    ]
    environment = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    directory = tmp_path_factory.mktemp("server")
    with running("Spark Connect", command, lambda: listens(port), environment, directory=directory):
        yield f"sc://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("work")
    (directory / "staged").mkdir()
    # The watermark moves after the batch, so that the last event closes those of its own batch too.
    for number, events in enumerate((EVENTS[:HALF], [*EVENTS[HALF:], CLOSING])):
        ids, keys, seconds = zip(*events, strict=True)
        table = pa.table({"id": ids, "k": keys, "second": seconds})
        pq.write_table(table, directory / "staged" / f"{number}.parquet")
    return directory


@pytest.fixture(scope="module")
def answers(server: str, work: Path) -> dict[str, dict[str, Any]]:
    """Return what the client prints, which resumes every query with more events."""
    environment = {key: value for key, value in os.environ.items() if key != "SPARK_HOME"}
    command = [sys.executable, CLIENT, server, work]
    result = run(command, env=environment | {"PYTHONPATH": str(ROOT)}, timeout=500)
    lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    return {line["name"]: line for line in lines}


def results(answers: dict[str, dict[str, Any]], name: str) -> list[tuple[Any, ...]]:
    rows = [tuple(row[key] for key in sorted(row)) for row in answers[name]["results"]]
    return sorted(row for row in rows if "closing" not in row and CLOSING[0] not in row)


def sessions() -> list[tuple[int, str, int]]:
    windows = []
    for key in {key for _, key, _ in EVENTS}:
        seconds = sorted(second for _, event_key, second in EVENTS if event_key == key)
        start, count, last = seconds[0], 0, seconds[0]
        for second in seconds:
            # A session ends 2.5 seconds after its last event.
            if second > last + 2.5:
                windows.append((count, key, start))
                start, count = second, 0
            count, last = count + 1, second
        windows.append((count, key, start))
    return sorted(windows)


def test_windows_and_sessions_equal_a_plain_computation(answers: dict[str, dict[str, Any]]) -> None:
    windows = Counter((key, second // 10 * 10) for _, key, second in EVENTS)
    # Columns are in the order of their names: count, k, start.
    assert results(answers, "windows") == sorted(
        (count, key, start) for (key, start), count in windows.items()
    )
    assert results(answers, "sessions") == sessions()


@pytest.mark.parametrize("name", ["dropDuplicates", "dropDuplicatesWithinWatermark"])
def test_each_key_is_there_once(answers: dict[str, dict[str, Any]], name: str) -> None:
    assert results(answers, name) == sorted({(key,) for _, key, _ in EVENTS})


def test_join_equals_a_plain_computation(answers: dict[str, dict[str, Any]]) -> None:
    assert results(answers, "join") == [(number,) for number, _, _ in EVENTS if number % 2 == 0]


@pytest.mark.parametrize(
    "name", ["applyInPandasWithState", "transformWithStateInPandas", "transformWithState"]
)
def test_state_of_functions_goes_on_in_the_next_run(answers: dict[str, dict[str, Any]], name: str) -> None:
    first, both = Counter(key for _, key, _ in EVENTS[:HALF]), Counter(key for _, key, _ in EVENTS)
    assert results(answers, name) == sorted([*first.items(), *both.items()])


def test_state_is_in_this_store(answers: dict[str, dict[str, Any]], work: Path) -> None:
    names = answers.keys() - {""}
    assert len(names) == 8
    for name in names:
        assert "checkpointBytesWritten" in answers[name]["metrics"]
        assert answers[name]["rows"] > 0
        assert spark_statestore.verify(str(work / name / "checkpoint")).ok
        assert name in answers[name]["view"]


def test_what_connect_lacks_is_said(answers: dict[str, dict[str, Any]]) -> None:
    assert "this is a Spark Connect session" in answers[""]["attach"]
    assert "a Spark Connect client cannot convert a checkpoint" in answers[""]["convert"]
    assert "Spark Connect does not provide it" in answers["windows"]["savepoint"]

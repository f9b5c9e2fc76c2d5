"""Queries of each operator whose whole checkpoint is on a real service, without a Hadoop connector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_statestore.files import open_file_system
from tests.support.effort import EFFORT
from tests.system.object_stores.whole_checkpoint_runs import Outputs, Runs, outputs
from tests.unit.cli.another_process import run_elsewhere

pytestmark = pytest.mark.storage

QUERIES: tuple[str, ...] = ("aggregation, update mode", "outer join", "transformWithState, Scala, timers")
if EFFORT > 1:
    # Left to HYPOTHESIS_PROFILE=soak: a service sees the same requests.
    QUERIES += ("dropDuplicates", "session windows", "applyInPandasWithState, event time")

WRITTEN, KILLED, ALL = range(2), range(3), range(4)
"""Batches before the restart, before the kill, and all."""


@pytest.fixture(scope="session")
def expected(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Outputs:
    """Return the output of a local run without interruption."""
    directory = tmp_path_factory.mktemp("local")
    runs = Runs(directory / "input", QUERIES, 2, together=True)
    runs.write_input(ALL)
    runs.finish(str(directory / "checkpoints"), directory / "output.jsonl")
    result = outputs(directory / "output.jsonl")
    assert {(name, number) for name, number in result} == {
        (name, number) for name in QUERIES for number in ALL
    }
    return result


def batches(rows_by_batch: Outputs, first: int) -> Outputs:
    return {(name, number): rows for (name, number), rows in rows_by_batch.items() if number >= first}


def run(*commands: list[str]) -> list[Any]:
    results = run_elsewhere(commands, timeout=300)
    assert [(code, answer) for code, answer in results if code] == []
    return [answer for _, answer in results]


@pytest.mark.parametrize(
    "checkpoint_format", [2, pytest.param(1, marks=pytest.mark.soak)], ids=lambda number: f"v{number}"
)
def test_killed_restarted_and_restored_queries_equal_a_local_run(
    container: str, expected: Outputs, tmp_path: Path, checkpoint_format: int
) -> None:
    url, savepoints, restored = (f"{container}/{name}" for name in ("checkpoints", "savepoints", "restored"))
    runs = Runs(tmp_path / "input", QUERIES, checkpoint_format, together=True)
    runs.write_input(WRITTEN)
    output, of_restored = tmp_path / "output.jsonl", tmp_path / "restored.jsonl"
    runs.finish(url, output)
    checkpoints = [f"{url}/{number}" for number in range(len(QUERIES))]
    entries = run(*(["savepoint", "trigger", name, "--target", savepoints] for name in checkpoints))
    runs.write_input(KILLED)
    # Restarted, and killed when some queries are ahead of others.
    runs.kill(url, output, lambda rows: len(batches(rows, len(WRITTEN))) >= len(QUERIES) // 2)
    assert batches(outputs(output), len(WRITTEN)) != batches(expected, len(WRITTEN))
    # A query killed between its source's log and the log of offsets would take both inputs into one batch.
    runs.finish(url, output)
    runs.write_input(ALL)
    runs.finish(url, output)
    assert outputs(output) == expected
    copies = [f"{restored}/{number}" for number in range(len(QUERIES))]
    run(*(["savepoint", "restore", entry["path"], copy] for entry, copy in zip(entries, copies, strict=True)))
    runs.finish(restored, of_restored)
    assert outputs(of_restored) == batches(expected, len(WRITTEN))
    run(*(["verify", checkpoint] for checkpoint in [*checkpoints, *copies]))
    # By default the stores' commits are merged here.
    assert all(physical_files(checkpoint) for checkpoint in checkpoints)


def physical_files(checkpoint: str) -> list[str]:
    files, directory = open_file_system(f"{checkpoint}/state/_merged")
    return [status.path for status in files.list_files(directory)]

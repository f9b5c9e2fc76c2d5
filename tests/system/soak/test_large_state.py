"""State of a hundred million rows: filled, updated, killed, loaded, continued, and compared row by row."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spark_statestore
from benchmarks.report import percentile
from tests.system.soak.large_state import MASK, PARTITIONS, expected
from tests.system.soak.recording import events_of, record

EVENT_BYTES = 5 * 8
AFTER = 20

Events = dict[str, list[dict[str, Any]]]


@pytest.mark.soak
def test_state_is_exact_after_a_kill(built: Path, tmp_path: Path) -> None:
    arguments = {"keys": 200_000, "fills": 2, "updates": 4_000, "memory": "512m"}
    before, after = filled_killed_and_continued(tmp_path, arguments, 20)
    assert [sample["rows"] for sample in before["batch"]] == [100_000, *[200_000] * 21]
    assert after["loaded"][0]["load, MiB"] > 0


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_state_is_exact_beside_a_cached_table_and_sorts(built: Path, tmp_path: Path) -> None:
    # PySpark's default of 1 GiB: Spark's own memory takes 434 MiB, and the state needs more than 512 MiB.
    arguments = {
        "keys": 6_000_000,
        "fills": 12,
        "updates": 100_000,
        "memory": "1g",
        "first": 0,
        "kill": False,
    }
    arguments |= {"root": str(tmp_path), "local": str(tmp_path / "local"), "last": 18}
    events = run(arguments | {"cached": 12_000_000, "sorts": True})
    assert events["sorts"][0] > 0
    compare(arguments, 18)


@pytest.mark.soak
@pytest.mark.timeout(14_400)
def test_a_hundred_million_rows(built: Path, tmp_path: Path) -> None:
    batches = 200
    figures = {}
    for keys, fills in ((1_000_000, 1), (100_000_000, 50)):
        arguments = {"keys": keys, "fills": fills, "updates": 80_000, "memory": "8g"}
        directory = tmp_path / f"{keys}"
        directory.mkdir()
        before, after = filled_killed_and_continued(directory, arguments, batches)
        figures[keys] = figures_of(before, after, fills)
        print(keys, figures[keys], flush=True)
    record("large-state", batches=batches, rows=figures)


def filled_killed_and_continued(
    directory: Path, arguments: dict[str, Any], batches: int
) -> tuple[Events, Events]:
    """Run both halves, and compare every row of the state with the expected ones."""
    arguments = {"root": str(directory), "local": str(directory / "local"), **arguments}
    end = arguments["fills"] + batches
    before = run(arguments | {"first": 0, "last": end, "kill": True})
    after = run(arguments | {"first": end + 1, "last": end + 1 + AFTER, "kill": False})
    compare(arguments, end + 1 + AFTER)
    return before, after


def run(arguments: dict[str, Any]) -> Events:
    """Run the program, and return its events by kind."""
    events: Events = {}
    for event, value in events_of("large_state", arguments):
        events.setdefault(event, []).append(value)
    assert len(events["batch"]) == arguments["last"] - arguments["first"]
    return events


def compare(arguments: dict[str, Any], batches: int) -> None:
    """Compare the state of the newest batch with the expected one, one partition at a time."""
    expected_columns = expected(arguments, batches)
    key_count = 0
    for partition in range(PARTITIONS):
        table = spark_statestore.read_state(f"{arguments['root']}/checkpoint", partition=partition)
        key, *masked = fields(table, "key")
        assert np.array_equal(masked[0], key ^ MASK)
        assert len(np.unique(key)) == len(key)
        for values, expected_values in zip(fields(table, "value"), expected_columns, strict=True):
            assert np.array_equal(values, expected_values[key])
        key_count += len(key)
    assert key_count == arguments["keys"]


def fields(table: Any, column: str) -> list[Any]:
    return [array.to_numpy() for array in table[column].combine_chunks().flatten()]


def figures_of(before: Events, after: Events, fills: int) -> dict[str, Any]:
    """Return the figures of a size: times in milliseconds, the ones of a tenth over its batches."""
    fill, updates = before["batch"][:fills], before["batch"][fills:]
    times = [sample["milliseconds"] for sample in updates]
    tenth = max(1, len(times) // 10)
    written_bytes = updates[-1]["written"] - fill[-1]["written"]
    changed = (len(updates) - 1) * 80_000 * EVENT_BYTES
    return {
        "fill, seconds": round(sum(sample["milliseconds"] for sample in fill) / 1000, 1),
        "p50": statistics.median(times),
        "p99": percentile(times, 99),
        "first tenth": [percentile(times[:tenth], percent) for percent in (50, 99)],
        "last tenth": [percentile(times[-tenth:], percent) for percent in (50, 99)],
        "after the kill": [
            percentile([sample["milliseconds"] for sample in after["batch"]], percent) for percent in (50, 99)
        ],
        "written for each changed byte": round(written_bytes / changed, 2),
        "mapped MiB": max(sample["mapped MiB"] for sample in updates),
        "backend resident MiB": max(sample["backend resident MiB"] for sample in updates),
        **before["memory"][0],
        **after["loaded"][0],
    }

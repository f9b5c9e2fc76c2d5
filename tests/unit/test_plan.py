"""The cost model agrees with what was measured on one machine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_statestore.assess.workload import (
    Workload,
    bytes_in_memory,
    bytes_of_a_batch,
    bytes_of_log,
    cost,
)
from tests.support.paths import ROOT

AMPLIFICATION = ROOT / "benchmarks/results/2026-11-24-amplification.md"
BATCHES, ROW_BYTES = 200, 56
LARGE_STATE = ROOT / "tests/system/soak/results/large-state.json"
LARGE_UPDATES, LARGE_ROW, LARGE_CHANGE = 80_000, 56, 40


def rows_of(title: str) -> list[list[str]]:
    """Return the cells of a table of the results, without its header."""
    lines = AMPLIFICATION.read_text().partition(f"### {title}\n\n")[2].partition("\n\n")[0].splitlines()
    return [[cell.strip().replace(",", "") for cell in line.split("|")[1:-1]] for line in lines[2:]]


def cells() -> list[tuple[int, int, float, float]]:
    """Return measurements of our store by cell.

    They are keys, updates, bytes written for each changed byte, and MiB of a snapshot.
    """
    amplification = {
        tuple(row[1:3]): row[3] for row in rows_of("Bytes written for each changed byte") if "spark" in row[0]
    }
    fresh = {tuple(row[:2]): row[5] for row in rows_of("Loads and space of spark-statestore")}
    return [
        (int(keys), int(changed), float(amplification[keys, changed]), float(mib))
        for (keys, changed), mib in fresh.items()
    ]


def measurement(keys: int, changed: int) -> dict[str, float]:
    """Return the milliseconds of our store's median batch, and its bytes in storage at the end."""
    for row in rows_of("Bytes written for each changed byte"):
        if "spark" in row[0] and row[1:3] == [str(keys), str(changed)]:
            return {"p50": float(row[4]), "stored": float(row[6])}
    raise KeyError(keys, changed)


def write_amplification(rows: int) -> tuple[float, float]:
    """Return the bytes for each changed byte in 200 batches of a large state: modelled and measured."""
    measured = large_state(rows)
    stored = measured["load, MiB"] * 2**20 / rows
    work = Workload(rows, LARGE_ROW, stored, LARGE_UPDATES, partitions=8, executors=1)
    modelled = bytes_of_a_batch(work, BATCHES) / (LARGE_UPDATES * LARGE_CHANGE)
    return modelled, measured["written for each changed byte"]


def large_state(rows: int) -> dict[str, Any]:
    return json.loads(LARGE_STATE.read_text())["rows"][str(rows)]


def test_model_agrees_with_bytes_written() -> None:
    measurements = cells()
    assert len(measurements) == 8
    for keys, changed, measured, mib in measurements:
        work = Workload(keys, ROW_BYTES, mib * 2**20 / keys, changed, partitions=1, executors=1)
        modelled = bytes_of_a_batch(work, BATCHES) / (changed * ROW_BYTES)
        assert modelled == pytest.approx(measured, rel=0.15), (keys, changed)


def test_model_agrees_with_bytes_in_storage_but_after_a_fill() -> None:
    fresh = {(keys, changed): mib * 2**20 / keys for keys, changed, _, mib in cells()}
    errors = {}
    for (keys, changed), stored_bytes in fresh.items():
        work = Workload(keys, ROW_BYTES, stored_bytes, changed, partitions=1, executors=1)
        errors[keys, changed] = cost(work).stored / measurement(keys, changed)["stored"] - 1
    filled = errors.pop((10_000_000, 2_000))
    assert filled < -0.35
    assert all(abs(error) < 0.3 for error in errors.values()), errors


def test_model_agrees_with_the_time_of_a_batch() -> None:
    for keys, changed, _, _ in cells():
        planned = cost(Workload(keys, ROW_BYTES, changed=changed, partitions=1, executors=1))
        ratio = planned.core_seconds * 1000 / measurement(keys, changed)["p50"]
        assert 0.85 < ratio < (1.15 if keys > 200_000 else 1.55), (keys, changed, ratio)


def test_model_agrees_with_the_state_of_a_million_rows() -> None:
    modelled, measured = write_amplification(1_000_000)
    assert modelled == pytest.approx(measured, rel=0.15)


def test_model_does_not_hold_for_runs_of_the_fill() -> None:
    """A state that was filled in deltas just before writes runs of these, too: `docs/plan.md` says so."""
    modelled, measured = write_amplification(100_000_000)
    assert modelled < measured / 3


def test_model_agrees_with_memory_and_load_of_a_hundred_million_rows() -> None:
    measured = large_state(100_000_000)
    work = Workload(1e8, LARGE_ROW, changed=LARGE_UPDATES, partitions=8, executors=1, cores=2, heap=4 << 30)
    estimate = cost(work)
    memory = (measured["jvm heap MiB"] + measured["mapped MiB"]) * 2**20
    assert estimate.memory == pytest.approx(memory, rel=0.1)
    assert estimate.mapped == pytest.approx(measured["mapped MiB"] * 2**20 / memory, rel=0.1)
    # Both cores load.
    assert estimate.load_seconds == pytest.approx(measured["load, seconds of all partitions"] / 2, rel=0.1)


def test_batch_costs_four_requests_and_two_for_each_upload() -> None:
    """The four requests of commits were measured by `python -m benchmarks --only s3_requests`."""
    for partitions in (8, 200, 1_000):
        assert cost(Workload(60_000, changed=1_000, seconds=3600, partitions=partitions)).requests == 4
    # A base every 250 batches, and a run every 10, in each of 200 partitions.
    large = cost(Workload(1e8, changed=1e5, seconds=3600, partitions=200))
    assert large.requests == pytest.approx(4 + 2 * 200 * (1 / 250 + 1 / 10))


def test_row_of_two_longs_and_three_takes_what_the_docs_say() -> None:
    assert bytes_in_memory(56) == pytest.approx(107, rel=0.02)
    # Within the heap, there are no marks.
    small = cost(Workload(1e6, executors=1, heap=1 << 30))
    assert (small.memory, small.mapped) == (pytest.approx(1e6 * bytes_in_memory(56)), 0)


@pytest.mark.parametrize("heap", [0, 2e9, 8e9])
def test_memory_is_in_the_heap_up_to_its_limit(heap: float) -> None:
    estimate = cost(Workload(1e8, executors=1, heap=heap))
    assert estimate.memory * (1 - estimate.mapped) == pytest.approx(heap, abs=1)
    # All but the log is in the heap exactly if it is large enough for it.
    in_files = estimate.memory * estimate.mapped
    assert (in_files > 1e8 * bytes_of_log(56) + 1) == (heap < estimate.least_heap)

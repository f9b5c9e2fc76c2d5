"""The cost model agrees with what was measured on one machine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks import plan
from benchmarks.contest import OURS
from benchmarks.groups.commits import ROW_BYTES
from benchmarks.plan import Workload, bytes_in_memory, bytes_of_a_batch, bytes_of_log, cost
from tests.support.paths import ROOT

AMPLIFICATION = ROOT / "benchmarks/results/2026-11-24-amplification.json"
LARGE_STATE = ROOT / "tests/system/soak/results/large-state.json"
LARGE_UPDATES, LARGE_ROW, LARGE_CHANGE = 80_000, 56, 40


def cells() -> list[dict[str, Any]]:
    """Return the measured cells of our store."""
    (group,) = json.loads(AMPLIFICATION.read_text())["groups"]
    return [cell for cell in group["samples"]["cells"] if cell["store"] == OURS]


def written(of: Workload) -> float:
    """Return the bytes written for each changed byte in the 200 batches of the large state."""
    return bytes_of_a_batch(of, 200) / (LARGE_UPDATES * LARGE_CHANGE)


def large_states() -> dict[int, dict[str, Any]]:
    return {int(rows): of for rows, of in json.loads(LARGE_STATE.read_text())["rows"].items()}


@pytest.mark.parametrize("cell", cells(), ids=lambda cell: f"{cell['keys']}-{cell['changed']}")
def test_model_agrees_with_bytes_written(cell: dict[str, Any]):
    keys, changed = cell["keys"], cell["changed"]
    work = Workload(keys, ROW_BYTES, cell["fresh bytes"] / keys, changed, partitions=1, executors=1)
    modelled = bytes_of_a_batch(work, cell["batches"]) / (changed * ROW_BYTES)
    assert modelled == pytest.approx(cell["written"], rel=0.15)


def test_model_agrees_with_the_state_of_a_million_rows():
    measured = large_states()[1_000_000]
    stored = measured["load, MiB"] * 2**20 / 1_000_000
    work = Workload(1_000_000, LARGE_ROW, stored, LARGE_UPDATES, partitions=8, executors=1)
    assert written(work) == pytest.approx(measured["written for each changed byte"], rel=0.15)


def test_model_agrees_with_memory_and_load_of_a_hundred_million_rows():
    measured = large_states()[100_000_000]
    work = Workload(1e8, LARGE_ROW, changed=LARGE_UPDATES, partitions=8, executors=1, cores=2, heap=4 << 30)
    found = cost(work)
    memory = (measured["jvm heap MiB"] + measured["mapped MiB"]) * 2**20
    assert found.memory == pytest.approx(memory, rel=0.1)
    assert found.mapped == pytest.approx(measured["mapped MiB"] * 2**20 / memory, rel=0.1)
    # Both cores load.
    assert found.load_seconds == pytest.approx(measured["load, seconds of all partitions"] / 2, rel=0.1)


def test_model_does_not_hold_for_runs_of_the_fill():
    """A state that was filled in deltas just before writes runs of these, too: `docs/plan.md` says so."""
    measured = large_states()[100_000_000]
    stored = measured["load, MiB"] * 2**20 / 1e8
    work = Workload(1e8, LARGE_ROW, stored, LARGE_UPDATES, partitions=8, executors=1)
    assert written(work) < measured["written for each changed byte"] / 3


def test_small_states_cost_the_requests_of_commits():
    """Four requests a batch, whatever the number of partitions (`--only s3_requests`)."""
    for partitions in (8, 200, 1_000):
        assert cost(Workload(60_000, changed=1_000, seconds=3600, partitions=partitions)).requests == 4


def test_large_states_add_two_requests_for_each_upload():
    # A base every 250 batches, and a run every 10, in each of 200 partitions.
    found = cost(Workload(1e8, changed=1e5, seconds=3600, partitions=200))
    assert found.requests == pytest.approx(4 + 2 * 200 * (1 / 250 + 1 / 10))


def test_row_of_two_longs_and_three_takes_what_the_docs_say():
    assert bytes_in_memory(56) == pytest.approx(107, rel=0.02)


def test_state_within_the_heap_has_no_marks():
    found = cost(Workload(1e6, executors=1, heap=1 << 30))
    assert found.memory == pytest.approx(1e6 * bytes_in_memory(56))
    assert found.mapped == 0


@pytest.mark.parametrize("heap", [0, 1e9, 2e9, 4e9, 8e9])
def test_memory_is_in_the_heap_up_to_its_limit(heap: float):
    found = cost(Workload(1e8, executors=1, heap=heap))
    assert found.memory * (1 - found.mapped) == pytest.approx(heap, abs=1)
    # All but the log is in the heap exactly if it is large enough for it.
    in_files = found.memory * found.mapped
    assert (in_files > 1e8 * bytes_of_log(56) + 1) == (heap < found.least_heap)


def test_table_has_every_figure():
    printed = plan.table(Workload())
    assert "### 100,000,000 rows, 100,000 changed every 10 s" in printed
    assert len(printed.splitlines()) == 4 + 8

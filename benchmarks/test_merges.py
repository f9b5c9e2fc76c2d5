"""Tests of the bounds of batches beside merges, and of the times that `benchmarks.stalls` reads."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import stalls
from benchmarks.contest import LIMIT, OURS
from benchmarks.groups import amplification, limit, merges
from benchmarks.race import Lap
from benchmarks.stalls import BACKEND, Batch, Threads, Times, between, part_of


@pytest.mark.parametrize(
    ("slowest", "limits", "expected"),
    [(200, 100, ["ok", "ok"]), (201, 100, ["short", "ok"]), (200, 95, ["ok", "short"])],
)
def test_merges_bounds_are_p50_and_the_limit(slowest: float, limits: float, expected: list[str]):
    work = limit.Work(8, 1, 1, 1, 1, 1)
    # p99 of 100 batches is the second slowest.
    times = {OURS: [100.0] * 98 + [slowest, 1000.0], LIMIT: [limits]}
    laps = {name: [Lap(time, {}, 0, 0) for time in of] for name, of in times.items()}
    assert [criterion.verdict for criterion in merges.criteria({work: laps})] == expected


@pytest.mark.slow
def test_merges_run_on_both_stores(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(merges, "QUICK", tuple(replace(work, batches=1, least=1) for work in merges.QUICK))
    found = merges.run(tmp_path, quick=True)
    assert [criterion.work for criterion in found.criteria] == [
        f"{merges.QUICK[0].name}, beside merges: {percent}" for percent in ("p99", "p50")
    ]
    # At least the base of each partition.
    (row,) = [line for line in found.tables.splitlines() if f" {OURS} |" in line]
    assert int(row.split("|")[-2]) >= merges.QUICK[0].partitions
    # Also those of versions in merged files.
    (state,) = tmp_path.rglob("0-0/**/state/0")
    for partition in range(merges.QUICK[0].partitions):
        assert amplification.streams(state / str(partition), partition)["deltas"]


def test_threads_have_parts():
    names = (
        "Thread-4",
        "state-store-bac",
        "C2 CompilerThre",
        "G1 Conc#0",
        "GC Thread#1",
        "VM Thread",
        "Cleaner-1",
    )
    assert [part_of(name) for name in names] == [
        "batch",
        "merges",
        "JIT compilers",
        "collector, concurrent",
        "collector, pauses",
        "collector, pauses",
        stalls.REST,
    ]


def test_time_of_a_busy_process_is_its_own():
    threads = Threads(os.getpid(), os.getpid())
    before = threads.times()
    assert sum(range(3_000_000))
    ran = between(before, threads.times()).ran[BACKEND]
    assert ran > 1_000_000


def test_thread_that_has_ended_counts_for_nothing():
    before, after = Times({"batch": 9, "merges": 5}, {}), Times({"batch": 12, "merges": 2}, {})
    assert between(before, after).ran == {"batch": 3, "merges": 0}


def test_table_compares_the_slowest_batches_with_all():
    def batch(milliseconds: float, **ran: int) -> Batch:
        return Batch(milliseconds, Times({part: 1_000_000 * time for part, time in ran.items()}, {}))

    printed = stalls.table("work", [batch(1.0, batch=1)] * 99 + [batch(9.0, batch=2, merges=7)])
    rows: dict[str, Any] = {
        cells[1].strip(): [cell.strip() for cell in cells[2:-1]]
        for cells in (line.split("|") for line in printed.splitlines())
        if len(cells) == 7
    }
    assert rows["batch"] == ["1.01", "0.00", "2.00", "0.00"]
    assert rows["merges"] == ["0.07", "0.00", "7.00", "0.00"]
    assert "p50 1.00 ms, p99 1.00 ms (1.00 times), of 100 batches." in printed

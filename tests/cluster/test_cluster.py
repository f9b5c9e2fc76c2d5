"""On a real cluster, queries put out exactly the batch answer, whatever is killed, frozen, filled or cut off."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import plans
from tests.cluster.disks import SmallDisk
from tests.cluster.faults import CUT, FULL_DISK, FULL_LOCAL_DISK
from tests.cluster.hosts import Namespaces
from tests.cluster.run import Figures, Plan, run

SEED = int(os.environ.get("CLUSTER_SEED", time.time()))

QUERIES = {"windows": ("windows", 1), "joined": ("joined", 2), "counted": ("counted", 1)}

Tell = Callable[[Figures], None]


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Tell:
    """Has the figures of a run printed at the end."""
    return lambda figures: record_property("figures", f"CLUSTER_SEED={SEED}\n{figures}")


@pytest.mark.slow
def test_twenty_kills_cost_and_double_no_row(built: Path, tell: Tell) -> None:
    plan = plans.short(SEED)
    figures = run(plan)
    tell(figures)
    assert sum(figures.killed.values()) == plans.kills_of(plan) == 20
    assert set(figures.killed) == {"backend", "executor", "worker", "driver"}
    check_errors(figures)


@pytest.mark.soak
def test_three_hundred_kills_cost_and_double_no_row(built: Path, tell: Tell) -> None:
    figures = plans.run_until(300, SEED, print)
    tell(figures)
    assert sum(figures.killed.values()) >= 300
    check_errors(figures)


@pytest.mark.soak
def test_thirty_kills_beside_state_on_s3_cost_and_double_no_row(built: Path, tell: Tell) -> None:
    pytest.importorskip("s3fs")
    pytest.importorskip("moto.server")
    figures = plans.run_until(30, SEED, print, on_s3=True)
    tell(figures)
    check_errors(figures)


@pytest.mark.soak
@pytest.mark.parametrize("disk", [FULL_DISK, FULL_LOCAL_DISK])
def test_a_full_disk_costs_no_row(built: Path, tell: Tell, disk: str) -> None:
    if reason := SmallDisk.missing():
        pytest.skip(reason)
    figures = run(Plan(SEED, [disk] * 6, QUERIES, {"max_heap_bytes": 0, "file_state_threshold": 600}))
    tell(figures)
    check_errors(figures)


@pytest.mark.soak
def test_a_worker_that_is_cut_off_and_comes_back_costs_no_row(built: Path, tell: Tell) -> None:
    if reason := Namespaces.missing():
        pytest.skip(reason)
    figures = run(Plan(SEED, [CUT] * 8, QUERIES, patient=True), Namespaces())
    tell(figures)
    check_errors(figures)


def check_errors(figures: Figures) -> None:
    """Queries may fail and be started again, but nothing looks damaged meanwhile."""
    assert not [text for text in figures.failures if "orrupt" in text or "Damaged" in text], figures.failures

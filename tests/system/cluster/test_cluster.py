"""Queries on a real cluster put out the batch answer despite kills, freezes, full disks and partitions.

The long runs have all of these faults, the short one has kills and freezes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.cluster import plans
from tests.system.cluster.run import Figures, run

SEED = int(os.environ.get("CLUSTER_SEED", time.time()))

Report = Callable[[Figures], None]


@pytest.fixture
def report(record_property: Callable[[str, object], None]) -> Report:
    """Return a function that prints the figures of a run at the end of the test session."""
    return lambda figures: record_property("figures", f"CLUSTER_SEED={SEED}\n{figures}")


@pytest.mark.slow
def test_cluster_is_exact_through_eight_kills(built: Path, report: Report) -> None:
    plan = plans.short(SEED)
    figures = run(plan)
    report(figures)
    assert sum(figures.killed.values()) == plans.kills_of(plan) == 8
    assert set(figures.killed) == {"backend", "executor", "worker", "driver"}
    check_errors(figures)


@pytest.mark.soak
def test_cluster_is_exact_through_three_hundred_kills(built: Path, report: Report) -> None:
    figures = plans.run_until(300, SEED, print)
    report(figures)
    assert sum(figures.killed.values()) >= 300
    check_errors(figures)


@pytest.mark.soak
def test_cluster_on_s3_is_exact_through_thirty_kills(built: Path, report: Report) -> None:
    pytest.importorskip("moto.server")
    figures = plans.run_until(30, SEED, print, on_s3=True)
    report(figures)
    check_errors(figures)


def check_errors(figures: Figures) -> None:
    """Check that queries failed only with errors that do not report damage."""
    assert not [text for text in figures.failures if "orrupt" in text or "Damaged" in text], figures.failures

"""Thousands of batches do not increase memory, threads, files and sockets of the JVM and the backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.system.soak.program import growth
from tests.system.soak.recording import draw, events_of, record

BATCHES = 10_000
SAMPLES = 50

# Allowed growth between the first half of the samples and the last quarter: memory that a collector or an
# allocator keeps for a while, and connections of tasks that happened to run concurrently.
GROWTH = {
    "jvm heap MiB": 12,
    "jvm resident MiB": 60,
    "jvm threads": 6,
    "jvm files": 12,
    "jvm sockets": 6,
    "backend resident MiB": 12,
    "backend threads": 4,
    "backend files": 8,
    "backend sockets": 4,
    "stored files": 60,
}

GROWTH_OF_RUNS = {
    "jvm heap MiB": 8,
    "backend resident MiB": 8,
    "backend threads": 4,
    "backend files": 8,
    "jvm threads": 8,
}


def test_growth_detects_an_increase() -> None:
    flat = [dict.fromkeys(GROWTH, 100) for _ in range(SAMPLES)]
    assert set(growth(flat, GROWTH, 10).values()) == {0}
    for name, most in GROWTH.items():
        rising = [sample | {name: 100 + 4 * most * number // SAMPLES} for number, sample in enumerate(flat)]
        assert growth(rising, GROWTH, 10)[name] > most


@pytest.mark.soak
@pytest.mark.timeout(14_400)
def test_ten_thousand_batches_leak_no_resources(built: Path, tmp_path: Path) -> None:
    run(tmp_path, f"{BATCHES}-batches", batches=BATCHES, threads=4, partitions=4, memory="512m")


@pytest.mark.soak
@pytest.mark.timeout(14_400)
def test_sixty_four_concurrent_tasks_leak_no_resources(built: Path, tmp_path: Path) -> None:
    # Spark's own aggregation reserves a share of the memory for each task.
    samples = run(tmp_path, "64-tasks", batches=BATCHES // 50, threads=64, partitions=64, memory="2g")
    # A connection for each task at most, and both sides' threads for them.
    assert max(sample["backend threads"] for sample in samples) <= 64 + 16


@pytest.mark.soak
@pytest.mark.timeout(14_400)
def test_two_hundred_runs_in_one_application_leak_no_memory(built: Path, tmp_path: Path) -> None:
    arguments = {"directory": str(tmp_path), "runs": 200, "batches": 20, "samples": 20}
    samples = [value for _, value in events_of("runs", arguments)]
    grown = growth(samples, GROWTH_OF_RUNS, 4)
    assert {name: by for name, by in grown.items() if by > GROWTH_OF_RUNS[name]} == {}


def run(tmp_path: Path, name: str, **settings: Any) -> list[dict[str, Any]]:
    """Run the program, record its samples, check their growth, and return them."""
    arguments = {"checkpoint": str(tmp_path / "counting"), "samples": SAMPLES, **settings}
    samples, exact = [], -1
    for event, value in events_of("program", arguments):
        if event == "sample":
            samples.append(value)
        else:
            exact = value
    assert exact >= settings["batches"]
    grown = growth(samples, GROWTH, 10)
    target = record(name, settings=settings, batches=exact, growth=grown, samples=samples)
    draw(samples, target.with_suffix(".svg"))
    assert {name: by for name, by in grown.items() if by > GROWTH[name]} == {}
    return samples

"""The benchmark: it runs, and it judges what it measured."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import operators, race, read_state
from tests.benchmarks.contest import OURS, PROVIDERS, Samples, Samplings
from tests.benchmarks.race import Lap, Laps
from tests.benchmarks.report import criteria
from tests.benchmarks.session import ROOT


def measured(ours_small: float, ours_large: float, built_in: float) -> Samplings:
    """One batch of each store; RocksDB is the better built-in."""
    return {
        (OURS, 100_000): Samples(batch=[ours_small]),
        (OURS, 1_000_000): Samples(batch=[ours_large]),
        ("RocksDB", 1_000_000): Samples(batch=[built_in]),
        ("HDFSBacked", 1_000_000): Samples(batch=[2 * built_in]),
    }


def verdicts(samples: Samplings) -> list[bool]:
    return [criterion.met for criterion in criteria(samples)]


def test_an_eighth_of_the_better_built_in_is_just_fast_enough():
    assert verdicts(measured(10, 10, built_in=80)) == [True, True]
    assert verdicts(measured(10, 10, built_in=79)) == [False, True]


def test_a_batch_may_take_half_as_long_again_with_ten_times_the_keys():
    assert verdicts(measured(10, 15, built_in=1000)) == [True, True]
    assert verdicts(measured(10, 16, built_in=1000)) == [True, False]


def test_a_second_object_for_a_small_commit_is_not_accepted():
    samples = {(OURS, 100_000): Samples(small_metrics=[{"checkpointObjectsWritten": n} for n in (1, 2, 1)])}
    assert verdicts(samples) == [False]


def took(*milliseconds: float) -> list[Lap]:
    return [Lap(m, {}, 0, 0) for m in milliseconds]


def test_a_query_may_take_as_long_as_on_the_better_rocksdb_in_all_its_batches():
    rivals: Laps = {"RocksDB": took(50, 50), "RocksDB, changelog": took(10, 30)}
    assert [c.met for c in operators.criteria({"q": {OURS: took(30, 10)} | rivals})] == [True]
    assert [c.met for c in operators.criteria({"q": {OURS: took(20, 21)} | rivals})] == [False]


def test_reading_may_take_a_tenth_of_what_the_data_source_takes():
    def met(ours: float) -> bool:
        taken = {read_state.OURS: [ours, 9.0, 0.0], read_state.THEIRS: [10.0]}
        return all(criterion.met for criterion in read_state.criteria(taken))

    assert [met(1.0), met(1.1)] == [True, False]


@pytest.mark.slow
def test_every_way_of_reading_is_timed(spark: Any, tmp_path: Path):
    taken = read_state.measure(spark, read_state.prepare(spark, tmp_path, 50), rounds=1)
    assert all(len(seconds) == 1 and seconds[0] > 0 for seconds in taken.values())
    assert len(taken) == 4


@pytest.mark.slow
def test_a_race_times_the_same_batches_on_every_store(spark: Any, tmp_path: Path):
    join = next(r for r in operators.races(operators.Plan(join_rows=30)) if "format 2" in r.name)
    told: list[str] = []
    laps = race.run(spark, tmp_path, join, 0, 1, told.append)
    assert [len(of) for of in laps.values()] == [1, 1, 1]
    assert all(lap.input_rows == 2 * 30 and lap.milliseconds > 0 for of in laps.values() for lap in of)
    # Of RocksDB with short commits the rows are not known.
    assert laps[OURS][-1].rows == laps["RocksDB"][-1].rows > 0
    assert len(told) == 3
    assert "| RocksDB, changelog | " in operators.tables({join.name: laps}, operators.QUICK, {})


@pytest.mark.slow
def test_a_quick_run_measures_every_store(built: Path, tmp_path: Path):
    command = [sys.executable, "-m", "tests.benchmarks", "--quick", "--directory", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    for name in PROVIDERS:
        # Two sizes of batches, and the cold load.
        assert sum(line.startswith(f"| {name} ") for line in lines) == 3
    assert any(line.startswith("- PASS  objects per commit") for line in lines)
    assert list(tmp_path.iterdir()) == []

"""The store that keeps nothing has right answers and cannot recover, and its group checks its bounds."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from benchmarks import contest, race, race_apart, result
from benchmarks.contest import (
    BY_TASK,
    CHANGELOG,
    HDFS,
    LIMIT,
    LIMIT_EXTENSIONS,
    LIMIT_PROVIDER,
    OURS,
    UNFORKED_RIVALS,
)
from benchmarks.groups import limit, operators
from benchmarks.groups.queries import nexmark_table
from benchmarks.nexmark.queries import transform_with_state
from benchmarks.race import Lap, Race
from benchmarks.race_apart import Host
from benchmarks.result import Criterion
from tests.support.paths import ROOT


def verdicts(criteria: list[Criterion]) -> list[str]:
    return [criterion.verdict for criterion in criteria]


@pytest.mark.parametrize("mine", limit.MINE)
@pytest.mark.parametrize(("partitions", "most"), [(8, 105), (200, 110)])
def test_limit_bounds_are_the_best_rival_and_the_limit(partitions: int, most: float, mine: str):
    def judged(ours: float, rival: str = CHANGELOG, theirs: float = 200) -> list[str]:
        times = dict.fromkeys(limit.STORES, 1000.0) | {LIMIT: 100, rival: theirs, mine: ours}
        work = limit.Work(partitions, 1, 1, 1, 1, 1)
        found = limit.criteria({work: {name: [Lap(time, {}, 0, 0)] for name, time in times.items()}})
        assert len(found) == 8
        return verdicts([one for one in found if (", commit=task: " in one.work) == (mine == BY_TASK)])

    assert judged(most) == ["ok", "ok", "ok", "ok"]
    assert judged(most + 1) == ["ok", "short", "ok", "ok"]
    assert judged(121) == ["ok", "short", "ok", "short"]
    for rival in (HDFS, CHANGELOG, *UNFORKED_RIVALS):
        assert judged(101, rival, 100) == ["short", "ok", "short", "ok"]


def test_limit_judges_batches_of_both_jvms():
    def judged(first: float, second: float) -> list[str]:
        laps = {name: [Lap(1000.0, {}, 0, 0)] for name in limit.STORES}
        for name, one, other in ((OURS, first, second), (LIMIT, 100, 100)):
            laps |= {name: [Lap(one, {}, 0, 0)], name + limit.SECOND: [Lap(other, {}, 0, 0)]}
        (work,) = limit.QUICK.works
        found = limit.criteria({work: laps})
        assert len(found) == 8
        return verdicts([one for one in found if one.work == f"{work.name}: p50 to the limit"])

    assert judged(101, 109) == ["ok"]
    assert judged(103, 109) == ["short"]


def test_limit_misses_are_explained_beside_the_limit_alone():
    laps = {name: [Lap(1.0, {}, 0, 0)] for name in limit.STORES}
    judged = [c.work for c in limit.criteria(dict.fromkeys(limit.FULL.works, laps))]
    explained = [work for work in result.EXPLAINED if work.startswith("count by key")]
    assert explained
    assert set(explained) <= {work for work in judged if work.endswith(" to the limit")}
    assert len(judged) == 24


@pytest.mark.slow
def test_limit_has_equal_answers_on_every_store(spark: Any, tmp_path: Path):
    (work,) = limit.QUICK.works
    entered = limit.entered_race(work, tuple(map(race.entrant_of, limit.STORES)))
    laps = race.run(spark, tmp_path, entered, work.warmup, work.batches, lambda _: None)
    assert {name: len(of) for name, of in laps.items()} == dict.fromkeys(limit.STORES, work.batches)
    assert {laps[name][-1].rows for name in (OURS, LIMIT, HDFS)} == {work.keys}
    assert all(lap.output[0] > 0 for lap in laps[LIMIT])
    assert f"| {LIMIT} " in limit.tables({work: laps}, limit.QUICK)


def windowed_count(stream: Any) -> Any:
    from pyspark.sql import functions as F

    return stream.withWatermark("ts", "2 minutes").groupBy(F.window("ts", "1 minute"), "k").count()


def deduplication(stream: Any) -> Any:
    return stream.withWatermark("ts", "2 minutes").dropDuplicates(["k", "ts"])


@pytest.mark.slow
@pytest.mark.parametrize("build", [windowed_count, deduplication])
def test_uncheckpointed_store_removes_expired_rows_as_others_do(spark: Any, tmp_path: Path, build: Any):
    entrants = tuple(map(race.entrant_of, (OURS, LIMIT)))
    expiring = Race("expiry", build, operators.moments(30), entrants)
    laps = race.run(spark, tmp_path, expiring, 0, 3, lambda _: None)
    rows = [lap.rows for lap in laps[LIMIT]]
    assert rows == [lap.rows for lap in laps[OURS]]
    # Few rows remain of the ten minutes of the first batch, and of the later ones.
    assert 0 < rows[-1] < 6 * 30
    assert all(lap.output[0] > 0 for lap in laps[LIMIT])


@pytest.mark.slow
def test_uncheckpointed_store_keeps_the_state_of_python_code(built: Path, tmp_path: Path):
    entrants = tuple(map(race.entrant_of, (OURS, LIMIT)))
    ours = Host(spark_files="backend")
    sessions = {OURS: ours, LIMIT: replace(ours, confs={"sql__extensions": LIMIT_EXTENSIONS})}
    python = Race("Python", transform_with_state, partial(nexmark_table, 500, 200), entrants, "update")
    with race_apart.hosting(tmp_path / "hosts", sessions) as hosts:
        laps = race_apart.run(hosts, tmp_path, python, 0, 3, lambda _: None)
    # It fails if their answers differ, of which those of later batches need the state of earlier ones.
    assert [lap.rows for lap in laps[LIMIT]] == [lap.rows for lap in laps[OURS]]
    assert all(lap.output[0] > 0 for lap in laps[LIMIT])


@pytest.mark.slow
def test_uncheckpointed_store_cannot_recover(spark: Any, tmp_path: Path):
    store = contest.bench(spark).StoreBenchmark(LIMIT_PROVIDER, f"file:{tmp_path}", {}, 0, 1)
    store.fill(100)
    # It compares what it reads with what it has put.
    store.batch(50, 1)
    with pytest.raises(Py4JJavaError, match=r"version 2 of .* is lost: .* has version 0 alone"):
        store.coldLoad()
    store.change(10, 1)
    with pytest.raises(Py4JJavaError, match="changed by a batch that did not commit"):
        store.batch(50, 2)
    assert list(tmp_path.iterdir()) == []
    store.close()


@pytest.mark.soak
def test_quick_run_prints_a_row_of_every_store(built: Path, tmp_path: Path):
    command = [sys.executable, "-m", "benchmarks", "--quick", "--only", "limit", "--directory", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert all(any(line.startswith(f"| {name} ") for line in lines) for name in limit.STORES)
    assert sum(" to the limit " in line for line in lines[lines.index("## Summary") :]) == 4

"""The benchmark: it runs, and it judges what it measured."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import groups, race, result, session
from tests.benchmarks.contest import CHANGELOG, HDFS, OURS, PROVIDERS, ROCKSDB
from tests.benchmarks.groups import batches, guard, operators, queries, read_state
from tests.benchmarks.groups.batches import Samples, Samplings
from tests.benchmarks.race import Entrant, Lap, Laps, Race
from tests.benchmarks.result import Criterion


def batches_of(**milliseconds: float) -> Samplings:
    """One batch of each store at a million keys, of ours also at other sizes."""
    large = {OURS: milliseconds["ours"], ROCKSDB: milliseconds["rocksdb"], HDFS: milliseconds["hdfs"]}
    return {(name, 1_000_000): Samples(batch=[times]) for name, times in large.items()}


def growing(*milliseconds: float) -> Samplings:
    return {(OURS, 100_000 * 10**n): Samples(batch=[time]) for n, time in enumerate(milliseconds)}


def verdicts(criteria: list[Criterion]) -> list[str]:
    return [criterion.verdict for criterion in criteria]


def test_a_batch_may_take_a_twentieth_of_the_better_built_in():
    growth = growing(10, 10)
    assert verdicts(batches.criteria(batches_of(ours=10, rocksdb=201, hdfs=300), growth)) == ["ok", "ok"]
    assert verdicts(batches.criteria(batches_of(ours=10, rocksdb=400, hdfs=199), growth)) == ["short", "ok"]


def test_a_batch_may_take_a_third_longer_at_the_largest_size():
    sides = batches_of(ours=10, rocksdb=300, hdfs=300)
    assert verdicts(batches.criteria(sides, growing(10, 20, 12.9))) == ["ok", "ok"]
    assert verdicts(batches.criteria(sides, growing(10, 10, 13.1))) == ["ok", "short"]


def test_the_guard_notices_state_that_makes_batches_slow_and_a_lead_that_is_lost():
    def judged(small: float, large: float, theirs: float) -> list[str]:
        times = {(OURS, 100_000): small, (OURS, 200_000): large, (CHANGELOG, 200_000): theirs}
        return verdicts(guard.criteria({entry: Samples(batch=[t, 2 * t]) for entry, t in times.items()}))

    assert judged(10, 20, 200) == ["ok", "ok"]
    assert judged(10, 26, 200) == ["ok", "short"]
    assert judged(10, 20, 100) == ["short", "ok"]


def test_what_is_short_is_accepted_only_if_it_is_explained(monkeypatch: pytest.MonkeyPatch):
    short = Criterion("work", 2, 1, "ms")
    assert (short.verdict, short.accepted) == ("short", False)
    monkeypatch.setitem(result.EXPLAINED, "work", "Where the time goes")
    assert (short.verdict, short.accepted) == ("short, explained", True)


def test_a_bound_may_be_the_least():
    assert Criterion("work", 5, 0.6, "MB/s", 10, "plain", at_least=True).verdict == "short"
    assert Criterion("work", 6, 0.6, "MB/s", 10, "plain", at_least=True).verdict == "ok"


def test_a_row_of_the_summary_shows_what_was_compared():
    row = Criterion("work", 12.3, 1 / 20, "ms", 132, "RocksDB").row()
    assert row == ["work", "12.3 ms", "≤ 0.05 of 132 ms (RocksDB)", "0.093", "short"]
    assert Criterion("work", 1, 2, "ms").row() == ["work", "1 ms", "≤ 2 ms", "0.500", "ok"]


def took(*milliseconds: float) -> list[Lap]:
    return [Lap(m, {}, 0, 0) for m in milliseconds]


def test_a_query_may_take_as_long_as_on_the_better_rocksdb_in_all_its_batches():
    rivals: Laps = {"RocksDB": took(50, 50), "RocksDB, changelog": took(10, 30)}
    assert verdicts(operators.criteria({"q": {OURS: took(30, 10)} | rivals})) == ["ok"]
    assert verdicts(operators.criteria({"q": {OURS: took(20, 21)} | rivals})) == ["short"]


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
    assert "| RocksDB, changelog | " in operators.tables({join.name: laps}, operators.QUICK)


@pytest.mark.slow
def test_a_quick_run_measures_every_store(built: Path, tmp_path: Path):
    command = [sys.executable, "-m", "tests.benchmarks", "--quick", "--only", "batches"]
    run = subprocess.run(
        [*command, "--directory", str(tmp_path)],
        cwd=session.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    for name in PROVIDERS:
        # Two kinds of batches, and maintenance.
        assert sum(line.startswith(f"| {name} ") for line in lines) >= 3
    assert any(line.startswith("| batch of 10,000 rows") for line in lines[lines.index("## Summary") :])
    assert list(tmp_path.iterdir()) == []


def test_a_group_that_fails_fails_the_run(tmp_path: Path):
    command = [sys.executable, "-c", "from tests.benchmarks import __main__, groups; import sys\n"]
    command[2] += "groups.GROUPS['gone'] = 'tests.benchmarks.gone'\n"
    command[2] += "if __name__ == '__main__': sys.exit(__main__.main())"
    run = subprocess.run(
        [*command, "--only", "gone", "--directory", str(tmp_path)],
        cwd=session.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert "| group gone |" in run.stdout


def test_every_group_has_a_module():
    assert all(callable(import_module(path).run) for path in (groups.GROUPS | groups.SEPARATE).values())


def test_a_query_must_be_ahead_in_half_of_its_batches_in_nearly_all_and_over_all():
    def judged(*ours: float) -> list[str]:
        rivals = {"HDFSBacked": [20, 20, 40], "RocksDB": [30, 30, 30]}
        laps = {name: [Lap(t, {}, 0, 100) for t in times] for name, times in (rivals | {OURS: ours}).items()}
        return verdicts(queries.criteria({"q": laps}))

    assert judged(19, 19, 29) == ["ok", "ok", "ok"]
    assert judged(21, 21, 29) == ["short", "ok", "ok"]
    assert judged(10, 10, 31) == ["ok", "short", "ok"]
    assert judged(20, 30, 31) == ["short", "short", "short"]


@pytest.mark.slow
def test_stores_whose_answers_differ_are_not_compared(spark: Any, tmp_path: Path):
    entrants = tuple(Entrant(name, *PROVIDERS[name]) for name in (OURS, HDFS))
    built: list[int] = []

    def differently(stream: Any) -> Any:
        built.append(0)
        return stream.selectExpr(f"k + {len(built)} as k")

    wrong = Race("wrong", differently, operators.visits(10, 10), entrants)
    with pytest.raises(RuntimeError, match="wrong, batch 0: "):
        race.run(spark, tmp_path, wrong, 0, 1, lambda _: None)


@pytest.mark.slow
def test_who_is_far_behind_is_takes_no_more_batches_than_it_must(spark: Any, tmp_path: Path):
    entrants = tuple(Entrant(name, *PROVIDERS[name]) for name in (OURS, HDFS))

    def ran(times: float) -> dict[str, int]:
        plain = Race(f"{times} times", lambda stream: stream, operators.visits(10, 10), entrants)
        laps = race.run(spark, tmp_path / str(times), plain, 0, 3, lambda _: None, least=1, hopeless=times)
        return {name: len(of) for name, of in laps.items()}

    (tmp_path / "0").mkdir()
    (tmp_path / "1000").mkdir()
    assert ran(1000) == {OURS: 3, HDFS: 3}
    assert ran(0) == {OURS: 3, HDFS: 1}


@pytest.mark.slow
def test_the_stores_answers_to_a_query_over_the_auction_are_the_same(spark: Any, tmp_path: Path):
    windowed = queries.races(queries.QUICK, 2)[0]
    laps = race.run(spark, tmp_path, windowed, 0, 3, lambda _: None, least=1, seconds=0)
    # When its time is up, it has as many batches as it needs.
    assert {name: len(of) for name, of in laps.items()} == dict.fromkeys(PROVIDERS, 1)
    assert all(of[0].output[0] > 0 for of in laps.values())
    assert "| HDFSBacked " in queries.tables({windowed.name: laps}, queries.QUICK)

"""The benchmark runs, and checks its bounds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from benchmarks import contest, groups, race, result
from benchmarks.contest import CHANGELOG, HDFS, OURS, PROVIDERS, ROCKSDB
from benchmarks.groups import (
    amplification,
    batches,
    commits,
    driver_files,
    empty,
    guard,
    loads,
    memory,
    operators,
    python_workers,
    read_state,
    real_time,
    requests,
    rows,
    spill,
    threads,
)
from benchmarks.groups.batches import Samples, Samplings
from benchmarks.race import Lap, Laps
from benchmarks.result import Criterion
from tests.support.paths import ROOT


def batches_of(**milliseconds: float) -> Samplings:
    """Return one batch of each store at a million keys, of ours also at other sizes."""
    large = {OURS: milliseconds["ours"], ROCKSDB: milliseconds["rocksdb"], HDFS: milliseconds["hdfs"]}
    return {(name, 1_000_000): Samples(batch=[times]) for name, times in large.items()}


def growing(*milliseconds: float) -> Samplings:
    return {(OURS, 100_000 * 10**n): Samples(batch=[time]) for n, time in enumerate(milliseconds)}


def verdicts(criteria: list[Criterion]) -> list[str]:
    """Return ``ok`` or ``short`` for each criterion."""
    return [criterion.verdict.partition(",")[0] for criterion in criteria]


def test_batch_bound_is_a_twentieth_of_the_best_built_in():
    growth = growing(10, 10)
    assert verdicts(batches.criteria(batches_of(ours=10, rocksdb=201, hdfs=300), growth)) == ["ok", "ok"]
    assert verdicts(batches.criteria(batches_of(ours=10, rocksdb=400, hdfs=199), growth)) == ["short", "ok"]


def test_unforked_stores_are_not_rivals_in_single_operations():
    unforked = {(name, 1_000_000): Samples(batch=[1]) for name in contest.UNFORKED}
    sides = batches_of(ours=10, rocksdb=300, hdfs=300) | unforked
    assert verdicts(batches.criteria(sides, growing(10, 10))) == ["ok", "ok"]


def test_batch_bound_at_the_largest_size_is_a_third_more():
    sides = batches_of(ours=10, rocksdb=300, hdfs=300)
    assert verdicts(batches.criteria(sides, growing(10, 20, 12.9))) == ["ok", "ok"]
    assert verdicts(batches.criteria(sides, growing(10, 10, 13.1))) == ["ok", "short"]


def test_guard_detects_slow_batches_and_a_lost_lead():
    def judged(small: float, large: float, theirs: float) -> list[str]:
        times = {(OURS, 100_000): small, (OURS, 200_000): large, (CHANGELOG, 200_000): theirs}
        # One disturbed batch of ours.
        found = {entry: Samples(batch=[time, time]) for entry, time in times.items()}
        found[OURS, 200_000].batch.append(10_000)
        return verdicts(guard.criteria(found))

    assert judged(10, 20, 200) == ["ok", "ok"]
    assert judged(10, 26, 200) == ["ok", "short"]
    assert judged(10, 20, 100) == ["short", "ok"]


def test_criterion_accepts_a_missed_bound_only_if_explained(monkeypatch: pytest.MonkeyPatch):
    short = Criterion("work", 2, 1, "ms")
    assert (short.verdict, short.accepted) == ("short", False)
    monkeypatch.setitem(result.EXPLAINED, "work", "Where the time goes")
    assert (short.verdict, short.accepted) == ("short, explained", True)


@pytest.mark.parametrize("heading", sorted(set(result.EXPLAINED.values())))
def test_explained_bounds_have_a_profile_in_the_docs(heading: str):
    page = (ROOT / "docs" / "performance.md").read_text()
    assert page.count(f"### {heading}\n") == 1
    section = page.partition(f"### {heading}\n")[2].partition("\n#")[0]
    graphs = re.findall(r"\(images/(flame-.+\.svg)\)", section)
    assert all((ROOT / "docs" / "images" / graph).exists() for graph in graphs)
    assert graphs or "| MiB |" in section or "| milliseconds, mean |" in section


def test_criterion_supports_lower_bounds():
    assert Criterion("work", 5, 0.6, "MB/s", 10, "plain", at_least=True).verdict == "short"
    assert Criterion("work", 6, 0.6, "MB/s", 10, "plain", at_least=True).verdict == "ok"


def test_summary_row_shows_the_comparison():
    row = Criterion("work", 12.3, 1 / 20, "ms", 132, "RocksDB").row()
    assert row == ["work", "12.3 ms", "≤ 0.05 of 132 ms (RocksDB)", "0.093", "short"]
    assert Criterion("work", 1, 2, "ms").row() == ["work", "1 ms", "≤ 2 ms", "0.500", "ok"]


def of_all(ours: float, best: float, key: object) -> dict[tuple[str, Any], list[float]]:
    """Return the time of every store; one built-in is the best."""
    rest = dict.fromkeys(PROVIDERS, 10 * best)
    return {(name, key): [time] for name, time in (rest | {OURS: ours, CHANGELOG: best}).items()}


def test_operation_is_compared_with_its_rivals():
    taken = {(o, name): [10.0] for o, (_, names, *_) in rows.OPERATIONS.items() for name in names}
    judged = dict(zip(rows.OPERATIONS, verdicts(rows.criteria(taken)), strict=True))
    assert {o for o, verdict in judged.items() if verdict == "short"} == {
        "merge",
        "prefix scan",
        "range scan",
    }
    taken["get hit", HDFS], taken["merge", OURS] = [9.9], [2.5]
    judged = dict(zip(rows.OPERATIONS, verdicts(rows.criteria(taken)), strict=True))
    assert (judged["get hit"], judged["merge"]) == ("short", "ok")


def test_empty_batch_has_two_bounds():
    assert verdicts(empty.criteria(of_all(0.4, 2.0, 1))) == ["ok", "ok"]
    assert verdicts(empty.criteria(of_all(0.6, 3.0, 1))) == ["ok", "short"]
    assert verdicts(empty.criteria(of_all(0.4, 1.9, 1))) == ["short", "ok"]


def test_load_bound_is_a_fifth_of_the_best_built_in():
    found = of_all(20, 100, 0) | of_all(20, 99, 50)
    assert verdicts(loads.criteria(found, 1_000_000)) == ["ok", "short"]


def test_amplification_bounds_cover_bytes_space_loads_and_p99():
    cell: amplification.Measured = {"written": 2, "stored": 300, "p50": 4, "p99": 8}
    cell |= {"newest bytes": 130, "fresh bytes": 100, "newest time": 5, "fresh time": 4, "deltas": 50}
    found: dict[amplification.Cell, amplification.Measured] = {
        (OURS, 10, 2): cell,
        (OURS, 100, 2): cell | {"written": 3},
        ("RocksDB", 10, 2): {"written": 9},
    }
    assert verdicts(amplification.criteria(found)) == ["ok"] * 11
    worse = cell | {"written": 3.1, "stored": 301, "p99": 8.1, "newest bytes": 131, "newest time": 5.1}
    assert verdicts(amplification.criteria(found | {(OURS, 100, 2): worse})) == ["ok"] * 5 + ["short"] * 6


def test_commit_bounds_cover_time_bytes_and_objects():
    def judged(puts: float, commit: float, written: float, objects: float) -> list[str]:
        theirs = {name: commits.Samples([100], [80], [500], [1]) for name in PROVIDERS}
        ours = {OURS: commits.Samples([puts], [commit], [written], [objects])}
        return verdicts(commits.criteria({(name, 1_000): of for name, of in (theirs | ours).items()}))

    assert judged(10, 10, 500, 1) == ["ok", "ok", "ok", "ok"]
    assert judged(20, 10, 501, 2) == ["ok", "short", "short", "short"]
    assert judged(1, 11, 500, 1) == ["short", "ok", "ok", "ok"]


def test_memory_includes_heap_buffers_and_backend():
    def judged(backend: float) -> list[str]:
        ours = {"heap": 60.0, "buffers": 10.0, "backend": backend, "reported": 1.0}
        theirs = {"heap": 300.0, "buffers": 0.0, "backend": 0.0, "reported": 1.0}
        return verdicts(memory.criteria({(OURS, 10): ours, (HDFS, 10): theirs}))

    assert (judged(30), judged(31)) == (["ok"], ["short"])


def test_threads_bounds_cover_disk_and_processor():
    def judged(millis: float, processor: float) -> list[str]:
        size = 1 << 20
        taken = {kind: threads.Taken(size, [10.0], [0.0]) for kind in ((False, False), (False, True))}
        # Fewer bytes in files are no failure.
        taken[True, True] = threads.Taken(size, [millis], [0.0], [size / 2])
        taken[True, False] = threads.Taken(size, [10.0], [processor * (os.cpu_count() or 1)])
        return verdicts(threads.criteria(taken, 16))

    assert judged(16.6, 7.5) == ["ok", "ok"]
    assert judged(16.7, 7.4) == ["short", "short"]


def test_requests_are_classified_by_operation():
    def kind(method: str, path: str, query: str = "", **more: str) -> str:
        return requests.kind_of({"REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": query} | more)

    assert kind("PUT", "/bucket/a/b") == "PUT"
    assert kind("PUT", "/bucket/a/b", HTTP_X_AMZ_COPY_SOURCE="bucket/a/c") == "COPY"
    assert kind("GET", "/bucket", "list-type=2&prefix=a") == "LIST"
    assert kind("GET", "/bucket/a") == "GET"
    assert kind("POST", "/bucket", "delete") == "DELETE"
    assert kind("POST", "/bucket/a", "uploads") == "other"


def test_requests_miss_their_bound_by_a_listing_in_maintenance():
    found = {phase: Counter(PUT=10) for phase in (requests.CHANGED, requests.UNCHANGED, requests.MAINTENANCE)}
    assert verdicts(requests.criteria(found, 10)) == ["ok", "ok", "ok"]
    found[requests.MAINTENANCE]["LIST"] = 1
    assert verdicts(requests.criteria(found, 10)) == ["ok", "short", "ok"]


def test_spill_bound_is_three_times_the_time_in_memory():
    assert verdicts(spill.criteria({spill.IN_MEMORY: [1], spill.LARGE: [3], spill.LOADED: [3.1]})) == [
        "ok",
        "short",
    ]


def took(*milliseconds: float) -> list[Lap]:
    return [Lap(m, {}, 0, 0) for m in milliseconds]


def test_query_bound_is_the_best_rocksdb_in_all_batches():
    rivals: Laps = {"RocksDB": took(50, 50), "RocksDB, changelog": took(10, 30)}
    assert verdicts(operators.criteria({"q": {OURS: took(30, 10)} | rivals})) == ["ok"]
    assert verdicts(operators.criteria({"q": {OURS: took(20, 21)} | rivals})) == ["short"]


def test_driver_files_bound_is_a_fifth_of_hadoop():
    def judged(wal: float, commit: float) -> list[str]:
        steps = {
            driver_files.BACKEND: (wal, commit),
            driver_files.HADOOP: (50, 100),
            driver_files.UNFORKED: (1, 1),
        }
        laps = {
            name: [Lap(0, dict(zip(driver_files.WRITES, times, strict=True)), 0, 0, batches=2)]
            for name, times in steps.items()
        }
        return verdicts(driver_files.criteria(laps))

    assert judged(10, 20) == ["ok", "ok", "ok"]
    assert judged(9, 22) == ["ok", "short", "short"]


def test_real_time_bound_is_the_better_rocksdb_by_medians_of_the_rounds():
    rounds = {
        OURS: [[10] * 98 + [500] * 2, [20] * 98 + [900] * 2, [30] * 98 + [700] * 2],
        ROCKSDB: [[40] * 100],
        real_time.TUNED: [[16] * 100],
    }
    found = {"count": {name: [real_time.Round(of) for of in each] for name, each in rounds.items()}}
    p50, p99 = real_time.criteria(found)
    assert (p50.measured, p50.against, p50.rival) == (20, 16, real_time.TUNED)
    assert (p99.measured, p99.against) == (700, 16)
    assert not p50.met
    table = real_time.tables(found, real_time.QUICK)
    assert [cell.strip() for cell in table.splitlines()[-2].split("|")[2:-1]] == [
        "100",
        "40",
        "40",
        "40",
        "2.00",
        "0.06",
    ]


def test_read_bound_is_a_tenth_of_the_data_source():
    def met(ours: float) -> bool:
        taken = {read_state.OURS: [ours, 9.0, 0.0], read_state.THEIRS: [10.0]}
        return all(criterion.met for criterion in read_state.criteria(taken))

    assert [met(1.0), met(1.1)] == [True, False]


@pytest.mark.slow
def test_read_state_times_every_reader(spark: Any, tmp_path: Path):
    taken = read_state.measure(spark, read_state.prepare(spark, tmp_path, 50), rounds=1)
    assert all(len(seconds) == 1 and seconds[0] > 0 for seconds in taken.values())
    assert len(taken) == 4


@pytest.mark.slow
def test_race_times_the_same_batches_on_every_store(spark: Any, tmp_path: Path):
    join = next(r for r in operators.races(operators.Plan(join_rows=30)) if "format 2" in r.name)
    messages: list[str] = []
    laps = race.run(spark, tmp_path, join, 0, 1, messages.append)
    assert [len(of) for of in laps.values()] == [1, 1, 1, 1]
    assert all(lap.input_rows == 2 * 30 for of in laps.values() for lap in of)
    assert all(lap.milliseconds > 0 and lap.cpu > 0 for of in laps.values() for lap in of)
    # The number of rows of RocksDB with short commits is unknown.
    assert laps[OURS][-1].rows == laps["RocksDB"][-1].rows > 0
    assert len(messages) == 4
    assert "| RocksDB, changelog, unforked | " in operators.tables({join.name: laps}, operators.QUICK)


@pytest.mark.soak
def test_quick_run_measures_every_store(built: Path, tmp_path: Path):
    command = [sys.executable, "-m", "benchmarks", "--quick", "--only", "batches"]
    run = subprocess.run(
        [*command, "--directory", str(tmp_path)],
        cwd=ROOT,
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


def test_run_fails_if_a_group_fails(tmp_path: Path):
    command = [sys.executable, "-c", "from benchmarks import __main__, groups; import sys\n"]
    command[2] += "groups.GROUPS['gone'] = 'benchmarks.gone'\n"
    command[2] += "if __name__ == '__main__': sys.exit(__main__.main())"
    run = subprocess.run(
        [*command, "--only", "gone", "--directory", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert "| group gone |" in run.stdout


def test_every_group_has_a_module():
    assert all(callable(import_module(path).run) for path in (groups.GROUPS | groups.SEPARATE).values())


def test_python_workers_bounds_are_half_of_sparks_daemon_and_rocksdb_with_the_same_daemon():
    def judged(ours: dict[str, float], rival: float) -> list[str]:
        laps = {python_workers.name_of(OURS, daemon): took(ms) for daemon, ms in ours.items()}
        laps |= {python_workers.name_of(CHANGELOG, daemon): took(rival) for daemon in python_workers.DAEMONS}
        return verdicts(python_workers.criteria({200: laps}))

    times = {python_workers.SPARKS: 100.0, python_workers.FROZEN: 80.0, python_workers.UNIX: 50.0}
    assert judged(times, rival=90) == ["ok", "short", "ok", "ok"]
    assert judged(times | {python_workers.UNIX: 51}, rival=100) == ["short", "ok", "ok", "ok"]

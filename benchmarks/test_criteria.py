"""Each part judges its bounds by the measurements that they are about."""

from __future__ import annotations

import re
from typing import Any

import pytest

from benchmarks import report, stores
from benchmarks.groups import (
    amplification,
    cold_loads,
    commits,
    guard,
    limit,
    memory,
    merges,
    operators,
    rows,
    store_batches,
)
from benchmarks.report import Criterion
from benchmarks.stores import BY_TASK, CHANGELOG, COPY, HDFS, LIMIT, OURS, PROVIDERS, ROCKSDB, UNFORKED_RIVALS
from benchmarks.streaming import Batch, Batches, Plan
from tests.support.paths import ROOT


def verdicts(criteria: list[Criterion]) -> list[str]:
    """Return ``ok`` or ``short`` for each criterion."""
    return [criterion.verdict.partition(",")[0] for criterion in criteria]


def batches_of(times: dict[str, Any]) -> Batches:
    """Return batches with the milliseconds of each store."""
    return {
        name: [Batch(time, input_rows=100) for time in (millis if isinstance(millis, list) else [millis])]
        for name, millis in times.items()
    }


def test_criterion_accepts_a_missed_bound_only_if_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    short = Criterion("work", 2, 1, "ms")
    assert (short.verdict, short.accepted) == ("short", False)
    monkeypatch.setitem(report.EXPLAINED, "work", "Where the time goes")
    assert (short.verdict, short.accepted) == ("short, explained", True)


@pytest.mark.parametrize("heading", sorted(set(report.EXPLAINED.values())))
def test_explained_bounds_have_a_section_in_the_docs(heading: str) -> None:
    page = (ROOT / "docs" / "performance.md").read_text()
    assert page.count(f"### {heading}\n") == 1
    section = page.partition(f"### {heading}\n")[2].partition("\n#")[0]
    # The part that measures it, and a measurement.
    assert re.search(r"`--only \w+`|`make bench-s3`", section)
    assert re.search(r"\d", section)


@pytest.mark.parametrize(
    ("criterion", "row"),
    [
        (
            Criterion("work", 12.3, 1 / 20, "ms", 132, "RocksDB"),
            ["work", "12.3 ms", "≤ 0.05 of 132 ms (RocksDB)", "0.093", "short"],
        ),
        (Criterion("work", 1, 2, "ms"), ["work", "1 ms", "≤ 2 ms", "0.500", "ok"]),
        (
            Criterion("work", 5, 0.6, "MB/s", 10, "plain", at_least=True),
            ["work", "5 MB/s", "≥ 0.6 of 10 MB/s (plain)", "0.500", "short"],
        ),
        (
            Criterion("work", 6, 0.6, "MB/s", 10, at_least=True),
            ["work", "6 MB/s", "≥ 0.6 of 10 MB/s", "0.600", "ok"],
        ),
    ],
)
def test_summary_row_has_the_bound_and_the_verdict(criterion: Criterion, row: list[str]) -> None:
    assert criterion.row() == row


def store_times(times: dict[tuple[str, int], float]) -> store_batches.Times:
    return {(*entry, 10_000): [time] for entry, time in times.items()}


def test_batch_bound_is_a_twentieth_of_the_best_built_in() -> None:
    growth = store_times({(OURS, 100_000): 10, (OURS, 1_000_000): 10})

    def judged(rocksdb: float, hdfs: float) -> list[str]:
        # Unforked stores are not rivals in single operations.
        times = {OURS: 10, ROCKSDB: rocksdb, HDFS: hdfs} | dict.fromkeys(stores.UNFORKED, 1)
        sides = store_times({(name, 1_000_000): time for name, time in times.items()})
        return verdicts(store_batches.judge(sides, growth))

    assert judged(201, 300) == ["ok", "ok"]
    assert judged(400, 199) == ["short", "ok"]


def test_batch_bound_at_the_largest_size_is_a_third_more() -> None:
    sides = store_times({(OURS, 1_000_000): 10, (ROCKSDB, 1_000_000): 300})

    def judged(*times: float) -> list[str]:
        growth = store_times({(OURS, 100_000 * 10**n): time for n, time in enumerate(times)})
        return verdicts(store_batches.judge(sides, growth))

    assert judged(10, 20, 12.9) == ["ok", "ok"]
    assert judged(10, 10, 13.1) == ["ok", "short"]


def test_guard_detects_slow_batches_and_a_lost_lead() -> None:
    def judged(small: float, large: float, rival_time: float) -> list[str]:
        times = {(OURS, 100_000): small, (OURS, 200_000): large, (CHANGELOG, 200_000): rival_time}
        measured = store_times(times)
        # One disturbed batch of ours.
        measured[OURS, 200_000, 10_000].append(10_000)
        return verdicts(guard.judge(measured))

    assert judged(10, 20, 200) == ["ok", "ok"]
    assert judged(10, 26, 200) == ["ok", "short"]
    assert judged(10, 20, 100) == ["short", "ok"]


def test_operation_is_compared_with_its_rivals() -> None:
    times = {(o, name): [10.0] for o, (_, names, *_) in rows.OPERATIONS.items() for name in names}

    def short() -> set[str]:
        judged = zip(rows.OPERATIONS, verdicts(rows.judge(times)), strict=True)
        return {operation for operation, verdict in judged if verdict == "short"}

    assert short() == {"merge", "prefix scan", "range scan"}
    times["get hit", HDFS], times["merge", OURS] = [9.9], [2.5]
    assert short() == {"get hit", "prefix scan", "range scan"}


def test_load_bound_is_a_fifth_of_the_best_built_in() -> None:
    times = {(name, deltas): [1000.0] for name in PROVIDERS for deltas in (0, 50)}
    times |= {(OURS, 0): [20], (OURS, 50): [20], (CHANGELOG, 0): [100], (CHANGELOG, 50): [99]}
    # From a local copy the bound is the best built-in.
    times |= {(COPY, 0): [100], (COPY, 50): [100]}
    assert verdicts(cold_loads.judge(times, 1_000_000)) == ["ok", "ok", "short", "short"]


def test_commit_bounds_cover_time_bytes_and_objects() -> None:
    def judged(puts: float, commit: float, bytes_written: float, objects: float) -> list[str]:
        samples = {(name, 1_000): commits.Sample([100], [80], [500], [1]) for name in PROVIDERS}
        samples[OURS, 1_000] = commits.Sample([puts], [commit], [bytes_written], [objects])
        return verdicts(commits.judge(samples))

    assert judged(10, 10, 500, 1) == ["ok", "ok", "ok", "ok"]
    assert judged(20, 10, 501, 2) == ["ok", "short", "short", "short"]
    assert judged(1, 11, 500, 1) == ["short", "ok", "ok", "ok"]


def test_amplification_bounds_cover_bytes_space_loads_and_p99() -> None:
    cell: amplification.Measured = {"written": 2, "stored": 300, "p50": 4, "p99": 8}
    cell |= {"newest bytes": 130, "fresh bytes": 100, "newest time": 5, "fresh time": 4, "deltas": 50}
    cells: dict[amplification.Cell, amplification.Measured] = {
        (OURS, 10, 2): cell,
        (OURS, 100, 2): cell | {"written": 3},
        ("RocksDB", 10, 2): {"written": 9},
    }
    assert verdicts(amplification.judge(cells)) == ["ok"] * 11
    worse = cell | {"written": 3.1, "stored": 301, "p99": 8.1, "newest bytes": 131, "newest time": 5.1}
    assert verdicts(amplification.judge(cells | {(OURS, 100, 2): worse})) == ["ok"] * 5 + ["short"] * 6


def test_memory_includes_heap_buffers_and_backend() -> None:
    def judged(backend: float) -> list[str]:
        own_memory = {"heap": 60e6, "buffers": 10e6, "backend": backend, "reported": 1.0}
        rival_memory = {"heap": 300e6, "buffers": 0.0, "backend": 0.0, "reported": 1.0}
        # It is judged at a million rows.
        larger = {(name, 3_000_000): dict.fromkeys(own_memory, 1e9) for name in (OURS, HDFS)}
        return verdicts(
            memory.judge({(OURS, 1_000_000): own_memory, (HDFS, 1_000_000): rival_memory} | larger)
        )

    assert (judged(30e6), judged(31e6)) == (["ok"], ["short"])


def test_query_bounds_cover_median_percentile_and_total() -> None:
    def judged(*own_times: float) -> list[str]:
        times = {HDFS: [20, 20, 40], ROCKSDB: [30, 30, 30], OURS: list(own_times)}
        return verdicts(operators.judge({"query": batches_of(times)}))

    assert judged(19, 19, 29) == ["ok", "ok", "ok"]
    assert judged(21, 21, 29) == ["short", "ok", "ok"]
    assert judged(10, 10, 31) == ["ok", "short", "ok"]
    assert judged(20, 30, 31) == ["short", "short", "short"]


def test_query_bounds_are_those_of_an_unforked_store() -> None:
    criteria = operators.judge({"query": batches_of({HDFS: 20, UNFORKED_RIVALS[0]: 10, OURS: 11})})
    assert verdicts(criteria) == ["short"] * 3
    assert {criterion.rival for criterion in criteria} == {UNFORKED_RIVALS[0]}


@pytest.mark.parametrize("variant", limit.MINE)
@pytest.mark.parametrize(("partitions", "most"), [(8, 105), (200, 110)])
def test_limit_bounds_are_the_best_rival_and_the_limit(partitions: int, most: float, variant: str) -> None:
    work = limit.Work(partitions, 1, 1, Plan(1, 1))

    def judged(own_time: float, rival: str = CHANGELOG, rival_time: float = 200) -> list[str]:
        times = dict.fromkeys(limit.STORES, 1000.0) | {LIMIT: 100, rival: rival_time, variant: own_time}
        criteria = limit.judge({work: batches_of(times)})
        assert len(criteria) == 8
        return verdicts([c for c in criteria if (", commit=task: " in c.work) == (variant == BY_TASK)])

    assert judged(most) == ["ok", "ok", "ok", "ok"]
    assert judged(most + 1) == ["ok", "short", "ok", "ok"]
    assert judged(121) == ["ok", "short", "ok", "short"]
    for rival in (HDFS, CHANGELOG, *UNFORKED_RIVALS):
        assert judged(101, rival, 100) == ["short", "ok", "short", "ok"]


def test_limit_judges_batches_of_both_jvms() -> None:
    (work,) = limit.QUICK

    def judged(first: float, second: float) -> list[str]:
        times = dict.fromkeys(limit.STORES, 1000.0) | {OURS: first, OURS + limit.SECOND: second}
        times |= {LIMIT: 100, LIMIT + limit.SECOND: 100}
        criteria = limit.judge({work: batches_of(times)})
        assert len(criteria) == 8
        return verdicts([c for c in criteria if c.work == f"{work.name}: p50 to the limit"])

    assert judged(101, 109) == ["ok"]
    assert judged(103, 109) == ["short"]


def test_limit_misses_are_explained_beside_the_limit_alone() -> None:
    criteria = limit.judge(dict.fromkeys(limit.FULL, batches_of(dict.fromkeys(limit.STORES, 1.0))))
    explained = [work for work in report.EXPLAINED if work.startswith("count by key")]
    assert explained
    assert set(explained) <= {c.work for c in criteria if c.work.endswith(" to the limit")}
    assert len(criteria) == 24


@pytest.mark.parametrize(
    ("slowest", "limits", "expected"),
    [(200, 100, ["ok", "ok"]), (201, 100, ["short", "ok"]), (200, 95, ["ok", "short"])],
)
def test_merges_bounds_are_p50_and_the_limit(slowest: float, limits: float, expected: list[str]) -> None:
    # p99 of 100 batches is the second slowest.
    times = {OURS: [100.0] * 98 + [slowest, 1000.0], LIMIT: limits}
    assert verdicts(merges.judge({limit.Work(8, 1, 1, Plan(1, 1)): batches_of(times)})) == expected

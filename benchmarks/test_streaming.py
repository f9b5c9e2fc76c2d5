"""A comparison times the same batches on every store, compares answers, and drops stores far behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from benchmarks.conftest import Compare
from benchmarks.groups import amplification, limit, merges, operators
from benchmarks.groups.limit import visits
from benchmarks.stores import HDFS, LIMIT, OURS
from benchmarks.streaming import Batch, Comparison, Plan, config_of, run_in_turns

STORES = tuple(map(config_of, (OURS, HDFS)))


@pytest.mark.slow
def test_comparison_rejects_stores_with_different_answers(compare_here: Compare) -> None:
    built: list[int] = []

    def differently(stream: Any) -> Any:
        built.append(0)
        return stream.selectExpr(f"k + {len(built)} as k")

    with pytest.raises(RuntimeError, match="wrong, batch 0: "):
        compare_here(Comparison("wrong", differently, visits(10, 10), STORES), Plan(0, 1))


class CountingQuery:
    """A query that counts its input, in as many milliseconds."""

    def process(self, table: Path) -> Batch:
        rows = pq.read_metadata(table).num_rows
        return Batch(milliseconds=rows, input_rows=rows)

    def stop(self) -> None:
        pass


def test_comparison_limits_batches_of_a_slow_store(tmp_path: Path) -> None:
    def ran(far_behind: float, rewarm: int = 0) -> dict[str, list[int]]:
        rows = visits(10, 10)
        plain = Comparison("plain", lambda stream: stream, lambda n: rows(1).slice(0, n + 1), STORES)
        plan = Plan(0, 3, far_behind=far_behind, rewarm=rewarm)
        batches = run_in_turns(tmp_path, plain, {store.name: CountingQuery() for store in STORES}, plan)
        return {name: [batch.input_rows - 1 for batch in measured] for name, measured in batches.items()}

    assert ran(1000) == {OURS: [1, 2, 3], HDFS: [1, 2, 3]}
    assert ran(0) == {OURS: [1, 2, 3], HDFS: [1]}
    assert ran(0, rewarm=2) == {OURS: [4, 5, 6], HDFS: [1]}


@pytest.mark.slow
@pytest.mark.soak
def test_limit_has_equal_answers_on_every_store(compare_here: Compare) -> None:
    (work,) = limit.QUICK
    comparison = limit.comparison_of(work, tuple(map(config_of, limit.STORES)))
    # On a busy machine any store may be far behind.
    plan = replace(work.plan, far_behind=float("inf"))
    batches = compare_here(comparison, plan)
    assert {name: len(measured) for name, measured in batches.items()} == dict.fromkeys(
        limit.STORES, plan.batches
    )
    assert {batches[name][-1].rows for name in (OURS, LIMIT, HDFS)} == {work.keys}
    for batch in (batch for measured in batches.values() for batch in measured):
        assert batch.input_rows == work.rows
        assert batch.milliseconds > 0
        assert batch.cpu > 0
        assert batch.output[0] > 0
    assert f"| {LIMIT} " in limit.table_of(work.name, batches)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["windowed count", "left outer join, format 4"])
def test_operator_has_equal_answers_on_all_stores(compare_here: Compare, name: str) -> None:
    (comparison,) = (c for c in operators.comparisons(operators.QUICK, 2) if c.name.startswith(name))
    # When its time is up, it has as many batches as it needs.
    batches = compare_here(comparison, Plan(0, 3, seconds=0))
    assert {name: len(measured) for name, measured in batches.items()} == {
        s.name: 1 for s in comparison.stores
    }
    assert all(measured[0].output[0] > 0 for measured in batches.values())
    assert f"| {OURS} " in operators.table_of(comparison.name, batches)


@pytest.mark.soak
def test_merges_run_on_both_stores(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work,) = merges.QUICK
    monkeypatch.setattr(merges, "QUICK", (replace(work, plan=Plan(0, 1)),))
    result = merges.run(tmp_path, quick=True)
    assert [c.work for c in result.criteria] == [f"{work.name}, beside merges: {p}" for p in ("p99", "p50")]
    # At least the base of each partition.
    (row,) = [line for line in result.tables.splitlines() if f" {OURS} |" in line]
    assert int(row.split("|")[-2]) >= work.partitions
    # Also those of versions in merged files.
    (state,) = tmp_path.rglob("0-0/**/state/0")
    for partition in range(work.partitions):
        assert amplification.streams(state / str(partition), partition)["deltas"]

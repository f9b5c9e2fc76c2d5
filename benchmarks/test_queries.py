"""Group of whole queries: its criteria, and its check that all stores' answers are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import race
from benchmarks.contest import OURS, UNFORKED_RIVALS
from benchmarks.groups import queries
from benchmarks.race import Lap
from benchmarks.result import Criterion


def verdicts(criteria: list[Criterion]) -> list[str]:
    return [criterion.verdict for criterion in criteria]


def test_query_bounds_cover_median_percentile_and_total():
    def judged(*ours: float) -> list[str]:
        rivals = {"HDFSBacked": [20, 20, 40], "RocksDB": [30, 30, 30]}
        laps = {name: [Lap(t, {}, 0, 100) for t in times] for name, times in (rivals | {OURS: ours}).items()}
        return verdicts(queries.criteria({"q": laps}))

    assert judged(19, 19, 29) == ["ok", "ok", "ok"]
    assert judged(21, 21, 29) == ["short", "ok", "ok"]
    assert judged(10, 10, 31) == ["ok", "short", "ok"]
    assert judged(20, 30, 31) == ["short", "short", "short"]


def test_query_bounds_are_those_of_an_unforked_store():
    rivals = {"HDFSBacked": 20, UNFORKED_RIVALS[0]: 10}
    laps = {name: [Lap(time, {}, 0, 100)] for name, time in (rivals | {OURS: 11}).items()}
    criteria = queries.criteria({"q": laps})
    assert verdicts(criteria) == ["short"] * 3
    assert {criterion.rival for criterion in criteria} == {UNFORKED_RIVALS[0]}


@pytest.mark.soak
def test_nexmark_query_has_equal_answers_on_all_stores(spark: Any, tmp_path: Path):
    windowed = queries.races(queries.QUICK, 2)[0]
    laps = race.run(spark, tmp_path, windowed, 0, 3, lambda _: None, least=1, seconds=0)
    # When its time is up, it has as many batches as it needs.
    assert {name: len(of) for name, of in laps.items()} == dict.fromkeys(queries.STORES, 1)
    assert all(of[0].output[0] > 0 for of in laps.values())
    assert "| HDFSBacked " in queries.tables({windowed.name: laps}, queries.QUICK)

"""A race compares the answers of the stores, and drops stores that are far behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import race
from benchmarks.contest import HDFS, OURS, PROVIDERS
from benchmarks.groups import operators
from benchmarks.race import Entrant, Race


@pytest.mark.slow
def test_race_rejects_stores_with_different_answers(spark: Any, tmp_path: Path):
    entrants = tuple(Entrant(name, *PROVIDERS[name]) for name in (OURS, HDFS))
    built: list[int] = []

    def differently(stream: Any) -> Any:
        built.append(0)
        return stream.selectExpr(f"k + {len(built)} as k")

    wrong = Race("wrong", differently, operators.visits(10, 10), entrants)
    with pytest.raises(RuntimeError, match="wrong, batch 0: "):
        race.run(spark, tmp_path, wrong, 0, 1, lambda _: None)


@pytest.mark.slow
def test_race_limits_batches_of_a_slow_store(spark: Any, tmp_path: Path):
    entrants = tuple(Entrant(name, *PROVIDERS[name]) for name in (OURS, HDFS))

    def ran(times: float, rewarm: int = 0) -> dict[str, list[int]]:
        rows = operators.visits(10, 10)
        plain = Race("plain", lambda stream: stream, lambda number: rows(1).slice(0, number + 1), entrants)
        directory = tmp_path / f"{times}-{rewarm}"
        directory.mkdir()
        laps = race.run(spark, directory, plain, 0, 3, lambda _: None, least=1, hopeless=times, rewarm=rewarm)
        return {name: [lap.input_rows - 1 for lap in of] for name, of in laps.items()}

    assert ran(1000) == {OURS: [1, 2, 3], HDFS: [1, 2, 3]}
    assert ran(0) == {OURS: [1, 2, 3], HDFS: [1]}
    assert ran(0, rewarm=2) == {OURS: [4, 5, 6], HDFS: [1]}

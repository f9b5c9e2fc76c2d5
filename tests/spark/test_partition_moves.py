"""State moves to executors that join: the choice of partitions and executors, and queries on a cluster."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tests.spark.counting import Program, cluster_environment
from tests.support.effort import EFFORT

EXECUTORS = ["1", "2", "3", "10"]

places = st.lists(st.sampled_from([*EXECUTORS, "gone", None]), min_size=1, max_size=24)


def due(
    spark: Any,
    places: list[str | None],
    executors: list[str],
    *,
    staying: Sequence[int] = (),
    most: int = 100,
) -> list[tuple[int, str]]:
    trial = spark._jvm.org.apache.spark.sql.statestore.driver.MovesTrial
    moves = trial.due(places, executors, [0] * len(executors), list(staying), most)
    return [(int(move.split()[0]), move.split()[1]) for move in moves]


def after(places: list[str | None], moves: list[tuple[int, str]]) -> list[str | None]:
    result = list(places)
    for partition, executor in moves:
        result[partition] = executor
    return result


def partition_counts(places: list[str | None], executors: list[str]) -> list[int]:
    counts = Counter(places)
    return [counts[executor] for executor in executors]


@settings(max_examples=80 * EFFORT)
@given(places=places, count=st.integers(1, 4))
def test_each_executor_gets_its_share(spark: Any, places: list[str | None], count: int) -> None:
    executors = EXECUTORS[:count]
    moves = due(spark, places, executors)
    moved = after(places, moves)
    assert len({partition for partition, _ in moves}) == len(moves)
    # Those whose executor is gone move, those without one do not.
    for before, now in zip(places, moved, strict=True):
        assert (before is None) == (now is None)
        assert now is None or now in executors
    counts = partition_counts(moved, executors)
    share = sum(counts) / count
    assert max(counts) - min(counts) <= 1 or all(abs(n - share) <= 0.2 * share for n in counts)
    assert due(spark, moved, executors) == []


@settings(max_examples=60 * EFFORT)
@given(places=places, most=st.integers(0, 5), data=st.data())
def test_moves_are_bounded_and_partitions_that_moved_stay(
    spark: Any, places: list[str | None], most: int, data: st.DataObject
) -> None:
    staying = data.draw(st.lists(st.integers(0, len(places) - 1)))
    moves = due(spark, places, EXECUTORS, staying=staying, most=most)
    free = [partition for partition, _ in moves if places[partition] in EXECUTORS]
    assert len(free) <= most
    assert not set(free) & set(staying)
    gone = {i for i, place in enumerate(places) if place is not None and place not in EXECUTORS}
    assert gone <= {partition for partition, _ in moves}


@pytest.mark.parametrize(
    ("places", "executors", "moves"),
    [
        # Two executors that two more join.
        (["1", "2"] * 4, EXECUTORS, 4),
        # A fifth of the share, or one partition, is not worth a move.
        (["1"] * 11 + ["2"] * 9 + ["3"] * 10 + ["10"] * 10, EXECUTORS, 0),
        (["1", "1", "2", "3", "10"], EXECUTORS, 0),
        ([None] * 8, EXECUTORS, 0),
        (["1", "2"], [], 0),
    ],
)
def test_nothing_moves_without_need(
    spark: Any, places: list[str | None], executors: list[str], moves: int
) -> None:
    assert len(due(spark, places, executors)) == moves


@pytest.mark.slow
def test_state_moves_to_executors_that_join(built: Path, tmp_path: Path) -> None:
    with Program("rebalance", cluster_environment(tmp_path), checkpoint=str(tmp_path), events=0) as program:
        assert program.next("two executors") == {"0": [4, 4], "1": [4, 4]}

        after = program.next("four executors")
        assert after["shares"] == {"0": [2, 2, 2, 2], "1": [2, 2, 2, 2]}
        # Half of what batches in between had changed, and not the state of five batches.
        assert 0 < sum(after["loaded"]) < 2 * after["written"]

        assert program.next("three executors") == {"0": [2, 3, 3], "1": [2, 3, 3]}

        # The second one has rebalance=false: the places of its state are not looked at.
        for name in ("moving", "still"):
            result = program.next(name)
            assert (result["places"] == 0) == (name == "still")
            assert result["rows"] == result["distinct"] == result["expected"]
        program.next("stopped")
        program.end()


@pytest.mark.soak
def test_state_is_exact_while_executors_come_and_go(built: Path, tmp_path: Path) -> None:
    events, seed = 100, int(os.environ.get("CLUSTER_SEED", time.time()))
    print(f"CLUSTER_SEED={seed}")
    with Program(
        "rebalance", cluster_environment(tmp_path), checkpoint=str(tmp_path), events=events, seed=seed
    ) as program:
        for _ in range(events):
            print(program.next("event"))
        result = program.next("moving")
        assert result["rows"] == result["distinct"] == result["expected"]
        program.next("stopped")
        program.end()

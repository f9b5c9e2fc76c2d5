"""The choice of the partitions that move, and of their new executors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

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


@settings(max_examples=200 * EFFORT)
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


@settings(max_examples=100 * EFFORT)
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
    ("places", "moves"),
    [
        # Two executors that two more join.
        (["1", "2"] * 4, 4),
        # A fifth of the share, or one partition, is not worth a move.
        (["1"] * 11 + ["2"] * 9 + ["3"] * 10 + ["10"] * 10, 0),
        (["1", "1", "2", "3", "10"], 0),
        ([None] * 8, 0),
    ],
)
def test_nothing_moves_without_need(spark: Any, places: list[str | None], moves: int) -> None:
    assert len(due(spark, places, EXECUTORS)) == moves


def test_no_executor_gives_no_moves(spark: Any) -> None:
    assert due(spark, ["1", "2"], []) == []

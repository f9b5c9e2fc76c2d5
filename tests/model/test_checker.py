"""The checker solves a puzzle with a known answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pytest

from tests.model.checker import TooManyStates, check, follow

Jugs = tuple[int, int]


@dataclass(frozen=True)
class Puzzle:
    """Jugs of 3 and 5 litres; the invariant is that none holds a given amount."""

    never: int

    def init(self) -> Iterator[Jugs]:
        yield 0, 0

    def key(self, state: Jugs) -> Jugs:
        return state

    def next(self, state: Jugs) -> Iterator[tuple[str, Jugs]]:
        small, large = state
        yield "fill small", (3, large)
        yield "fill large", (small, 5)
        yield "empty small", (0, large)
        yield "empty large", (small, 0)
        poured = min(small, 5 - large)
        yield "pour small", (small - poured, large + poured)
        poured = min(large, 3 - small)
        yield "pour large", (small + poured, large - poured)

    def invariants(self) -> Mapping[str, Callable[[Jugs], bool]]:
        return {"never so many": lambda state: self.never not in state}


def test_checker_finds_the_shortest_counterexample() -> None:
    counterexample = check(Puzzle(4)).counterexample
    assert counterexample is not None
    assert len(counterexample.labels) == 6
    assert counterexample.states[0] == (0, 0)
    assert 4 in counterexample.states[-1]
    for before, label, after in zip(
        counterexample.states, counterexample.labels, counterexample.states[1:], strict=False
    ):
        assert dict(Puzzle(4).next(before))[label] == after
    assert "never so many" in str(counterexample)


def test_checker_visits_every_state_once_and_counts_steps() -> None:
    result = check(Puzzle(6))
    assert result.counterexample is None
    assert result.states == 16
    assert result.depth == 7
    assert result.labels == {"fill", "empty", "pour"}


def test_checker_fails_if_the_bound_is_too_small() -> None:
    with pytest.raises(TooManyStates):
        check(Puzzle(6), most=5)


def test_follow_rejects_an_impossible_step() -> None:
    assert follow(Puzzle(6), (0, 0), ["fill large", "pour large"]) == (3, 2)
    with pytest.raises(ValueError, match="'drink' is not one step of"):
        follow(Puzzle(6), (0, 0), ["drink"])

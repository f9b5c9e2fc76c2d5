"""Pins and clean-ups, in every order of their steps."""

from __future__ import annotations

import pytest

from tests.model.checker import check
from tests.model.pin_spec import PinSpec


def test_what_is_pinned_stays_in_every_order_of_steps() -> None:
    found = check(PinSpec())
    assert found.counterexample is None, str(found.counterexample)
    assert {"discard", "find", "withdraw", "no", "mark"} <= found.labels


# What can be visited whole: with five versions, three who clean up have many millions of states.
@pytest.mark.soak
@pytest.mark.parametrize(("keeps", "versions"), [((1, 1, 2), 4), ((0, 1), 5), ((2, 1), 6)], ids=str)
def test_what_is_pinned_stays_with_more_who_clean_up(keeps: tuple[int, ...], versions: int) -> None:
    found = check(PinSpec(keeps, versions=versions))
    assert found.counterexample is None, str(found.counterexample)
    print(f"{found.states} states, {found.depth} steps")


@pytest.mark.parametrize("fault", ["no flag", "no second look", "marks not looked at"])
def test_the_checker_finds_a_pin_that_is_missed_with(fault: str) -> None:
    found = check(PinSpec(faults=frozenset([fault]))).counterexample
    assert found is not None
    assert found.labels[-1].startswith("discard")

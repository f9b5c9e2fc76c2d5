"""The protocol of holds and cleanups holds in every interleaving."""

from __future__ import annotations

import pytest

from tests.model.checker import check
from tests.model.hold_spec import HoldSpec


def test_hold_protocol_holds_in_every_interleaving() -> None:
    found = check(HoldSpec())
    assert found.counterexample is None, str(found.counterexample)
    assert {"discard", "find", "withdraw", "no", "mark"} <= found.labels


# Bounds that permit an exhaustive check: with five versions, three cleaners have many millions of states.
@pytest.mark.soak
@pytest.mark.parametrize(("keeps", "versions"), [((1, 1, 2), 4), ((0, 1), 5), ((2, 1), 6)], ids=str)
def test_hold_protocol_holds_with_more_cleanups(keeps: tuple[int, ...], versions: int) -> None:
    found = check(HoldSpec(keeps, versions=versions))
    assert found.counterexample is None, str(found.counterexample)
    print(f"{found.states} states, {found.depth} steps")


@pytest.mark.parametrize("fault", ["no flag", "no second scan", "markers not read"])
def test_hold_protocol_fails_with_defect(fault: str) -> None:
    found = check(HoldSpec(faults=frozenset([fault]))).counterexample
    assert found is not None
    assert found.labels[-1].startswith("discard")

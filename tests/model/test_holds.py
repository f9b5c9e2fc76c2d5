"""The protocol of holds and cleanups holds in every interleaving."""

from __future__ import annotations

import pytest

from tests.model.checker import fails, passes
from tests.model.hold_spec import HoldSpec


def test_hold_protocol_holds_in_every_interleaving() -> None:
    assert {"discard", "find", "withdraw", "no", "mark"} <= passes(HoldSpec()).labels


# Bounds that permit an exhaustive check: with five versions, three cleaners have many millions of states.
@pytest.mark.soak
@pytest.mark.parametrize(("keeps", "versions"), [((1, 1, 2), 4), ((0, 1), 5), ((2, 1), 6)], ids=str)
def test_hold_protocol_holds_with_more_cleanups(keeps: tuple[int, ...], versions: int) -> None:
    passes(HoldSpec(keeps, versions=versions))


@pytest.mark.parametrize("fault", ["no flag", "no second scan", "markers not read"])
def test_hold_protocol_fails_with_defect(fault: str) -> None:
    assert fails(HoldSpec(), fault).labels[-1].startswith("discard")

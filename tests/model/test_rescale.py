"""A rescale in place never lets a batch run with the state of other partitions than its own."""

from __future__ import annotations

import pytest

from tests.model.checker import fails, passes
from tests.model.rescale_spec import RescaleSpec

ALONE = RescaleSpec((None, 3))


def test_rescale_in_place_holds_in_every_interleaving() -> None:
    labels = passes(RescaleSpec()).labels
    assert {"journal", "refuse", "change", "end", "find", "kill", "plan", "lose", "stop"} <= labels
    assert {"repeat", "commit", "mismatch"} <= labels


def test_rescale_in_place_holds_for_sessions_without_the_extension() -> None:
    assert {"journal", "find", "kill", "plan", "repeat", "commit"} <= passes(ALONE).labels


@pytest.mark.soak
def test_rescale_in_place_holds_with_more_drivers() -> None:
    passes(RescaleSpec((2, 3, 2), batches=3))


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        (ALONE, "no journal"),
        (ALONE, "journal of its own"),
        (ALONE, "planned batch kept"),
        (RescaleSpec(), "ids not counted"),
        (RescaleSpec(), "late process goes on"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rescale_in_place_fails_with_defect(spec: RescaleSpec, fault: str) -> None:
    assert fails(spec, fault).labels

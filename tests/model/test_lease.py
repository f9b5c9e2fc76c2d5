"""The lease of a checkpoint's logs lets no change undo another one in any interleaving."""

from __future__ import annotations

import pytest

from tests.model.checker import fails, passes
from tests.model.lease_spec import LeaseSpec


def test_lease_holds_in_every_interleaving() -> None:
    labels = passes(LeaseSpec()).labels
    assert {"create", "withdraw", "wait", "lease", "refuse", "pause", "renew", "stop", "kill"} <= labels


@pytest.mark.parametrize("fault", ["no listing", "checked before", "paused process goes on", "renewed once"])
def test_lease_fails_with_defect(fault: str) -> None:
    assert fails(LeaseSpec(), fault).labels[-1].startswith("change")

"""Metadata in the backend's memory is in storage before the entry of its batch.

This holds in any interleaving with evictions.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model.checker import fails, passes, with_faults
from tests.model.publication_spec import PublicationSpec

STORED = "committed attempts are in storage"
LAST = "the last attempt counts"

V1 = PublicationSpec()
V2 = PublicationSpec(with_ids=True)
FULL = {"v1": replace(V1, retries=1, answers=1), "v2": replace(V2, retries=1, answers=1)}
EARLY = {name: replace(spec, early=True) for name, spec in FULL.items()}


@pytest.mark.parametrize("spec", FULL.values(), ids=FULL)
def test_publication_holds_in_every_interleaving(spec: PublicationSpec) -> None:
    result = passes(spec)
    # The scenario must actually occur.
    expected = {"add", "close", "forget", "publish", "lose", "end", "fail", "write", "refuse", "commit"}
    assert expected <= result.labels


both = pytest.mark.parametrize("spec", [V1, V2], ids=["v1", "v2"])


@both
@pytest.mark.parametrize("forgetful", ["runs in use are forgotten", "unpublished is forgotten"])
def test_second_object_or_pending_taken_for_published_loses_nothing_alone(
    spec: PublicationSpec, forgetful: str
) -> None:
    """Each of the two precautions suffices where requests are answered."""
    passes(with_faults(spec, forgetful))
    passes(with_faults(spec, "pending counts as published"))


@both
def test_attempt_taken_for_published_and_a_second_object_lose_a_committed_version(
    spec: PublicationSpec,
) -> None:
    fails(spec, "runs in use are forgotten", "pending counts as published", only=STORED)


@both
def test_attempt_in_publication_taken_for_published_loses_a_committed_version(spec: PublicationSpec) -> None:
    repeated = replace(spec, answers=1)
    fails(repeated, "pending counts as published", only=STORED)
    passes(repeated)


def test_v1_pending_attempt_published_after_a_later_one_supersedes_it() -> None:
    retried = replace(V1, retries=1)
    for fault in ("pending is published later", "runs in use are forgotten"):
        fails(retried, fault, only=LAST)
    passes(with_faults(replace(V2, retries=1), "pending is published later"))


@pytest.mark.parametrize("spec", EARLY.values(), ids=EARLY)
def test_publication_before_the_barrier_holds_in_every_interleaving(spec: PublicationSpec) -> None:
    result = passes(spec)
    assert {"begin", "answer", "end", "fail", "refuse", "write", "publish", "commit"} <= result.labels


@pytest.mark.parametrize("spec", EARLY.values(), ids=EARLY)
@pytest.mark.parametrize("fault", ["the barrier does not wait", "early failures are ignored"])
def test_publication_that_the_barrier_does_not_heed_loses_a_committed_version(
    spec: PublicationSpec, fault: str
) -> None:
    fails(spec, fault, only=STORED)

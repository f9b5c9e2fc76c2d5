"""Commits that executors hand over to the driver lose no state in any interleaving with kills and retries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model.checker import fails, passes
from tests.model.cluster_spec import ClusterSpec

SPEC = ClusterSpec(stores=1)


@pytest.mark.parametrize("spec", [SPEC, ClusterSpec(retries=0), ClusterSpec(kills=0)], ids=str)
def test_cluster_protocol_holds_in_every_interleaving(spec: ClusterSpec) -> None:
    result = passes(spec)
    expected = {"start", "hand", "send", "accept", "publish", "commit"}
    assert expected | ({"kill"} if spec.kills else set()) == result.labels


@pytest.mark.soak
@pytest.mark.parametrize(
    "spec", [replace(SPEC, kills=2, runs=3, versions=3), replace(SPEC, retries=2, runs=3)], ids=str
)
def test_cluster_protocol_holds_in_longer_interleavings(spec: ClusterSpec) -> None:
    passes(spec)


@pytest.mark.parametrize(
    ("fault", "invariant"),
    [
        ("nothing is checked", "committed versions are complete"),
        ("commit before publication", "committed versions are complete"),
        ("memory by version", "batches start from the committed version"),
        ("tasks end before the driver has it", "the barrier refuses no batch"),
    ],
)
def test_cluster_protocol_fails_with_defect(fault: str, invariant: str) -> None:
    counterexample = fails(SPEC, fault)
    assert counterexample.invariant == invariant, str(counterexample)

"""Commits that tasks hand over lose no state in any interleaving with their publication and the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from tests.model.batch_spec import BatchSpec, State
from tests.model.checker import check, fails, passes, with_faults

WHOLE = "committed versions are complete"
SETTLED = "committed versions are immutable"
CONTINUED = "batches start from the version in storage"

V1 = BatchSpec()
V2 = BatchSpec(with_ids=True)

HOLDS = {
    "retries": replace(V1, failures=0),
    "retries with ids": replace(V2, failures=0),
    "kills": replace(V1, retries=0, kills=1),
    "kills with ids": replace(V2, retries=0, kills=1),
    "kills and retries": replace(V1, stores=1, kills=1),
    "kills and retries with ids": replace(V2, stores=1, kills=1),
    "unknown runs": replace(V1, stores=1, knows_run=False),
    "late tasks of one run": replace(V1, stores=1, runs=1, late=True, retries=2),
    "late tasks": replace(V1, stores=1, late=True, kills=1),
    "late tasks with ids": replace(V2, stores=1, late=True, kills=1),
    "concurrent runs with ids": replace(V2, stores=1, retries=0, concurrent=True, late=True),
    "unknown concurrent runs with ids": replace(
        V2, stores=1, retries=0, concurrent=True, late=True, knows_run=False
    ),
}


class Unreached(BatchSpec):
    """The protocol, with the claim that no run commits every batch."""

    def invariants(self) -> Mapping[str, Callable[[State], bool]]:
        return {"no run is done": lambda state: all(run.step != "done" for run in state.runs)}


@pytest.mark.parametrize("spec", HOLDS.values(), ids=HOLDS)
def test_batch_protocol_holds_in_every_interleaving(spec: BatchSpec) -> None:
    result = passes(spec)
    # The scenario must actually occur.
    expected = {"begin", "start", "hand", "publish", "accept", "pass", "commit"}
    expected |= {"fail", "reject"} if spec.failures else set()
    expected |= {"end"} if spec.runs > 1 else set()
    expected |= {"kill"} if spec.kills else set()
    expected |= {"conflict"} if spec.concurrent else set()
    assert expected <= result.labels


LARGER = {
    "kills and retries": replace(V1, kills=1),
    "kills and retries with ids": replace(V2, kills=1),
    "three runs": replace(V1, stores=1, runs=3, retries=2, failures=2, kills=1),
    "three runs with ids": replace(V2, stores=1, runs=3, retries=2, failures=2, kills=1),
    "concurrent runs with ids": replace(V2, stores=1, concurrent=True, late=True, kills=1),
}


@pytest.mark.soak
@pytest.mark.parametrize("spec", LARGER.values(), ids=LARGER)
def test_batch_protocol_holds_in_longer_interleavings(spec: BatchSpec) -> None:
    passes(spec)


ONE = replace(V1, stores=1, runs=1)

FAULTS = {
    "a batch is committed before its versions are published": ("no barrier", ONE, WHOLE),
    "a batch is committed though a publication failed": ("failures pass", ONE, WHOLE),
    "a retry truncates the changes that are being published": (
        "retries do not wait",
        replace(ONE, late=True),
        WHOLE,
    ),
    "two tasks write to one state": ("stores share the state", replace(ONE, late=True), WHOLE),
    "an attempt is published before the one that was handed over earlier": (
        "attempts do not wait",
        ONE,
        CONTINUED,
    ),
    "a task of an ended run replaces the attempt in memory": (
        "ended runs hand over",
        replace(V1, stores=1, late=True),
        CONTINUED,
    ),
    "a run is overtaken by a commit of an earlier run": (
        "runs do not wait",
        replace(V1, stores=1),
        CONTINUED,
    ),
    "a batch starts from an attempt that was refused": (
        "failed memory is used, late tasks hand over",
        replace(ONE, late=True),
        CONTINUED,
    ),
    "a run that begins clears the failure of a concurrent run": (
        "every failure is forgotten",
        replace(V1, stores=1, concurrent=True, retries=0, versions=1),
        WHOLE,
    ),
}
FAULTS |= {
    f"{name}, with ids": (fault, replace(spec, with_ids=True), invariant)
    for name, (fault, spec, invariant) in FAULTS.items()
    if invariant == WHOLE
}


@pytest.mark.parametrize(("fault", "spec", "invariant"), FAULTS.values(), ids=FAULTS)
def test_batch_protocol_fails_with_defect(fault: str, spec: BatchSpec, invariant: str) -> None:
    fails(spec, *fault.split(", "), only=invariant)
    # The fault alone makes the difference.
    passes(spec)


@pytest.mark.parametrize(
    "fault", ["runs do not wait", "attempts do not wait", "failed memory is used", "ended runs hand over"]
)
def test_batch_protocol_with_ids_holds_without_v1_precautions(fault: str) -> None:
    for spec in (replace(V2, stores=1, late=True, kills=1), replace(V2, retries=0)):
        passes(with_faults(spec, fault))


AFTER_FAILURE = (
    "begin run 0",
    "start attempt 0 of store 0",
    "hand over attempt 0",
    "fail to publish attempt 0",
    "end run 0",
    "begin run 1",
)


@pytest.mark.parametrize("knows_run", [True, False])
@pytest.mark.parametrize("with_ids", [False, True])
def test_run_commits_every_batch_after_a_failed_run(with_ids: bool, knows_run: bool) -> None:
    spec = Unreached(with_ids, stores=1, knows_run=knows_run, begin=AFTER_FAILURE)
    fails(spec)
    # Otherwise the batch is rejected again and again.
    passes(with_faults(spec, "failures of earlier runs count"))


@pytest.mark.parametrize("spec", [V1, V2], ids=["v1", "v2"])
def test_run_commits_every_batch_without_failures(spec: BatchSpec) -> None:
    fails(Unreached(spec.with_ids, runs=1, retries=0, failures=0))


def test_v1_commit_of_a_concurrent_run_replaces_the_attempt_in_memory() -> None:
    """The remaining gap in checkpoint format v1; every committed version is complete nevertheless."""
    spec = replace(V1, stores=1, concurrent=True, late=True, retries=0)
    assert fails(spec).invariant == CONTINUED
    for invariant in (WHOLE, SETTLED):
        assert check(spec, only=invariant).counterexample is None

"""The store's protocol loses no state in any interleaving of attempts, slow executors and stale instances."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model.checker import check, fails, passes, with_faults
from tests.model.store_spec import StoreSpec

WHOLE = "committed versions are complete"
SETTLED = "committed versions are immutable"

V1 = StoreSpec()
V2 = StoreSpec(with_ids=True)


def versions(first: int, last: int) -> tuple[str, ...]:
    """Return the step labels of one executor's batches; attempts are numbered from 0."""
    steps: list[str] = []
    for version in range(first, last + 1):
        attempt_id = version - 1
        steps += [
            f"start attempt {attempt_id} at version {version} on 0",
            f"create metadata of attempt {attempt_id} ",
            f"accept {attempt_id} as version {version}",
        ]
    return tuple(steps)


CLEANUPS = replace(V1, versions=3, attempts=4, cleanups=1, whole=frozenset([2]))
# A snapshot of version 1 that exists when version 3 is committed.
SLOW_SNAPSHOT = replace(
    V1,
    versions=3,
    attempts=4,
    cleanups=1,
    snapshots=1,
    retained=0,
    begin=(*versions(1, 1), "begin snapshot of version 1", *versions(2, 2), "end snapshot of version 1"),
)
# A run of version 2 on top of version 1, while version 3 may be written whole.
SLOW_RUN = replace(
    V2,
    versions=4,
    attempts=4,
    executors=1,
    cleanups=1,
    snapshots=1,
    runs=True,
    whole=frozenset([3]),
    begin=(*versions(1, 2), "begin run since 1 of version 2"),
)
ROLLBACK = replace(V1, versions=3, attempts=3, cleanups=1, rollbacks=1, retained=0, inside=False)


def with_ids(spec: StoreSpec) -> StoreSpec:
    return replace(spec, with_ids=True)


HOLDS = {
    "two attempts at each version": replace(V1, versions=3, attempts=5),
    "two attempts in files": replace(V1, versions=3, attempts=4, inside=False),
    "two attempts with ids": replace(V2, versions=3, attempts=6),
    "three attempts at once": replace(V1, versions=2, attempts=4, executors=3),
    "cleanups": CLEANUPS,
    "cleanups of files": replace(CLEANUPS, inside=False, contended=frozenset([2, 3])),
    "cleanups with ids": replace(with_ids(CLEANUPS), cleanups=2, whole=frozenset([2, 3])),
    "a slow snapshot": SLOW_SNAPSHOT,
    "a slow snapshot with ids": with_ids(SLOW_SNAPSHOT),
    "a slow run with ids": SLOW_RUN,
    "a rollback": ROLLBACK,
    "a rollback with ids": with_ids(ROLLBACK),
    "executors that are lost": replace(V1, versions=2, attempts=3, cleanups=1, retained=0, crashes=True),
}


@pytest.mark.parametrize("spec", HOLDS.values(), ids=HOLDS)
def test_store_protocol_holds_in_every_interleaving(spec: StoreSpec) -> None:
    result = passes(spec)
    # The scenario must actually occur.
    expected = {"start", "create", "accept"}
    expected |= set() if spec.with_ids else {"exists", "copy", "replace", "refuse"}
    expected |= {"own", "discard"} if spec.cleanups else set()
    expected |= {"rollback", "log"} if spec.rollbacks else set()
    expected |= {"base"} if spec.snapshots else set()
    expected |= {"crash"} if spec.crashes else set()
    assert expected <= result.labels


LARGER = {
    "three attempts at once": replace(V1, versions=3, attempts=5, executors=3),
    "three with ids": replace(V2, versions=3, attempts=5, executors=3),
    "cleanups": replace(CLEANUPS, cleanups=2),
    "snapshots with ids": replace(with_ids(SLOW_SNAPSHOT), begin=(), contended=frozenset([3])),
    "rollbacks": replace(ROLLBACK, attempts=4, inside=True, contended=frozenset([2])),
    "rollbacks with ids": replace(with_ids(ROLLBACK), attempts=4),
}


@pytest.mark.soak
@pytest.mark.parametrize("spec", LARGER.values(), ids=LARGER)
def test_store_protocol_holds_in_longer_interleavings(spec: StoreSpec) -> None:
    passes(spec)


def file_commit(attempt_id: int, version: int, parent: int, on: int, more: str = "") -> tuple[str, ...]:
    """Return the step labels of a batch whose changes go to a file."""
    return (
        f"start attempt {attempt_id} at version {version} on {on}, from {parent}{more}",
        f"write file of attempt {attempt_id} ",
        f"create metadata of attempt {attempt_id} ",
        f"accept {attempt_id} as version {version}",
    )


# An executor that has run one cleanup knows three versions, of which the last one was written whole. The
# query was rolled back to the first of them, and another executor wrote the others again.
OUTDATED = replace(
    V2,
    inside=False,
    versions=4,
    attempts=6,
    cleanups=2,
    rollbacks=2,
    retained=0,
    whole=frozenset([3]),
    begin=(
        *file_commit(0, 1, -1, 0),
        "start attempt 1 at version 2 on 0, from 0",
        *("begin cleanup below 1 on 0", "own ", "list ", "read "),
        *("discard versions []", "discard streams []"),
        *("write file of attempt 1 ", "create metadata of attempt 1 ", "accept 1 as version 2"),
        *file_commit(2, 3, 1, 0, ", of everything"),
        "start attempt 3 at version 4 on 0, from 2",
        *("rollback to version 2", "rollback to version 1"),
        *file_commit(4, 2, 0, 1),
        *file_commit(5, 3, 4, 1),
    ),
)

FAULTS = {
    "a run is used that a full commit has overtaken": (
        "overtaken run",
        SLOW_RUN,
        "versions have each change once",
    ),
    "a late attempt replaces a committed version": ("no check", V1, SETTLED),
    "metadata is written over": ("overwrite", V1, SETTLED),
    "the attempt that is there is not kept beside": (
        "present not copied",
        replace(V1, versions=2, attempts=3),
        WHOLE,
    ),
    "an attempt is not kept beside before it can be replaced": (
        "own not copied",
        replace(V1, versions=2, attempts=4, executors=3),
        WHOLE,
    ),
    "metadata is there before its streams": ("metadata first", replace(V1, inside=False), WHOLE),
    "metadata with an id is there before its streams": ("metadata first", replace(V2, inside=False), WHOLE),
    "a commit's stream is taken for an orphan": (
        "young orphans",
        replace(V1, versions=3, attempts=3, cleanups=1, inside=False),
        WHOLE,
    ),
    "a snapshot is older than what others keep": ("old base", SLOW_SNAPSHOT, WHOLE),
    "a snapshot is older than what others keep, with ids": ("old base", with_ids(SLOW_SNAPSHOT), WHOLE),
    "an instance from before a rollback cleans up": ("log not asked", ROLLBACK, WHOLE),
    "an instance from before a rollback cleans up, with ids": ("log not asked", with_ids(ROLLBACK), WHOLE),
    "an instance from before a rollback cleans up after the query has caught up": (
        "ids not asked",
        OUTDATED,
        WHOLE,
    ),
}


@pytest.mark.parametrize(("fault", "spec", "invariant"), FAULTS.values(), ids=FAULTS)
def test_store_protocol_fails_with_defect(fault: str, spec: StoreSpec, invariant: str) -> None:
    assert fails(spec, fault).invariant == invariant
    # The fault alone makes the difference.
    passes(spec)


def test_v1_attempt_paused_before_its_last_step_replaces_a_committed_version() -> None:
    """The remaining window in checkpoint format v1; the version is intact nevertheless."""
    assert fails(V1, "slow check").invariant == SETTLED
    slow = with_faults(replace(V1, versions=3, attempts=4), "slow check")
    assert check(slow, only=WHOLE).counterexample is None
    passes(with_faults(replace(V2, versions=3, attempts=5), "slow check"))

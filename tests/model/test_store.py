"""Two attempts at a version, slow executors, old and new instances: no order of their steps loses state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model.checker import Checked, check
from tests.model.store_spec import State, StoreSpec

WHOLE = "what was accepted is whole"
SETTLED = "what was accepted does not change"

V1 = StoreSpec()
V2 = StoreSpec(with_ids=True)


def versions(first: int, last: int) -> tuple[str, ...]:
    """Batches of one executor, in the labels of their steps; attempts are counted from 0."""
    steps: list[str] = []
    for version in range(first, last + 1):
        attempt = version - 1
        steps += [
            f"start attempt {attempt} at version {version} on 0",
            f"create metadata of attempt {attempt} ",
        ]
        steps.append(f"accept {attempt} as version {version}")
    return tuple(steps)


# A snapshot of version 1 that is there when version 3 is made.
SLOW_SNAPSHOT = (
    *versions(1, 1),
    "begin snapshot of version 1",
    *versions(2, 2),
    "end snapshot of version 1",
)
SNAPSHOTS = {
    "versions": 3,
    "attempts": 4,
    "cleanups": 1,
    "snapshots": 1,
    "retained": 0,
    "begin": SLOW_SNAPSHOT,
}

HOLDS = {
    "two attempts at each version": replace(V1, versions=3, attempts=5),
    "two attempts in files": replace(V1, versions=3, attempts=4, inside=False),
    "two attempts with ids": replace(V2, versions=3, attempts=6),
    "three attempts at once": replace(V1, versions=2, attempts=4, executors=3),
    "clean-ups": replace(V1, versions=3, attempts=4, cleanups=1, whole=frozenset([2])),
    "clean-ups of files": replace(
        V1,
        versions=3,
        attempts=4,
        cleanups=1,
        whole=frozenset([2]),
        inside=False,
        contended=frozenset([2, 3]),
    ),
    "clean-ups with ids": replace(V2, versions=3, attempts=4, cleanups=2, whole=frozenset([2, 3])),
    "a slow snapshot": replace(V1, **SNAPSHOTS),
    "a slow snapshot with ids": replace(V2, **SNAPSHOTS),
    "a roll-back": replace(V1, versions=3, attempts=3, cleanups=1, rollbacks=1, retained=0, inside=False),
    "a roll-back with ids": replace(
        V2, versions=3, attempts=3, cleanups=1, rollbacks=1, retained=0, inside=False
    ),
    "executors that are lost": replace(V1, versions=2, attempts=3, cleanups=1, retained=0, crashes=True),
}


def passes(spec: StoreSpec) -> Checked[State]:
    found = check(spec)
    assert found.counterexample is None, str(found.counterexample)
    return found


@pytest.mark.parametrize("spec", HOLDS.values(), ids=HOLDS)
def test_every_order_of_steps_keeps_what_was_accepted(spec: StoreSpec) -> None:
    found = passes(spec)
    # It is no proof of what never happened.
    expected = {"start", "create", "accept"}
    expected |= set() if spec.with_ids else {"exists", "copy", "replace", "refuse"}
    expected |= {"own", "discard"} if spec.cleanups else set()
    expected |= {"rollback", "log"} if spec.rollbacks else set()
    expected |= {"base"} if spec.snapshots else set()
    expected |= {"crash"} if spec.crashes else set()
    assert expected <= found.labels


LARGER = {
    "three attempts at once": replace(V1, versions=3, attempts=5, executors=3),
    "three with ids": replace(V2, versions=3, attempts=5, executors=3),
    "clean-ups": replace(V1, versions=3, attempts=4, cleanups=2, whole=frozenset([2])),
    "snapshots with ids": replace(V2, **SNAPSHOTS | {"begin": (), "contended": frozenset([3])}),
    "roll-backs": replace(
        V1, versions=3, attempts=4, cleanups=1, rollbacks=1, retained=0, contended=frozenset([2])
    ),
    "roll-backs with ids": replace(
        V2, versions=3, attempts=4, cleanups=1, rollbacks=1, retained=0, inside=False
    ),
}


@pytest.mark.soak
@pytest.mark.parametrize("spec", LARGER.values(), ids=LARGER)
def test_every_order_of_more_steps_keeps_what_was_accepted(spec: StoreSpec) -> None:
    found = passes(spec)
    print(f"{found.states} states, {found.depth} steps")


def file_commit(attempt: int, version: int, parent: int, on: int, more: str = "") -> tuple[str, ...]:
    """A batch whose changes go to a file, in the labels of its steps."""
    return (
        f"start attempt {attempt} at version {version} on {on}, from {parent}{more}",
        f"write file of attempt {attempt} ",
        f"create metadata of attempt {attempt} ",
        f"accept {attempt} as version {version}",
    )


# An executor that has cleaned up once knows three versions, of which the last one was written whole. The query was
# set back to the first of them, and another executor made the others anew.
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
        *("begin clean-up below 1 on 0", "own ", "list ", "read "),
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
    "an attempt that comes late replaces what was accepted": ("no look", V1, SETTLED),
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
    "metadata with an id is there before its streams": (
        "metadata first",
        replace(V2, inside=False),
        WHOLE,
    ),
    "a commit's stream is taken for one of nobody": (
        "young strays",
        replace(V1, versions=3, attempts=3, cleanups=1, inside=False),
        WHOLE,
    ),
    "a snapshot is older than what others keep": ("old base", replace(V1, **SNAPSHOTS), WHOLE),
    "a snapshot is older than what others keep, with ids": ("old base", replace(V2, **SNAPSHOTS), WHOLE),
    "an instance of before a roll-back cleans up": (
        "log not asked",
        replace(V1, versions=3, attempts=3, cleanups=1, rollbacks=1, retained=0, inside=False),
        WHOLE,
    ),
    "an instance of before a roll-back cleans up, with ids": (
        "log not asked",
        replace(V2, versions=3, attempts=3, cleanups=1, rollbacks=1, retained=0, inside=False),
        WHOLE,
    ),
    "an instance of before a roll-back cleans up when the query has come as far again": (
        "ids not asked",
        OUTDATED,
        WHOLE,
    ),
}


@pytest.mark.parametrize(("fault", "spec", "invariant"), FAULTS.values(), ids=FAULTS)
def test_the_checker_finds_what_goes_wrong_if(fault: str, spec: StoreSpec, invariant: str) -> None:
    found = check(replace(spec, faults=frozenset([fault]))).counterexample
    assert found is not None
    assert found.invariant == invariant
    assert check(spec).counterexample is None, "the fault alone makes the difference"


def test_without_ids_an_attempt_that_sleeps_before_its_last_step_replaces_what_was_accepted() -> None:
    """The window that is left in checkpoint format v1; what is found is whole all the same."""
    slow = frozenset(["slow look"])
    found = check(replace(V1, faults=slow)).counterexample
    assert found is not None
    assert found.invariant == SETTLED
    kept = check(replace(V1, versions=3, attempts=4, faults=slow), only=WHOLE)
    assert kept.counterexample is None
    assert check(replace(V2, versions=3, attempts=5, faults=slow)).counterexample is None

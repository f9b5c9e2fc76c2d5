"""Merged files lose no state in any interleaving of several runs.

Runs publish, rewrite, apply retention and roll back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from tests.model.checker import check, fails, follow, passes, with_faults
from tests.model.merge_spec import MergeSpec, State

WHOLE = "committed versions are complete"
SETTLED = "committed versions are immutable"
COMMITTED = "the committed attempt is the one found"
LOADED = "a run loads the version that a new run finds"

PREFERRED_BY_NAME = "files are preferred by name"

V1 = MergeSpec()
V2 = MergeSpec(with_ids=True)

SCENARIOS = {
    "kills": replace(V1, kills=1, rewrites=1),
    "a rollback": replace(V1, rollbacks=1, rewrites=1),
    "a rollback of slow cleanups": replace(V1, rollbacks=1, lag=1, whole=frozenset([(0, 3), (1, 2)])),
    "a rollback and other chains": replace(
        V1, rollbacks=1, whole=frozenset(), varied=frozenset([(0, 2), (1, 2)])
    ),
    "a run in task mode between": replace(V1, modes="btb", rollbacks=1),
    "a run in batch mode between": replace(V1, modes="tbt", rollbacks=1),
    "concurrent runs": replace(V1, concurrent=True, rewrites=1),
    "concurrent runs that retain two versions": replace(V1, concurrent=True, retained=1, rollbacks=1),
    "a concurrent run in task mode": replace(V1, modes="bt", concurrent=True, rewrites=1),
}
EXECUTOR = replace(
    V2, modes="b", retained=1, executor=True, large=frozenset([(0, 3)]), whole=frozenset([(0, 3)])
)
EXECUTORS = {
    "stores that move to an executor": EXECUTOR,
    "rewrites while an executor lists": replace(
        EXECUTOR, stores=1, versions=4, rewrites=1, lag=1, whole=frozenset([(0, 3), (0, 4)])
    ),
    "a rollback and stores that move": replace(EXECUTOR, stores=1, modes="bb", rollbacks=1, lag=1),
    "concurrent runs with stores that move": replace(EXECUTOR, stores=1, modes="bb", concurrent=True),
}
HOLDS = (
    EXECUTORS
    | SCENARIOS
    | {f"{name} with ids": replace(spec, with_ids=True) for name, spec in SCENARIOS.items()}
)

# Left to make soak: these have most states, and what they hold is in smaller scenarios, too.
LONG = {
    "a run in task mode between",
    "a run in task mode between with ids",
    "concurrent runs with stores that move",
    "a copy is deleted that has replaced another copy",
    "a copy is deleted that has replaced another copy, with ids",
    "the file with the newest version counts after a rollback",
}


def test_copies_of_one_file_need_no_preference() -> None:
    passes(with_faults(replace(V2, concurrent=True, stores=1, rewrites=1, sources=1), PREFERRED_BY_NAME))


class Unreached(MergeSpec):
    """The protocol, with the claim that no run commits every batch and deletes the files of the first one."""

    def invariants(self) -> Mapping[str, Callable[[State], bool]]:
        def unreached(state: State) -> bool:
            return len(state.committed) < self.versions or any(
                file.name.oldest == 1 for file in state.physical
            )

        return {"no run is done": unreached}


@pytest.mark.parametrize(
    "spec",
    [pytest.param(spec, id=name, marks=[pytest.mark.soak] * (name in LONG)) for name, spec in HOLDS.items()],
)
def test_merge_protocol_holds_in_every_interleaving(spec: MergeSpec) -> None:
    result = passes(spec)
    # The scenario must actually occur.
    expected = {"begin", "list", "load", "publish", "commit", "discard"}
    expected |= {"move"} if spec.executor else {"delete"}
    expected |= {"end"} if len(spec.modes) > 1 or spec.rollbacks else set()
    expected |= {"kill"} if spec.kills else set()
    expected |= {"move"} if spec.rewrites else set()
    expected |= {"rollback"} if spec.rollbacks else set()
    expected |= {"create"} if "t" in spec.modes else set()
    expected |= {"conflict"} if spec.concurrent else set()
    expected |= {"refuse"} if spec.concurrent and not spec.with_ids else set()
    assert expected <= result.labels


LARGER_SCENARIOS = {
    "two rollbacks": replace(V1, modes="bbb", rollbacks=2, rewrites=1),
    "kills and a rollback": replace(V1, modes="btb", rollbacks=1, kills=1, rewrites=1),
    "concurrent runs": replace(V1, concurrent=True, rewrites=2, kills=1, rollbacks=1),
    "three concurrent runs": replace(V1, modes="bbb", concurrent=True, stores=1, whole=frozenset([(0, 2)])),
    "three concurrent runs of both modes": replace(
        V1, modes="btb", concurrent=True, stores=1, rewrites=1, whole=frozenset([(0, 2)])
    ),
}
LARGER = LARGER_SCENARIOS | {
    f"{name} with ids": replace(spec, with_ids=True) for name, spec in LARGER_SCENARIOS.items()
}


@pytest.mark.soak
@pytest.mark.parametrize("spec", LARGER.values(), ids=LARGER)
def test_merge_protocol_holds_in_longer_interleavings(spec: MergeSpec) -> None:
    passes(spec)


ONE = replace(V1, modes="b")
CONCURRENT = replace(V1, concurrent=True, rewrites=1)
ROLLBACK = replace(V1, rollbacks=1, rewrites=1)

# These have a counterexample in v2 as well.
ANY_FORMAT = {
    "a run has the listing of an earlier one": ("listing is reused", replace(V1, modes="bbb"), LOADED),
    "a physical file is replaced by that of another run": ("physical files are replaced", CONCURRENT, WHOLE),
    "a version is committed before its physical file exists": ("commit log first", ONE, WHOLE),
    "a file is deleted before its logical files are in another one": (
        "old file is deleted first",
        replace(ONE, rewrites=1),
        WHOLE,
    ),
    "a file is deleted that another store needs": ("files with live entries are deleted", ONE, WHOLE),
    "a copy is deleted that has replaced one of its sources": (
        PREFERRED_BY_NAME,
        replace(V1, concurrent=True, stores=1, rewrites=1),
        WHOLE,
    ),
    "a copy is deleted that has replaced another copy": (
        "copies are numbered by range",
        replace(V1, concurrent=True, stores=1, rewrites=2),
        WHOLE,
    ),
    "a run from before a rollback deletes files": (
        "ended runs delete",
        replace(V1, rollbacks=1, lag=1, whole=frozenset([(0, 3), (1, 2)])),
        WHOLE,
    ),
}
ONLY_V1 = {
    "a run supersedes a committed version": ("commit log is not read", CONCURRENT, SETTLED),
    "a run supersedes a committed version that it does not know": (
        "only known files are checked",
        CONCURRENT,
        SETTLED,
    ),
    "a run supersedes committed files of a run in task mode": (
        "only known files are checked",
        replace(V1, modes="bt", concurrent=True),
        SETTLED,
    ),
    "a moved attempt supersedes a newer one": ("ranks are not kept", CONCURRENT, SETTLED),
    "the file with the newest version counts after a rollback": (
        "version order",
        replace(V1, stores=1, versions=4, rollbacks=2, rewrites=1),
        COMMITTED,
    ),
    "the base of a concurrent attempt is deleted": (
        "cleanups do not list",
        replace(V1, modes="bbt", stores=1, concurrent=True, whole=frozenset([(0, 2)])),
        WHOLE,
    ),
    "a store's own file hides its merged one": ("own files win", replace(V1, modes="tb"), COMMITTED),
    "a task publishes a file that its merged one hides": (
        "merged files do not exist for own",
        replace(V1, modes="bt"),
        COMMITTED,
    ),
    "a rollback finds an attempt that was superseded": (
        "superseded files are deleted last",
        ROLLBACK,
        SETTLED,
    ),
}
ONLY_V2 = {
    "a store's first cleanup has a listing from before it moved": ("executors do not list", EXECUTOR, WHOLE),
    "a physical file vanishes between listing and read": (
        "files that vanish are skipped",
        EXECUTORS["rewrites while an executor lists"],
        WHOLE,
    ),
}
FAULTS = (
    ANY_FORMAT
    | ONLY_V1
    | ONLY_V2
    | {
        f"{name}, with ids": (fault, replace(spec, with_ids=True), invariant)
        for name, (fault, spec, invariant) in ANY_FORMAT.items()
    }
)


@pytest.mark.parametrize(
    ("fault", "spec", "invariant"),
    [
        pytest.param(*defect, id=name, marks=[pytest.mark.soak] * (name in LONG))
        for name, defect in FAULTS.items()
    ],
)
def test_merge_protocol_fails_with_defect(fault: str, spec: MergeSpec, invariant: str) -> None:
    fails(spec, fault, only=invariant)
    passes(spec)


@pytest.mark.parametrize(
    "spec",
    [CONCURRENT, ROLLBACK, replace(CONCURRENT, modes="bt"), replace(ROLLBACK, modes="btb", versions=2)],
    ids=["concurrent runs", "a rollback", "a concurrent run in task mode", "a rollback and task mode"],
)
def test_merge_protocol_with_ids_holds_without_v1_precautions(spec: MergeSpec) -> None:
    passes(with_faults(replace(spec, with_ids=True), *(fault for fault, *_ in ONLY_V1.values())))


# A deleted name is created again, between the listing of a run and its deletion of that name.
RECREATED = (
    *("begin run 0", "begin run 1", "begin run 2", "begin run 3"),
    *("list in run 0", "load in run 0", "list in run 1", "load in run 1"),
    "publish (1, 1, 1) in run 0",
    *("list in run 2", "load in run 2", "publish (2, 1, 1) in run 2", "move (1, 1, 1) in run 2"),
    *("copy (3, 1, 1)-copy in run 2", "list in run 3", "load in run 3"),
    *("delete (1, 1, 1) in run 2", "publish (1, 1, 1) in run 1", "commit version 1 in run 1"),
    "delete (1, 1, 1) in run 3",
)


@pytest.mark.parametrize(
    ("spec", "fault", "steps", "missing_step"),
    [
        pytest.param(
            replace(V2, modes="bbbb", concurrent=True, rewrites=1),
            "uncommitted versions are moved",
            RECREATED,
            "'move ",
            id="a recreated file is deleted",
        ),
    ],
)
def test_merge_protocol_fails_with_defect_after_many_steps(
    spec: MergeSpec, fault: str, steps: tuple[str, ...], missing_step: str
) -> None:
    (begin,) = spec.init()
    faulty = with_faults(spec, fault)
    assert not faulty.invariants()[WHOLE](follow(faulty, begin, steps))
    with pytest.raises(ValueError, match=missing_step):
        follow(spec, begin, steps)


@pytest.mark.parametrize("spec", [V1, V2], ids=["v1", "v2"])
def test_run_commits_every_batch_and_deletes_old_files(spec: MergeSpec) -> None:
    for modes in ("b", "bb", "tb", "btb"):
        fails(Unreached(spec.with_ids, modes=modes))


def test_v1_run_paused_between_check_and_create_supersedes_a_committed_version() -> None:
    """The remaining gap in checkpoint format v1; every committed version is complete nevertheless."""
    fails(CONCURRENT, "slow check", only=SETTLED)
    assert check(with_faults(CONCURRENT, "slow check"), only=WHOLE).counterexample is None
    passes(with_faults(replace(CONCURRENT, with_ids=True), "slow check"))


@pytest.mark.parametrize("modes", ["bt", "tb"])
def test_v1_rollback_beyond_retention_finds_a_file_of_a_concurrent_run_in_task_mode(modes: str) -> None:
    spec = replace(CONCURRENT, modes=modes, rollbacks=1)
    counterexample = fails(spec)
    assert counterexample.invariant == SETTLED
    assert counterexample.labels[-1].startswith("rollback")
    passes(replace(spec, retained=1, rolls_beyond=False))

"""What kind of snapshot a checkpoint is, and when it is discarded."""

from __future__ import annotations

import dataclasses
import json

import pytest

from spark_statestore.checkpoint.completed.properties import (
    CheckpointProperties,
    CheckpointRetentionPolicy,
    ExternalizedCheckpointRetention,
    JobStatus,
    SavepointFormatType,
    SharingFilesStrategy,
    SnapshotType,
)

POLICY = CheckpointRetentionPolicy
KINDS = {
    "never": lambda: CheckpointProperties.for_checkpoint(POLICY.NEVER_RETAIN_AFTER_TERMINATION),
    "on failure": lambda: CheckpointProperties.for_checkpoint(POLICY.RETAIN_ON_FAILURE),
    "on cancellation": lambda: CheckpointProperties.for_checkpoint(POLICY.RETAIN_ON_CANCELLATION),
    "full": lambda: CheckpointProperties.for_checkpoint(full=True),
    "savepoint": CheckpointProperties.for_savepoint,
    "suspend": CheckpointProperties.for_sync_savepoint,
    "terminate": lambda: CheckpointProperties.for_sync_savepoint(terminate=True),
    "unclaimed": CheckpointProperties.for_unclaimed_snapshot,
    "native": lambda: CheckpointProperties.for_savepoint(
        forced=False, savepoint_format=SavepointFormatType.NATIVE
    ),
    "native suspend": lambda: CheckpointProperties.for_sync_savepoint(
        forced=False, savepoint_format=SavepointFormatType.NATIVE
    ),
}


def a(kind: str) -> CheckpointProperties:
    return KINDS[kind]()


@pytest.mark.parametrize(
    ("kind", "discarded"),
    [
        ("never", "subsumed finished canceled failed suspended"),
        ("on failure", "subsumed finished canceled suspended"),
        ("on cancellation", "subsumed finished"),
        ("full", "subsumed finished canceled failed suspended"),
        ("savepoint", ""),
        ("suspend", ""),
        ("terminate", ""),
        ("unclaimed", ""),
    ],
)
def test_each_kind_is_discarded_when_the_table_says_so(kind: str, discarded: str) -> None:
    found = ["subsumed"] if a(kind).discarded_on_subsume else []
    found += [status.value for status in JobStatus if a(kind).discard_on(status)]
    assert found == discarded.split()


def test_a_checkpoint_is_not_retained_unless_asked_for() -> None:
    assert CheckpointProperties.for_checkpoint() == a("never")
    assert {option.name: option.policy for option in ExternalizedCheckpointRetention} == {
        "NO_EXTERNALIZED_CHECKPOINTS": POLICY.NEVER_RETAIN_AFTER_TERMINATION,
        "DELETE_ON_CANCELLATION": POLICY.RETAIN_ON_FAILURE,
        "RETAIN_ON_CANCELLATION": POLICY.RETAIN_ON_CANCELLATION,
    }


def test_savepoints_share_no_files() -> None:
    assert {
        kind: (kind.is_savepoint, kind.is_synchronous, kind.sharing_files_strategy) for kind in SnapshotType
    } == {
        SnapshotType.CHECKPOINT: (False, False, SharingFilesStrategy.FORWARD_BACKWARD),
        SnapshotType.FULL_CHECKPOINT: (False, False, SharingFilesStrategy.FORWARD),
        SnapshotType.SAVEPOINT: (True, False, SharingFilesStrategy.NO_SHARING),
        SnapshotType.SUSPEND_SAVEPOINT: (True, True, SharingFilesStrategy.NO_SHARING),
        SnapshotType.TERMINATE_SAVEPOINT: (True, True, SharingFilesStrategy.NO_SHARING),
    }
    assert [strategy.shares_files for strategy in SharingFilesStrategy] == [True, True, False]
    assert {kind: a(kind).snapshot_type.value for kind in KINDS} == {
        "never": "checkpoint",
        "on failure": "checkpoint",
        "on cancellation": "checkpoint",
        "full": "full-checkpoint",
        "savepoint": "savepoint",
        "suspend": "suspend-savepoint",
        "terminate": "terminate-savepoint",
        "unclaimed": "savepoint",
        "native": "savepoint",
        "native suspend": "suspend-savepoint",
    }
    assert [a(kind).is_synchronous for kind in ("savepoint", "suspend", "terminate")] == [False, True, True]
    assert [kind for kind in KINDS if a(kind).unclaimed is not False] == ["unclaimed"]
    assert a("unclaimed").unclaimed is True


def test_savepoints_are_forced_and_canonical_unless_told_otherwise() -> None:
    def found(kind: str) -> tuple[bool, SavepointFormatType | None]:
        return a(kind).forced, a(kind).savepoint_format

    for kind in ("savepoint", "suspend", "terminate"):
        assert found(kind) == (True, SavepointFormatType.CANONICAL)
    for kind in ("native", "native suspend"):
        assert found(kind) == (False, SavepointFormatType.NATIVE)
    assert found("unclaimed") == (False, SavepointFormatType.CANONICAL)
    assert found("never") == (False, None)


def test_being_unclaimed_does_not_count_for_equality() -> None:
    unclaimed = a("unclaimed")
    assert dataclasses.replace(unclaimed, unclaimed=False) == unclaimed
    assert dataclasses.replace(unclaimed, forced=True) != unclaimed


def test_only_suspension_is_no_end() -> None:
    assert [status for status in JobStatus if not status.is_globally_terminal] == [JobStatus.SUSPENDED]


@pytest.mark.parametrize("kind", KINDS)
def test_properties_come_back_from_json_as_they_were(kind: str) -> None:
    properties = a(kind)
    again = CheckpointProperties.from_json(json.loads(json.dumps(properties.to_json())))
    assert again == properties
    assert again.unclaimed == properties.unclaimed


@pytest.mark.parametrize(
    "damage",
    [
        {"snapshotType": "backup"},
        {"discardedOn": ["sometimes"]},
        {"discardedOn": None},
        {"savepointFormat": "zip"},
        {"forced": 1},
        {"unclaimed": None},
    ],
)
def test_damaged_json_is_refused(damage: dict[str, object]) -> None:
    with pytest.raises((TypeError, ValueError)):
        CheckpointProperties.from_json(a("savepoint").to_json() | damage)
    with pytest.raises(KeyError):
        CheckpointProperties.from_json({})

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
NEVER = CheckpointProperties.for_checkpoint(POLICY.NEVER_RETAIN_AFTER_TERMINATION)
ON_FAILURE = CheckpointProperties.for_checkpoint(POLICY.RETAIN_ON_FAILURE)
ON_CANCELLATION = CheckpointProperties.for_checkpoint(POLICY.RETAIN_ON_CANCELLATION)
SAVEPOINT = CheckpointProperties.for_savepoint()
SUSPEND = CheckpointProperties.for_sync_savepoint()
TERMINATE = CheckpointProperties.for_sync_savepoint(terminate=True)
UNCLAIMED = CheckpointProperties.for_unclaimed_snapshot()
NATIVE = CheckpointProperties.for_savepoint(forced=False, savepoint_format=SavepointFormatType.NATIVE)
FULL = CheckpointProperties.for_checkpoint(full=True)
ALL = (NEVER, ON_FAILURE, ON_CANCELLATION, SAVEPOINT, SUSPEND, TERMINATE, UNCLAIMED, NATIVE, FULL)


@pytest.mark.parametrize(
    ("properties", "discarded"),
    [
        (NEVER, "subsumed finished canceled failed suspended"),
        (ON_FAILURE, "subsumed finished canceled suspended"),
        (ON_CANCELLATION, "subsumed finished"),
        (SAVEPOINT, ""),
        (SUSPEND, ""),
        (TERMINATE, ""),
        (UNCLAIMED, ""),
    ],
)
def test_each_kind_is_discarded_when_the_table_says_so(
    properties: CheckpointProperties, discarded: str
) -> None:
    found = ["subsumed"] if properties.discarded_on_subsume else []
    found += [status.value for status in JobStatus if properties.discard_on(status)]
    assert found == discarded.split()


def test_a_checkpoint_is_not_retained_unless_asked_for() -> None:
    assert CheckpointProperties.for_checkpoint() == NEVER
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
    assert FULL.snapshot_type is SnapshotType.FULL_CHECKPOINT
    assert [p.is_synchronous for p in (SAVEPOINT, SUSPEND, TERMINATE)] == [False, True, True]


def test_savepoints_are_forced_and_canonical_unless_told_otherwise() -> None:
    assert (SAVEPOINT.forced, SAVEPOINT.savepoint_format) == (True, SavepointFormatType.CANONICAL)
    assert (NATIVE.forced, NATIVE.savepoint_format) == (False, SavepointFormatType.NATIVE)
    assert (NEVER.forced, NEVER.savepoint_format) == (False, None)


def test_being_unclaimed_does_not_count_for_equality() -> None:
    assert dataclasses.replace(UNCLAIMED, unclaimed=False) == UNCLAIMED
    assert dataclasses.replace(UNCLAIMED, forced=True) != UNCLAIMED


def test_only_suspension_is_no_end() -> None:
    assert [status for status in JobStatus if not status.is_globally_terminal] == [JobStatus.SUSPENDED]


@pytest.mark.parametrize("properties", ALL)
def test_properties_come_back_from_json_as_they_were(properties: CheckpointProperties) -> None:
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
        CheckpointProperties.from_json(SAVEPOINT.to_json() | damage)
    with pytest.raises(KeyError):
        CheckpointProperties.from_json({})

"""What kind of snapshot a checkpoint is, and when it is discarded."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "CheckpointProperties",
    "CheckpointRetentionPolicy",
    "ExternalizedCheckpointRetention",
    "JobStatus",
    "SavepointFormatType",
    "SharingFilesStrategy",
    "SnapshotType",
]


class JobStatus(enum.Enum):
    """How a job ended, or that it is to be continued."""

    FINISHED = "finished"
    CANCELED = "canceled"
    FAILED = "failed"
    SUSPENDED = "suspended"

    @property
    def is_globally_terminal(self) -> bool:
        """Whether the job is over, rather than to be continued elsewhere."""
        return self is not JobStatus.SUSPENDED


class SharingFilesStrategy(enum.Enum):
    """With which other snapshots a snapshot may share files."""

    FORWARD_BACKWARD = "forward-backward"
    """With earlier and with later ones."""
    FORWARD = "forward"
    """With later ones."""
    NO_SHARING = "no-sharing"
    """With none: all of its files are its own."""

    @property
    def shares_files(self) -> bool:
        """Whether other snapshots may need its files, or it theirs."""
        return self is not SharingFilesStrategy.NO_SHARING


class SnapshotType(enum.Enum):
    """Why a snapshot is taken."""

    CHECKPOINT = "checkpoint"
    FULL_CHECKPOINT = "full-checkpoint"
    """A checkpoint that builds on no earlier one, as the first one after a restore with no claim."""
    SAVEPOINT = "savepoint"
    SUSPEND_SAVEPOINT = "suspend-savepoint"
    """The last act of a job that is suspended."""
    TERMINATE_SAVEPOINT = "terminate-savepoint"
    """The last act of a job that ends after it has handled all of its input."""

    @property
    def is_savepoint(self) -> bool:
        """Whether a user asked for it and owns it."""
        return self not in (SnapshotType.CHECKPOINT, SnapshotType.FULL_CHECKPOINT)

    @property
    def is_synchronous(self) -> bool:
        """Whether the job stops with it."""
        return self in (SnapshotType.SUSPEND_SAVEPOINT, SnapshotType.TERMINATE_SAVEPOINT)

    @property
    def sharing_files_strategy(self) -> SharingFilesStrategy:
        """With which other snapshots it shares files."""
        if self is SnapshotType.CHECKPOINT:
            return SharingFilesStrategy.FORWARD_BACKWARD
        if self is SnapshotType.FULL_CHECKPOINT:
            return SharingFilesStrategy.FORWARD
        return SharingFilesStrategy.NO_SHARING


class SavepointFormatType(enum.Enum):
    """How a savepoint is laid out."""

    CANONICAL = "canonical"
    """One format, whatever keeps the state."""
    NATIVE = "native"
    """The files of whatever keeps the state."""


class CheckpointRetentionPolicy(enum.Enum):
    """Which endings of a job its checkpoints outlive; a job that finishes always discards them."""

    NEVER_RETAIN_AFTER_TERMINATION = "never"
    RETAIN_ON_FAILURE = "on-failure"
    RETAIN_ON_CANCELLATION = "on-cancellation"


class ExternalizedCheckpointRetention(enum.Enum):
    """The values of Flink's option for the policy."""

    NO_EXTERNALIZED_CHECKPOINTS = "NO_EXTERNALIZED_CHECKPOINTS"
    DELETE_ON_CANCELLATION = "DELETE_ON_CANCELLATION"
    RETAIN_ON_CANCELLATION = "RETAIN_ON_CANCELLATION"

    @property
    def policy(self) -> CheckpointRetentionPolicy:
        """What the value stands for."""
        match self:
            case ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS:
                return CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION
            case ExternalizedCheckpointRetention.DELETE_ON_CANCELLATION:
                return CheckpointRetentionPolicy.RETAIN_ON_FAILURE
            case ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION:
                return CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION


_KEPT_ON = {
    CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION: frozenset[JobStatus](),
    CheckpointRetentionPolicy.RETAIN_ON_FAILURE: frozenset({JobStatus.FAILED}),
    CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION: frozenset(
        {JobStatus.CANCELED, JobStatus.FAILED, JobStatus.SUSPENDED}
    ),
}


@dataclass(frozen=True, slots=True)
class CheckpointProperties:
    """What kind of snapshot a checkpoint is, and when it is discarded.

    Attributes
    ----------
    snapshot_type
        Why it was taken.
    discarded_on_subsume
        Whether newer checkpoints take its place.
    discarded_on
        The endings of its job after which it is discarded.
    forced
        Whether it is taken no matter how many others are under way, or how recent the last one is.
    savepoint_format
        Its layout, if it is a savepoint.
    unclaimed
        Whether the job only started from it, without owning it. Does not count for equality.
    """

    snapshot_type: SnapshotType
    discarded_on_subsume: bool
    discarded_on: frozenset[JobStatus]
    forced: bool = False
    savepoint_format: SavepointFormatType | None = None
    unclaimed: bool = field(default=False, compare=False)

    @classmethod
    def for_checkpoint(
        cls,
        policy: CheckpointRetentionPolicy = CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION,
        *,
        full: bool = False,
    ) -> CheckpointProperties:
        """Of a checkpoint.

        Parameters
        ----------
        full
            Whether it builds on no earlier checkpoint.
        """
        kind = SnapshotType.FULL_CHECKPOINT if full else SnapshotType.CHECKPOINT
        return cls(kind, True, frozenset(JobStatus) - _KEPT_ON[policy])

    @classmethod
    def for_savepoint(
        cls,
        *,
        forced: bool = True,
        savepoint_format: SavepointFormatType = SavepointFormatType.CANONICAL,
    ) -> CheckpointProperties:
        """Of a savepoint."""
        return cls(SnapshotType.SAVEPOINT, False, frozenset(), forced, savepoint_format)

    @classmethod
    def for_sync_savepoint(
        cls,
        *,
        forced: bool = True,
        terminate: bool = False,
        savepoint_format: SavepointFormatType = SavepointFormatType.CANONICAL,
    ) -> CheckpointProperties:
        """Of a savepoint that the job stops with.

        Parameters
        ----------
        terminate
            Whether the job ends for good.
        """
        kind = SnapshotType.TERMINATE_SAVEPOINT if terminate else SnapshotType.SUSPEND_SAVEPOINT
        return cls(kind, False, frozenset(), forced, savepoint_format)

    @classmethod
    def for_unclaimed_snapshot(cls) -> CheckpointProperties:
        """Of the snapshot that a job started from and does not own."""
        return cls(
            SnapshotType.SAVEPOINT,
            False,
            frozenset(),
            savepoint_format=SavepointFormatType.CANONICAL,
            unclaimed=True,
        )

    @property
    def is_savepoint(self) -> bool:
        """Whether a user asked for it and owns it."""
        return self.snapshot_type.is_savepoint

    @property
    def is_synchronous(self) -> bool:
        """Whether the job stops with it."""
        return self.snapshot_type.is_synchronous

    def discard_on(self, status: JobStatus) -> bool:
        """Whether it is discarded when the job ends like that."""
        return status in self.discarded_on

    def to_json(self) -> dict[str, Any]:
        """As the metadata of a checkpoint holds it."""
        return {
            "snapshotType": self.snapshot_type.value,
            "discardedOnSubsume": self.discarded_on_subsume,
            "discardedOn": sorted(status.value for status in self.discarded_on),
            "forced": self.forced,
            "savepointFormat": self.savepoint_format.value if self.savepoint_format else None,
            "unclaimed": self.unclaimed,
        }

    @classmethod
    def from_json(cls, node: Mapping[str, Any]) -> CheckpointProperties:
        """Counterpart of `to_json`.

        Raises
        ------
        KeyError, TypeError, ValueError
            If it is not what `to_json` gives.
        """
        layout = node["savepointFormat"]
        flags = [node[name] for name in ("discardedOnSubsume", "forced", "unclaimed")]
        if not all(isinstance(flag, bool) for flag in flags):
            raise TypeError(f"a flag of the checkpoint's properties is neither true nor false: {dict(node)}")
        subsumed, forced, unclaimed = flags
        return cls(
            SnapshotType(node["snapshotType"]),
            subsumed,
            frozenset(JobStatus(status) for status in node["discardedOn"]),
            forced,
            None if layout is None else SavepointFormatType(layout),
            unclaimed,
        )

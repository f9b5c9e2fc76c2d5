"""Result of a snapshot: the handle that its checkpoint owns, and perhaps a copy near the task."""

from __future__ import annotations

from typing import Generic, TypeVar

from spark_statestore.errors import IllegalStateError
from spark_statestore.storage.stream_handles import StateObject, StreamStateHandle

H = TypeVar("H", bound=StreamStateHandle)


class SnapshotResult(StateObject, Generic[H]):
    """The state that a snapshot has written.

    Parameters
    ----------
    job_manager_owned_snapshot
        Handle that the checkpoint's coordinator owns; None if there was no state.
    task_local_snapshot
        Handle to a copy near the task, for a faster restore.

    Raises
    ------
    IllegalStateError
        If there is only a local copy.
    """

    def __init__(self, job_manager_owned_snapshot: H | None, task_local_snapshot: H | None = None) -> None:
        if job_manager_owned_snapshot is None and task_local_snapshot is not None:
            raise IllegalStateError(
                "a snapshot has a task-local copy, but not the state that the checkpoint owns: a restore "
                "cannot rely on it. Write the checkpoint's state first, and report both."
            )
        self.job_manager_owned_snapshot = job_manager_owned_snapshot
        self.task_local_snapshot = task_local_snapshot

    @classmethod
    def empty(cls) -> SnapshotResult[H]:
        """Return the result of a snapshot without state."""
        return cls(None)

    @classmethod
    def of(cls, job_manager_owned_snapshot: H | None) -> SnapshotResult[H]:
        """Return a result without a local copy; the empty one for None."""
        return cls(job_manager_owned_snapshot)

    @classmethod
    def with_local_state(cls, job_manager_owned_snapshot: H, task_local_snapshot: H) -> SnapshotResult[H]:
        """Return a result with a local copy."""
        return cls(job_manager_owned_snapshot, task_local_snapshot)

    def discard_state(self) -> None:
        """Remove both, that of the checkpoint first; a failure with one does not prevent the other.

        Raises
        ------
        OSError
            If one cannot be removed.
        """
        try:
            if self.job_manager_owned_snapshot is not None:
                self.job_manager_owned_snapshot.discard_state()
        finally:
            if self.task_local_snapshot is not None:
                self.task_local_snapshot.discard_state()

    @property
    def state_size(self) -> int:
        """Size in bytes of the state that the checkpoint owns; 0 without state."""
        return 0 if self.job_manager_owned_snapshot is None else self.job_manager_owned_snapshot.state_size

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SnapshotResult):
            return NotImplemented
        fields = (self.job_manager_owned_snapshot, self.task_local_snapshot)
        return fields == (other.job_manager_owned_snapshot, other.task_local_snapshot)

    def __hash__(self) -> int:
        return hash((self.job_manager_owned_snapshot, self.task_local_snapshot))

    def __repr__(self) -> str:
        return f"SnapshotResult({self.job_manager_owned_snapshot!r}, {self.task_local_snapshot!r})"

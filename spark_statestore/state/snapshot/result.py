"""What a snapshot gives."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar

from spark_statestore.errors import IllegalStateError
from spark_statestore.state.objects import StateObject, discard_all

__all__ = ["SnapshotResult"]

T = TypeVar("T", bound=StateObject)


class SnapshotResult(StateObject, Generic[T]):
    """The state that a snapshot wrote: the checkpoint's own, and perhaps a copy beside the task.

    Parameters
    ----------
    job_manager_owned
        The state that belongs to the checkpoint, None if there was nothing to write.
    task_local
        A copy that the task keeps for itself.

    Raises
    ------
    IllegalStateError
        If there is a local copy of nothing.
    """

    _EMPTY: ClassVar[SnapshotResult[Any] | None] = None

    def __init__(self, job_manager_owned: T | None, task_local: T | None = None) -> None:
        if job_manager_owned is None and task_local is not None:
            raise IllegalStateError(
                "a snapshot gave a task-local copy without the checkpoint's own state, which it would be a "
                "copy of. Write the checkpoint's state first, and report both."
            )
        self._job_manager_owned = job_manager_owned
        self._task_local = task_local

    @classmethod
    def empty(cls) -> SnapshotResult[T]:
        """The result of a snapshot that had nothing to write; always the same object."""
        if SnapshotResult._EMPTY is None:
            SnapshotResult._EMPTY = SnapshotResult(None)
        return SnapshotResult._EMPTY

    @classmethod
    def of(cls, job_manager_owned: T | None) -> SnapshotResult[T]:
        """A result without a local copy; the empty one for None."""
        return cls.empty() if job_manager_owned is None else cls(job_manager_owned)

    @classmethod
    def with_local_state(cls, job_manager_owned: T, task_local: T) -> SnapshotResult[T]:
        """A result with a local copy."""
        return cls(job_manager_owned, task_local)

    @property
    def job_manager_owned(self) -> T | None:
        """The state that belongs to the checkpoint."""
        return self._job_manager_owned

    @property
    def task_local(self) -> T | None:
        """The copy that the task keeps for itself."""
        return self._task_local

    def discard_state(self) -> None:
        """Discard both; the checkpoint's own comes first, also if it fails."""
        discard_all([self._job_manager_owned, self._task_local])

    @property
    def state_size(self) -> int:
        """Bytes of the checkpoint's own state; the local copy does not count."""
        return 0 if self._job_manager_owned is None else self._job_manager_owned.state_size

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SnapshotResult):
            return NotImplemented
        mine = (self._job_manager_owned, self._task_local)
        return mine == (other._job_manager_owned, other._task_local)

    def __hash__(self) -> int:
        return hash((self._job_manager_owned, self._task_local))

    def __repr__(self) -> str:
        return (
            f"SnapshotResult(job_manager_owned={self._job_manager_owned!r}, task_local={self._task_local!r})"
        )

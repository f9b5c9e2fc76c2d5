"""The checkpoints that a job keeps."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import Executor

from spark_statestore.checkpoint.completed.checkpoint import CompletedCheckpoint
from spark_statestore.checkpoint.completed.properties import JobStatus
from spark_statestore.checkpoint.completed.subsume import subsumed
from spark_statestore.checkpoint.registry import Execute, SharedStateRegistry, runner
from spark_statestore.errors import IllegalStateError

__all__ = ["CompletedCheckpointStore", "StandaloneCompletedCheckpointStore"]

_logger = logging.getLogger(__name__)


class CompletedCheckpointStore(ABC):
    """Keeps a bounded number of completed checkpoints, and discards the others."""

    @abstractmethod
    def add_checkpoint_and_subsume_oldest_one(
        self, checkpoint: CompletedCheckpoint
    ) -> CompletedCheckpoint | None:
        """Add a checkpoint, and let go of the oldest if there are too many.

        Returns
        -------
        CompletedCheckpoint or None
            Of the checkpoints that were let go, the one with the highest number.

        Raises
        ------
        IllegalStateError
            If the store is shut down.
        """

    @property
    @abstractmethod
    def all_checkpoints(self) -> list[CompletedCheckpoint]:
        """The retained checkpoints, oldest first."""

    @property
    def latest_checkpoint(self) -> CompletedCheckpoint | None:
        """The newest retained checkpoint."""
        checkpoints = self.all_checkpoints
        return checkpoints[-1] if checkpoints else None

    @property
    def number_of_retained_checkpoints(self) -> int:
        """How many checkpoints are retained."""
        return len(self.all_checkpoints)

    @property
    @abstractmethod
    def max_number_of_retained_checkpoints(self) -> int:
        """How many checkpoints are retained at most, if none must stay beyond that."""

    @property
    @abstractmethod
    def requires_externalized_checkpoints(self) -> bool:
        """Whether checkpoints must be found again by another process."""

    @property
    @abstractmethod
    def shared_state_registry(self) -> SharedStateRegistry:
        """Keeps the streams that the checkpoints share."""

    @abstractmethod
    def shutdown(self, status: JobStatus) -> None:
        """End the store with its job; a second call does nothing."""


class StandaloneCompletedCheckpointStore(CompletedCheckpointStore):
    """Keeps checkpoints in the memory of this process. Safe to use from several threads.

    A checkpoint that was let go stays in storage while a stream inside of it is in use. Its
    metadata goes before the streams that it shared with nobody, where Flink discards the streams
    first. What cannot be discarded is tried again with the next checkpoint, or by `clean_up`.

    Streams are unregistered when a checkpoint is added, or the savepoint that the job stops with:
    pending checkpoints with lower numbers must be aborted by then. Other savepoints do not end
    what is pending, so they let no stream go.

    Parameters
    ----------
    max_number_of_retained_checkpoints
        Checkpoints to retain, 1 or more.
    shared_state_registry
        Keeps their streams. A checkpoint's states are registered with it by whoever makes the
        checkpoint; those of a savepoint are not, being the savepoint's own.
    recovered
        Checkpoints to begin with, oldest first; their states are registered by whoever found them.
    persist
        Makes a checkpoint durable, before anything older is let go.
    executor
        Discards checkpoints; by default the thread that calls.

    Raises
    ------
    ValueError
        If no checkpoint is to be retained.
    """

    def __init__(
        self,
        max_number_of_retained_checkpoints: int,
        shared_state_registry: SharedStateRegistry | None = None,
        *,
        recovered: Iterable[CompletedCheckpoint] = (),
        persist: Callable[[CompletedCheckpoint], None] | None = None,
        executor: Executor | Execute | None = None,
    ) -> None:
        subsumed([], max_number_of_retained_checkpoints)
        self._most = max_number_of_retained_checkpoints
        self._registry = SharedStateRegistry() if shared_state_registry is None else shared_state_registry
        self._persist = persist
        self._run = runner(executor)
        self._lock = threading.RLock()
        self._retained = list(recovered)
        self._pending: list[CompletedCheckpoint] = []
        # The streams that no checkpoint from this number on uses can go.
        self._lowest = 0
        # The checkpoints that outlive the job, once it has ended.
        self._kept: list[int] | None = None

    @property
    def all_checkpoints(self) -> list[CompletedCheckpoint]:
        with self._lock:
            return list(self._retained)

    @property
    def max_number_of_retained_checkpoints(self) -> int:
        return self._most

    @property
    def requires_externalized_checkpoints(self) -> bool:
        return False

    @property
    def shared_state_registry(self) -> SharedStateRegistry:
        return self._registry

    def add_checkpoint_and_subsume_oldest_one(
        self, checkpoint: CompletedCheckpoint
    ) -> CompletedCheckpoint | None:
        with self._lock:
            if self._kept is not None:
                raise IllegalStateError(
                    f"{checkpoint!r} cannot be added: the checkpoint store was shut down with its job. It stays where "
                    "it is; a new job can be started from it."
                )
            if self._persist is not None:
                self._persist(checkpoint)
            self._retained.append(checkpoint)
            self._registry.checkpoint_completed(checkpoint.checkpoint_id)
            positions = subsumed([retained.properties for retained in self._retained], self._most)
            gone = [self._retained[position] for position in positions]
            self._retained = [retained for retained in self._retained if retained not in gone]
            self._pending += [old for old in gone if old.should_be_discarded_on_subsume()]
            if checkpoint.properties.is_synchronous or not all(
                retained.properties.is_savepoint for retained in self._retained
            ):
                self._lowest = max(self._lowest, min(old.checkpoint_id for old in self._retained))
        self._run(self.clean_up)
        return max(gone, key=lambda old: old.checkpoint_id, default=None)

    def clean_up(self) -> None:
        """Discard what is not in use any more; what fails is logged, and tried again next time."""
        with self._lock:
            lowest, kept = self._lowest, self._kept
            if kept is None:
                in_use = self._registry.checkpoints_in_use(lowest)
            else:
                in_use = self._registry.checkpoints_needed_by(kept)
            expired = [
                old
                for old in self._pending
                if old.checkpoint_id not in in_use and (kept is not None or old.checkpoint_id < lowest)
            ]
            self._pending = [old for old in self._pending if old not in expired]
        failed = [old for old in expired if _discard(old) is not None]
        if kept is None:
            self._registry.unregister_unused_state(lowest)
        else:
            self._registry.unregister_all_but(kept)
        for old in failed:
            # Its directory may have had to wait for the streams in it.
            error = _discard(old)
            if error is not None:
                _logger.warning("could not discard %r, will try again: %s", old, error)
                with self._lock:
                    self._pending.append(old)

    def shutdown(self, status: JobStatus) -> None:
        with self._lock:
            if self._kept is not None:
                return
            self._registry.close()
            kept = [old for old in self._retained if not old.should_be_discarded_on_shutdown(status)]
            self._pending += [old for old in self._retained if old not in kept]
            self._retained = []
            # A savepoint has its streams to itself; they are not registered.
            self._kept = [old.checkpoint_id for old in kept if not old.properties.is_savepoint]
        self._run(self.clean_up)


def _discard(checkpoint: CompletedCheckpoint) -> Exception | None:
    checkpoint.mark_as_discarded()
    try:
        checkpoint.discard()
    except Exception as error:  # noqa: BLE001 - whatever it is, the next attempt may succeed
        return error
    return None

"""Interfaces of snapshots in two parts: a synchronous copy, and a future that writes it."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Generic, TypeVar

from spark_statestore.storage import CheckpointStorageLocationReference
from spark_statestore.storage.snapshot_result import SnapshotResult
from spark_statestore.storage.stream_handles import StreamStateHandle
from spark_statestore.storage.streams import CheckpointStreamFactory

_logger = logging.getLogger(__name__)

H = TypeVar("H", bound=StreamStateHandle)
R = TypeVar("R")

CheckCancelled = Callable[[], None]
"""Raises `CancelledError` once a snapshot was cancelled."""


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """Options of a checkpoint.

    Attributes
    ----------
    target_location
        Reference to the location that it is written to.
    is_synchronous
        True if the caller runs the future before it changes the state, so that nothing needs to be copied.
    """

    target_location: CheckpointStorageLocationReference
    is_synchronous: bool = False


class SnapshotFuture(Future[SnapshotResult[H]]):
    """The asynchronous part of a snapshot: `run` it in any thread, and wait for its `result`.

    The caller owns the state of the result. Of a snapshot that failed or was cancelled nothing is left.

    Parameters
    ----------
    write
        Writes the snapshot; calls its argument before each write.
    """

    def __init__(self, write: Callable[[CheckCancelled], SnapshotResult[H]]) -> None:
        super().__init__()
        self._write = write
        # Reentrant: callbacks of the result may ask for it.
        self._lock = threading.RLock()
        self._is_started = False
        self._is_cancelled = False

    def run(self) -> None:
        """Write the snapshot; do nothing if that was begun or cancelled before."""
        with self._lock:
            if self._is_started:
                return
            self._is_started = self.set_running_or_notify_cancel()
        # The copy is released with it.
        write = self._write
        del self._write
        try:
            result = write(self._check_cancelled)
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            self.set_exception(error)
            return
        with self._lock:
            if not self._is_cancelled:
                self.set_result(result)
                return
        # Cancelled after the last write: nothing else refers to the state.
        try:
            result.discard_state()
        except OSError as error:
            _logger.warning("the state of a cancelled snapshot remains: %s", error)
        self.set_exception(CancelledError())

    def cancel(self) -> bool:
        """Cancel the snapshot: one that is being written ends before its next write.

        Returns
        -------
        bool
            False if it is complete, or has failed.
        """
        with self._lock:
            if self.done():
                return self.cancelled()
            self._is_cancelled = True
            if not self._is_started:
                self._is_started = True
                if super().cancel():
                    # Wakes up the threads that wait for several futures.
                    self.set_running_or_notify_cancel()
            return True

    def cancelled(self) -> bool:
        """Return True if the snapshot was cancelled before it was complete."""
        return self._is_cancelled

    def _check_cancelled(self) -> None:
        if self._is_cancelled:
            raise CancelledError


class SnapshotStrategy(ABC, Generic[H, R]):
    """A way to write snapshots; several may be written at once."""

    @abstractmethod
    def sync_prepare_resources(self, checkpoint_id: int, options: CheckpointOptions) -> R:
        """Return a copy of the state, which later changes do not reach."""

    @abstractmethod
    def async_snapshot(
        self,
        resources: R,
        checkpoint_id: int,
        timestamp: int,
        stream_factory: CheckpointStreamFactory,
        options: CheckpointOptions,
    ) -> Callable[[CheckCancelled], SnapshotResult[H]]:
        """Return a function that writes such a copy, to be called once by any thread."""


class AbstractSnapshotStrategy(SnapshotStrategy[H, R]):
    """A strategy that logs the duration of both parts.

    Parameters
    ----------
    description
        The state that it writes, for logs.
    """

    def __init__(self, description: str) -> None:
        self.description = description

    def snapshot(
        self,
        checkpoint_id: int,
        timestamp: int,
        stream_factory: CheckpointStreamFactory,
        options: CheckpointOptions,
    ) -> SnapshotFuture[H]:
        """Return a snapshot of the state as it is now, see `Snapshotable.snapshot`."""
        started = time.monotonic()
        resources = self.sync_prepare_resources(checkpoint_id, options)
        write = self.async_snapshot(resources, checkpoint_id, timestamp, stream_factory, options)
        self._log("synchronous", checkpoint_id, started)

        def write_and_log(check_cancelled: CheckCancelled) -> SnapshotResult[H]:
            started = time.monotonic()
            result = write(check_cancelled)
            self._log("asynchronous", checkpoint_id, started)
            return result

        return SnapshotFuture(write_and_log)

    def _log(self, part: str, checkpoint_id: int, started: float) -> None:
        _logger.debug(
            "the %s part of checkpoint %d of %s took %d ms",
            part, checkpoint_id, self.description, (time.monotonic() - started) * 1000,
        )  # fmt: skip


class Snapshotable(ABC, Generic[H, R]):
    """State that can be written and read back."""

    @abstractmethod
    def snapshot(
        self,
        checkpoint_id: int,
        timestamp: int,
        stream_factory: CheckpointStreamFactory,
        options: CheckpointOptions,
    ) -> SnapshotFuture[H]:
        """Take a snapshot: what it has is decided when this returns.

        Parameters
        ----------
        checkpoint_id
            The checkpoint that it is for.
        timestamp
            Start of the checkpoint in milliseconds since 1970.
        stream_factory
            Opens the streams.
        options
            Options of the checkpoint.

        Returns
        -------
        SnapshotFuture
            Writes the snapshot when it is run.
        """

    @abstractmethod
    def restore(self, state: R) -> None:
        """Read state back; None is a fresh start."""

"""Snapshots that are taken at once and written later."""

from __future__ import annotations

import enum
import logging
import threading
import time
from abc import ABC, abstractmethod
from concurrent.futures import CancelledError, Future
from typing import Generic, TypeVar

from spark_statestore.errors import IllegalStateError
from spark_statestore.state.objects import StateObject
from spark_statestore.state.snapshot.closeables import CloseableRegistry

__all__ = ["AsyncSnapshotCallable", "DoneFuture", "SnapshotFuture"]

_logger = logging.getLogger(__name__)

T = TypeVar("T")


class AsyncSnapshotCallable(ABC, Generic[T]):
    """The part of a snapshot that is run later, at most once.

    Attributes
    ----------
    closeables
        What `call_internal` opens is registered here, so that cancelling closes it.
    """

    def __init__(self) -> None:
        self.closeables = CloseableRegistry()
        self._lock = threading.Lock()
        self._taken = False

    @abstractmethod
    def call_internal(self) -> T:
        """Write the snapshot."""

    def clean_up_provided_resources(self) -> None:
        """Let go of what the snapshot was given; called once, also if it is never run."""

    def log_async_snapshot_complete(self, started: float) -> None:
        """Log how long it took since `started`, on the clock `time.monotonic`."""

    def call(self) -> T:
        """Write the snapshot, and let go of everything whatever happens.

        Raises
        ------
        IllegalStateError
            If it was run or cancelled before.
        """
        if not self._take():
            raise IllegalStateError(
                "this snapshot was run or cancelled before, and it runs once only. Take a new one."
            )
        started = time.monotonic()
        try:
            result = self.call_internal()
            self.log_async_snapshot_complete(started)
            return result
        finally:
            self._let_go()

    def cancel(self) -> None:
        """Close every stream that is open, and see to it that none is opened any more.

        If it never ran, it never will, and what it was given is let go here.
        """
        never_ran = self._take()
        try:
            self.closeables.close()
        finally:
            if never_ran:
                self.clean_up_provided_resources()

    def to_async_snapshot_future_task(self, registry: CloseableRegistry | None = None) -> SnapshotFuture[T]:
        """The future that runs this; closing the registry cancels it.

        Raises
        ------
        CheckpointIOError
            If the registry is closed; this is then cancelled.
        """
        return SnapshotFuture(self, registry)

    def _take(self) -> bool:
        with self._lock:
            taken, self._taken = self._taken, True
            return not taken

    def _let_go(self) -> None:
        # The snapshot has its outcome by now, which a failure here must not replace.
        for step in (self.closeables.close, self.clean_up_provided_resources):
            try:
                step()
            except Exception:
                _logger.warning("cleaning up after a snapshot failed", exc_info=True)


class _Phase(enum.Enum):
    NEW = enum.auto()
    RUNNING = enum.auto()
    DONE = enum.auto()
    CANCELLED = enum.auto()


class SnapshotFuture(Future[T]):
    """A snapshot that is yet to be written: somebody has to `run` it.

    It is a `concurrent.futures.Future`, so `result` with a timeout, `add_done_callback` and
    `concurrent.futures.wait` work; ``executor.submit(future.run)`` writes it elsewhere. Unlike
    other futures it can be cancelled while it runs.

    Parameters
    ----------
    task
        What to run.
    registry
        Closing it cancels the future.

    Raises
    ------
    CheckpointIOError
        If the registry is closed; the task is then cancelled.
    """

    def __init__(self, task: AsyncSnapshotCallable[T], registry: CloseableRegistry | None = None) -> None:
        super().__init__()
        self._task: AsyncSnapshotCallable[T] | None = task
        self._registry = registry
        self._guard = threading.Lock()
        self._phase = _Phase.NEW
        if registry is not None:
            registry.register_closeable(self)

    def run(self) -> None:
        """Write the snapshot in this thread; nothing happens if it was run or cancelled before.

        Errors go to whoever asks for the result. What is meant for this thread and not for the
        snapshot, such as `KeyboardInterrupt`, is raised here as well.
        """
        with self._guard:
            if self._phase is not _Phase.NEW:
                return
            self._phase = _Phase.RUNNING
            self.set_running_or_notify_cancel()
            task = self._task
        assert task is not None  # noqa: S101 - only a done future has none
        try:
            result = task.call()
        except BaseException as error:
            self._unregister()
            if self._leave(_Phase.RUNNING, _Phase.DONE):
                self.set_exception(error)
            else:
                _logger.debug("a cancelled snapshot ended with %r", error)
            if not isinstance(error, Exception):
                raise
            return
        self._unregister()
        if self._leave(_Phase.RUNNING, _Phase.DONE):
            self.set_result(result)
        else:
            _discard(result)

    def cancel(self) -> bool:
        """Give the snapshot up: close its streams and remove what it wrote.

        Returns
        -------
        bool
            Whether it is cancelled now; False if it was complete before.
        """
        try:
            return self._cancel()
        except Exception:
            _logger.warning("closing the streams of a cancelled snapshot failed", exc_info=True)
            return True

    def close(self) -> None:
        """Cancel, for registries: a stream that cannot be closed is an error here."""
        self._cancel()

    def cancelled(self) -> bool:
        """Whether the snapshot was cancelled."""
        return self._phase is _Phase.CANCELLED

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error that the snapshot failed with, None if it succeeded.

        Raises
        ------
        concurrent.futures.CancelledError
            If it was cancelled.
        TimeoutError
            If it has no outcome within the time.
        """
        error = super().exception(timeout)
        if self.cancelled() and error is not None:
            raise error
        return error

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._task}, {self._phase.name.lower()})"

    def _cancel(self) -> bool:
        if not (self._leave(_Phase.NEW, _Phase.CANCELLED) or self._leave(_Phase.RUNNING, _Phase.CANCELLED)):
            return self.cancelled()
        self._unregister()
        assert self._task is not None  # noqa: S101 - only a done future has none
        try:
            self._task.cancel()
        finally:
            if not super().cancel():
                # It runs: whoever waits for it need not wait until it notices.
                self.set_exception(CancelledError("the snapshot was cancelled while it was written"))
            else:
                self.set_running_or_notify_cancel()
        return True

    def _leave(self, phase: _Phase, to: _Phase) -> bool:
        with self._guard:
            if self._phase is not phase:
                return False
            self._phase = to
            return True

    def _unregister(self) -> None:
        if self._registry is not None:
            self._registry.unregister_closeable(self)


class DoneFuture(SnapshotFuture[T]):
    """A snapshot that is written already: there was nothing to do.

    Parameters
    ----------
    value
        Its result.
    """

    def __init__(self, value: T) -> None:
        Future.__init__(self)
        self._task = None
        self._registry = None
        self._guard = threading.Lock()
        self._phase = _Phase.DONE
        self.set_result(value)


def _discard(result: object) -> None:
    if isinstance(result, StateObject):
        try:
            result.discard_state()
        except Exception:
            _logger.warning(
                "%r was written by a cancelled snapshot and could not be removed", result, exc_info=True
            )

"""Coordinator of savepoints, from the request to the completed or failed future."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from spark_statestore.errors import SavepointError, StateStoreError
from spark_statestore.query.savepoint import Savepoint


class SavepointCoordinator:
    """Coordinator that gives every requested savepoint a future, and completes each future once.

    A request is pending until it is acknowledged: the commit log of Spark shows its batch. The future
    exists before the trigger is called, so that no acknowledgement can precede it, and can be
    cancelled until the acknowledgement. All errors of a request are in its future.
    """

    def __init__(self) -> None:
        self._newest = 0
        self._lock = threading.Lock()
        self._promises: dict[int, Future[Savepoint]] = {}

    @property
    def pending(self) -> list[int]:
        """Numbers of the savepoints that are not yet acknowledged, failed or cancelled."""
        with self._lock:
            return sorted(self._promises)

    def is_pending(self, number: int) -> bool:
        """Return True if a savepoint is pending."""
        return number in self.pending

    def trigger_savepoint(self, trigger: Callable[[int], None]) -> Future[Savepoint]:
        """Request a savepoint; the future has it once it is complete, or a `SavepointError`.

        `trigger` starts it, given its number, and calls `acknowledge` or `fail` then or later.
        """
        promise: Future[Savepoint] = Future()
        with self._lock:
            self._newest = number = self._newest + 1
            self._promises[number] = promise
        promise.add_done_callback(lambda _: self._forget_cancelled(number))
        try:
            trigger(number)
        except Exception as error:  # noqa: BLE001 - all errors are in the future
            self.fail(number, error)
        return promise

    def acknowledge(self, number: int, write: Callable[[], Savepoint]) -> None:
        """Complete a savepoint whose batch is committed; does nothing if it is not pending."""
        promise = self._take(number)
        if promise is None or not promise.set_running_or_notify_cancel():
            return
        try:
            savepoint = write()
        except Exception as error:  # noqa: BLE001 - all errors are in the future
            promise.set_exception(_failed(error))
        else:
            promise.set_result(savepoint)

    def fail(self, number: int, error: Exception) -> None:
        """Fail a savepoint; does nothing if it is not pending."""
        promise = self._take(number)
        if promise is not None and promise.set_running_or_notify_cancel():
            promise.set_exception(_failed(error))

    def _forget_cancelled(self, number: int) -> None:
        promise = self._take(number)
        if promise is not None:
            # `concurrent.futures.wait` waits for this.
            promise.set_running_or_notify_cancel()

    def _take(self, number: int) -> Future[Savepoint] | None:
        with self._lock:
            return self._promises.pop(number, None)


def _failed(error: Exception) -> Exception:
    # Errors of the caller, such as a batch that does not exist, keep their type.
    if isinstance(error, (StateStoreError, ValueError)):
        return error
    failed = SavepointError(f"the savepoint failed: {error!r}. Nothing was changed; try again.")
    failed.__cause__ = error
    return failed

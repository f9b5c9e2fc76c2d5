"""Savepoints from the request for one to the path of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from spark_statestore.checkpoint.completed.checkpoint import CompletedCheckpoint
from spark_statestore.errors import IllegalStateError, SavepointError
from spark_statestore.savepoint.stores.base import StateStore

__all__ = ["CheckpointIdCounter", "SavepointCoordinator"]


class CheckpointIdCounter:
    """Numbers the checkpoints and savepoints of one job; safe to use from several threads.

    Parameters
    ----------
    first
        The first number.
    """

    def __init__(self, first: int = 1) -> None:
        self._next = first
        self._lock = threading.Lock()

    def get_and_increment(self) -> int:
        """The next number, which nobody else gets."""
        with self._lock:
            number = self._next
            self._next += 1
            return number

    def set_count(self, number: int) -> None:
        """Go on with a number."""
        with self._lock:
            self._next = number


class SavepointCoordinator:
    """Keeps the promise of a path for every savepoint that was asked for.

    Whoever takes snapshots is told to take one, and says afterwards what became of it. The promise
    exists before that, so that an answer cannot come too early, and it is gone in every outcome.
    All errors of a request are in its future.

    Parameters
    ----------
    trigger
        Starts a snapshot with a number and a timestamp in milliseconds; False if it cannot.
    store
        Keeps the savepoints that are complete.
    counter
        Numbers them, along with the job's checkpoints.
    """

    def __init__(
        self,
        trigger: Callable[[int, int], bool],
        store: StateStore[CompletedCheckpoint],
        counter: CheckpointIdCounter,
    ) -> None:
        self._trigger = trigger
        self._store = store
        self._counter = counter
        self._lock = threading.Lock()
        self._promises: dict[int, Future[str]] = {}
        self._running = True

    @property
    def pending(self) -> list[int]:
        """Numbers of the savepoints that are not complete."""
        with self._lock:
            return sorted(self._promises)

    def trigger_savepoint(self, timestamp: int) -> Future[str]:
        """Ask for a savepoint.

        A number is used up even if none comes of it.

        Parameters
        ----------
        timestamp
            Milliseconds since 1970.

        Returns
        -------
        Future
            Has the savepoint's path once it is complete, or a `SavepointError`.
        """
        promise: Future[str] = Future()
        # What was begun elsewhere cannot be called back from here.
        promise.set_running_or_notify_cancel()
        number = self._counter.get_and_increment()
        with self._lock:
            if not self._running:
                promise.set_exception(_failed(number, "the job has ended", "Start it again, then ask anew."))
                return promise
            if number in self._promises:
                promise.set_exception(
                    _failed(number, "another one has that number and is not complete", "Ask again.")
                )
                return promise
            self._promises[number] = promise
        try:
            started = self._trigger(number, timestamp)
        except Exception as error:  # noqa: BLE001 - goes to whoever waits
            self._fail(number, "it could not be triggered", error)
        else:
            if not started:
                self._fail(number, "it could not be triggered: not everybody who has state takes part now")
        return promise

    def on_fully_acknowledged(self, checkpoint: CompletedCheckpoint) -> None:
        """Note that a savepoint is complete: everybody has written a part of it.

        Raises
        ------
        IllegalStateError
            If nobody waits for it: it was given up before, or was complete already.
        """
        number = checkpoint.checkpoint_id
        promise = self._take(number)
        if promise is None:
            raise IllegalStateError(
                f"savepoint {number} at {checkpoint.external_pointer} is complete, and nobody waits for it: it was given "
                "up, or completed before. Discard it if it is not wanted."
            )
        try:
            path = self._store.put_state(checkpoint)
        except Exception as error:  # noqa: BLE001 - goes to whoever waits
            promise.set_exception(_failed(number, "it was written and could not be stored", cause=error))
        else:
            promise.set_result(path)

    def on_cancelled(self, checkpoint_id: int) -> None:
        """Note that a savepoint is not waited for any more: it took too long, or a newer one is complete."""
        self._fail(checkpoint_id, "it expired before it was complete")

    def restore_savepoint(self, path: str) -> CompletedCheckpoint:
        """Find the savepoint that a job starts from, and go on with the number behind it.

        Raises
        ------
        TypeError
            If there is no path.
        IllegalStateError
            If the job has ended.
        SavepointNotFoundError
            If there is no savepoint.
        """
        if path is None:
            raise TypeError("a job starts from the path of a savepoint, got None")
        with self._lock:
            if not self._running:
                raise IllegalStateError(
                    f"the job has ended, so it cannot start from {path!r}: use the coordinator of the new job"
                )
        checkpoint = self._store.get_state(path)
        self._counter.set_count(checkpoint.checkpoint_id + 1)
        return checkpoint

    def shutdown(self) -> None:
        """End with the job: whoever still waits is told so. What is complete stays."""
        with self._lock:
            self._running = False
            waiting = list(self._promises)
        for number in waiting:
            self._fail(number, "the job has ended")

    def _take(self, number: int) -> Future[str] | None:
        with self._lock:
            return self._promises.pop(number, None)

    def _fail(self, number: int, why: str, cause: Exception | None = None) -> None:
        promise = self._take(number)
        # It may have been failed by the one who was told to take it, and is failed once only.
        if promise is not None:
            promise.set_exception(_failed(number, why, cause=cause))


def _failed(
    number: int, why: str, what_next: str = "Nothing was changed; ask again.", cause: Exception | None = None
) -> SavepointError:
    reason = f"{why}: {cause}" if cause else why
    error = SavepointError(f"there is no savepoint {number}: {reason}. {what_next}")
    error.__cause__ = cause
    return error

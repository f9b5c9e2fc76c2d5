"""Savepoints of a running query, triggered at any time and acknowledged by Spark's next commit log entry."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from spark_statestore.errors import CheckpointNotFoundError, OptionError, SavepointError, StateStoreError
from spark_statestore.options import OPTION_PREFIX
from spark_statestore.query.query_checkpoint import QueryCheckpoint
from spark_statestore.query.savepoint import KINDS, Kind, Savepoint
from spark_statestore.savepoints.coordinator import SavepointCoordinator
from spark_statestore.savepoints.create import create_savepoint
from spark_statestore.savepoints.savepoint_store import SavepointStoreFactory

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_logger = logging.getLogger(__name__)

# A tenth of the processor time of a batch's thread.
_NICENESS: Final = 10

_POLL_SECONDS: Final = (0.1, 1.0)

COORDINATOR: Final = SavepointCoordinator()
"""Coordinator of all savepoints that this process takes."""


class Running:
    """A running query and the location of its checkpoint."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        jvm_query: Any = getattr(query, "_jsq", None)
        if jvm_query is None:
            raise SavepointError(
                f"{query!r} has no checkpoint location: Spark Connect does not provide it. Pass savepoint() "
                "the query's checkpointLocation, and its option checkpointsDir if it was set."
            )
        execution = jvm_query.streamingQuery()
        settings = execution.sparkSessionForStream().conf()
        self.location: str = execution.resolvedCheckpointRoot()
        self.checkpoints_dir = _setting(settings, "checkpointsDir")
        self.savepoints_dir = _setting(settings, "savepointsDir")
        self._is_on_driver = _setting(settings, "storage") == "memory" and self.checkpoints_dir is None

    def checkpoint(self) -> QueryCheckpoint:
        """Return its checkpoint."""
        if self._is_on_driver:
            raise SavepointError(
                f"the state of the query at {self.location} is on the driver, not in files, so that no "
                "savepoint of it can be taken. Start the query with the option "
                f"{OPTION_PREFIX}checkpointsDir, or with storage=filesystem."
            )
        return QueryCheckpoint(self.location, checkpoints_dir=self.checkpoints_dir)

    @property
    def is_active(self) -> bool:
        """True if the query is active."""
        return bool(self._query.isActive)

    def end_reason(self) -> str:
        """Return the reason for its end: stopped, or the error that it failed with."""
        failure = self._query.exception()
        return "the query was stopped" if failure is None else f"the query has failed: {failure}"


def trigger_savepoint(
    query: StreamingQuery,
    target: str | None = None,
    kind: Kind = "canonical",
    *,
    timeout: float | None = None,
) -> Future[Savepoint]:
    """Request a savepoint of a running query, which is taken when the query's next batch is committed.

    Batches do not wait for it. All errors after the check of the arguments are in the future. A program that
    ends before the batch is committed has no savepoint; one that ends while it is written waits for it.

    Parameters
    ----------
    query
        A query that this process started, not through Spark Connect.
    target
        URL of the directory in which its directory is created; by default the query's option
        ``savepointsDir``.
    kind
        ``canonical`` or ``pointer``, see `Savepoint`.
    timeout
        Maximum time in seconds to wait for a batch; by default as long as the query runs.

    Returns
    -------
    concurrent.futures.Future
        The savepoint, or a `SavepointError`. It can be cancelled until a batch is committed.

    Raises
    ------
    OptionError
        If there is no such kind, or no target.
    StorageError
        If the target's file system cannot be used.
    """
    require_kind(kind)

    def trigger(number: int) -> None:
        # Only batches that are committed from now on count.
        newest = _newest(checkpoint)
        deadline = None if timeout is None else time.monotonic() + timeout

        def wait_and_take() -> None:
            _lower_priority()
            try:
                with _as_savepoint_error(checkpoint):
                    batch = _next_batch(running, checkpoint, newest, deadline, number)
            except Exception as error:  # noqa: BLE001 - all errors are in the future
                COORDINATOR.fail(number, error)
                return
            COORDINATOR.acknowledge(number, partial(write, batch))

        def write(batch: int | None) -> Savepoint:
            with _as_savepoint_error(checkpoint):
                return create_savepoint(
                    checkpoint, store, kind, batch, checkpoints_dir=running.checkpoints_dir
                )

        # Not a daemon: the interpreter waits for a savepoint that is being written, so that no hold or file
        # of it remains.
        threading.Thread(target=wait_and_take, name=f"savepoint of {checkpoint.url}", daemon=False).start()

    try:
        running = Running(query)
        store = SavepointStoreFactory.create(target, running.savepoints_dir)
        checkpoint = running.checkpoint()
    except SavepointError as error:
        return COORDINATOR.trigger_savepoint(partial(COORDINATOR.fail, error=error))
    return COORDINATOR.trigger_savepoint(trigger)


def _lower_priority() -> None:
    """Lower this thread's priority, so that the copy of state does not slow batches down."""
    # Only Linux has priorities of threads.
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def require_kind(kind: str) -> None:
    """Raise if there is no such kind of savepoint."""
    if kind not in KINDS:
        raise OptionError(f"the kind of savepoint is {kind!r}, but it must be one of {', '.join(KINDS)}")


def _next_batch(
    running: Running,
    checkpoint: QueryCheckpoint,
    newest: int,
    deadline: float | None,
    number: int,
) -> int | None:
    wait, longest = _POLL_SECONDS
    while COORDINATOR.is_pending(number):
        # Read before the logs: a batch that was committed before the query ended counts.
        active = running.is_active
        batch = _newest(checkpoint)
        if batch > newest:
            return batch
        if not threading.main_thread().is_alive():
            message = (
                f"there is no savepoint of {checkpoint.url}: the program ends, and no batch was committed "
                "since the request. Wait for the result() of the future that trigger_savepoint returned."
            )
            # Nothing waits for the future any more.
            _logger.warning(message)
            raise SavepointError(message)
        if not active:
            raise SavepointError(
                f"there is no savepoint of {checkpoint.url}: {running.end_reason()}, and no batch was "
                "committed since the request. "
                "Take a savepoint of the stopped query: savepoint(checkpoint_location, target)."
            )
        if deadline is not None and time.monotonic() >= deadline:
            raise SavepointError(
                f"there is no savepoint of {checkpoint.url}: no batch was committed in time. Pass a longer "
                "timeout, or take a savepoint of the newest batch: savepoint(checkpoint_location, target)."
            )
        time.sleep(wait if deadline is None else max(0.0, min(wait, deadline - time.monotonic())))
        wait = min(wait * 1.2, longest)
    return None


def _newest(checkpoint: QueryCheckpoint) -> int:
    try:
        batches = checkpoint.batches()
    except CheckpointNotFoundError:
        # The query has not written its first batch.
        return -1
    return batches[-1] if batches else -1


@contextlib.contextmanager
def _as_savepoint_error(checkpoint: QueryCheckpoint) -> Iterator[None]:
    try:
        yield
    except SavepointError:
        raise
    except StateStoreError as error:
        raise SavepointError(f"there is no savepoint of {checkpoint.url}: {error}") from error


def _setting(settings: Any, name: str) -> str | None:
    value = settings.get(OPTION_PREFIX + name, None)
    return str(value) if value else None

"""Savepoints of a running query: asked for at any time, taken when its next batch is done."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from spark_statestore.checkpoint.query.checkpoint import QueryCheckpoint
from spark_statestore.errors import CheckpointNotFoundError, OptionError, SavepointError, StateStoreError
from spark_statestore.options import OPTION_PREFIX
from spark_statestore.savepoint.savepoint import KINDS, Kind, Savepoint
from spark_statestore.savepoint.take import take

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Running", "require_kind", "require_target", "trigger_savepoint"]

_logger = logging.getLogger(__name__)

# About a tenth of what a batch's thread gets on the same processor.
_NICENESS: Final = 10

_POLL_SECONDS: Final = (0.1, 1.0)


class Running:
    """A query as Spark runs it, and where it keeps its checkpoint.

    Raises
    ------
    SavepointError
        If Spark does not say where that is.
    """

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        jvm_query: Any = getattr(query, "_jsq", None)
        if jvm_query is None:
            raise SavepointError(
                f"{query!r} does not say where its checkpoint is: Spark Connect has no way to ask. Give savepoint() the "
                "query's checkpointLocation, and its option checkpointsDir if it was set."
            )
        execution = jvm_query.streamingQuery()
        settings = execution.sparkSessionForStream().conf()
        self.location: str = execution.resolvedCheckpointRoot()
        self.checkpoints_dir = _setting(settings, "checkpointsDir")
        self.savepoints_dir = _setting(settings, "savepointsDir")
        self._keeps_nothing = _setting(settings, "storage") == "memory" and self.checkpoints_dir is None

    def checkpoint(self) -> QueryCheckpoint:
        """Its checkpoint.

        Raises
        ------
        SavepointError
            If its state is in no file.
        """
        if self._keeps_nothing:
            raise SavepointError(
                f"the state of the query at {self.location} is kept on the driver and in no file, so there is nothing to "
                f"take a savepoint of. Start the query with the option {OPTION_PREFIX}checkpointsDir, or with "
                "storage=filesystem."
            )
        return QueryCheckpoint(self.location, checkpoints_dir=self.checkpoints_dir)

    @property
    def is_active(self) -> bool:
        """Whether it still runs."""
        return bool(self._query.isActive)

    def why_it_ended(self) -> str:
        """The error that it failed with, or that it was stopped."""
        failure = self._query.exception()
        return "the query was stopped" if failure is None else f"the query has failed: {failure}"


def trigger_savepoint(
    query: StreamingQuery,
    target: str | None = None,
    kind: Kind = "canonical",
    *,
    timeout: float | None = None,
) -> Future[Savepoint]:
    """Ask for a savepoint of a running query: it is taken when the query's next batch is done.

    Batches are not held up by it. All that goes wrong once the question was understood is in the future.

    Parameters
    ----------
    query
        A query that this process started, not through Spark Connect.
    target
        URL of the directory in which it gets a directory of its own; by default the query's option ``savepointsDir``.
    kind
        ``canonical`` or ``pointer``, see `Savepoint`.
    timeout
        Seconds to wait for a batch at most; by default as long as the query runs.

    Returns
    -------
    concurrent.futures.Future
        Has the savepoint, or a `SavepointError`. It can be cancelled until a batch is done.

    Raises
    ------
    OptionError
        If there is no such kind, or no target.
    """
    require_kind(kind)
    promise: Future[Savepoint] = Future()
    try:
        found = Running(query)
        target = require_target(target or found.savepoints_dir)
        checkpoint = found.checkpoint()
        # Only what is done from now on counts.
        newest = _newest(checkpoint)
    except SavepointError as error:
        promise.set_exception(error)
        return promise
    deadline = None if timeout is None else time.monotonic() + timeout

    def work() -> None:
        _give_way()
        try:
            batch = _next_batch(found, checkpoint, newest, deadline, promise)
            if batch is None or not promise.set_running_or_notify_cancel():
                return
            promise.set_result(take(checkpoint, target, kind, batch, checkpoints_dir=found.checkpoints_dir))
        except Exception as error:  # noqa: BLE001 - goes to whoever waits
            _fail(promise, checkpoint, error)

    threading.Thread(target=work, name=f"savepoint of {checkpoint.url}", daemon=True).start()
    return promise


def _give_way() -> None:
    """Let batches go before the copy of their state, where both want the same processor."""
    # Only Linux has priorities of threads.
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def require_kind(kind: str) -> None:
    """Fail if there is no such kind of savepoint.

    Raises
    ------
    OptionError
        If there is none.
    """
    if kind not in KINDS:
        raise OptionError(f"there is no kind of savepoint {kind!r}: it is one of {', '.join(KINDS)}")


def require_target(target: str | None) -> str:
    """Fail if no target is given.

    Raises
    ------
    OptionError
        If there is none.
    """
    if not target:
        raise OptionError(
            f"there is no place for a savepoint: name a target directory, or set '{OPTION_PREFIX}savepointsDir' before the "
            "query starts."
        )
    return target


def _next_batch(
    found: Running,
    checkpoint: QueryCheckpoint,
    newest: int,
    deadline: float | None,
    promise: Future[Savepoint],
) -> int | None:
    wait, longest = _POLL_SECONDS
    while not promise.cancelled():
        # Asked first: what it did before it ended counts.
        active = found.is_active
        batch = _newest(checkpoint)
        if batch > newest:
            return batch
        if not active:
            raise SavepointError(
                f"there is no savepoint of {checkpoint.url}: {found.why_it_ended()}, and no batch was done since the savepoint "
                "was asked for. Take one of the stopped checkpoint: savepoint(checkpoint_location, target)."
            )
        if deadline is not None and time.monotonic() >= deadline:
            raise SavepointError(
                f"there is no savepoint of {checkpoint.url}: no batch was done in time. Ask with a longer timeout, or "
                "take one of the newest batch: savepoint(checkpoint_location, target)."
            )
        time.sleep(wait if deadline is None else max(0.0, min(wait, deadline - time.monotonic())))
        wait = min(wait * 1.2, longest)
    return None


def _newest(checkpoint: QueryCheckpoint) -> int:
    try:
        batches = checkpoint.batches()
    except CheckpointNotFoundError:
        # The query is about to begin.
        return -1
    return batches[-1] if batches else -1


def _fail(promise: Future[Savepoint], checkpoint: QueryCheckpoint, error: Exception) -> None:
    if not isinstance(error, SavepointError):
        what = error if isinstance(error, StateStoreError) else repr(error)
        failed = SavepointError(f"there is no savepoint of {checkpoint.url}: {what}")
        failed.__cause__ = error
        error = failed
    with contextlib.suppress(Exception):
        # Whoever cancelled it is not told why it would have failed.
        promise.set_exception(error)


def _setting(settings: Any, name: str) -> str | None:
    value = settings.get(OPTION_PREFIX + name, None)
    return str(value) if value else None

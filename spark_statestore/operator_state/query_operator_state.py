"""Operator state of a query's own code, checkpointed with each batch and restored after a crash."""

from __future__ import annotations

import functools
import re
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from spark_statestore.errors import (
    CheckpointExistsError,
    CheckpointIOError,
    CheckpointNotFoundError,
    IllegalStateError,
    OptionError,
    SessionError,
)
from spark_statestore.files import join, open_file_system
from spark_statestore.files.failures import read_file
from spark_statestore.operator_state.backend import OperatorStateStore
from spark_statestore.operator_state.batch_state import BatchOperatorState, BatchSnapshot
from spark_statestore.operator_state.default_backend import DefaultOperatorStateBackend
from spark_statestore.operator_state.parts import (
    MAX_PARALLELISM,
    StatePart,
    by_batch,
    complete_parts,
    require_complete,
)
from spark_statestore.operator_state.repartition import RoundRobinOperatorStateRepartitioner
from spark_statestore.operator_state.state_directory import OperatorStateDirectory, PublishedPart
from spark_statestore.storage import CheckpointName

OPERATOR_STATE_DIR: Final = "operator-state"
"""Directory in a query's checkpoint location, beside Spark's own."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

# The newest batch, which may run again, and the one that it starts from.
_FEWEST_RETAINED: Final = 2


class QueryOperatorState:
    """State of a streaming query's own code, for ``foreachBatch`` and for Python data sources.

    A batch works on the state as the batch before it left it, and what it makes of it is
    checkpointed when the batch's block ends. A batch that Spark runs again, because the driver or
    the function failed, starts from the same state as the first time: the state counts exactly
    once, whatever happens. One driver at a time uses an operator's state, as Spark has it for the
    checkpoint location as a whole.

    The state is that of one function on the driver, or each partition of a sink keeps its own: the task of
    partition i of n opens it with ``subtask=i`` and ``parallelism=n``, in every partition and every batch,
    empty ones too. A batch's state counts once all n subtasks have checkpointed theirs. When n changes, list
    state is split evenly, union list state is given to every subtask whole, and of broadcast state each
    subtask gets a copy, as in Flink. As long as n stays the same, each subtask continues with what it left,
    union lists included. No arguments are the same as subtask 0 of 1.

    On the driver and in tasks, the batch and the query are checked against what Spark runs. Where a Python
    data source plans and commits Spark does not say which those are: there the batch id, and the number of
    batches that may be replayed, are the author's to get right.

    Parameters
    ----------
    checkpoint_location
        The query's ``checkpointLocation``, any URL that checkpoints can have.
    operator
        Names this state among those of the query: letters, digits, dots, dashes and underscores.
    subtask
        Number of the subtask, from 0. Given together with `parallelism`.
    parallelism
        Number of subtasks, at most 65,535.
    num_retained
        Batches whose state is retained, so that a query can be rolled back by as many. The batch before the
        newest one is retained in any case: Spark runs the newest one again if the driver ends before it is
        committed. Each subtask lists all retained parts once per batch, so retain fewer batches where there
        are many subtasks.
    fsync
        True to sync local files before a batch counts.

    Raises
    ------
    OptionError
        If the name, the subtask, the parallelism or the number of batches is out of its range.
    StorageError
        If the location's file system cannot be used.

    Examples
    --------
    ::

        state = QueryOperatorState("/data/checkpoints/orders", "rules")
        limits = MapStateDescriptor("limits", pa.string(), pa.float64())

        def process(batch, batch_id):
            with state.batch(batch_id) as store:
                store.get_broadcast_state(limits).put("new", 12.5)

        orders.writeStream.foreachBatch(process).option("checkpointLocation", "/data/checkpoints/orders")
    """

    def __init__(
        self,
        checkpoint_location: str,
        operator: str,
        *,
        subtask: int | None = None,
        parallelism: int | None = None,
        num_retained: int = 100,
        fsync: bool = False,
    ) -> None:
        if not isinstance(operator, str) or not _NAME.fullmatch(operator):
            raise OptionError(
                "an operator's name is 1 to 100 letters, digits, dots, dashes and underscores, and not "
                f"{operator!r}"
            )
        if num_retained < 1:
            raise OptionError(f"num_retained is {num_retained}, but it must be at least 1")
        self.operator = operator
        self.subtask, self.parallelism = _subtask_of(subtask, parallelism)
        self._location = checkpoint_location
        self._files, root = open_file_system(checkpoint_location, fsync=fsync)
        self._root = root.rstrip("/")
        self._directory = OperatorStateDirectory(
            self._files, join(self._root, OPERATOR_STATE_DIR, operator), operator
        )
        self._num_retained = num_retained
        self._fsync = fsync
        self._backend: DefaultOperatorStateBackend | None = None
        # What the state in memory was published as.
        self._at: PublishedPart | None = None
        self._in_use = threading.Lock()

    @contextmanager
    def batch(self, batch_id: int) -> Iterator[BatchOperatorState]:
        """Use the state within one batch, and checkpoint it at the end.

        At the end of the block the state is checkpointed, and the batch counts once that
        is done. If the block raises, nothing of what it did to the state remains.

        A block that is done with its state can have it written while it goes on, for instance with its sink:
        see `BatchOperatorState.snapshot`.

        Parameters
        ----------
        batch_id
            Number of the batch, as Spark gives it.

        Yields
        ------
        BatchOperatorState
            The state, as the newest earlier batch left it; not to be used after the block.

        Raises
        ------
        IllegalStateError
            If another batch uses the same object.
        SessionError
            If the batch that Spark runs in this thread is another one, or of another query.
        CheckpointNotFoundError
            If the state that the batch starts from is no longer retained.
        CheckpointExistsError
            If a task or driver runs late: Spark has committed the batch.
        CheckpointError
            If the state cannot be read, or cannot be written: then the batch must fail, so that
            Spark runs it again.
        """
        CheckpointName(batch_id)
        if not self._in_use.acquire(blocking=False):
            raise IllegalStateError(
                f"{self} is used by another batch at this moment: batches of a query come one after the "
                "other. Give each query, and each thread, an object and an operator name of its own."
            )
        try:
            is_of_spark = self._require_this_query(batch_id)
            # Listed for every batch: another driver may have continued the query meanwhile.
            listed = self._directory.list()
            is_set_back = self._is_set_back(listed, batch_id, is_of_spark=is_of_spark)
            newest = self._newest(listed, batch_id)
            if not newest:
                self._require_first(listed, batch_id)
            backend = self._restored(newest)
            part = self._next_part(batch_id, listed)
            # Kept only if the block and the checkpoint succeed.
            self._backend = None
            snapshot = BatchSnapshot(backend, self._directory, part)
            try:
                yield BatchOperatorState(backend, snapshot)
                snapshot.complete()
            except BaseException:
                snapshot.abandon()
                raise
            # In this order: without a backend the part is read.
            self._at, self._backend = snapshot.published, backend
            self._retain(listed, part, is_set_back=is_set_back)
        finally:
            self._in_use.release()

    def read(self, batch_id: int | None = None) -> OperatorStateStore:
        """Return the state as a batch left it, for reading: changes to it are not stored.

        It is the share of this object's subtask, as the next batch would find it. Without `subtask` and
        `parallelism` it is the state of all subtasks.

        Parameters
        ----------
        batch_id
            The batch; by default the newest one for which all subtasks have checkpointed their state.

        Raises
        ------
        CheckpointNotFoundError
            If no state of that batch is kept.
        CorruptCheckpointError
            If the part of a subtask is missing in that batch, or in a newer one that Spark has committed.
        CheckpointError
            If it cannot be read.
        """
        return self._read(self._parts(batch_id))

    def verify(self, batch_id: int) -> list[str]:
        """Read in full the state that the batch after this one starts from.

        Returns
        -------
        list of str
            Names of the directories that were read; none if there was no state yet.

        Raises
        ------
        CheckpointError
            If the part of a subtask is missing, or cannot be read.
        """
        parts = self._newest(self._directory.list(), batch_id + 1)
        for part in parts:
            DefaultOperatorStateBackend([self._directory.read(part)])
        return [part.name.directory for part in parts]

    def batches(self) -> list[int]:
        """Return the batches whose state is kept, oldest first."""
        batches = by_batch(_published(self._directory.list()))
        return [batch for batch, parts in batches.items() if complete_parts(parts) is not None]

    def __str__(self) -> str:
        subtask = f", subtask {self.subtask} of {self.parallelism}" if self.parallelism > 1 else ""
        return f"{self._directory}{subtask}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark ships the readers and writers of Python data sources, with all that they hold.
        opened = functools.partial(
            QueryOperatorState,
            subtask=self.subtask,
            parallelism=self.parallelism,
            num_retained=self._num_retained,
            fsync=self._fsync,
        )
        # A relative path may be another one there.
        location = self._root if self._files.scheme == "file" else self._location
        return opened, (location, self.operator)

    def _newest(self, listed: dict[StatePart, bool], before: int) -> tuple[StatePart, ...]:
        """Return the parts of the newest batch before one that can run, which Spark has committed."""
        batches = by_batch(part for part in _published(listed) if part.batch < before)
        return require_complete(batches[max(batches)], str(self._directory)) if batches else ()

    def _restored(self, newest: Sequence[StatePart]) -> DefaultOperatorStateBackend:
        own = newest[self.subtask] if len(newest) == self.parallelism else None
        # After a rollback another driver may have published a part of the same name.
        if self._backend is None or self._at is None or own is None or not self._directory.has(own, self._at):
            self._backend = self._read(newest)
        return self._backend

    def _is_set_back(self, listed: Collection[StatePart], batch_id: int, *, is_of_spark: bool) -> bool:
        """Return True if parts of later batches are left from before the query was set back to this one.

        A task that runs late finds parts of later batches, too. These count: Spark has committed its batch.

        Raises
        ------
        CheckpointExistsError
            If Spark runs the batch, and has committed it.
        """
        is_known = any(
            part.batch > batch_id or (part.batch == batch_id and self._may_replace(part)) for part in listed
        )
        if not is_known:
            return False
        # Read after the parts were listed: Spark commits a batch before the next one begins.
        newest = self._newest_committed()
        if newest is None or newest < batch_id:
            return is_of_spark or newest is not None
        if is_of_spark:
            raise CheckpointExistsError(
                f"{self}, batch {batch_id}, is not replaced: Spark's commit log has batch {newest}, so this "
                "task or driver is late, and another one has run the batch. Nothing was changed. To run the "
                "batch again on purpose, stop the query and roll it back to the batch before: "
                "spark-statestore rollback."
            )
        return False

    def _require_first(self, listed: dict[StatePart, bool], batch_id: int) -> None:
        """Raise `CheckpointNotFoundError` if a batch would start without the state that it had."""
        published = _published(listed)
        later = [part.batch for part in published if part.batch > batch_id]
        # Attempts are counted from 1: if the first one is retained, there was none before it.
        if batch_id > 0 and later and min(part.attempt for part in published) > 1:
            raise CheckpointNotFoundError(
                f"{self} has no state of a batch before batch {batch_id} any more, but of the batches "
                f"{sorted(set(later))}: batch {batch_id} would start without state. Resume from a later "
                "batch, or restore the state of the batch before from a backup; nothing was changed. "
                "num_retained sets the number of retained batches. If there was no state before, remove the "
                "directory."
            )

    def _next_part(self, batch_id: int, listed: Collection[StatePart]) -> StatePart:
        """Return the name of a new attempt: its number exceeds those of all attempts of earlier runs.

        The other subtasks of the same run are numbered alike; their parts may be there already.
        """
        earlier = [part.attempt for part in listed if part.batch != batch_id or self._may_replace(part)]
        return StatePart(batch_id, 1 + max(earlier, default=0), self.subtask, self.parallelism)

    def _may_replace(self, part: StatePart) -> bool:
        """Return False for another subtask of the same parallelism, which may be of the same run."""
        return part.parallelism != self.parallelism or part.subtask == self.subtask

    def _retain(self, listed: dict[StatePart, bool], part: StatePart, *, is_set_back: bool) -> None:
        """Discard this subtask's parts that are replaced, failed, too old, or of batches that were undone.

        Subtask 0 discards those of other parallelisms, too. Parts of the same parallelism are left to their
        subtasks, which may be writing them.
        """
        published = _published(listed)
        batches = sorted({candidate.batch for candidate in published if candidate.batch < part.batch})
        retained_batches = {*batches[1 - max(self._num_retained, _FEWEST_RETAINED) :]}
        for candidate in listed:
            is_own = (candidate.subtask, candidate.parallelism) == (self.subtask, self.parallelism)
            if not is_own and (self.subtask != 0 or candidate.parallelism == self.parallelism):
                continue
            if candidate.batch > part.batch and not is_set_back:
                continue
            if candidate.batch not in retained_batches or candidate not in published:
                self._directory.discard(candidate)

    def _parts(self, batch_id: int | None) -> tuple[StatePart, ...]:
        """Return the parts of a batch's state, by default of the newest complete one.

        Raises
        ------
        CheckpointNotFoundError
            If there is none.
        CorruptCheckpointError
            If one is missing.
        """
        batches = by_batch(_published(self._directory.list()))
        if batch_id in batches:
            return require_complete(batches[batch_id], str(self._directory))
        for batch in reversed(batches if batch_id is None else ()):
            complete = complete_parts(batches[batch])
            if complete is not None:
                return complete
            if self._is_committed(batch):
                return require_complete(batches[batch], str(self._directory))
        raise CheckpointNotFoundError(
            f"there is no state of {'any batch' if batch_id is None else f'batch {batch_id}'} in {self}; "
            f"there is of the batches {list(batches)}. Name one of those."
        )

    def _is_committed(self, batch: int) -> bool:
        """Return True if Spark's commit log has a batch or a later one."""
        newest = self._newest_committed()
        return newest is not None and newest >= batch

    def _newest_committed(self) -> int | None:
        """Return the newest batch in Spark's commit log; None if it has none."""
        try:
            paths = [status.path for status in self._files.list_files(join(self._root, "commits"))]
        except OSError as error:
            raise CheckpointIOError(f"the commit log beside {self} cannot be listed: {error}") from error
        names = (path.rpartition("/")[2] for path in paths)
        return max((int(name) for name in names if name.isdigit()), default=None)

    def _read(self, parts: Sequence[StatePart]) -> DefaultOperatorStateBackend:
        """Restore this subtask's share of a batch's state."""
        if not parts:
            return DefaultOperatorStateBackend()
        if len(parts) == self.parallelism:
            return DefaultOperatorStateBackend([self._directory.read(parts[self.subtask])])
        handles = [[self._directory.read(part)] for part in parts]
        shares = RoundRobinOperatorStateRepartitioner().repartition_state(
            handles, len(parts), self.parallelism
        )
        return DefaultOperatorStateBackend(shares[self.subtask])

    def _require_this_query(self, batch_id: int) -> bool:
        """Return True if Spark runs the batch in this thread, False if it runs none."""
        running = _running_batch()
        if running is None:
            return False
        query, batch = running
        if batch != str(batch_id):
            raise SessionError(
                f"Spark runs batch {batch} in this thread, and the state of batch {batch_id} was asked for. "
                "Pass the batch id that foreachBatch gives."
            )
        query_id = self._query_id()
        if query_id is not None and query_id != query:
            raise SessionError(
                f"{self} belongs to the query {query_id}, and this batch is of the query {query}. Give each "
                "query the operator state of its own checkpointLocation."
            )
        return True

    def _query_id(self) -> str | None:
        path = join(self._root, "metadata")
        try:
            text = read_file(self._files, path)
        except FileNotFoundError:
            return None
        match = re.search(rb'"id"\s*:\s*"([^"]+)"', text)
        return match[1].decode() if match else None


def _subtask_of(subtask: int | None, parallelism: int | None) -> tuple[int, int]:
    if subtask is None and parallelism is None:
        return 0, 1
    if not isinstance(subtask, int) or not isinstance(parallelism, int):
        raise OptionError(
            f"subtask is {subtask!r} and parallelism {parallelism!r}, but both must be integers. Give both, "
            "or neither for state that is kept once for the query."
        )
    if not 0 <= subtask < parallelism <= MAX_PARALLELISM:
        raise OptionError(
            f"subtask is {subtask} and parallelism {parallelism}, but a subtask is from 0 to parallelism - "
            f"1, and parallelism at most {MAX_PARALLELISM}"
        )
    return subtask, parallelism


def _published(listed: dict[StatePart, bool]) -> list[StatePart]:
    return [part for part, is_published in listed.items() if is_published]


def _running_batch() -> tuple[str, str] | None:
    """Return the query and batch that Spark runs in this thread or task, None if it runs none."""
    # Spark is optional here: a process that runs a batch has imported it.
    tasks: Any = sys.modules.get("pyspark.taskcontext")
    driver: Any = sys.modules.get("pyspark.core.context")
    context = (tasks and tasks.TaskContext.get()) or (driver and driver.SparkContext._active_spark_context)
    if not context:
        return None
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    return (query, batch) if query and batch else None

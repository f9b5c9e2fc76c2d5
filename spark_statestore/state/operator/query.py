"""Operator state of a query's own code: taken with each batch, and brought back after a crash."""

from __future__ import annotations

import functools
import logging
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from spark_statestore.checkpoint.completed.checkpoint import CompletedCheckpoint
from spark_statestore.checkpoint.completed.location import FsCompletedCheckpointStorageLocation
from spark_statestore.checkpoint.completed.properties import CheckpointProperties
from spark_statestore.checkpoint.completed.store import StandaloneCompletedCheckpointStore
from spark_statestore.checkpoint.files import join, open_file_system
from spark_statestore.checkpoint.metadata import OperatorsMetadata, decode_operators, encode_operators
from spark_statestore.checkpoint.metadata.format import read_object
from spark_statestore.checkpoint.storage import METADATA_FILE_NAME, CheckpointName, FsCheckpointStorage
from spark_statestore.errors import (
    CheckpointExistsError,
    CheckpointIOError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    IllegalStateError,
    SessionError,
    StateStoreError,
)
from spark_statestore.options import DEFAULT_FILE_STATE_THRESHOLD
from spark_statestore.state.handles.codec import HandleContext
from spark_statestore.state.handles.file import FileStateHandle
from spark_statestore.state.handles.operator import OperatorStateHandle
from spark_statestore.state.objects import StateObject, discard_all
from spark_statestore.state.operator.default import DefaultOperatorStateBackend
from spark_statestore.state.operator.store import OperatorStateBackend, OperatorStateStore
from spark_statestore.state.operator_state import OperatorState

__all__ = ["OPERATOR_STATE_DIR", "QueryOperatorState"]

_logger = logging.getLogger(__name__)

OPERATOR_STATE_DIR: Final = "operator-state"
"""Directory in a query's checkpoint location, beside Spark's own."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class QueryOperatorState:
    """State of a streaming query's own code, for ``foreachBatch`` and for Python data sources.

    A batch works on the state as the batch before it left it, and what it makes of it is
    checkpointed when the batch's block ends. A batch that Spark runs again, because the driver or
    the function failed, starts from the same state as the first time: the state counts exactly
    once, whatever happens. One driver at a time uses an operator's state, as Spark has it for the
    checkpoint location as a whole.

    In a ``foreachBatch`` function the batch and the query are checked against what Spark runs. In
    the workers of a Python data source Spark does not say which those are: there the batch id, and
    the number of batches that may be replayed, are the author's to get right.

    Parameters
    ----------
    checkpoint_location
        The query's ``checkpointLocation``, any URL that checkpoints can have.
    operator
        Names this state among those of the query: letters, digits, dots, dashes and underscores.
    num_retained
        Batches whose state is kept, so that a query can be set back by as many.
    fsync
        Whether local files are synced before a batch counts.

    Raises
    ------
    ValueError
        If the name does not fit, or nothing would be kept.
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
        self, checkpoint_location: str, operator: str, *, num_retained: int = 100, fsync: bool = False
    ) -> None:
        if not isinstance(operator, str) or not _NAME.fullmatch(operator):
            raise ValueError(
                f"an operator's name is 1 to 100 letters, digits, dots, dashes and underscores, and not {operator!r}"
            )
        self.operator = operator
        self._location = checkpoint_location
        self._files, root = open_file_system(checkpoint_location, fsync=fsync)
        self._root = root.rstrip("/")
        self._directory = join(self._root, OPERATOR_STATE_DIR, operator)
        self._storage = FsCheckpointStorage(
            self._files, self._directory, DEFAULT_FILE_STATE_THRESHOLD, look_first=False
        )
        self._num_retained = num_retained
        self._fsync = fsync
        # Fails now if nothing is to be retained.
        StandaloneCompletedCheckpointStore(num_retained)
        self._backend: DefaultOperatorStateBackend | None = None
        self._at: CheckpointName | None = None
        self._in_use = threading.Lock()

    @contextmanager
    def batch(self, batch_id: int) -> Iterator[OperatorStateStore]:
        """Work on the state within one batch.

        At the end of the block the state is checkpointed, and the batch counts once that
        is done. If the block raises, nothing of what it did to the state remains.

        Parameters
        ----------
        batch_id
            Number of the batch, as Spark gives it.

        Yields
        ------
        OperatorStateStore
            The state, as the newest earlier batch left it; not to be used after the block.

        Raises
        ------
        IllegalStateError
            If another batch is at work on the same object.
        SessionError
            If the batch that Spark runs in this thread is another one, or of another query.
        CheckpointError
            If the state cannot be read, or cannot be written: then the batch must fail, so that
            Spark runs it again.
        """
        CheckpointName(batch_id)
        if not self._in_use.acquire(blocking=False):
            raise IllegalStateError(
                f"{self} is used by another batch at this moment: batches of a query come one after the other. Give "
                "each query, and each thread, an object and an operator name of its own."
            )
        try:
            self._require_this_query(batch_id)
            # Every time: another driver may have gone on from here meanwhile.
            found = self._look()
            earlier = [
                known for known in found if known.version < batch_id and METADATA_FILE_NAME in found[known]
            ]
            backend = self._restored(earlier)
            # Attempts at one batch are told apart by a number that only grows.
            number = 1 + max(map(_number, found), default=0)
            name = CheckpointName(batch_id, f"{number:016x}")
            # Kept only if the block and the checkpoint succeed.
            self._backend = None
            try:
                yield backend
                self._checkpoint(name, backend)
            except BaseException:
                backend.dispose()
                raise
            self._backend, self._at = backend, name
            self._retain(earlier, name)
            # What is left of attempts that failed, and of those that this one takes the place of.
            for known in found.keys() - set(earlier):
                _discard(self._completed(known))
        finally:
            self._in_use.release()

    def read(self, batch_id: int | None = None) -> OperatorStateStore:
        """The state as a batch left it, to look at: changes to it are not kept.

        Parameters
        ----------
        batch_id
            The batch; by default the newest one.

        Raises
        ------
        CheckpointNotFoundError
            If no state of that batch is kept.
        CheckpointError
            If it cannot be read.
        """
        names = self._list()
        wanted = [name for name in names if batch_id is None or name.version == batch_id]
        if not wanted:
            raise CheckpointNotFoundError(
                f"there is no state of {'any batch' if batch_id is None else f'batch {batch_id}'} in {self}; there is "
                f"of the batches {sorted({name.version for name in names})}. Name one of those."
            )
        return self._read(wanted[-1])

    def batches(self) -> list[int]:
        """The batches whose state is kept, oldest first."""
        return sorted({name.version for name in self._list()})

    def __str__(self) -> str:
        return f"the operator state {self.operator!r} at {self._files.url(self._directory)}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark ships the readers and writers of Python data sources, with all that they hold.
        opened = functools.partial(QueryOperatorState, num_retained=self._num_retained, fsync=self._fsync)
        # A relative path may be another one there.
        location = self._root if self._files.scheme == "file" else self._location
        return opened, (location, self.operator)

    def _restored(self, names: list[CheckpointName]) -> DefaultOperatorStateBackend:
        newest = names[-1] if names else None
        if self._backend is None or self._at != newest:
            self._backend = DefaultOperatorStateBackend() if newest is None else self._read(newest)
        return self._backend

    def _checkpoint(self, name: CheckpointName, backend: OperatorStateBackend) -> None:
        try:
            location = self._storage.initialize_location_for_checkpoint(name)
        except OSError as error:
            raise CheckpointIOError(
                f"{self}, batch {name.version}, cannot be written: {error}. Check that the directory is writable for "
                "the user that runs the driver."
            ) from error
        now = time.time_ns() // 1_000_000
        handle = None
        try:
            future = backend.snapshot(name.version, now, location)
            future.run()
            handle = future.result().job_manager_owned
            state = OperatorState(self.operator, 1, 1, {} if handle is None else {0: handle})
            metadata = OperatorsMetadata(
                name.version,
                str(name.id),
                now,
                {self.operator: state},
                CheckpointProperties.for_checkpoint().to_json(),
            )
            with location.create_metadata_output_stream() as out:
                out.write(encode_operators(metadata, self._context(name)))
                out.close_and_finalize_checkpoint()
        except BaseException as error:
            if isinstance(error, CheckpointExistsError):
                error.add_note(f"another driver is at work on {self}, or was until now")
            self._remove_own(name, handle)
            raise

    def _remove_own(self, name: CheckpointName, handle: StateObject | None) -> None:
        # Not the whole directory: another driver's attempt may have the same number.
        try:
            discard_all([handle])
            self._files.delete_directory(join(self._directory, name.directory))
        except OSError as error:
            _logger.warning("could not remove what failed of batch %s of %s: %s", name.version, self, error)

    def _retain(self, earlier: list[CheckpointName], name: CheckpointName) -> None:
        store = StandaloneCompletedCheckpointStore(
            self._num_retained, recovered=map(self._completed, earlier)
        )
        store.add_checkpoint_and_subsume_oldest_one(self._completed(name))

    def _list(self) -> list[CheckpointName]:
        """The checkpoints that exist, oldest first."""
        return [name for name, files in self._look().items() if METADATA_FILE_NAME in files]

    def _look(self) -> dict[CheckpointName, set[str]]:
        start = self._directory + "/"
        found: dict[CheckpointName, set[str]] = {}
        try:
            for status in self._files.list_files(self._directory):
                directory, _, file = status.path.removeprefix(start).partition("/")
                name = CheckpointName.parse(directory)
                if name is not None and name.id is not None:
                    found.setdefault(name, set()).add(file)
        except OSError as error:
            raise CheckpointIOError(f"{self} cannot be listed: {error}") from error
        return dict(sorted(found.items(), key=lambda item: _age(item[0])))

    def _read(self, name: CheckpointName) -> DefaultOperatorStateBackend:
        path = join(self._directory, name.directory, METADATA_FILE_NAME)
        where = f"{self}, batch {name.version} ({self._files.url(path)})"
        try:
            data = read_object(self._files, path)
        except OSError as error:
            raise CheckpointIOError(f"{where} cannot be read: {error}") from error
        metadata = decode_operators(data, self._context(name), where)
        state = metadata.operator_states.get(self.operator)
        if state is None or (metadata.checkpoint_id, metadata.attempt) != (name.version, name.id):
            raise CorruptCheckpointError(
                f"{where} holds the state of {sorted(metadata.operator_states)} for batch {metadata.checkpoint_id}, "
                f"attempt {metadata.attempt}: files were moved or mixed up. Put the right ones back; nothing was changed."
            )
        handles: list[OperatorStateHandle] = []
        for handle in state.subtasks.values():
            if not isinstance(handle, OperatorStateHandle):
                raise CorruptCheckpointError(
                    f"{where} has a {type(handle).__name__} in the place of operator state. Put the right file back "
                    "from a backup, or set the query back by a batch; nothing was changed."
                )
            handles.append(handle)
        return DefaultOperatorStateBackend(handles)

    def _completed(self, name: CheckpointName) -> CompletedCheckpoint:
        directory = join(self._directory, name.directory)
        metadata = FileStateHandle(self._files, join(directory, METADATA_FILE_NAME), -1)
        location = _OwnDirectory(self._files, directory, metadata, self._files.url(directory))
        return CompletedCheckpoint(name.version, 0, 0, {}, CheckpointProperties.for_checkpoint(), location)

    def _context(self, name: CheckpointName) -> HandleContext:
        return HandleContext(self._files, join(self._directory, name.directory), confined=True)

    def _require_this_query(self, batch_id: int) -> None:
        running = _running_batch()
        if running is None:
            return
        query, batch = running
        if batch != str(batch_id):
            raise SessionError(
                f"Spark runs batch {batch} in this thread, and the state of batch {batch_id} was asked for. Pass the "
                "batch id that foreachBatch gives."
            )
        mine = self._query_id()
        if mine is not None and mine != query:
            raise SessionError(
                f"{self} belongs to the query {mine}, and this batch is of the query {query}. Give each query the "
                "operator state of its own checkpointLocation."
            )

    def _query_id(self) -> str | None:
        try:
            text = self._files.read(join(self._root, "metadata"))
        except OSError:
            return None
        found = re.search(rb'"id"\s*:\s*"([^"]+)"', text)
        return found[1].decode() if found else None


class _OwnDirectory(FsCompletedCheckpointStorageLocation):
    """A checkpoint that shares nothing with others: its directory goes with all that is in it."""

    def dispose_storage_location(self, *, recursive: bool = True) -> None:
        super().dispose_storage_location(recursive=True)


def _age(name: CheckpointName) -> tuple[int, int]:
    return name.version, _number(name)


def _number(name: CheckpointName) -> int:
    return int(name.id or "0", 16)


def _discard(checkpoint: CompletedCheckpoint) -> None:
    checkpoint.mark_as_discarded()
    try:
        checkpoint.discard()
    except (OSError, StateStoreError) as error:
        # It is never read again: an attempt with a higher number has taken its place.
        _logger.warning("could not discard %r: %s", checkpoint, error)


def _running_batch() -> tuple[str, str] | None:
    """Query and batch that Spark runs in this thread, if this process is a driver that knows."""
    module: Any = sys.modules.get("pyspark.core.context")
    context = module and module.SparkContext._active_spark_context
    if not context:
        return None
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    return (query, batch) if query and batch else None

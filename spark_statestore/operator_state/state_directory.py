"""Directory of one operator's state in a query's checkpoint location."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass

from spark_statestore.errors import (
    CheckpointExistsError,
    CheckpointIOError,
    CorruptCheckpointError,
    StateStoreError,
    restore_from_backup,
)
from spark_statestore.files import FileSystem, join
from spark_statestore.operator_state.backend import OperatorStateBackend
from spark_statestore.operator_state.metadata import (
    OperatorsMetadata,
    OperatorState,
    decode_operators,
    encode_operators,
)
from spark_statestore.operator_state.parts import MAX_PARALLELISM, StatePart
from spark_statestore.operator_state.snapshot_strategy import CheckpointOptions, SnapshotFuture
from spark_statestore.options import DEFAULT_FILE_STATE_THRESHOLD
from spark_statestore.storage import (
    METADATA_FILE_NAME,
    CheckpointName,
    CheckpointStorageLocation,
    FsCheckpointStorage,
)
from spark_statestore.storage.file_handles import discard_file
from spark_statestore.storage.handle_codec import HandleContext
from spark_statestore.storage.metadata_streams import read_object
from spark_statestore.storage.operator_handles import OperatorStateHandle
from spark_statestore.storage.snapshot_result import SnapshotResult

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PublishedPart:
    """A part and its metadata.

    Parts of one name and with equal metadata have the same state: it is in the metadata, or in a file with a
    unique name.
    """

    part: StatePart
    metadata: bytes


class OperatorStateDirectory:
    """The parts of one operator's state: listed, written, read and discarded."""

    def __init__(self, files: FileSystem, path: str, operator: str) -> None:
        self._files = files
        self._path = path
        self._operator = operator
        self._storage = FsCheckpointStorage(files, path, DEFAULT_FILE_STATE_THRESHOLD)

    def __str__(self) -> str:
        return f"the operator state {self._operator!r} at {self._files.url(self._path)}"

    def list(self) -> dict[StatePart, bool]:
        """Return the parts, oldest first, each with True if it is published."""
        start = self._path + "/"
        parts: dict[StatePart, bool] = {}
        try:
            for status in self._files.list_files(self._path):
                directory, _, file = status.path.removeprefix(start).partition("/")
                part = StatePart.from_checkpoint(CheckpointName.parse(directory))
                if part is not None:
                    parts[part] = parts.get(part, False) or file == METADATA_FILE_NAME
        except OSError as error:
            raise CheckpointIOError(f"{self} cannot be listed: {error}") from error
        return dict(sorted(parts.items()))

    def begin(self, part: StatePart, backend: OperatorStateBackend, *, is_synchronous: bool) -> PendingPart:
        """Take a snapshot of a subtask's state, as it is now; the returned object writes and publishes it.

        With `is_synchronous` the state must not be changed before that is done.
        """
        name = part.name
        try:
            location = self._storage.initialize_location_for_checkpoint(name)
        except OSError as error:
            raise CheckpointIOError(
                f"{self}, batch {part.batch}, cannot be written: {error}. Check that the directory is "
                "writable for the user that runs the driver and the executors."
            ) from error
        now = time.time_ns() // 1_000_000
        options = CheckpointOptions(location.location_reference, is_synchronous)
        try:
            streams = self._storage.resolve_checkpoint_storage_location(name, options.target_location)
            future = backend.snapshot(part.batch, now, streams, options)
        except BaseException:
            self.remove_own(part, SnapshotResult.empty(), may_be_published=False)
            raise
        return PendingPart(self, part, location, future, now)

    def encode(self, part: StatePart, handle: OperatorStateHandle | None, created_ms: int) -> bytes:
        """Return the metadata of a part."""
        subtasks = {} if handle is None else {part.subtask: handle}
        state = OperatorState(self._operator, part.parallelism, MAX_PARALLELISM, subtasks)
        metadata = OperatorsMetadata(part.batch, str(part.name.id), created_ms, {self._operator: state})
        return encode_operators(metadata, self._context(part))

    def read(self, part: StatePart) -> OperatorStateHandle | None:
        """Read a part's metadata, and return the handle in it; None if the subtask had no state.

        Raises
        ------
        CorruptCheckpointError
            If it is not what was written, or belongs to another part.
        """
        where = self._where(part)
        data = self._read_metadata(part)
        metadata = decode_operators(data, self._context(part), where)
        state = metadata.operator_states.get(self._operator)
        if (
            state is None
            or CheckpointName(metadata.checkpoint_id, metadata.attempt_id) != part.name
            or state.parallelism != part.parallelism
            or state.subtasks.keys() - {part.subtask}
        ):
            raise CorruptCheckpointError(
                f"{where} holds the state of {sorted(metadata.operator_states)} for batch "
                f"{metadata.checkpoint_id}, attempt {metadata.attempt_id}: files were moved or mixed up. "
                + restore_from_backup("the right ones")
            )
        handle = state.subtasks.get(part.subtask)
        if handle is not None and not isinstance(handle, OperatorStateHandle):
            raise CorruptCheckpointError(
                f"{where} has a {type(handle).__name__} instead of operator state. "
                + restore_from_backup("the right file")
            )
        return handle

    def has(self, part: StatePart, published: PublishedPart) -> bool:
        """Return True if a part is still what was published."""
        return part == published.part and self._read_metadata(part) == published.metadata

    def discard(self, part: StatePart) -> None:
        """Remove a part; a failure is logged, as the part is not read again."""
        directory = join(self._path, part.name.directory)
        url = self._files.url(directory)
        try:
            # Metadata first: an incomplete checkpoint must not be found.
            discard_file(self._files, self._metadata_path(part))
            # No two parts share a file.
            self._files.delete_directory(directory, recursive=True)
        except (OSError, StateStoreError) as error:
            _logger.warning("could not discard batch %s of %s at %s: %s", part.batch, self, url, error)

    def remove_own(
        self, part: StatePart, result: SnapshotResult[OperatorStateHandle], *, may_be_published: bool
    ) -> None:
        """Remove what an attempt at a part has written; a failure is logged."""
        try:
            # Published, and the response was lost: the next attempt replaces it, until then it must be
            # readable.
            if may_be_published and self._files.exists(self._metadata_path(part)):
                return
            # Not the whole directory: another driver's attempt may have the same number.
            result.discard_state()
            self._files.delete_directory(join(self._path, part.name.directory))
        except OSError as error:
            _logger.warning("could not remove what failed of batch %s of %s: %s", part.batch, self, error)

    def _read_metadata(self, part: StatePart) -> bytes:
        try:
            return read_object(self._files, self._metadata_path(part))
        except OSError as error:
            raise CheckpointIOError(f"{self._where(part)} cannot be read: {error}") from error

    def _where(self, part: StatePart) -> str:
        return f"{self}, batch {part.batch} ({self._files.url(self._metadata_path(part))})"

    def _metadata_path(self, part: StatePart) -> str:
        return join(self._path, part.name.directory, METADATA_FILE_NAME)

    def _context(self, part: StatePart) -> HandleContext:
        return HandleContext(self._files, join(self._path, part.name.directory))


class PendingPart:
    """The state of a subtask after one batch, until it is published or discarded."""

    def __init__(
        self,
        directory: OperatorStateDirectory,
        part: StatePart,
        location: CheckpointStorageLocation,
        future: SnapshotFuture[OperatorStateHandle],
        created_ms: int,
    ) -> None:
        self._directory = directory
        self._part = part
        self._location = location
        self._future = future
        self._created_ms = created_ms
        self._writer: threading.Thread | None = None
        self._is_published = self._may_be_published = False

    def write_in_background(self) -> None:
        """Have another thread write the state."""
        name = f"snapshot of batch {self._part.batch} of {self._directory}"
        writer = threading.Thread(target=self._future.run, name=name, daemon=True)
        writer.start()
        self._writer = writer

    def publish(self) -> PublishedPart:
        """Publish and return the part, once its state is written: by this thread, if by no other.

        Raises
        ------
        CheckpointExistsError
            If another attempt has published a part of that name.
        """
        self._future.run()
        handle = self._future.result().job_manager_owned_snapshot
        metadata = self._directory.encode(self._part, handle, self._created_ms)
        with self._location.create_metadata_output_stream() as out:
            out.write(metadata)
            self._may_be_published = True
            try:
                out.close_and_finalize_checkpoint()
            except CheckpointExistsError as error:
                self._may_be_published = False
                error.add_note(f"another driver or task attempt has written to {self._directory} meanwhile")
                raise
        self._is_published = True
        return PublishedPart(self._part, metadata)

    def discard(self) -> None:
        """Cancel the snapshot, wait until it is not written any more, and remove what it has left."""
        if self._is_published:
            return
        self._future.cancel()
        # Not for the future: an interrupt of this thread's own `run` may have left it without a result.
        if self._writer is not None:
            self._writer.join()
        is_written = self._future.done() and not self._future.cancelled() and self._future.exception() is None
        result = self._future.result() if is_written else SnapshotResult[OperatorStateHandle].empty()
        self._directory.remove_own(self._part, result, may_be_published=self._may_be_published)

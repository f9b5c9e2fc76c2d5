"""Commits, snapshots and runs of one state store are written here, up to publishing their metadata."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

import pyarrow as pa

from spark_statestore._version import __version__
from spark_statestore.errors import CorruptCheckpointError, UnsupportedFormatError
from spark_statestore.files import join
from spark_statestore.files.failures import failing_to, require_no_link
from spark_statestore.files.request_context import check_cancelled
from spark_statestore.formats.metadata import INLINE_STATE_OFFSET, EncodedObject, InlineState, attempt_id_of
from spark_statestore.storage import (
    METADATA_FILE_NAME,
    CheckpointName,
    CheckpointStorageLocation,
    CheckpointStorageLocationReference,
)
from spark_statestore.storage.chains import extend_chain, is_usable, rebase_chain, run_of, start_chain
from spark_statestore.storage.file_handles import FileStateHandle, SegmentFileStateHandle
from spark_statestore.storage.fs_streams import FsCheckpointStateOutputStream
from spark_statestore.storage.handle_codec import encode_extended_handle, encode_handle
from spark_statestore.storage.incremental_handle import IncrementalStateHandle
from spark_statestore.storage.merged_files import LARGEST_HANDED_OVER, LARGEST_MERGED
from spark_statestore.storage.operator_handles import OperatorStreamStateHandle
from spark_statestore.storage.streams import (
    CheckpointedStateScope,
    CheckpointStateOutputStream,
    CheckpointStreamFactory,
)
from spark_statestore.store.changelog import ChangeStreamWriter, EncodedBatch
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.metadata import CheckpointMetadata, ColumnFamily, decode_metadata, encode_metadata

_logger = logging.getLogger(__name__)

_HOST = socket.gethostname()


@dataclass(frozen=True, slots=True)
class Committed:
    """A published version.

    Attributes
    ----------
    metadata
        Its metadata if that is in no file: the driver keeps it, or publishes it in the query's merged files.
    merged
        Whether it exists only once the query's merged files are published.
    next_directory
        The next version's directory: creating it with `FileSystem.prepare` after the answer shortens the next
        commit. None if that version has none.
    """

    handle: IncrementalStateHandle
    encoded_handle: bytes
    bytes_written: int
    objects_written: int
    metadata: bytes | None
    merged: bool
    next_directory: str | None


class PendingSnapshot:
    """A full snapshot being written, or a run: write its rows, then finish or abandon it.

    Parameters
    ----------
    since
        Of a run, the version that its changes apply to; None for a full snapshot.

    Attributes
    ----------
    column_families
        Its column families. They may be replaced until it is published, with the rows counted meanwhile.
    """

    def __init__(
        self,
        version: int,
        column_families: tuple[ColumnFamily, ...],
        stream: CheckpointStateOutputStream,
        codec: str | None,
        since: int | None = None,
    ) -> None:
        self._version = version
        self._since = since
        self.column_families = column_families
        self._stream = stream
        self._writer = ChangeStreamWriter(stream, codec)

    def write(self, position: int, message: pa.Buffer) -> None:
        """Append a batch of changes of the column family at a position, a message of `CHANGE_SCHEMA`."""
        self._writer.write(self.column_families[position].name, message)

    def write_encoded(self, batches: Iterable[EncodedBatch]) -> None:
        """Append batches of changes as their sender has encoded them; abandon everything if that fails."""
        try:
            self._writer.write_encoded(batches)
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Remove what was written."""
        self._stream.close()

    def finish(self) -> IncrementalStateHandle:
        """Finish the snapshot as a file, since no metadata can hold it until a commit uses it."""
        if self._stream.get_pos() and isinstance(self._stream, FsCheckpointStateOutputStream):
            self._stream.flush_to_file()
        stream = self._writer.finish()
        if self._since is None:
            return start_chain(self._version, stream, self._rows)
        return run_of(self._since, self._version, stream)

    @property
    def _rows(self) -> int:
        return sum(family.stored_rows for family in self.column_families)


class PendingCheckpoint(PendingSnapshot):
    """A checkpoint being written: write its changes, then publish or abandon it."""

    def __init__(
        self,
        store: StoreDirectory,
        location: CheckpointStreamFactory,
        name: CheckpointName,
        attempt_id: str,
        column_families: tuple[ColumnFamily, ...],
        *,
        merge: bool = False,
        hand_over: bool = False,
    ) -> None:
        self._store = store
        self._merged = store.merged if merge else None
        self._hands_over = hand_over
        self._location = location
        self._name = name
        self._attempt_id = attempt_id
        self._metadata_path = join(store.directory, name.directory, METADATA_FILE_NAME)
        stream = location.create_checkpoint_state_output_stream(CheckpointedStateScope.SHARED)
        super().__init__(name.version, column_families, stream, store.options.compression)

    def abandon(self) -> None:
        super().abandon()
        # Without an id the directory is another attempt's too, which may be about to write there.
        if self._name.id is not None:
            with contextlib.suppress(OSError):
                self._store.files.delete_directory(join(self._store.directory, self._name.directory))

    def publish(
        self,
        parent: IncrementalStateHandle | None,
        parent_attempt_id: str | None,
        base: IncrementalStateHandle | None,
        oldest_base_version: int = 0,
    ) -> Committed:
        """Publish the version.

        Parameters
        ----------
        parent
            The version that the changes apply to; None if they are a full snapshot.
        parent_attempt_id
            The attempt that wrote it.
        base
            A full snapshot of an earlier version to start from, or a run to use instead of the streams that
            it merges, see `PendingSnapshot.finish`.
        oldest_base_version
            The oldest version that other instances retain until this one is committed. A snapshot or run of
            an older version is not used: no metadata refers to it yet, so they may discard it at any moment.

        Raises
        ------
        CheckpointExistsError
            If Spark has committed another attempt at the version.
        CheckpointIOError
            If it cannot be published.
        """
        try:
            stream, inline = self._finish_state()
            # Inline state is part of the metadata object.
            file_size = 0 if stream is None or inline.size else stream.state_size
            version = self._version
            if parent is None:
                handle = start_chain(version, stream, self._rows)
            else:
                handle = extend_chain(parent, version, stream)
            if base is not None:
                handle = self._rebase(handle, base, oldest_base_version)
            encoded_handle = self._encode(handle, None if base is not None else parent)
            encoded = encode_metadata(self._metadata(handle, parent_attempt_id), inline, encoded_handle)
            objects, in_memory = self._publish_metadata(encoded)
            self._store.retention.track(self._name, handle, attempt_id=self._attempt_id)
        except BaseException:
            # The metadata may or may not have been published: a scan finds the streams that it refers to.
            self._store.retention.is_complete = False
            raise
        self._store.newest_handle = (encoded_handle, handle)
        return Committed(
            handle=handle,
            encoded_handle=encoded_handle,
            bytes_written=encoded.size + file_size,
            objects_written=objects + bool(file_size),
            metadata=in_memory,
            merged=self._merged is not None,
            next_directory=self._next_directory(),
        )

    def encode(self, parent_attempt_id: str | None) -> tuple[bytes, IncrementalStateHandle]:
        """Return the metadata and the handle of a full snapshot, which `MergedFiles.write` publishes."""
        stream, inline = self._finish_state()
        handle = start_chain(self._version, stream, self._rows)
        encoded_handle = encode_handle(handle, self._store.context)
        metadata = self._metadata(handle, parent_attempt_id)
        return bytes(encode_metadata(metadata, inline, encoded_handle)), handle

    def _metadata(self, handle: IncrementalStateHandle, parent_attempt_id: str | None) -> CheckpointMetadata:
        return CheckpointMetadata(
            store=self._store.store,
            version=self._version,
            attempt_id=self._attempt_id,
            parent_attempt_id=parent_attempt_id,
            created_ms=time.time_ns() // 1_000_000,
            written_by=__version__,
            host=_HOST,
            column_families=self.column_families,
            handle=handle,
        )

    def _encode(self, handle: IncrementalStateHandle, parent: IncrementalStateHandle | None) -> bytes:
        """Encode a handle; `parent` is the one that it extends, if it does."""
        newest = self._store.newest_handle
        if parent is None or newest is None or newest[1] is not parent:
            return encode_handle(handle, self._store.context)
        return encode_extended_handle(handle, parent, newest[0], self._store.context)

    def _next_directory(self) -> str:
        if self._name.id:
            # The id of the next version is not known ahead.
            return self._store.directory
        return join(self._store.directory, CheckpointName(self._version + 1).directory)

    def _publish_metadata(self, metadata: EncodedObject) -> tuple[int, bytes | None]:
        """Publish the metadata; return the number of objects written.

        The second result is the metadata if it is in no file, else None.
        """
        # In memory, too, an attempt that was cancelled while storage hung must not follow its successor.
        check_cancelled()
        if self._merged is not None:
            if self._hands_over and metadata.size <= LARGEST_HANDED_OVER:
                self._merged.hand_over(self._metadata_path, self._attempt_id, metadata.size)
                return 0, bytes(metadata)
            if not self._hands_over and metadata.size <= LARGEST_MERGED:
                self._merged.add(
                    self._metadata_path, self._attempt_id, metadata, self._store.require_uncommitted
                )
                return 0, None
            self._merged = None
            with self._store.writing(self._name):
                self._store.storage.initialize_location_for_checkpoint(self._name)
        if self._store.merged is not None:
            with self._store.writing(self._name):
                # Metadata in memory is not published: this attempt may be one that the barrier found missing.
                # An earlier attempt without an id must not supersede this one later.
                self._store.merged.settle(self._metadata_path, self._store.require_uncommitted)
                # A crash, or a batch that was rolled back, may have left a part of a merged file. A file of
                # the store's own would not be found beside it.
                if self._store.merged.is_in_doubt(self._metadata_path):
                    self._store.merged.publish_alone(
                        self._metadata_path,
                        self._attempt_id,
                        bytes(metadata),
                        self._store.require_uncommitted,
                    )
                    return 1, None
        assert isinstance(self._location, CheckpointStorageLocation)  # noqa: S101 - see begin_checkpoint
        stream = self._location.create_metadata_output_stream()
        with stream:
            stream.write_whole(metadata.parts, metadata.checksum)
            check_cancelled()
            try:
                published = stream.close_and_finalize_checkpoint()
            except FileExistsError:
                with self._store.writing(self._name):
                    return self._replace_metadata(bytes(metadata)), None
        return 1, published.metadata_handle.as_bytes_if_in_memory()

    def _replace_metadata(self, data: bytes) -> int:
        """Replace the metadata of another attempt at the version; return the number of objects written."""
        # Spark's checkpoint format v1 names a version by its number alone, and a retried batch commits the
        # same number: the last attempt counts. A later version may already build on the other attempt's
        # inline state, so that attempt's metadata is kept under a name of its own.
        store, name, attempt_id, path = self._store, self._name, self._attempt_id, self._metadata_path
        present = store.files.read(path)
        present_id = self._attempt_id_of_whole(present)
        if present_id == attempt_id:
            # A repeated request whose answer was lost: an error if it is in no file.
            store.files.make_durable(path)
            return 1
        _logger.info(
            "%s was committed by attempt %s, which this attempt replaces", store.where(name), present_id
        )
        copies = {
            f"{METADATA_FILE_NAME}.{present_id or f'damaged-{zlib.crc32(present):08x}'}": present,
            f"{METADATA_FILE_NAME}.{attempt_id}": data,
        }
        for copy, content in copies.items():
            copy = join(store.directory, name.directory, copy)
            try:
                store.files.create(copy, content)
            except FileExistsError:
                # An attempt that was killed may have truncated it.
                if store.files.read(copy) == content:
                    store.files.make_durable(copy)
                else:
                    store.files.replace(copy, content)
        # An attempt that was cancelled while storage hung must not replace its successor.
        check_cancelled()
        # As late as possible: Spark may still commit another attempt between this check and the replacement.
        if store.commit_log is not None and store.commit_log.has_committed(name.version):
            raise store.commit_log.already_committed(store.where(name), name.version, present_id, attempt_id)
        store.files.replace(path, data)
        store.retention.is_complete = False
        return 1 + len(copies)

    def _attempt_id_of_whole(self, data: bytes) -> str | None:
        """Return the attempt id of complete metadata; None if an interrupted write truncated it."""
        try:
            decode_metadata(data, self._store.context, self._store.where(self._name))
        except CorruptCheckpointError:
            return None
        except UnsupportedFormatError:
            pass
        return attempt_id_of(data)

    def _rebase(
        self, handle: IncrementalStateHandle, base: IncrementalStateHandle, oldest: int
    ) -> IncrementalStateHandle:
        if base.version < oldest:
            _logger.warning(
                "the snapshot of version %d of %s is not used in version %d: its upload took so long that "
                "other executors may discard it, since they retain versions from %d. Raise "
                "spark.sql.streaming.minBatchesToRetain.",
                base.version, self._store.store, self._version, oldest,
            )  # fmt: skip
        elif is_usable(base, handle) and self._has_snapshot(base):
            return rebase_chain(handle, base)
        # A full commit can overtake an upload in the background.
        self._store.retention.is_complete = False
        return handle

    def _has_snapshot(self, base: IncrementalStateHandle) -> bool:
        """Return True if the files of a snapshot still exist: no metadata refers to them yet."""
        files = self._store.files
        for entry in base:
            stream = entry.state.delegate_state_handle
            if isinstance(stream, FileStateHandle):
                with failing_to("look for", files, stream.path):
                    exists = files.exists(stream.path)
                if not exists:
                    _logger.warning(
                        "the snapshot %s of %s is not used: its file is missing", stream, self._store.store
                    )
                    return False
        return True

    def _finish_state(self) -> tuple[OperatorStreamStateHandle | None, InlineState]:
        """Finish the stream; return its handle, and the state that goes into the metadata."""
        if (in_memory := self._stream.close_if_in_memory()) is not None:
            parts, checksum = in_memory
            inline = InlineState(parts, sum(map(len, parts)), checksum)
        else:
            stream = self._writer.finish()
            data = None if stream is None else stream.as_bytes_if_in_memory()
            if data is None:
                return stream, InlineState()
            inline = InlineState.from_data(data)
        segment = SegmentFileStateHandle(
            self._store.files,
            self._metadata_path,
            INLINE_STATE_OFFSET,
            inline.size,
            self._attempt_id,
            inline.checksum,
        )
        return self._writer.in_stream(segment), inline


def commit_version(
    store: StoreDirectory,
    name: CheckpointName,
    attempt_id: str,
    column_families: tuple[ColumnFamily, ...],
    changes: Iterable[EncodedBatch],
    *,
    parent: IncrementalStateHandle | None,
    parent_attempt_id: str | None,
    base: IncrementalStateHandle | None,
    oldest_base_version: int,
    merge: bool = False,
    hand_over: bool = False,
) -> Committed:
    """Commit a version: write its changes as they arrive, then publish it.

    With `merge` its metadata is added to the query's merged files unless it is large, and the version exists
    once these are published. With `hand_over` another process does that, with `Committed.metadata`. The first
    version of a store has a file of its own, so that its directory exists on object stores.

    See `begin_checkpoint`, `PendingSnapshot.write_encoded` and `PendingCheckpoint.publish` for parameters and
    errors.
    """
    merges = merge or hand_over
    pending = begin_checkpoint(
        store,
        name,
        attempt_id,
        column_families,
        merge=merges and parent_attempt_id is not None,
        hand_over=hand_over,
    )
    pending.write_encoded(changes)
    commit = pending.publish(parent, parent_attempt_id, base, oldest_base_version)
    # The next version is merged, unless it is large.
    return replace(commit, next_directory=None) if merges else commit


def begin_checkpoint(
    store: StoreDirectory,
    name: CheckpointName,
    attempt_id: str,
    column_families: tuple[ColumnFamily, ...],
    *,
    merge: bool = False,
    hand_over: bool = False,
) -> PendingCheckpoint:
    """Begin a checkpoint; `attempt_id` identifies this attempt at the version, 16 hex digits.

    With `merge` its metadata is added to the query's merged files, see `MergedFiles.add`, or with `hand_over`
    as well to those that another process publishes.
    """
    # State inside of metadata may be large.
    merge = merge and store.merged is not None and store.options.storage == "filesystem"
    with store.writing(name):
        store.initialise()
        location: CheckpointStreamFactory
        if merge:
            default = CheckpointStorageLocationReference.default()
            location = store.storage.resolve_checkpoint_storage_location(name, default)
        else:
            location = store.storage.initialize_location_for_checkpoint(name)
            require_no_link(store.files, store.directory, name.directory)
    return PendingCheckpoint(
        store, location, name, attempt_id, column_families, merge=merge, hand_over=hand_over
    )


def begin_snapshot(
    store: StoreDirectory, version: int, column_families: tuple[ColumnFamily, ...], since: int | None = None
) -> PendingSnapshot:
    """Begin a full snapshot of an existing version, to be the base of a later commit.

    With `since` it is a run: the net changes since that version, to replace the streams that it merges.
    """
    name = CheckpointName(version)
    with store.writing(name):
        store.initialise()
    default = CheckpointStorageLocationReference.default()
    factory = store.storage.resolve_checkpoint_storage_location(name, default)
    return PendingSnapshot(
        version,
        column_families,
        factory.create_checkpoint_state_output_stream(CheckpointedStateScope.SHARED),
        store.options.compression,
        since,
    )

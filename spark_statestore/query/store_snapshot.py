"""The content of a store at a version, read from a checkpoint and written as a full snapshot."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from spark_statestore.errors import (
    CheckpointIOError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    StateStoreError,
    StorageAccessError,
)
from spark_statestore.files import join, parent_of
from spark_statestore.files.failures import failing_to
from spark_statestore.formats.change_batches import CHANGE_SCHEMA
from spark_statestore.query.query_checkpoint import QueryCheckpoint, StoreVersion
from spark_statestore.storage import METADATA_FILE_NAME, CheckpointName
from spark_statestore.storage.file_handles import FileStateHandle, SegmentFileStateHandle, discard_file
from spark_statestore.storage.incremental_handle import IncrementalStateHandle
from spark_statestore.store.bounded_read import changes_in_parts
from spark_statestore.store.changelog import MERGE, PUT
from spark_statestore.store.changelog_apply import apply_changelog, byte_sizes, numbered, slices
from spark_statestore.store.commit import PendingCheckpoint, begin_checkpoint
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.healing import readable_metadata
from spark_statestore.store.metadata import CheckpointMetadata, ColumnFamily, StoreId

_BATCH_ROWS = 65_536

# Bytes of the rows in a batch, which is one message.
_BATCH_BYTES = 1 << 26


@dataclass(frozen=True)
class StoreSnapshot:
    """The content of a store at a version.

    Attributes
    ----------
    column_families
        Its column families. Their numbers of rows and values are for information only:
        `write_store` counts.
    rows
        Returns an iterator over all rows: the name of a column family and a table of `ROW_SCHEMA`. A column
        family has any number of tables; the values of a key are in one table, in their order.
    parent_attempt_id
        The attempt that wrote the version before; None if it is not known, or if there is none.
    """

    store: StoreId
    column_families: tuple[ColumnFamily, ...]
    rows: Callable[[], Iterator[tuple[str, pa.Table]]]
    parent_attempt_id: str | None = None


def read_store(
    checkpoint: QueryCheckpoint, version: StoreVersion, memory: int | None = None
) -> StoreSnapshot:
    """Read a store at a version. Rows are read and verified on iteration, which may raise.

    `memory` limits the bytes of rows held, approximately: beyond it, the files are read several times, each
    time for other keys.
    """
    versions = checkpoint.open(version.store)
    metadata = readable_metadata(versions, version.name, version.attempt_id)

    def rows() -> Iterator[tuple[str, pa.Table]]:
        return _rows(versions, version.name, metadata, memory)

    return StoreSnapshot(version.store, metadata.column_families, rows, metadata.parent_attempt_id)


def require_streams(checkpoint: QueryCheckpoint, version: StoreVersion) -> CheckpointMetadata:
    """Return the metadata of a store's version if every stream that it references exists."""
    versions = checkpoint.open(version.store)
    metadata = versions.metadata(version.name, version.attempt_id)
    for entry in metadata.handle:
        stream = entry.state.delegate_state_handle
        try:
            if isinstance(stream, FileStateHandle):
                stream.files.size(stream.path)
            else:
                # It is inline in another version's metadata, perhaps of a replaced attempt.
                stream.open_input_stream().close()
        except FileNotFoundError as error:
            raise CorruptCheckpointError(
                f"{versions.where(version.name)} needs the state stream {stream.stream_state_handle_id}, "
                "which is missing. Use another batch; nothing was changed."
            ) from error
        except StorageAccessError:
            raise
        except OSError as error:
            raise CheckpointIOError(
                f"{versions.where(version.name)}: {stream.stream_state_handle_id} cannot be accessed: "
                f"{error}. Nothing was changed; try again."
            ) from error
    return metadata


def make_durable(checkpoint: QueryCheckpoint, version: StoreVersion, metadata: CheckpointMetadata) -> None:
    """Fsync a version in local files, for queries that run without the option ``fsync``."""
    store = checkpoint.open(version.store)
    if not store.is_local:
        # Object stores acknowledge durable objects only.
        return
    files, directory = checkpoint.open_state(fsync=True)
    where = join(directory, *version.store.directories, version.name.directory, METADATA_FILE_NAME)
    streams = [entry.state.delegate_state_handle for entry in metadata.handle]
    # A replaced attempt is kept beside the metadata, with its id as the suffix.
    within = {(where, metadata.attempt_id)} | {
        (stream.path, stream.attempt_id) for stream in streams if isinstance(stream, SegmentFileStateHandle)
    }
    with failing_to("look for", files, where):
        paths = [
            path
            for name, attempt_id in within
            for path in (name, f"{name}.{attempt_id}")
            if files.exists(path)
        ]
    paths += [stream.path for stream in streams if isinstance(stream, FileStateHandle)]
    for path in paths:
        with failing_to("sync", files, path):
            place = files.locate(path)
            files.make_directory(parent_of(path if place is None else place[0]))
            files.make_durable(path)


def write_store(
    versions: StoreDirectory,
    name: CheckpointName,
    attempt_id: str,
    content: StoreSnapshot,
    parent_attempt_id: str | None = None,
) -> None:
    """Write the content of a store as one full snapshot; on failure the version does not exist.

    `parent_attempt_id` is the attempt at the version before, None where that is not in the checkpoint.
    """
    with _pending_attempt(versions, name, attempt_id, content) as pending:
        pending.publish(None, parent_attempt_id, None)


@dataclass(frozen=True, slots=True)
class EncodedStore:
    """The content of a store as one full snapshot, whose metadata is not published.

    Attributes
    ----------
    path
        Path of the metadata.
    """

    versions: StoreDirectory
    path: str
    attempt_id: str
    metadata: bytes
    handle: IncrementalStateHandle

    def missing_file(self) -> str | None:
        """Return the URL of a stream that does not exist, None if all do."""
        return _missing_stream(self.versions, self.handle)

    def discard(self) -> None:
        """Remove its streams; what is left of them in a failing storage is an orphan."""
        with contextlib.suppress(StateStoreError, OSError):
            for path in _files_of(self.handle):
                discard_file(self.versions.files, path)


def encode_store(
    versions: StoreDirectory,
    name: CheckpointName,
    attempt_id: str,
    content: StoreSnapshot,
    parent_attempt_id: str | None,
) -> EncodedStore:
    """Write the streams of a full snapshot, and return its metadata, for `MergedFiles.write`."""
    with _pending_attempt(versions, name, attempt_id, content, merge=True) as pending:
        metadata, handle = pending.encode(parent_attempt_id)
    return EncodedStore(versions, versions.metadata_path(name), attempt_id, metadata, handle)


@contextlib.contextmanager
def _pending_attempt(
    versions: StoreDirectory,
    name: CheckpointName,
    attempt_id: str,
    content: StoreSnapshot,
    *,
    merge: bool = False,
) -> Iterator[PendingCheckpoint]:
    """Write all rows of a store; abandon them if that or the body of the context fails."""
    positions = {state.name: position for position, state in enumerate(content.column_families)}
    keys = [0] * len(positions)
    values = [0] * len(positions)
    pending = begin_checkpoint(versions, name, attempt_id, content.column_families, merge=merge)
    try:
        for state, table in content.rows():
            position = positions[state]
            several = content.column_families[position].has_multiple_values
            op = _ops(table) if several else pa.repeat(pa.scalar(PUT, pa.uint8()), table.num_rows)
            changes = pa.table([op, *table.columns], schema=CHANGE_SCHEMA)
            sizes = byte_sizes(table["key"]) + byte_sizes(table["value"])
            for start, end in slices(sizes, _BATCH_ROWS, _BATCH_BYTES):
                # Combine the small batches of many versions.
                for batch in changes.slice(start, end - start).combine_chunks().to_batches():
                    pending.write(position, batch.serialize())
            keys[position] += _count(op)
            values[position] += table.num_rows
        pending.column_families = tuple(
            replace(
                state, rows=keys[position], values=values[position] if state.has_multiple_values else None
            )
            for position, state in enumerate(content.column_families)
        )
        yield pending
    except BaseException:
        pending.abandon()
        raise


def missing_file(versions: StoreDirectory, name: CheckpointName) -> str | None:
    """Return the URL of a file of an attempt, its metadata or a stream, that does not exist; else None."""
    try:
        handle = versions.metadata(name).handle
    except CheckpointNotFoundError:
        return versions.files.url(versions.metadata_path(name))
    return _missing_stream(versions, handle)


def discard_store(versions: StoreDirectory, name: CheckpointName) -> None:
    """Remove an attempt that nothing names; what is left of it in a failing storage is an orphan."""
    with contextlib.suppress(StateStoreError, OSError):
        metadata = versions.metadata(name)
        for path in (versions.metadata_path(name), *_files_of(metadata.handle)):
            discard_file(versions.files, path)


def _missing_stream(versions: StoreDirectory, handle: IncrementalStateHandle) -> str | None:
    files = versions.files
    with failing_to("look for streams in", files, versions.directory):
        return next((files.url(path) for path in _files_of(handle) if not files.exists(path)), None)


def _files_of(handle: IncrementalStateHandle) -> Iterator[str]:
    """Yield the paths of the files in ``shared/`` that a chain uses."""
    for entry in handle:
        if isinstance(stream := entry.state.delegate_state_handle, FileStateHandle):
            yield stream.path


def _rows(
    versions: StoreDirectory, name: CheckpointName, metadata: CheckpointMetadata, memory: int | None
) -> Iterator[tuple[str, pa.Table]]:
    counts = {state.name: 0 for state in metadata.column_families}
    for changes, is_whole in changes_in_parts(versions, name, metadata, counts.keys(), memory):
        for described in metadata.column_families:
            table = apply_changelog(changes.pop(described.name))
            counts[described.name] += table.num_rows
            if is_whole:
                _check(versions, name, described, table.num_rows)
            if table.num_rows:
                yield described.name, table
    for described in metadata.column_families:
        _check(versions, name, described, counts[described.name])


def _check(versions: StoreDirectory, name: CheckpointName, state: ColumnFamily, rows: int) -> None:
    if rows != state.stored_rows:
        raise CorruptCheckpointError(
            f"{versions.where(name)} has {rows} values in the state {state.name!r}, but {state.stored_rows} "
            "in its metadata. "
            "Use an earlier batch, and please report this error; nothing was changed."
        )


def _ops(table: pa.Table) -> pa.Array:
    """Return record types: a put for the first value of each key, a merge for the others."""
    import numpy as np

    ops = np.full(table.num_rows, MERGE, np.uint8)
    keys, _ = numbered(table["key"])
    ops[np.unique(keys, return_index=True)[1]] = PUT
    return pa.array(ops)


def _count(op: pa.Array) -> int:
    import pyarrow.compute as pc

    return int(pc.sum(pc.equal(op, PUT)).as_py() or 0)

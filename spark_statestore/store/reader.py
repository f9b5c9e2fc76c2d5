"""Reading a version's streams: decoded, raw, or as ranges of local files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from spark_statestore.errors import (
    CheckpointError,
    CheckpointIOError,
    CorruptCheckpointError,
    restore_from_backup,
)
from spark_statestore.formats.metadata import INLINE_STATE_OFFSET, attempt_id_of
from spark_statestore.storage import CheckpointName
from spark_statestore.storage.file_handles import FileStateHandle, SegmentFileStateHandle
from spark_statestore.storage.incremental_handle import ChainEntry
from spark_statestore.storage.stream_handles import StreamStateHandle
from spark_statestore.store.changelog import parts_of, read_changes, read_messages
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.metadata import CheckpointMetadata


def read_version(
    store: StoreDirectory, name: CheckpointName, metadata: CheckpointMetadata
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield a version's changes with their column families, in the order in which they apply.

    Changes of column families that were removed later are omitted. The data is verified only once the
    iterator has ended, see `read_changes`.
    """
    where = f"{store.store}, {name}"
    for entry in metadata.handle:
        with _reading(store, name, entry):
            for column_family, batch in read_changes(entry.state, where):
                if _is_current(metadata, entry, column_family):
                    yield column_family, batch


def is_read_newest_first(metadata: CheckpointMetadata) -> bool:
    """Return True if a version may be read newest stream first.

    It may if each change of a key supersedes all older ones.
    """
    return not any(family.has_multiple_values for family in metadata.column_families)


def stored_messages(
    store: StoreDirectory, name: CheckpointName, metadata: CheckpointMetadata
) -> Iterator[tuple[str, bytes] | None]:
    """Yield the raw messages of a version, without decoding them; otherwise as `read_version`.

    Each stream is followed by None. The newest stream is first if `is_read_newest_first`.
    """
    where = f"{store.store}, {name}"
    for entry in _in_load_order(metadata):
        with _reading(store, name, entry):
            for part, data in read_messages(entry.state, where):
                if _is_current(metadata, entry, part.column_family):
                    yield part.column_family, data
        yield None


def local_streams(
    store: StoreDirectory, name: CheckpointName, metadata: CheckpointMetadata
) -> list[dict[str, Any]] | None:
    """Return the file ranges of a version's streams, for another process of this machine to read and verify.

    They are in the order of `stored_messages`; docs/format.md lists the fields. None if a stream is not in a
    local file, or its checksum is not known.
    """
    if not store.is_local:
        return None
    where = f"{store.store}, {name}"
    positions = {family.name: i for i, family in enumerate(metadata.column_families)}
    streams = []
    for entry in _in_load_order(metadata):
        stream = entry.state.delegate_state_handle
        if entry.state.checksum is None or entry.state.state_size < 0:
            return None
        with _reading(store, name, entry):
            location = _locate(stream)
        if location is None:
            return None
        path, start = location
        parts = []
        for part in parts_of(entry.state, where):
            is_current = _is_current(metadata, entry, part.column_family)
            parts.append([positions[part.column_family] if is_current else -1, part.end - part.start])
        streams.append(
            {
                "path": path,
                "start": start,
                "checksum": entry.state.checksum,
                "parts": parts,
                "isWhole": isinstance(stream, FileStateHandle),
            }
        )
    return streams


def _in_load_order(metadata: CheckpointMetadata) -> Sequence[ChainEntry]:
    entries = metadata.handle.entries
    return entries[::-1] if is_read_newest_first(metadata) else entries


def _is_current(metadata: CheckpointMetadata, entry: ChainEntry, column_family: str) -> bool:
    return any(
        family.name == column_family and family.created_at_version <= entry.version
        for family in metadata.column_families
    )


def _locate(stream: StreamStateHandle) -> tuple[str, int] | None:
    """Return the file and the first byte of a stream; None if it is in no file."""
    if isinstance(stream, FileStateHandle):
        return stream.path, 0
    if not isinstance(stream, SegmentFileStateHandle):
        return None
    for path in (stream.path, f"{stream.path}.{stream.attempt_id}"):
        try:
            header = stream.files.read(path, 0, INLINE_STATE_OFFSET)
        except FileNotFoundError:
            continue
        if attempt_id_of(header) == stream.attempt_id:
            place = stream.files.locate(path)
            return None if place is None else (place[0], place[1] + stream.start)
    raise FileNotFoundError(stream.files.url(stream.path))


@contextmanager
def _reading(store: StoreDirectory, name: CheckpointName, entry: ChainEntry) -> Iterator[None]:
    """Convert errors of reading a stream into errors that name the version."""
    try:
        yield
    except FileNotFoundError as error:
        raise CorruptCheckpointError(
            f"{store.where(name)} needs the state stream {entry.state.stream_state_handle_id}, which is "
            "missing. " + restore_from_backup()
        ) from error
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointIOError(
            f"{store.where(name)}: {entry.state.stream_state_handle_id} cannot be read: {error}. Check that "
            "the storage is reachable; Spark retries the batch, nothing was changed."
        ) from error

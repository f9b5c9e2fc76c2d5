"""Reading a version's streams: decoded, raw, or as ranges of local files."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import pyarrow as pa

from spark_statestore.errors import (
    CheckpointError,
    CheckpointIOError,
    CorruptCheckpointError,
    restore_from_backup,
)
from spark_statestore.files.request_context import check_cancelled, heartbeat
from spark_statestore.formats.metadata import INLINE_STATE_OFFSET, attempt_id_of
from spark_statestore.storage import CheckpointName
from spark_statestore.storage.file_handles import FileStateHandle, SegmentFileStateHandle
from spark_statestore.storage.incremental_handle import ChainEntry, IncrementalStateHandle
from spark_statestore.storage.stream_handles import StreamStateHandle
from spark_statestore.store.changelog import parts_of, read_changes, read_messages
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.metadata import CheckpointMetadata

# A smaller snapshot inside of metadata has no copy: it is read with the metadata.
_LEAST_BYTES: Final = 256 << 10


def read_version(
    store: StoreDirectory, name: CheckpointName, metadata: CheckpointMetadata
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield a version's changes with their column families, in the order in which they apply.

    Changes of column families that were removed later are omitted. The data is verified only once the
    iterator has ended, see `read_changes`.
    """
    for entry in metadata.handle:
        for column_family, batch in _changes_of(store, name, entry):
            if _is_current(metadata, entry, column_family):
                yield column_family, batch


def damaged_streams(
    store: StoreDirectory, name: CheckpointName, metadata: CheckpointMetadata
) -> dict[ChainEntry, CorruptCheckpointError]:
    """Read all streams of a version; return those that are missing or damaged, with their errors."""
    return {entry: error for entry in metadata.handle if (error := stream_error(store, name, entry))}


def stream_error(
    store: StoreDirectory, name: CheckpointName, entry: ChainEntry
) -> CorruptCheckpointError | None:
    """Read a stream; return its error if it is missing or damaged, None if it is intact.

    Other failures of the storage are raised: they do not show that a stream is damaged.

    Raises
    ------
    ConnectionAbortedError
        If this thread's request is cancelled, or its client has disconnected.
    """
    try:
        for _ in _changes_of(store, name, entry):
            check_cancelled()
            heartbeat()
    except CorruptCheckpointError as error:
        return error
    return None


def is_read_newest_first(metadata: CheckpointMetadata) -> bool:
    """Return True if a version may be read newest stream first.

    It may if each change of a key supersedes all older ones.
    """
    return not any(family.has_multiple_values for family in metadata.column_families)


def in_load_order(metadata: CheckpointMetadata) -> Sequence[ChainEntry]:
    """Return the streams of a version: newest first if `is_read_newest_first`, else as they apply."""
    entries = metadata.handle.entries
    return entries[::-1] if is_read_newest_first(metadata) else entries


def stored_messages(
    store: StoreDirectory,
    name: CheckpointName,
    metadata: CheckpointMetadata,
    entries: Iterable[ChainEntry],
) -> Iterator[tuple[str, bytes] | None]:
    """Yield the raw messages of these streams of a version, without decoding them.

    Each stream is followed by None. Otherwise as `read_version`.
    """
    where = f"{store.store}, {name}"
    for entry in entries:
        with _reading(store, name, entry):
            for part, data in read_messages(entry.state, where):
                if _is_current(metadata, entry, part.column_family):
                    yield part.column_family, data
        yield None


def local_streams(
    store: StoreDirectory,
    name: CheckpointName,
    metadata: CheckpointMetadata,
    entries: Iterable[ChainEntry],
) -> list[dict[str, Any]] | None:
    """Return the file ranges of streams of a version, for another process of this machine to read and verify.

    docs/format.md lists the fields. None if a stream is not in a local file, or its checksum is not known.
    """
    if not store.is_local:
        return None
    where = f"{store.store}, {name}"
    positions = {family.name: i for i, family in enumerate(metadata.column_families)}
    streams = []
    for entry in entries:
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


def _changes_of(
    store: StoreDirectory, name: CheckpointName, entry: ChainEntry
) -> Iterator[tuple[str, pa.RecordBatch]]:
    with _reading(store, name, entry):
        yield from read_changes(entry.state, f"{store.store}, {name}")


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


class LoadedStreams(NamedTuple):
    """The streams that a load reads.

    Attributes
    ----------
    entries
        The streams, in the order in which they are read.
    are_files
        Whether they are in local files.
    answer
        Fields of the answer to the JVM, see docs/format.md: the order, the files, and the local copy that
        stands for the full snapshot, or that is wanted.
    """

    entries: Sequence[ChainEntry]
    are_files: bool
    answer: dict[str, Any]


def streams_to_load(
    store: StoreDirectory,
    name: CheckpointName,
    metadata: CheckpointMetadata,
    use_copies: bool,
    later: Sequence[ChainEntry] | None = None,
) -> LoadedStreams:
    """Return the streams of a version for the JVM; with `use_copies` it can use and write local copies.

    Of a version that the JVM has in part, `later` are the streams that it lacks.
    """
    entries: Sequence[ChainEntry] = metadata.handle.entries
    answer: dict[str, Any] = {"newestFirst": False}
    local = store.local_state
    if later is not None:
        entries, answer["isLater"] = later, True
    elif use_copies and local is not None and (base := _name_of_base(metadata.handle)):
        if copy := local.retrieve_local_state(base):
            entries = entries[1:]
            answer["localCopy"] = copy.to_json()
        elif new_copy := local.store_local_state(
            base, metadata.handle.base_size, metadata.handle.base_version
        ):
            # The copy is made of the tables when they have the rows of the full snapshot alone.
            answer["wantedCopy"] = new_copy.to_json()
    if len(answer) == 1:
        answer["newestFirst"] = is_read_newest_first(metadata)
        entries = in_load_order(metadata)
    files = local_streams(store, name, metadata, entries)
    if files is not None:
        answer["files"] = files
    answer["bytesRead"] = sum(entry.state.state_size for entry in entries)
    return LoadedStreams(entries, files is not None, answer)


def wanted_copy(store: StoreDirectory, snapshot: IncrementalStateHandle) -> dict[str, Any]:
    """Return the field of an answer that asks for a local copy of a snapshot; empty if it does not."""
    if store.local_state is None or (name := _name_of_base(snapshot)) is None:
        return {}
    oldest = 0 if store.newest_handle is None else store.newest_handle[1].base_version
    new_copy = store.local_state.store_local_state(name, snapshot.base_size, oldest)
    return {} if new_copy is None else {"wantedCopy": new_copy.to_json()}


def _name_of_base(handle: IncrementalStateHandle) -> str | None:
    """Return the name of a copy of a chain's full snapshot; None if there is none, or it is small."""
    if not handle.entries or not (base := handle.entries[0]).full:
        return None
    stream = base.state.delegate_state_handle
    if isinstance(stream, FileStateHandle):
        return posixpath.basename(stream.path)
    if isinstance(stream, SegmentFileStateHandle) and stream.state_size >= _LEAST_BYTES:
        return f"{base.version}-{stream.attempt_id}"
    return None

"""What a version is made of, read as rows, as messages as they are stored, or by whoever finds the files himself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from spark_statestore.checkpoint.files import LocalFileSystem
from spark_statestore.checkpoint.metadata.format import INLINE_STATE_OFFSET
from spark_statestore.checkpoint.metadata.store import CheckpointMetadata
from spark_statestore.checkpoint.storage import CheckpointName
from spark_statestore.errors import CheckpointError, CheckpointIOError, CorruptCheckpointError
from spark_statestore.state.changes import parts_of, read_changes, read_messages
from spark_statestore.state.handles import FileStateHandle, SegmentFileStateHandle
from spark_statestore.state.handles.base import StreamStateHandle
from spark_statestore.state.handles.incremental import ChainEntry
from spark_statestore.state.handles.operator import OperatorStreamStateHandle
from spark_statestore.state.handles.owner import owner_of

if TYPE_CHECKING:
    from spark_statestore.checkpoint.versions import VersionStore

__all__ = ["local_streams", "read_version", "starts_with_newest", "stored_messages"]

_T = TypeVar("_T")


def read_version(
    store: VersionStore, name: CheckpointName, metadata: CheckpointMetadata
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The changes that make up a version, in the order in which they apply.

    Changes of states that were removed since are left out. Sound only once the iterator has
    ended, see `read_changes`.

    Raises
    ------
    CheckpointIOError, CorruptCheckpointError, UnsupportedFormatError
        If a stream cannot be read.
    """
    where = f"{store.store}, {name}"
    for entry in metadata.handle:
        for state, batch in _reading(store, name, entry, lambda of: read_changes(of, where)):
            if _counts(metadata, entry, state):
                yield state, batch


def starts_with_newest(metadata: CheckpointMetadata) -> bool:
    """Whether streams may be taken with the newest first: a change of a key then voids all older ones of it."""
    return not any(state.has_multiple_values for state in metadata.states)


def stored_messages(
    store: VersionStore, name: CheckpointName, metadata: CheckpointMetadata
) -> Iterator[tuple[str, bytes] | None]:
    """As `read_version`, but the messages as they are stored, whose content is not looked at.

    Each stream is followed by None. Streams come with the newest first if `starts_with_newest`.
    """
    where = f"{store.store}, {name}"
    chain = list(metadata.handle)
    for entry in reversed(chain) if starts_with_newest(metadata) else chain:
        for part, data in _reading(store, name, entry, lambda of: read_messages(of, where)):
            if _counts(metadata, entry, part.state):
                yield part.state, data
        yield None


def local_streams(
    store: VersionStore, name: CheckpointName, metadata: CheckpointMetadata
) -> list[dict[str, Any]] | None:
    """Where the streams of a version lie, for another process of this machine to read and check.

    Returns
    -------
    list of dict or None
        In the order of `stored_messages`; docs/format.md lists what is said. None where streams are not
        in local files, or a checksum is not known.

    Raises
    ------
    CheckpointIOError, CorruptCheckpointError
        If a file cannot be found.
    """
    if type(store.files) is not LocalFileSystem:
        return None
    where = f"{store.store}, {name}"
    positions = {state.name: i for i, state in enumerate(metadata.states)}
    streams = []
    chain = list(metadata.handle)
    for entry in reversed(chain) if starts_with_newest(metadata) else chain:
        if entry.state.checksum is None or entry.state.state_size < 0:
            return None
        for place in _reading(store, name, entry, _place):
            if place is None:
                return None
            path, start = place
            parts = [
                [positions[part.state] if _counts(metadata, entry, part.state) else -1, part.end - part.start]
                for part in parts_of(entry.state, where)
            ]
            stream = {"path": path, "start": start, "checksum": entry.state.checksum, "parts": parts}
            streams.append(
                stream | {"isWhole": isinstance(entry.state.delegate_state_handle, FileStateHandle)}
            )
    return streams


def _counts(metadata: CheckpointMetadata, entry: ChainEntry, state: str) -> bool:
    return any(known.name == state and known.since <= entry.version for known in metadata.states)


def _place(state: OperatorStreamStateHandle) -> Iterator[tuple[str, int] | None]:
    """The file and the first byte of a stream."""
    stream: StreamStateHandle = state.delegate_state_handle
    if isinstance(stream, FileStateHandle):
        yield stream.path, 0
    elif isinstance(stream, SegmentFileStateHandle):
        for path in (stream.path, f"{stream.path}.{stream.owner}"):
            try:
                start = stream.files.read(path, 0, INLINE_STATE_OFFSET)
            except FileNotFoundError:
                continue
            if owner_of(start) == stream.owner:
                yield path, stream.start
                return
        raise FileNotFoundError(stream.files.url(stream.path))
    else:
        yield None


def _reading(
    store: VersionStore,
    name: CheckpointName,
    entry: ChainEntry,
    read: Callable[[OperatorStreamStateHandle], Iterator[_T]],
) -> Iterator[_T]:
    """What is read of a stream; what fails says what it was needed for."""
    try:
        yield from read(entry.state)
    except FileNotFoundError as error:
        raise CorruptCheckpointError(
            f"{store.where(name)} needs the state stream {entry.state.stream_state_handle_id}, which is "
            "missing. Copy it back from a backup, or start from an earlier version; nothing was changed."
        ) from error
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointIOError(
            f"{store.where(name)}: {entry.state.stream_state_handle_id} cannot be read: {error}. The batch fails and is "
            "run again. Check that the storage can be reached; nothing was changed."
        ) from error

"""Streams of changes: Arrow record batches of puts, removals and appends, in the order they apply.

A stream is a 16-byte header and then record batch messages, each of one named state. Their layout
is fixed by the format version. docs/format.md shows the layout.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final

import pyarrow as pa

from spark_statestore.errors import CorruptCheckpointError, UnsupportedFormatError
from spark_statestore.state.change_batches import CHANGE_SCHEMA, pack, read_change_batch, schema_bytes
from spark_statestore.state.handles.operator import OperatorStreamStateHandle, StateMetaInfo

if TYPE_CHECKING:
    from spark_statestore.checkpoint.streams.base import CheckpointStateOutputStream
    from spark_statestore.state.handles.base import StreamStateHandle

__all__ = [
    "APPEND",
    "CHANGE_FORMAT_VERSION",
    "CHANGE_SCHEMA",
    "PUT",
    "REMOVE",
    "ChangeStreamWriter",
    "StreamPart",
    "parts_of",
    "read_changes",
    "read_messages",
]

CHANGE_FORMAT_VERSION: Final = 3

PUT: Final = 0
"""The row replaces what its key had, all values of it."""

REMOVE: Final = 1
"""The key is removed with all its values; the value is null."""

APPEND: Final = 2
"""The value comes after those that its key has. Since format version 2."""

_MAGIC: Final = b"\x89SSTS\r\n\x1a"
_HEADER: Final = struct.Struct("<8sHHI")

# Compressing less than this costs more than it saves.
_SMALLEST_COMPRESSED: Final = 1024

_AT_ONCE: Final = 64 << 20


def compress(message: pa.Buffer, codec: str | None) -> pa.Buffer:
    """A record batch message with its buffers compressed, packed where it can be; or as it is if that saves nothing.

    Raises
    ------
    pyarrow.ArrowException
        If the message is no batch of changes.
    """
    batch = read_change_batch(message, full=True)
    if codec is None or message.size < _SMALLEST_COMPRESSED:
        return message
    batch = pack(batch)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    written = sink.getvalue()
    # Without the schema before the batch and the end marker after it.
    before = schema_bytes(batch.schema)
    compressed = written.slice(before, written.size - before - 8)
    return compressed if compressed.size < message.size else message


class ChangeStreamWriter:
    """Writes batches of changes to a checkpoint stream, noting where each lies.

    Nothing is written before the first batch, so that a stream without changes stays empty and
    gives no handle.

    Parameters
    ----------
    out
        The stream.
    codec
        ``lz4``, ``zstd`` or None.
    """

    def __init__(self, out: CheckpointStateOutputStream, codec: str | None) -> None:
        self._out = out
        self._codec = codec
        self._offsets: dict[str, list[int]] = {}

    def write(self, state: str, message: pa.Buffer) -> None:
        """Append one batch of a named state."""
        compressed = compress(message, self._codec)
        self._begin(state)
        self._out.write(compressed)

    def write_sealed(self, state: str, message: pa.Buffer, checksum: int) -> None:
        """Append one batch as it is, which its writer has compressed and summed up.

        Raises
        ------
        pyarrow.ArrowException
            If the message is no batch.
        """
        _require_batch(message)
        self._begin(state)
        self._out.write_summed(memoryview(message), checksum)

    def finish(self) -> OperatorStreamStateHandle | None:
        """Finish the stream; None if no batch was written."""
        stream = self._out.close_and_get_handle()
        return None if stream is None else self.in_stream(stream)

    def in_stream(self, stream: StreamStateHandle) -> OperatorStreamStateHandle:
        """The handle to the states, given the one to the stream."""
        return OperatorStreamStateHandle(
            state_name_to_partition_offsets={
                name: StateMetaInfo(tuple(offsets)) for name, offsets in self._offsets.items()
            },
            delegate_state_handle=stream,
        )

    def _begin(self, state: str) -> None:
        if not self._offsets:
            self._out.write(_HEADER.pack(_MAGIC, CHANGE_FORMAT_VERSION, 0, 0))
        self._offsets.setdefault(state, []).append(self._out.get_pos())


def _require_batch(message: pa.Buffer) -> None:
    # Values are looked at when they are read; here it is enough that the message is whole.
    try:
        found = pa.ipc.read_message(message)
    except (EOFError, OSError) as error:
        raise pa.ArrowInvalid(str(error)) from error
    if found.type != "record batch":
        raise pa.ArrowInvalid(f"a message of type {found.type}")


def read_changes(handle: OperatorStreamStateHandle, where: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Read a stream of changes, batch by batch, in the order in which they apply.

    The checksum covers the whole stream, so it is known to be sound only when the iterator has
    ended: use nothing of it before.

    Parameters
    ----------
    where
        What the stream belongs to, for messages.

    Yields
    ------
    tuple of str and pyarrow.RecordBatch
        The named state and a batch with the schema `CHANGE_SCHEMA`.

    Raises
    ------
    CorruptCheckpointError
        If the stream is not what was written.
    UnsupportedFormatError
        If a newer release wrote it.
    FileNotFoundError
        If it is gone.
    """
    for part, data in read_messages(handle, where):
        try:
            batch = read_change_batch(pa.py_buffer(data), full=True)
        except pa.ArrowException as error:
            raise _corrupt(where, handle, f"has an unreadable batch at byte {part.start}: {error}") from error
        yield part.state, batch


@dataclass(frozen=True, slots=True)
class StreamPart:
    """Where one record batch message lies in its stream.

    Attributes
    ----------
    state
        The named state that it changes.
    start, end
        Its first byte, and the one behind its last.
    """

    state: str
    start: int
    end: int


def parts_of(handle: OperatorStreamStateHandle, where: str) -> list[StreamPart]:
    """The messages of a stream of changes, in their order; they fill it without gaps.

    Raises
    ------
    CorruptCheckpointError
        If the handle cannot be that of such a stream.
    """
    starts = sorted(
        (offset, name)
        for name, meta in handle.state_name_to_partition_offsets.items()
        for offset in meta.offsets
    )
    if not starts or starts[0][0] != _HEADER.size:
        raise _corrupt(where, handle, "has no batch at its start")
    ends = [offset for offset, _ in starts[1:]] + [handle.state_size]
    if any(start >= end for (start, _), end in zip(starts, ends, strict=True)):
        raise _corrupt(where, handle, "has a batch without bytes")
    return [StreamPart(name, start, end) for (start, name), end in zip(starts, ends, strict=True)]


def read_messages(handle: OperatorStreamStateHandle, where: str) -> Iterator[tuple[StreamPart, bytes]]:
    """Read a stream of changes as it is stored; what is in its messages is not looked at.

    Raises and is sound as `read_changes`.
    """
    parts = parts_of(handle, where)
    with handle.open_input_stream() as stream:
        header = stream.read(_HEADER.size)
        checksum = zlib.crc32(header)
        try:
            _check_header(header, where, handle)
        except UnsupportedFormatError:
            if handle.checksum not in (None, zlib.crc32(stream.read(), checksum)):
                raise _corrupt(where, handle, "does not match its checksum") from None
            raise
        for part in parts:
            data = _read(stream, part.end - part.start)
            checksum = zlib.crc32(data, checksum)
            if len(data) != part.end - part.start:
                raise _corrupt(where, handle, f"ends after {part.start + len(data)} bytes")
            yield part, data
        if stream.read(1):
            raise _corrupt(where, handle, f"goes on after its {handle.state_size} bytes")
    if handle.checksum is not None and checksum != handle.checksum:
        raise _corrupt(where, handle, "does not match its checksum")


def _read(stream: BinaryIO, size: int) -> bytes:
    """So many bytes, or fewer at the end. A damaged handle may ask for any number: memory is taken as they come."""
    if size <= _AT_ONCE:
        return stream.read(size)
    pieces = []
    while size > 0 and (piece := stream.read(min(size, _AT_ONCE))):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _check_header(header: bytes, where: str, handle: OperatorStreamStateHandle) -> None:
    if len(header) < _HEADER.size or header[: len(_MAGIC)] != _MAGIC:
        raise _corrupt(where, handle, "does not start as a stream of changes does")
    version = _HEADER.unpack(header)[1]
    if version > CHANGE_FORMAT_VERSION:
        raise UnsupportedFormatError(
            f"{where}: {handle.stream_state_handle_id} has stream format {version}, but this release reads formats "
            f"up to {CHANGE_FORMAT_VERSION}. Upgrade spark-statestore to the release that wrote it; nothing was "
            "changed."
        )


def _corrupt(where: str, handle: OperatorStreamStateHandle, what: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"{where}: the state stream {handle.stream_state_handle_id} {what}. It is damaged; copy it back from a "
        "backup, or start from an earlier version. Nothing was changed."
    )

"""Changelog streams contain Arrow record batches of puts, deletes and merges in order of application.

A stream is a 16-byte header and record batch messages, each of one column family. The format version fixes
their layout; see docs/format.md.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final

import pyarrow as pa

from spark_statestore.errors import CorruptCheckpointError, ProtocolError, UnsupportedFormatError
from spark_statestore.formats.change_batches import pack, read_change_batch, schema_bytes
from spark_statestore.storage.operator_handles import OperatorStreamStateHandle, StateMetaInfo

if TYPE_CHECKING:
    from spark_statestore.storage.stream_handles import StreamStateHandle
    from spark_statestore.storage.streams import CheckpointStateOutputStream

CHANGE_FORMAT_VERSION: Final = 1

PUT: Final = 0
"""The row replaces all values of its key."""

DELETE: Final = 1
"""The key is deleted with all its values; the value is null."""

MERGE: Final = 2
"""The value is appended to those of its key."""

EncodedBatch = tuple[str, pa.Buffer, int]
"""A batch of changes as its sender has encoded it: column family, record batch message and its CRC-32."""

_MAGIC: Final = b"\x89SSTS\r\n\x1a"
_HEADER: Final = struct.Struct("<8sHHI")

# Compressing smaller messages costs more than it saves.
_SMALLEST_COMPRESSED: Final = 1024

_LARGEST_READ: Final = 64 << 20


def compress(message: pa.Buffer, codec: str | None) -> pa.Buffer:
    """Compress a record batch message, without offsets if possible.

    Return it unchanged if that saves nothing.
    """
    batch = read_change_batch(message, full=True)
    if codec is None or message.size < _SMALLEST_COMPRESSED:
        return message
    batch = pack(batch)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    stream = sink.getvalue()
    # Strip the schema message before the batch and the end marker after it.
    before = schema_bytes(batch.schema)
    compressed = stream.slice(before, stream.size - before - 8)
    return compressed if compressed.size < message.size else message


class ChangeStreamWriter:
    """A writer of batches of changes to a checkpoint stream, which records their offsets.

    The header is written with the first batch, so that a stream without changes stays empty and has no
    handle. `write` compresses with `codec`, ``zstd`` or None.
    """

    def __init__(self, out: CheckpointStateOutputStream, codec: str | None) -> None:
        self._out = out
        self._codec = codec
        self._offsets: dict[str, list[int]] = {}

    def write(self, column_family: str, message: pa.Buffer) -> None:
        """Compress and append a batch."""
        compressed = compress(message, self._codec)
        self._begin(column_family)
        self._out.write(compressed)

    def write_encoded(self, batches: Iterable[EncodedBatch]) -> None:
        """Append batches as they are."""
        for column_family, message, checksum in batches:
            _require_batch(message)
            self._begin(column_family)
            self._out.write_with_checksum(memoryview(message), checksum)

    def finish(self) -> OperatorStreamStateHandle | None:
        """Finish the stream and return its handle, None if no batch was written."""
        stream = self._out.close_and_get_handle()
        return None if stream is None else self.in_stream(stream)

    def in_stream(self, stream: StreamStateHandle) -> OperatorStreamStateHandle:
        """Return the handle to the column families in a finished stream."""
        return OperatorStreamStateHandle(
            state_name_to_partition_offsets={
                name: StateMetaInfo(tuple(offsets)) for name, offsets in self._offsets.items()
            },
            delegate_state_handle=stream,
        )

    def _begin(self, column_family: str) -> None:
        if not self._offsets:
            self._out.write(_HEADER.pack(_MAGIC, CHANGE_FORMAT_VERSION, 0, 0))
        self._offsets.setdefault(column_family, []).append(self._out.get_pos())


def _require_batch(message: pa.Buffer) -> None:
    # Readers validate the values; here the message must only be complete.
    try:
        parsed = pa.ipc.read_message(message)
    except (pa.ArrowException, EOFError, OSError) as error:
        raise ProtocolError(f"changes that cannot be read: {error}") from error
    if parsed.type != "record batch":
        raise ProtocolError(f"changes that cannot be read: a message of type {parsed.type}")


def read_changes(handle: OperatorStreamStateHandle, where: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the batches of a stream with their column families, in the order in which they apply.

    The checksum covers the whole stream and is verified at its end: use no batch before the iterator is
    exhausted.

    Raises
    ------
    CorruptCheckpointError
        If the stream is not what was written.
    FileNotFoundError
        If it is gone.
    """
    for part, data in read_messages(handle, where):
        try:
            batch = read_change_batch(pa.py_buffer(data), full=True)
        except pa.ArrowException as error:
            raise _corrupt(where, handle, f"has an unreadable batch at byte {part.start}: {error}") from error
        yield part.column_family, batch


@dataclass(frozen=True, slots=True)
class StreamPart:
    """The byte range of one record batch message in its stream; the end is exclusive."""

    column_family: str
    start: int
    end: int


def parts_of(handle: OperatorStreamStateHandle, where: str) -> list[StreamPart]:
    """Return the ranges of the messages of a stream of changes, which fill it without gaps, in order.

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
        raise _corrupt(where, handle, "has an empty batch")
    return [StreamPart(name, start, end) for (start, name), end in zip(starts, ends, strict=True)]


def read_messages(handle: OperatorStreamStateHandle, where: str) -> Iterator[tuple[StreamPart, bytes]]:
    """Yield the messages of a stream without decoding them.

    See `read_changes` for errors and the checksum.
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
            raise _corrupt(where, handle, f"is longer than its {handle.state_size} bytes")
    if handle.checksum is not None and checksum != handle.checksum:
        raise _corrupt(where, handle, "does not match its checksum")


def _read(stream: BinaryIO, size: int) -> bytes:
    """Read up to `size` bytes, in pieces if they are many: a damaged handle may declare any size."""
    if size <= _LARGEST_READ:
        return stream.read(size)
    pieces = []
    while size > 0 and (piece := stream.read(min(size, _LARGEST_READ))):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _check_header(header: bytes, where: str, handle: OperatorStreamStateHandle) -> None:
    if len(header) < _HEADER.size or header[: len(_MAGIC)] != _MAGIC:
        raise _corrupt(where, handle, "has no changelog header")
    version = _HEADER.unpack(header)[1]
    if version < 1:
        raise _corrupt(where, handle, f"has the unknown format version {version}")
    if version > CHANGE_FORMAT_VERSION:
        raise UnsupportedFormatError(
            f"{where}: {handle.stream_state_handle_id} has stream format {version}, but this release reads "
            f"formats up to {CHANGE_FORMAT_VERSION}. Upgrade spark-statestore to the release that wrote it; "
            "nothing was changed."
        )


def _corrupt(where: str, handle: OperatorStreamStateHandle, problem: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"{where}: the state stream {handle.stream_state_handle_id} {problem}. It is damaged; restore it "
        "from a backup, or start from an earlier version. Nothing was changed."
    )

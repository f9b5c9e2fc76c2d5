"""Arrow record batch messages: a fast encoder for small batches, their layout, and verified reading.

pyarrow takes most of a millisecond for a batch of a few rows and many columns. Batches of one schema differ only in the
numbers of their metadata, so that a batch written by pyarrow serves as the template of all others.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, Literal

import pyarrow as pa

__all__ = ["BatchEncoder", "MessageLayout", "message_layout", "read_batch"]

_PREFIX: Final = struct.Struct("<iI")
_U16: Final = struct.Struct("<H")
_I32: Final = struct.Struct("<i")
_U32: Final = struct.Struct("<I")
_I64: Final = struct.Struct("<q")
_PAIR: Final = struct.Struct("<qq")

# Field numbers of the flatbuffers tables in Arrow's Message.fbs.
_MESSAGE_HEADER: Final = 2
_MESSAGE_BODY_LENGTH: Final = 3
_BATCH_LENGTH: Final = 0
_BATCH_NODES: Final = 1
_BATCH_BUFFERS: Final = 2
_BATCH_COMPRESSION: Final = 3
_COMPRESSION_CODEC: Final = 0

_ZSTD: Final = 1

# Upper bound of zstd's ratio: a block of 128 KiB takes at least four bytes.
_ZSTD_RATIO: Final = 1 << 15

_LARGEST_BATCH: Final = (1 << 31) - 1

_PADDING: Final = [bytes(size) for size in range(8)]

_CODES: Final = {pa.uint8(): "B", pa.int32(): "i", pa.uint32(): "I", pa.int64(): "q"}

_Column = tuple[list[tuple[int, int]], list[bytes]]
"""Nodes (length and null count) and buffers of a column."""

_Buffer = Literal["validity", "offsets", "values"]
_OF_PIECES: Final[tuple[_Buffer, ...]] = ("validity", "offsets", "values")


@dataclass(frozen=True, slots=True)
class _ColumnEncoder:
    """Encoder of the values of a column, and what each of its buffers holds."""

    encode: Callable[[Sequence[Any]], _Column]
    buffers: tuple[_Buffer, ...]


class BatchEncoder:
    """Encodes record batches of one schema.

    Parameters
    ----------
    schema
        Of small integers, text, bytes, and lists of integers that are not null.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._columns = [_encoder_of(field.type) for field in schema]
        sample = pa.record_batch([pa.nulls(1, field.type) for field in schema], names=schema.names)
        message = bytes(sample.serialize())
        _, size = _PREFIX.unpack_from(message)
        template = message[: _PREFIX.size + size]
        root = _PREFIX.size + _U32.unpack_from(template, _PREFIX.size)[0]
        batch = _target(template, _field(template, root, _MESSAGE_HEADER))
        self._template = template
        self._body_length = _field(template, root, _MESSAGE_BODY_LENGTH)
        self._length = _field(template, batch, _BATCH_LENGTH)
        # A flatbuffers vector is its length followed by its elements, here pairs of numbers.
        nodes = _target(template, _field(template, batch, _BATCH_NODES))
        buffers = _target(template, _field(template, batch, _BATCH_BUFFERS))
        self._nodes, self._buffers = nodes + _U32.size, buffers + _U32.size
        self._nodes_of = struct.Struct(f"<{2 * _U32.unpack_from(template, nodes)[0]}q")
        self._buffers_of = struct.Struct(f"<{2 * _U32.unpack_from(template, buffers)[0]}q")

    def encode(self, columns: Sequence[Sequence[Any]]) -> bytes:
        """Return the message of a batch with at least one row, given the values of each of its columns.

        Raises
        ------
        struct.error
            If a number does not fit its column.
        """
        nodes: list[int] = []
        buffers: list[bytes] = []
        for column, values in zip(self._columns, columns, strict=True):
            of_column, encoded = column.encode(values)
            for node in of_column:
                nodes += node
            buffers += encoded
        return self._message(nodes, buffers)

    def append(self, message: bytes, columns: Sequence[Sequence[Any]]) -> bytes:
        """Return the message of a batch that `encode` or `append` returned, with at least one more row.

        It is the one that `encode` returns for all rows, in a time that hardly depends on their number.

        Raises
        ------
        struct.error
            If a number does not fit its column.
        """
        nodes = list(self._nodes_of.unpack_from(message, self._nodes))
        places = iter(self._buffers_of.unpack_from(message, self._buffers))
        start = len(self._template)
        buffers: list[bytes] = []
        at = 0
        for column, values in zip(self._columns, columns, strict=True):
            of_column, encoded = column.encode(values)
            rows, nulls = nodes[at], nodes[at + 1]
            for role, added in zip(column.buffers, encoded, strict=True):
                offset, size = start + next(places), next(places)
                present = message[offset : offset + size]
                if role == "values":
                    buffers.append(present + added)
                elif role == "offsets":
                    buffers.append(_appended_offsets(present, added))
                else:
                    buffers.append(_appended_validity(present, rows, nulls, added, *of_column[0]))
            for more_rows, more_nulls in of_column:
                nodes[at] += more_rows
                nodes[at + 1] += more_nulls
                at += 2
        return self._message(nodes, buffers)

    def count_rows(self, message: bytes) -> int:
        """Return the number of rows of a message of this schema."""
        return int(_I64.unpack_from(message, self._length)[0])

    def replace_number(self, message: bytes, column: int, row: int, number: int) -> bytes:
        """Return the message with another value in a column of 64-bit numbers, where it is not null."""
        before = sum(len(each.buffers) for each in self._columns[:column])
        values = self._buffers_of.unpack_from(message, self._buffers)[2 * (before + 1)]
        changed = bytearray(message)
        _I64.pack_into(changed, len(self._template) + values + _I64.size * row, number)
        return bytes(changed)

    def _message(self, nodes: Sequence[int], buffers: Sequence[bytes]) -> bytes:
        message = bytearray(self._template)
        places: list[int] = []
        parts: list[bytes | bytearray] = [message]
        offset = 0
        for buffer in buffers:
            size = len(buffer)
            places += (offset, size)
            if size:
                padding = -size % 8
                parts += (buffer, _PADDING[padding])
                offset += size + padding
        self._nodes_of.pack_into(message, self._nodes, *nodes)
        self._buffers_of.pack_into(message, self._buffers, *places)
        _I64.pack_into(message, self._length, nodes[0])
        _I64.pack_into(message, self._body_length, offset)
        return b"".join(parts)


@dataclass(frozen=True, slots=True)
class MessageLayout:
    """The number of buffers of a record batch message, and their uncompressed size.

    Attributes
    ----------
    buffers
        Number of buffers.
    uncompressed_size
        Uncompressed size in bytes of the compressed buffers; 0 if none is compressed.
    """

    buffers: int
    uncompressed_size: int


def message_layout(message: pa.Buffer) -> MessageLayout:
    """Return the layout of a record batch message, without decompressing it.

    Arrow allocates the uncompressed size that a buffer declares before it decompresses the buffer, so that the size must
    be checked first.

    Raises
    ------
    pyarrow.ArrowInvalid
        If it is no record batch message, or declares an impossible size.
    """
    try:
        # This also verifies that all tables are within the metadata.
        found = pa.ipc.read_message(message)
    except (EOFError, OSError) as error:
        raise pa.ArrowInvalid(str(error)) from error
    if found.type != "record batch":
        raise pa.ArrowInvalid(f"a message of type {found.type}")
    data = found.metadata.to_pybytes()
    batch = _present(data, _U32.unpack_from(data)[0], _MESSAGE_HEADER)
    buffers = _present(data, batch, _BATCH_BUFFERS)
    count = int(_U32.unpack_from(data, buffers)[0])
    compression = _optional(data, batch, _BATCH_COMPRESSION)
    if compression is None:
        return MessageLayout(count, 0)
    codec = _byte(data, compression, _COMPRESSION_CODEC)
    if codec != _ZSTD:
        raise pa.ArrowInvalid(f"compression codec {codec}, which is not zstd")
    body = memoryview(found.body or b"")
    uncompressed = 0
    for number in range(count):
        at, size = _PAIR.unpack_from(data, buffers + _U32.size + number * _PAIR.size)
        if size:
            uncompressed += _uncompressed_size(body, at, size)
    if uncompressed > _LARGEST_BATCH:
        raise pa.ArrowInvalid(f"a batch of {uncompressed} bytes")
    return MessageLayout(count, uncompressed)


def read_batch(
    message: pa.Buffer, schema: pa.Schema, *, full: bool, layout: MessageLayout | None = None
) -> pa.RecordBatch:
    """Read and validate a record batch message whose schema its format version fixes.

    Parameters
    ----------
    full
        Validate the values, too, and not only the lengths of the buffers.
    layout
        The message's layout, if known. Without it, compressed buffers are refused.

    Raises
    ------
    pyarrow.ArrowException
        If the message is no batch of this schema.
    """
    if layout is None and message_layout(message).uncompressed_size:
        raise pa.ArrowInvalid("the message is compressed, which its format does not allow")
    try:
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=full)
    except (EOFError, OSError) as error:
        # pyarrow does not raise an ArrowException for all unreadable bytes.
        raise pa.ArrowInvalid(str(error)) from error
    return batch


def _uncompressed_size(body: memoryview, at: int, size: int) -> int:
    if at < 0 or size < _I64.size or at > len(body) - size:
        raise pa.ArrowInvalid(f"a compressed buffer of {size} bytes at {at} of {len(body)}")
    uncompressed = int(_I64.unpack_from(body, at)[0])
    # -1 marks a buffer that is stored uncompressed.
    if uncompressed < -1 or uncompressed > size * _ZSTD_RATIO:
        raise pa.ArrowInvalid(
            f"a compressed buffer of {size} bytes that declares {uncompressed} uncompressed bytes"
        )
    return max(0, uncompressed)


def _encoder_of(kind: pa.DataType) -> _ColumnEncoder:
    if kind in _CODES:
        code = _CODES[kind]
        return _ColumnEncoder(lambda values: _numbers(code, values), ("validity", "values"))
    if pa.types.is_string(kind):
        return _ColumnEncoder(lambda values: _pieces(values, lambda text: text.encode()), _OF_PIECES)
    if pa.types.is_binary(kind):
        return _ColumnEncoder(lambda values: _pieces(values, bytes), _OF_PIECES)
    if pa.types.is_list(kind) and kind.value_type == pa.int64():
        # The items' validity is always empty: they are not null.
        return _ColumnEncoder(_lists, ("validity", "offsets", "values", "values"))
    raise TypeError(f"there is no encoding of {kind}")


def _numbers(code: str, values: Sequence[int | None]) -> _Column:
    nulls = values.count(None)
    numbers = [v or 0 for v in values] if nulls else values
    return [(len(values), nulls)], [_validity(values, nulls), struct.pack(f"<{len(values)}{code}", *numbers)]


def _pieces(values: Sequence[Any], encoded: Callable[[Any], bytes]) -> _Column:
    nulls = values.count(None)
    if nulls == len(values):
        return [(nulls, nulls)], [_validity(values, nulls), bytes(4 * (nulls + 1)), b""]
    pieces = [b"" if v is None else encoded(v) for v in values]
    return [(len(values), nulls)], [_validity(values, nulls), _offsets(pieces), b"".join(pieces)]


def _lists(values: Sequence[Sequence[int] | None]) -> _Column:
    nulls = values.count(None)
    lists = [v or () for v in values]
    items = [item for each in lists for item in each]
    nodes = [(len(values), nulls), (len(items), 0)]
    return nodes, [_validity(values, nulls), _offsets(lists), b"", struct.pack(f"<{len(items)}q", *items)]


def _offsets(pieces: Sequence[Sequence[object]]) -> bytes:
    return struct.pack(f"<{len(pieces) + 1}i", *accumulate(map(len, pieces), initial=0))


def _appended_offsets(present: bytes, added: bytes) -> bytes:
    last = int(_I32.unpack_from(present, len(present) - _I32.size)[0])
    count = len(added) // _I32.size - 1
    more = struct.unpack_from(f"<{count}i", added, _I32.size)
    return present + struct.pack(f"<{count}i", *(last + offset for offset in more))


def _validity(values: Sequence[object], nulls: int) -> bytes:
    if not nulls:
        return b""
    size = (len(values) + 7) // 8
    if nulls == len(values):
        return bytes(size)
    # The first value has the lowest bit.
    bits = int("".join(["0" if value is None else "1" for value in reversed(values)]), 2)
    return bits.to_bytes(size, "little")


def _appended_validity(
    present: bytes, rows: int, nulls: int, added: bytes, more_rows: int, more_nulls: int
) -> bytes:
    if not nulls + more_nulls:
        return b""
    size = (rows + more_rows + 7) // 8
    if nulls == rows and more_nulls == more_rows:
        return bytes(size)
    bits = int.from_bytes(present, "little") if nulls else (1 << rows) - 1
    more = int.from_bytes(added, "little") if more_nulls else (1 << more_rows) - 1
    return (bits | more << rows).to_bytes(size, "little")


def _field(data: bytes, table: int, number: int) -> int:
    """Return the position of a field of a table."""
    vtable = table - int(_I32.unpack_from(data, table)[0])
    return table + int(_U16.unpack_from(data, vtable + 4 + 2 * number)[0])


def _optional_field(data: bytes, table: int, number: int) -> int | None:
    """Return the position of an optional field of a table."""
    vtable = table - int(_I32.unpack_from(data, table)[0])
    entry = 4 + 2 * number
    at = _U16.unpack_from(data, vtable + entry)[0] if entry < _U16.unpack_from(data, vtable)[0] else 0
    return table + at if at else None


def _optional(data: bytes, table: int, number: int) -> int | None:
    """Return the position that an optional field of a table refers to."""
    at = _optional_field(data, table, number)
    return None if at is None else _target(data, at)


def _present(data: bytes, table: int, number: int) -> int:
    found = _optional(data, table, number)
    if found is None:
        raise pa.ArrowInvalid("a batch without its buffers")
    return found


def _byte(data: bytes, table: int, number: int) -> int:
    at = _optional_field(data, table, number)
    return 0 if at is None else data[at]


def _target(data: bytes, at: int) -> int:
    return at + int(_U32.unpack_from(data, at)[0])

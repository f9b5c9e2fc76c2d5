"""Arrow record batch messages: a fast encoder for small batches, their layout, and verified reading.

pyarrow takes most of a millisecond for a batch of a few rows and many columns. Batches of one schema differ
only in the numbers of their metadata, so that a batch written by pyarrow serves as the template of all
others.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa

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

_FIRST_OFFSET: Final = bytes(4)
_PADDING: Final = [bytes(size) for size in range(8)]

_CODES: Final = {pa.uint8(): "B", pa.int32(): "i", pa.uint32(): "I", pa.int64(): "q"}


_Append = Callable[[Sequence[Any], list[int], list[bytes]], None]
"""Appends values to a column, given its nodes and its buffers; both are changed.

A node is a length and a null count.
"""


@dataclass(frozen=True, slots=True)
class _Column:
    """The encoding of a column, and the slices of a batch's nodes and buffers that belong to it."""

    append: _Append
    nodes: slice
    buffers: slice


class BatchEncoder:
    """Encodes record batches of one schema.

    Parameters
    ----------
    schema
        Of small integers, text, bytes, and lists of integers that are not null.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._columns: list[_Column] = []
        self._no_nodes: list[int] = []
        self._no_buffers: list[bytes] = []
        for field in schema:
            append, own_nodes, own_buffers = _encoding_of(field.type)
            node, buffer = len(self._no_nodes), len(self._no_buffers)
            of_nodes, of_buffers = (
                slice(node, node + len(own_nodes)),
                slice(buffer, buffer + len(own_buffers)),
            )
            self._columns.append(_Column(append, of_nodes, of_buffers))
            self._no_nodes += own_nodes
            self._no_buffers += own_buffers
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
        """Return the message of a batch with at least one row, given the values of each of its columns."""
        return self._message(self._no_nodes, self._no_buffers, columns)

    def append(self, message: bytes, columns: Sequence[Sequence[Any]]) -> bytes:
        """Return the message of a batch that `encode` or `append` returned, with at least one more row.

        It is the one that `encode` returns for all rows, in a time that hardly depends on their number.
        """
        nodes = list(self._nodes_of.unpack_from(message, self._nodes))
        places = self._buffers_of.unpack_from(message, self._buffers)
        body = message[len(self._template) :]
        buffers = [body[at : at + size] for at, size in zip(places[::2], places[1::2], strict=True)]
        return self._message(nodes, buffers, columns)

    def count_rows(self, message: bytes) -> int:
        """Return the number of rows of a message of this schema."""
        return int(_I64.unpack_from(message, self._length)[0])

    def replace_number(self, message: bytes, column: int, row: int, number: int) -> bytes:
        """Return the message with another value in a column of 64-bit numbers, where it is not null."""
        values = self._buffers_of.unpack_from(message, self._buffers)[
            2 * (self._columns[column].buffers.start + 1)
        ]
        changed = bytearray(message)
        _I64.pack_into(changed, len(self._template) + values + _I64.size * row, number)
        return bytes(changed)

    def _message(
        self, present_nodes: list[int], present_buffers: list[bytes], columns: Sequence[Sequence[Any]]
    ) -> bytes:
        """Return the message of a batch with values appended to each column.

        The batch has the present nodes and buffers.
        """
        nodes: list[int] = []
        buffers: list[bytes] = []
        for column, values in zip(self._columns, columns, strict=True):
            own_nodes, own_buffers = present_nodes[column.nodes], present_buffers[column.buffers]
            column.append(values, own_nodes, own_buffers)
            nodes += own_nodes
            buffers += own_buffers
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
    """The number of buffers of a record batch message, and the uncompressed size of the compressed ones.

    The size is in bytes.
    """

    buffers: int
    uncompressed_size: int


def message_layout(message: pa.Buffer) -> MessageLayout:
    """Return the layout of a record batch message, without decompressing it.

    Arrow allocates the uncompressed size that a buffer declares before it decompresses the buffer, so that
    the size must be checked first.

    Raises
    ------
    pyarrow.ArrowInvalid
        If it is no record batch message, or declares an impossible size.
    """
    try:
        # This also verifies that all tables are within the metadata.
        parsed = pa.ipc.read_message(message)
    except (EOFError, OSError) as error:
        raise pa.ArrowInvalid(str(error)) from error
    if parsed.type != "record batch":
        raise pa.ArrowInvalid(f"a message of type {parsed.type}")
    data = parsed.metadata.to_pybytes()
    batch = _present(data, _U32.unpack_from(data)[0], _MESSAGE_HEADER)
    buffers = _present(data, batch, _BATCH_BUFFERS)
    count = int(_U32.unpack_from(data, buffers)[0])
    compression = _optional(data, batch, _BATCH_COMPRESSION)
    if compression is None:
        return MessageLayout(count, 0)
    codec = _byte(data, compression, _COMPRESSION_CODEC)
    if codec != _ZSTD:
        raise pa.ArrowInvalid(f"compression codec {codec}, which is not zstd")
    body = memoryview(parsed.body or b"")
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


def _encoding_of(kind: pa.DataType) -> tuple[_Append, list[int], list[bytes]]:
    """Return how values of a type are appended, and the nodes and buffers of a column without values."""
    if kind in _CODES:
        return partial(_append_numbers, _CODES[kind]), [0, 0], [b"", b""]
    if pa.types.is_string(kind):
        return partial(_append_pieces, str.encode), [0, 0], [b"", _FIRST_OFFSET, b""]
    if pa.types.is_binary(kind):
        return partial(_append_pieces, bytes), [0, 0], [b"", _FIRST_OFFSET, b""]
    if pa.types.is_list(kind) and kind.value_type == pa.int64():
        # The third is the validity of the items, which stays empty: they are not null.
        return _append_lists, [0, 0, 0, 0], [b"", _FIRST_OFFSET, b"", b""]
    raise TypeError(f"there is no encoding of {kind}")


def _append_numbers(code: str, values: Sequence[int | None], nodes: list[int], buffers: list[bytes]) -> None:
    nulls = _append_validity(values, nodes, buffers)
    numbers = [v or 0 for v in values] if nulls else values
    buffers[1] += struct.pack(f"<{len(values)}{code}", *numbers)


def _append_pieces(
    encoded: Callable[[Any], bytes], values: Sequence[Any], nodes: list[int], buffers: list[bytes]
) -> None:
    nulls = _append_validity(values, nodes, buffers)
    if nulls == len(values):
        buffers[1] += buffers[1][-_I32.size :] * nulls
        return
    pieces = [b"" if v is None else encoded(v) for v in values]
    _append_offsets(pieces, buffers)
    buffers[2] += b"".join(pieces)


def _append_lists(values: Sequence[Sequence[int] | None], nodes: list[int], buffers: list[bytes]) -> None:
    _append_validity(values, nodes, buffers)
    lists = [v or () for v in values]
    items = [item for each in lists for item in each]
    _append_offsets(lists, buffers)
    nodes[2] += len(items)
    buffers[3] += struct.pack(f"<{len(items)}q", *items)


def _append_offsets(pieces: Sequence[Sequence[object]], buffers: list[bytes]) -> None:
    present = buffers[1]
    last: int = _I32.unpack_from(present, len(present) - _I32.size)[0]
    offsets = accumulate(map(len, pieces), initial=last)
    buffers[1] = present[: -_I32.size] + struct.pack(f"<{len(pieces) + 1}i", *offsets)


def _append_validity(values: Sequence[object], nodes: list[int], buffers: list[bytes]) -> int:
    """Append the validity of values, count them in their node, and return how many are null."""
    rows, nulls = nodes[:2]
    more_nulls = values.count(None)
    nodes[0] = all_rows = rows + len(values)
    nodes[1] = all_nulls = nulls + more_nulls
    if all_nulls == all_rows:
        buffers[0] = bytes((all_rows + 7) // 8)
    elif all_nulls:
        bits = int.from_bytes(buffers[0], "little") if nulls else (1 << rows) - 1
        if not more_nulls:
            bits |= ((1 << len(values)) - 1) << rows
        elif more_nulls < len(values):
            # The first value has the lowest bit.
            bits |= int("".join(["0" if value is None else "1" for value in reversed(values)]), 2) << rows
        buffers[0] = bits.to_bytes((all_rows + 7) // 8, "little")
    return more_nulls


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
    field = _optional(data, table, number)
    if field is None:
        raise pa.ArrowInvalid("a batch without its buffers")
    return field


def _byte(data: bytes, table: int, number: int) -> int:
    at = _optional_field(data, table, number)
    return 0 if at is None else data[at]


def _target(data: bytes, at: int) -> int:
    return at + int(_U32.unpack_from(data, at)[0])

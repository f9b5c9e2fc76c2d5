"""Small record batch messages, made without building arrays first.

pyarrow takes the better part of a millisecond for a batch of a few rows and many columns. All batches of a schema
have the same metadata but for its numbers, so one that pyarrow wrote is the template of all others.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa

__all__ = ["BatchEncoder", "MessageShape", "shape_of"]

_PREFIX: Final = struct.Struct("<iI")
_U16: Final = struct.Struct("<H")
_I32: Final = struct.Struct("<i")
_U32: Final = struct.Struct("<I")
_I64: Final = struct.Struct("<q")
_PAIR: Final = struct.Struct("<qq")

# Fields of the flatbuffers tables, by their place in the schema of Arrow's metadata.
_MESSAGE_HEADER: Final = 2
_MESSAGE_BODY_LENGTH: Final = 3
_BATCH_LENGTH: Final = 0
_BATCH_NODES: Final = 1
_BATCH_BUFFERS: Final = 2
_BATCH_COMPRESSION: Final = 3
_COMPRESSION_CODEC: Final = 0

_LZ4: Final = 0

# The most that a compressed byte can stand for: of LZ4 a byte of a length; of ZSTD four, of a block of 128 KiB.
_LZ4_RATIO: Final = 255
_ZSTD_RATIO: Final = 1 << 15

_LARGEST_BATCH: Final = (1 << 31) - 1

_CODES: Final = {pa.uint8(): "B", pa.int32(): "i", pa.uint32(): "I", pa.int64(): "q"}

_Column = tuple[list[tuple[int, int]], list[bytes]]
"""Nodes, each a length and a number of nulls; and buffers."""


class BatchEncoder:
    """Encodes record batches of one schema.

    Parameters
    ----------
    schema
        Of small integers, text, bytes, and lists of integers that are not null.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._columns = [(field.name, _encoder_of(field.type)) for field in schema]
        sample = pa.record_batch([pa.nulls(1, field.type) for field in schema], names=schema.names)
        message = bytes(sample.serialize())
        _, size = _PREFIX.unpack_from(message)
        template = message[: _PREFIX.size + size]
        root = _PREFIX.size + _U32.unpack_from(template, _PREFIX.size)[0]
        batch = _target(template, _field(template, root, _MESSAGE_HEADER))
        self._template = template
        self._body_length = _field(template, root, _MESSAGE_BODY_LENGTH)
        self._length = _field(template, batch, _BATCH_LENGTH)
        # A vector is its length and then its elements.
        self._nodes = _target(template, _field(template, batch, _BATCH_NODES)) + _U32.size
        self._buffers = _target(template, _field(template, batch, _BATCH_BUFFERS)) + _U32.size

    def encode(self, columns: dict[str, list[Any]]) -> bytes:
        """The message of a batch, given the values of its columns; there must be a row.

        Raises
        ------
        struct.error
            If a number does not fit its column.
        """
        message = bytearray(self._template)
        parts = []
        node_at, buffer_at, offset = self._nodes, self._buffers, 0
        for name, encode in self._columns:
            nodes, buffers = encode(columns[name])
            for node in nodes:
                _PAIR.pack_into(message, node_at, *node)
                node_at += _PAIR.size
            for buffer in buffers:
                size = len(buffer)
                _PAIR.pack_into(message, buffer_at, offset, size)
                buffer_at += _PAIR.size
                padding = -size % 8
                parts += [buffer, bytes(padding)]
                offset += size + padding
        _I64.pack_into(message, self._length, len(columns[self._columns[0][0]]))
        _I64.pack_into(message, self._body_length, offset)
        return b"".join([message, *parts])


@dataclass(frozen=True, slots=True)
class MessageShape:
    """What a record batch message says of itself, as far as memory is taken for it.

    Attributes
    ----------
    buffers
        How many buffers it has.
    plain_bytes
        Bytes of its buffers that are compressed, once they are not any more; 0 if none are.
    """

    buffers: int
    plain_bytes: int


def shape_of(message: pa.Buffer) -> MessageShape:
    """Look at a record batch message, and at how much memory it takes to read it.

    Arrow takes what a compressed buffer says it needs, before it looks at the buffer.

    Raises
    ------
    pyarrow.ArrowInvalid
        If it is no record batch message, or says of a buffer what cannot be.
    """
    try:
        # This also checks that all tables of the metadata lie within it.
        found = pa.ipc.read_message(message)
    except (EOFError, OSError) as error:
        raise pa.ArrowInvalid(str(error)) from error
    if found.type != "record batch":
        raise pa.ArrowInvalid(f"a message of type {found.type}")
    data = found.metadata.to_pybytes()
    batch = _present(data, _U32.unpack_from(data)[0], _MESSAGE_HEADER)
    places = _present(data, batch, _BATCH_BUFFERS)
    count = int(_U32.unpack_from(data, places)[0])
    compression = _optional(data, batch, _BATCH_COMPRESSION)
    if compression is None:
        return MessageShape(count, 0)
    codec = _byte(data, compression, _COMPRESSION_CODEC)
    body = memoryview(found.body or b"")
    plain = 0
    for number in range(count):
        at, size = _PAIR.unpack_from(data, places + _U32.size + number * _PAIR.size)
        if size:
            plain += _plain_bytes(body, at, size, codec)
    if plain > _LARGEST_BATCH:
        raise pa.ArrowInvalid(f"a batch of {plain} bytes")
    return MessageShape(count, plain)


def _plain_bytes(body: memoryview, at: int, size: int, codec: int) -> int:
    if at < 0 or size < _I64.size or at > len(body) - size:
        raise pa.ArrowInvalid(f"a compressed buffer of {size} bytes at {at} of {len(body)}")
    plain = int(_I64.unpack_from(body, at)[0])
    # It may be stored as it is.
    if plain < -1 or plain > size * (_LZ4_RATIO if codec == _LZ4 else _ZSTD_RATIO):
        raise pa.ArrowInvalid(f"a compressed buffer of {size} bytes that is to stand for {plain}")
    return max(0, plain)


def _encoder_of(kind: pa.DataType) -> Callable[[list[Any]], _Column]:
    if kind in _CODES:
        code = _CODES[kind]
        return lambda values: _numbers(code, values)
    if pa.types.is_string(kind):
        return lambda values: _pieces([b"" if v is None else v.encode() for v in values], values)
    if pa.types.is_binary(kind):
        return lambda values: _pieces([v or b"" for v in values], values)
    if pa.types.is_list(kind) and kind.value_type == pa.int64():
        return _lists
    raise TypeError(f"there is no encoding of {kind}")


def _numbers(code: str, values: Sequence[int | None]) -> _Column:
    nulls = values.count(None)
    numbers = [v or 0 for v in values] if nulls else values
    return [(len(values), nulls)], [_validity(values, nulls), struct.pack(f"<{len(values)}{code}", *numbers)]


def _pieces(pieces: Sequence[bytes], values: Sequence[object]) -> _Column:
    nulls = values.count(None)
    return [(len(values), nulls)], [_validity(values, nulls), _offsets(pieces), b"".join(pieces)]


def _lists(values: Sequence[Sequence[int] | None]) -> _Column:
    nulls = values.count(None)
    lists = [v or () for v in values]
    items = [item for each in lists for item in each]
    nodes = [(len(values), nulls), (len(items), 0)]
    return nodes, [_validity(values, nulls), _offsets(lists), b"", struct.pack(f"<{len(items)}q", *items)]


def _offsets(pieces: Sequence[Sequence[object]]) -> bytes:
    return struct.pack(f"<{len(pieces) + 1}i", *accumulate(map(len, pieces), initial=0))


def _validity(values: Sequence[object], nulls: int) -> bytes:
    if not nulls:
        return b""
    bits = sum(1 << i for i, value in enumerate(values) if value is not None)
    return bits.to_bytes((len(values) + 7) // 8, "little")


def _field(data: bytes, table: int, number: int) -> int:
    """Where a field of a table lies."""
    vtable = table - int(_I32.unpack_from(data, table)[0])
    return table + int(_U16.unpack_from(data, vtable + 4 + 2 * number)[0])


def _place(data: bytes, table: int, number: int) -> int | None:
    """Where a field of a table lies, which may be absent."""
    vtable = table - int(_I32.unpack_from(data, table)[0])
    place = 4 + 2 * number
    at = _U16.unpack_from(data, vtable + place)[0] if place < _U16.unpack_from(data, vtable)[0] else 0
    return table + at if at else None


def _optional(data: bytes, table: int, number: int) -> int | None:
    """What a field of a table points at, which may be absent."""
    at = _place(data, table, number)
    return None if at is None else _target(data, at)


def _present(data: bytes, table: int, number: int) -> int:
    found = _optional(data, table, number)
    if found is None:
        raise pa.ArrowInvalid("a batch without its buffers")
    return found


def _byte(data: bytes, table: int, number: int) -> int:
    at = _place(data, table, number)
    return 0 if at is None else data[at]


def _target(data: bytes, at: int) -> int:
    return at + int(_U32.unpack_from(data, at)[0])

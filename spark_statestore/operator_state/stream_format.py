"""The stream of an operator's state, format 1.

======  ==================================================================================
bytes   content
======  ==================================================================================
8       magic ``89 53 53 54 4f 0d 0a 1a``
2       format version, 1
2       flags, 0
4       length n of the meta information
n       meta information, a JSON object in UTF-8
...     the elements of the list states, one state after the other
...     the parts of the broadcast states, one state after the other
======  ==================================================================================

Integers are unsigned and little endian. The meta information is ``{"lists": [...], "broadcasts":
[...]}``: of each list state its `name`, `mode` (0 split distribute, 1 union) and `serializers`, an
array of serializer snapshots; of each broadcast state its `name` and `serializers`, an array of
``{"key": ..., "value": ...}`` with two snapshots. There is more than one serializer only if the
state was restored from streams that differ in it, and was not accessed since.

An element is, at each offset that the handle has for a list state:

======  ==================================================================================
bytes   content
======  ==================================================================================
4       index of its serializer; absent if the state has one serializer only
4       length n
n       what the serializer wrote
======  ==================================================================================

A part is, at each offset that the handle has for a broadcast state (one, unless there are several
serializers; the entries of later parts replace those of earlier ones):

======  ==================================================================================
bytes   content
======  ==================================================================================
4       index of its serializers; absent if the state has one pair of serializers only
4       number of entries
...     of each entry: length and bytes of the key, length and bytes of the value; lengths
        take 4 bytes
======  ==================================================================================

The checksum of the stream is in its handle.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from spark_statestore.errors import CorruptCheckpointError, UnsupportedFormatError, restore_from_backup
from spark_statestore.operator_state.serializers import SerializerSnapshot
from spark_statestore.storage.operator_handles import Mode

OPERATOR_STATE_FORMAT_VERSION: Final = 1

_MAGIC: Final = b"\x89SSTO\r\n\x1a"
_HEADER: Final = struct.Struct("<8sHHI")
_NUMBER: Final = struct.Struct("<I")

# Bytes that are encoded at once.
_PIECE: Final = 1 << 20

Entry = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class ListMetaInfo:
    """Header entry of a list state."""

    name: str
    mode: Mode
    serializers: tuple[SerializerSnapshot, ...]


@dataclass(frozen=True, slots=True)
class BroadcastMetaInfo:
    """Header entry of a broadcast state; serializers are of key and value."""

    name: str
    serializers: tuple[tuple[SerializerSnapshot, SerializerSnapshot], ...]


def encode_header(lists: Iterable[ListMetaInfo], broadcasts: Iterable[BroadcastMetaInfo]) -> bytes:
    """Return the header of a stream."""
    meta = {
        "lists": [
            {"name": m.name, "mode": int(m.mode), "serializers": [dict(s) for s in m.serializers]}
            for m in lists
        ],
        "broadcasts": [
            {
                "name": m.name,
                "serializers": [{"key": dict(key), "value": dict(value)} for key, value in m.serializers],
            }
            for m in broadcasts
        ],
    }
    body = json.dumps(meta, separators=(",", ":")).encode()
    return _HEADER.pack(_MAGIC, OPERATOR_STATE_FORMAT_VERSION, 0, len(body)) + body


def encode_elements(
    elements: Iterable[tuple[int, bytes]], serializers: int, position: int, offsets: list[int]
) -> Iterator[bytes]:
    """Encode elements, each written by one of so many serializers, in pieces.

    `position` is that of the first one in the stream. The offset of each is appended to `offsets`.
    """
    pieces: list[bytes] = []
    start = position
    for serializer, data in elements:
        offsets.append(position)
        head = _index(serializer, serializers) + _NUMBER.pack(len(data))
        pieces += (head, data)
        position += len(head) + len(data)
        if position - start >= _PIECE:
            yield b"".join(pieces)
            pieces, start = [], position
    if pieces:
        yield b"".join(pieces)


def encode_part(count: int, entries: Iterable[Entry], serializer: int, serializers: int) -> Iterator[bytes]:
    """Encode a part of a broadcast state, written by one of so many pairs of serializers, in pieces."""
    pieces = [_index(serializer, serializers), _NUMBER.pack(count)]
    size = 0
    for key, value in entries:
        pieces += (_NUMBER.pack(len(key)), key, _NUMBER.pack(len(value)), value)
        size += len(key) + len(value)
        if size >= _PIECE:
            yield b"".join(pieces)
            pieces, size = [], 0
    yield b"".join(pieces)


def _index(serializer: int, serializers: int) -> bytes:
    return _NUMBER.pack(serializer) if serializers > 1 else b""


def decode_header(data: bytes, where: str) -> tuple[list[ListMetaInfo], list[BroadcastMetaInfo]]:
    """Return the states in the header of a stream.

    Raise an error if it is no such stream, or a newer release wrote it.
    """
    if len(data) < _HEADER.size or data[: len(_MAGIC)] != _MAGIC:
        raise corrupt(where, "does not start as a stream of operator state does")
    _, version, _, length = _HEADER.unpack_from(data)
    if version > OPERATOR_STATE_FORMAT_VERSION:
        raise UnsupportedFormatError(
            f"{where} has operator state format {version}, but this release reads formats up to "
            f"{OPERATOR_STATE_FORMAT_VERSION}. Upgrade spark-statestore to the release that wrote it; "
            "nothing was changed."
        )
    body = data[_HEADER.size : _HEADER.size + length]
    if len(body) != length:
        raise corrupt(where, f"ends after {len(data)} bytes, inside of its header")
    try:
        meta = json.loads(body)
        lists = [_list_meta(m) for m in meta["lists"]]
        broadcasts = [_broadcast_meta(m) for m in meta["broadcasts"]]
        names = [m.name for m in lists] + [m.name for m in broadcasts]
        if len(set(names)) != len(names):
            raise ValueError("a name occurs twice")
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise corrupt(where, f"has an unreadable header: {error!r}") from error
    return lists, broadcasts


def _list_meta(meta: dict[str, Any]) -> ListMetaInfo:
    mode = Mode(meta["mode"])
    if mode is Mode.BROADCAST:
        raise ValueError("a list state has the mode of a broadcast state")
    serializers = tuple(_snapshot(s) for s in meta["serializers"])
    return ListMetaInfo(_string(meta["name"]), mode, _some(serializers))


def _broadcast_meta(meta: dict[str, Any]) -> BroadcastMetaInfo:
    serializers = tuple((_snapshot(s["key"]), _snapshot(s["value"])) for s in meta["serializers"])
    return BroadcastMetaInfo(_string(meta["name"]), _some(serializers))


def _some(serializers: tuple[Any, ...]) -> tuple[Any, ...]:
    if not serializers:
        raise ValueError("a state has no serializer")
    return serializers


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.40} is no name")  # noqa: TRY004 - the stream is wrong, not the caller
    return value


def _snapshot(value: object) -> SerializerSnapshot:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r:.40} is no serializer snapshot")  # noqa: TRY004 - likewise
    return value


class Reader:
    """Reader of the elements and parts in a stream."""

    def __init__(self, data: bytes, where: str) -> None:
        self._data = data
        self._where = where
        self._position = 0
        self._element_bytes = 0

    def element(self, offset: int, serializers: int) -> tuple[int, bytes]:
        """Return the element at an offset, and the index of its serializer."""
        self._position = offset
        return self._serializer(serializers), self._bytes()

    def part(self, offset: int, serializers: int) -> tuple[int, list[Entry]]:
        """Return the part of a broadcast state at an offset, and the index of its serializers."""
        self._position = offset
        serializer = self._serializer(serializers)
        return serializer, [(self._bytes(), self._bytes()) for _ in range(self._number())]

    def _serializer(self, serializers: int) -> int:
        if serializers == 1:
            return 0
        serializer = self._number()
        if serializer >= serializers:
            raise corrupt(self._where, f"refers to serializer {serializer} of {serializers}")
        return serializer

    def _number(self) -> int:
        return int(_NUMBER.unpack(self._take(_NUMBER.size))[0])

    def _bytes(self) -> bytes:
        return self._take(self._number())

    def _take(self, size: int) -> bytes:
        start, end = self._position, self._position + size
        if start < 0 or end > len(self._data):
            raise corrupt(
                self._where, f"has {len(self._data)} bytes, but bytes {start} to {end} of it are needed"
            )
        self._position = end
        # No two elements share a byte: else a few bytes could be any number of elements.
        self._element_bytes += size
        if self._element_bytes > len(self._data):
            raise corrupt(self._where, "has overlapping elements")
        return self._data[start:end]


def corrupt(where: str, problem: str) -> CorruptCheckpointError:
    """Return the error for a stream that is not what was written."""
    return CorruptCheckpointError(f"{where} {problem}. It is damaged. {restore_from_backup()}")

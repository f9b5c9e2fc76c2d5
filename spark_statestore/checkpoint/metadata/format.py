"""The metadata object of a checkpoint as bytes: what is common to every kind of it.

docs/format.md shows the layout. Nothing here touches a file.
"""

from __future__ import annotations

import enum
import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from spark_statestore.checkpoint.files.base import Buffer, FileSystem
from spark_statestore.checkpoint.streams.checksums import combine
from spark_statestore.errors import (
    CheckpointIOError,
    CorruptCheckpointError,
    StateTooLargeError,
    UnsupportedFormatError,
)
from spark_statestore.state.handles.owner import METADATA_MAGIC, is_attempt

__all__ = [
    "INLINE_STATE_OFFSET",
    "METADATA_FORMAT_VERSION",
    "EncodedObject",
    "InlineState",
    "MetadataKind",
    "MetadataObject",
    "decode_object",
    "encode_object",
    "matches_with_state",
    "read_object",
    "read_without_state",
    "reading",
    "require_attempt",
    "require_count",
    "require_type",
]

METADATA_FORMAT_VERSION: Final = 5

_END: Final = b"SSTE"
# Magic, format version, kind, unused, attempt, bytes of inline state, bytes of the body.
_HEADER: Final = struct.Struct("<8sHHI8sQQ")
_FOOTER: Final = struct.Struct("<I4s")
_U32: Final = struct.Struct("<I")

INLINE_STATE_OFFSET: Final = _HEADER.size
"""Where state that stays inside the metadata starts, in bytes."""

# What is larger is not metadata, whatever it says of itself: 64 MiB of offsets lead to 16 TiB of state.
_LARGEST_BODY: Final = 64 << 20
_LARGEST_PROPERTIES: Final = 16 << 20
_LARGEST_STATE: Final = (1 << 31) - 1


# More than the metadata of most versions; less than what is worth a second request.
_READ_AT_ONCE: Final = 256 * 1024


class MetadataKind(enum.IntEnum):
    """What a metadata object describes; stored by number."""

    STORE_VERSION = 0
    """One version of one state store."""
    OPERATORS = 1
    """The state of operators, each of one or more subtasks. Since format version 2."""
    SAVEPOINT = 2
    """A savepoint of a streaming query. Since format version 4."""


@dataclass(frozen=True, slots=True)
class MetadataObject:
    """A metadata object, taken apart.

    Attributes
    ----------
    format_version
        The format it has.
    kind
        What it describes.
    attempt
        The attempt that wrote it, 16 hex digits.
    properties
        What it says, as JSON.
    handles
        Handles, encoded.
    """

    format_version: int
    kind: MetadataKind
    attempt: str
    properties: dict[str, Any]
    handles: tuple[bytes, ...]

    @property
    def handle_version(self) -> int:
        """The format of its handles, which did not change since format version 2."""
        return min(self.format_version, 2)


@dataclass(frozen=True, slots=True)
class InlineState:
    """State that stays inside a metadata object, at `INLINE_STATE_OFFSET`.

    Attributes
    ----------
    parts
        Its bytes, in several places.
    size, checksum
        How many they are, and their CRC-32.
    """

    parts: Sequence[Buffer] = ()
    size: int = 0
    checksum: int = 0

    @classmethod
    def of(cls, data: bytes) -> InlineState:
        """State in one place."""
        return cls([data], len(data), zlib.crc32(data)) if data else cls()


@dataclass(frozen=True, slots=True)
class EncodedObject:
    """A metadata object as it is written.

    Attributes
    ----------
    parts
        Its bytes, in several places.
    size, checksum
        How many they are, and their CRC-32.
    """

    parts: Sequence[Buffer]
    size: int
    checksum: int

    def __bytes__(self) -> bytes:
        return b"".join(self.parts)


def encode_object(
    kind: MetadataKind,
    attempt: str,
    properties: dict[str, Any],
    handles: Sequence[bytes],
    inline_state: InlineState = InlineState(),
) -> EncodedObject:
    """A metadata object, in the newest format.

    Parameters
    ----------
    inline_state
        State that stays inside the object.

    Raises
    ------
    CheckpointIOError, StateTooLargeError
        If it is larger than what is read.
    """
    if inline_state.size > _LARGEST_STATE:
        raise StateTooLargeError(
            f"{inline_state.size} bytes of state are to lie inside of metadata, which can hold {_LARGEST_STATE}. Use "
            "storage=filesystem, whose larger commits go to files of their own, or more partitions."
        )
    described = json.dumps(properties, separators=(",", ":")).encode()
    lengths = [len(described), len(handles), *map(len, handles)]
    size = sum(lengths) - len(handles) + _U32.size * len(lengths)
    if len(described) > _LARGEST_PROPERTIES or size > _LARGEST_BODY:
        raise CheckpointIOError(
            f"metadata of {size} bytes, {len(described)} of which are properties, cannot be written: at most "
            f"{_LARGEST_BODY} and {_LARGEST_PROPERTIES} can be read again. Use more partitions, or a smaller "
            "snapshotInterval."
        )
    body = zlib.compress(
        b"".join([struct.pack(f"<{len(lengths)}I", *lengths), described, *handles]),
        1,
    )
    header = _HEADER.pack(
        METADATA_MAGIC, METADATA_FORMAT_VERSION, kind, 0, bytes.fromhex(attempt), inline_state.size, len(body)
    )
    checksum = combine(zlib.crc32(header), inline_state.checksum, inline_state.size)
    checksum = zlib.crc32(body, checksum)
    footer = _FOOTER.pack(checksum, _END)
    return EncodedObject(
        [header, *inline_state.parts, body, footer],
        len(header) + inline_state.size + len(body) + len(footer),
        zlib.crc32(footer, checksum),
    )


def read_object(files: FileSystem, path: str) -> bytes:
    """A metadata object as `decode_object` takes it; of what is none, no more than it takes to see that.

    Raises
    ------
    OSError
        If it cannot be read.
    """
    start, lengths = _read_start(files, path)
    if lengths is None:
        return start
    rest = _HEADER.size + sum(lengths) + _FOOTER.size - len(start)
    return start + files.read(path, len(start), max(0, rest) + 1)


def read_without_state(files: FileSystem, path: str) -> bytes:
    """A metadata object; of one that holds much state, what `decode_object` takes as being without it.

    Raises
    ------
    OSError
        If it cannot be read.
    """
    start, lengths = _read_start(files, path)
    if lengths is None:
        return start
    inline, body = lengths
    return start[: _HEADER.size] + files.read(path, _HEADER.size + inline, body + _FOOTER.size + 1)


def _read_start(files: FileSystem, path: str) -> tuple[bytes, tuple[int, int] | None]:
    """An object's beginning, and how long its inline state and its body are; None if that is all there is to read."""
    start = files.read(path, 0, _READ_AT_ONCE)
    if len(start) < _READ_AT_ONCE or start[: len(METADATA_MAGIC)] != METADATA_MAGIC:
        return start, None
    *_, inline_length, body_length = _HEADER.unpack_from(start)
    if inline_length > _LARGEST_STATE or body_length > _LARGEST_BODY:
        return start, None
    return start, (inline_length, body_length)


def decode_object(data: bytes, where: str, *, without_state: bool = False) -> MetadataObject:
    """Take a metadata object apart, checking all of it.

    Parameters
    ----------
    where
        The object's URL, for messages.
    without_state
        The state may be missing from it. Then the object's checksum, which covers the state too, says nothing; the
        body has one of its own.

    Raises
    ------
    CorruptCheckpointError
        If the bytes are not those that were written.
    UnsupportedFormatError
        If a newer release wrote them.
    """
    if len(data) < _HEADER.size or data[: len(METADATA_MAGIC)] != METADATA_MAGIC:
        what = "is empty" if not data else f"does not start as metadata does ({len(data)} bytes)"
        raise _corrupt(where, what)
    _, version, kind, _, attempt, inline_length, body_length = _HEADER.unpack_from(data)
    if version > METADATA_FORMAT_VERSION:
        if _was_older(data):
            raise _corrupt(where, "does not match its checksum")
        raise UnsupportedFormatError(
            f"{where} has metadata format {version}, but this release reads formats up to "
            f"{METADATA_FORMAT_VERSION}. Upgrade spark-statestore to the release that wrote it; nothing was changed."
        )
    is_whole = len(data) == _HEADER.size + inline_length + body_length + _FOOTER.size
    if not is_whole and without_state:
        inline_length = 0
    if len(data) != _HEADER.size + inline_length + body_length + _FOOTER.size:
        raise _corrupt(where, f"is {len(data)} bytes long, which is not the length it was written with")
    checksum, end = _FOOTER.unpack_from(data, len(data) - _FOOTER.size)
    if end != _END or (
        (is_whole or not without_state) and checksum != zlib.crc32(memoryview(data)[: -_FOOTER.size])
    ):
        raise _corrupt(where, "does not match its checksum")
    start = _HEADER.size + inline_length
    with reading(where):
        body = _inflate(data[start : start + body_length])
        described, *handles = _split_first(body) if version == 1 else _split(body)
        if len(described) > _LARGEST_PROPERTIES:
            raise ValueError(f"its properties are {len(described)} bytes")
        properties = json.loads(described)
        if not isinstance(properties, dict):
            raise TypeError(f"its properties are a JSON {type(properties).__name__}")
        return MetadataObject(version, MetadataKind(kind), attempt.hex(), properties, tuple(handles))


def matches_with_state(data: bytes, size: int, checksum: int) -> bool:
    """Whether an object that `decode_object` took without its state matches its checksum with it.

    Parameters
    ----------
    size, checksum
        Of the state: its bytes, and their CRC-32.
    """
    *_, inline_length, body_length = _HEADER.unpack_from(data)
    if len(data) != _HEADER.size + body_length + _FOOTER.size:
        # It was read whole, and its checksum was looked at.
        return True
    if inline_length != size:
        return False
    of_all = combine(zlib.crc32(data[: _HEADER.size]), checksum, size)
    expected, _ = _FOOTER.unpack_from(data, len(data) - _FOOTER.size)
    return bool(zlib.crc32(data[_HEADER.size : -_FOOTER.size], of_all) == expected)


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Raise a `CorruptCheckpointError` for whatever goes wrong with an object's content within."""
    try:
        yield
    except (CorruptCheckpointError, UnsupportedFormatError):
        raise
    except (
        KeyError,
        RecursionError,
        StopIteration,
        TypeError,
        ValueError,
        struct.error,
        zlib.error,
    ) as error:
        raise _corrupt(where, f"cannot be read: {error}") from error


def _was_older(data: bytes) -> bool:
    """Whether an object of a newer format is one of an older format whose version is not what was written."""
    version_at = len(METADATA_MAGIC)
    found, end = _FOOTER.unpack_from(data, len(data) - _FOOTER.size)
    rest = memoryview(data)[version_at + 2 : -_FOOTER.size]
    return end == _END and any(
        found == zlib.crc32(rest, zlib.crc32(METADATA_MAGIC + struct.pack("<H", version)))
        for version in range(1, METADATA_FORMAT_VERSION + 1)
    )


def require_type(value: Any, kind: type) -> None:
    """Fail with a `TypeError` if a property is of another type."""
    if type(value) is not kind:
        raise TypeError(f"{value!r:.40} is no {kind.__name__}")


def require_count(value: Any) -> None:
    """Fail with a `TypeError` or a `ValueError` if a property is not a whole number from 0 to 2**63 - 1."""
    require_type(value, int)
    if not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r:.40} is out of range")


def require_attempt(value: Any) -> None:
    """Fail with a `TypeError` or a `ValueError` if a property names no attempt: it becomes a part of paths."""
    require_type(value, str)
    if not is_attempt(value):
        raise ValueError(f"{value!r:.40} names no attempt")


def _corrupt(where: str, what: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"{where} {what}: it is damaged or only a part of it was written. Copy it back from a backup, or start "
        "from an earlier version; nothing was changed."
    )


def _split_first(body: bytes) -> list[bytes]:
    # Format version 1: the properties and one handle.
    return _cut(body, 2 * _U32.size, [_U32.unpack_from(body)[0], _U32.unpack_from(body, _U32.size)[0]])


def _split(body: bytes) -> list[bytes]:
    described, count = struct.unpack_from("<2I", body)
    if count > len(body) // _U32.size:
        raise ValueError(f"{count} handles do not fit into {len(body)} bytes")
    lengths = struct.unpack_from(f"<{count}I", body, 2 * _U32.size)
    return _cut(body, (2 + count) * _U32.size, [described, *lengths])


def _cut(body: bytes, start: int, lengths: Sequence[int]) -> list[bytes]:
    parts = []
    for length in lengths:
        parts.append(body[start : start + length])
        start += length
    if start != len(body):
        raise ValueError(f"its parts are {start} bytes, and it has {len(body)}")
    return parts


def _inflate(body: bytes) -> bytes:
    decompressor = zlib.decompressobj()
    inflated = decompressor.decompress(body, _LARGEST_BODY)
    if decompressor.unconsumed_tail or not decompressor.eof:
        raise ValueError("its body is larger than metadata can be, or cut off")
    return inflated

"""Encoding and decoding of metadata objects of every kind; docs/format.md shows the layout."""

from __future__ import annotations

import enum
import json
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from spark_statestore.errors import (
    CheckpointIOError,
    CorruptCheckpointError,
    StateTooLargeError,
    UnsupportedFormatError,
    restore_from_backup,
)
from spark_statestore.formats.checksums import combine

METADATA_FORMAT_VERSION: Final = 1

METADATA_MAGIC: Final = b"\x89SSTM\r\n\x1a"
"""First bytes of every metadata object."""

ATTEMPT: Final = r"[0-9a-f]{16}"
"""Regular expression of attempt ids."""

_ATTEMPT: Final = re.compile(ATTEMPT)

# Levels of JSON; a nested type of Spark's has up to four levels for each of its own.
_DEEPEST: Final = 256

_END: Final = b"SSTE"
# Magic, format version, kind, unused, attempt_id, bytes of inline state, bytes of the body.
HEADER: Final = struct.Struct("<8sHHI8sQQ")
FOOTER: Final = struct.Struct("<I4s")
_U32: Final = struct.Struct("<I")

INLINE_STATE_OFFSET: Final = HEADER.size
"""Offset in bytes of the state that is stored inside a metadata object."""

# Limits memory for a damaged length field; 64 MiB of offsets address 16 TiB of state.
LARGEST_BODY: Final = 64 << 20
_LARGEST_PROPERTIES: Final = 16 << 20
LARGEST_STATE: Final = (1 << 31) - 1


class MetadataKind(enum.IntEnum):
    """The subject of a metadata object; stored by number."""

    STORE_VERSION = 0
    """One version of one state store."""
    OPERATORS = 1
    """The state of operators, each of one or more subtasks."""
    SAVEPOINT = 2
    """A savepoint of a streaming query."""
    MERGED_FILES = 3
    """Metadata objects of many stores in one file, with their index."""


@dataclass(frozen=True, slots=True)
class MetadataObject:
    """A decoded metadata object: subject, attempt of 16 hex digits, JSON object, and encoded handles."""

    kind: MetadataKind
    attempt_id: str
    properties: dict[str, Any]
    handles: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class InlineState:
    """State that is stored inside a metadata object, at `INLINE_STATE_OFFSET`.

    It has consecutive pieces, their size and their CRC-32.
    """

    parts: Sequence[bytes | bytearray | memoryview] = ()
    size: int = 0
    checksum: int = 0

    @classmethod
    def from_data(cls, data: bytes) -> InlineState:
        """Return the inline state of one piece of data."""
        return cls([data], len(data), zlib.crc32(data)) if data else cls()


@dataclass(frozen=True, slots=True)
class EncodedObject:
    """An encoded metadata object: consecutive pieces, their size and CRC-32."""

    parts: Sequence[bytes | bytearray | memoryview]
    size: int
    checksum: int

    def __bytes__(self) -> bytes:
        return b"".join(self.parts)


def encode_object(
    kind: MetadataKind,
    attempt_id: str,
    properties: dict[str, Any],
    handles: Sequence[bytes],
    inline_state: InlineState = InlineState(),
) -> EncodedObject:
    """Encode a metadata object, with `inline_state` inside of it.

    Raises
    ------
    CheckpointIOError, StateTooLargeError
        If the object exceeds the limits that `decode_object` enforces.
    """
    if inline_state.size > LARGEST_STATE:
        raise StateTooLargeError(
            f"{inline_state.size} bytes of state do not fit into a metadata object, which holds at most "
            f"{LARGEST_STATE}. Use storage=filesystem, which writes large commits to separate files, or more "
            "partitions."
        )
    described = json.dumps(properties, separators=(",", ":")).encode()
    lengths = [len(described), len(handles), *map(len, handles)]
    size = sum(lengths) - len(handles) + _U32.size * len(lengths)
    if len(described) > _LARGEST_PROPERTIES or size > LARGEST_BODY:
        raise CheckpointIOError(
            f"metadata of {size} bytes, {len(described)} of which are properties, exceeds the limits of "
            f"{LARGEST_BODY} and {_LARGEST_PROPERTIES} bytes. Use more partitions, or a smaller "
            "spark.sql.streaming.stateStore.minDeltasForSnapshot."
        )
    body = zlib.compress(
        b"".join([struct.pack(f"<{len(lengths)}I", *lengths), described, *handles]),
        1,
    )
    header = HEADER.pack(
        METADATA_MAGIC,
        METADATA_FORMAT_VERSION,
        kind,
        0,
        bytes.fromhex(attempt_id),
        inline_state.size,
        len(body),
    )
    checksum = combine(zlib.crc32(header), inline_state.checksum, inline_state.size)
    checksum = zlib.crc32(body, checksum)
    footer = FOOTER.pack(checksum, _END)
    return EncodedObject(
        [header, *inline_state.parts, body, footer],
        len(header) + inline_state.size + len(body) + len(footer),
        zlib.crc32(footer, checksum),
    )


def decode_object(data: bytes, where: str, *, without_state: bool = False) -> MetadataObject:
    """Decode and verify a metadata object; `where` is its URL, for messages.

    Parameters
    ----------
    without_state
        Accept an object whose inline state was left out. Its checksum also covers the state, so that only the
        body's own checksum is verified then.

    Raises
    ------
    CorruptCheckpointError
        If the object is damaged or incomplete.
    UnsupportedFormatError
        If its format version is newer than this release's.
    """
    if len(data) < HEADER.size or data[: len(METADATA_MAGIC)] != METADATA_MAGIC:
        problem = (
            "is empty"
            if not data
            else f"does not start with the magic number of metadata ({len(data)} bytes)"
        )
        raise _corrupt(where, problem)
    _, version, kind, _, attempt_id, inline_length, body_length = HEADER.unpack_from(data)
    if version < 1 or (version > METADATA_FORMAT_VERSION and _has_damaged_version(data)):
        raise _corrupt(where, "does not match its checksum")
    if version > METADATA_FORMAT_VERSION:
        raise UnsupportedFormatError(
            f"{where} has metadata format {version}, but this release reads formats up to "
            f"{METADATA_FORMAT_VERSION}. Upgrade spark-statestore to the release that wrote it; nothing was "
            "changed."
        )
    is_whole = len(data) == HEADER.size + inline_length + body_length + FOOTER.size
    if not is_whole and without_state:
        inline_length = 0
    if len(data) != HEADER.size + inline_length + body_length + FOOTER.size:
        raise _corrupt(where, f"has {len(data)} bytes, which is not the length in its header")
    checksum, end = FOOTER.unpack_from(data, len(data) - FOOTER.size)
    if end != _END or (
        (is_whole or not without_state) and checksum != zlib.crc32(memoryview(data)[: -FOOTER.size])
    ):
        raise _corrupt(where, "does not match its checksum")
    start = HEADER.size + inline_length
    with reading(where):
        body = _inflate(data[start : start + body_length])
        described, *handles = _split(body)
        if len(described) > _LARGEST_PROPERTIES:
            raise ValueError(f"its properties are {len(described)} bytes")
        properties = parse_json(described)
        if not isinstance(properties, dict):
            raise TypeError(f"its properties are a JSON {type(properties).__name__}")
        return MetadataObject(MetadataKind(kind), attempt_id.hex(), properties, tuple(handles))


def matches_with_state(data: bytes, size: int, checksum: int) -> bool:
    """Return whether an object that was decoded without its inline state matches its checksum.

    The object's checksum covers that state, too; `size` and `checksum` are those of the state.
    """
    *_, inline_length, body_length = HEADER.unpack_from(data)
    if len(data) != HEADER.size + body_length + FOOTER.size:
        # The object includes its state: decode_object verified the checksum.
        return True
    if inline_length != size:
        return False
    of_all = combine(zlib.crc32(data[: HEADER.size]), checksum, size)
    expected, _ = FOOTER.unpack_from(data, len(data) - FOOTER.size)
    return bool(zlib.crc32(data[HEADER.size : -FOOTER.size], of_all) == expected)


def parse_json(text: str | bytes | bytearray | memoryview) -> Any:
    """Parse JSON that was read from storage.

    Raises
    ------
    ValueError
        If it is not JSON, or nested so deeply that code which follows the nesting would exceed Python's
        recursion limit.
    """
    data = bytes(text) if isinstance(text, memoryview) else text
    try:
        node = json.loads(data)
    except RecursionError as error:
        raise ValueError("its JSON is nested too deeply") from error
    encoded = data.encode(errors="surrogatepass") if isinstance(data, str) else data
    if encoded.count(b"[") + encoded.count(b"{") > _DEEPEST:
        level = [node]
        for _ in range(_DEEPEST):
            level = [
                child
                for parent in level
                if isinstance(parent, dict | list)
                for child in (parent.values() if isinstance(parent, dict) else parent)
            ]
        if level:
            raise ValueError(f"its JSON is nested more than {_DEEPEST} levels deep")
    return node


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Convert errors of decoding an object's content into `CorruptCheckpointError`."""
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


def _has_damaged_version(data: bytes) -> bool:
    """Return whether the checksum matches once the version field is set to a version of this release."""
    checksum, end = FOOTER.unpack_from(data, len(data) - FOOTER.size)
    rest = memoryview(data)[len(METADATA_MAGIC) + 2 : -FOOTER.size]
    expected = METADATA_MAGIC + struct.pack("<H", METADATA_FORMAT_VERSION)
    return bool(end == _END and checksum == zlib.crc32(rest, zlib.crc32(expected)))


def is_attempt_id(value: Any) -> bool:
    """Return whether a value is an attempt id."""
    return isinstance(value, str) and _ATTEMPT.fullmatch(value) is not None


def attempt_id_of(data: bytes) -> str | None:
    """Return the attempt that wrote a metadata object, given it or its first 40 bytes.

    Return None for other bytes.
    """
    if len(data) < HEADER.size or not data.startswith(METADATA_MAGIC):
        return None
    attempt_id: bytes = HEADER.unpack_from(data)[4]
    return attempt_id.hex()


def require_type(value: Any, kind: type) -> None:
    """Require a property to have this type, else raise a `TypeError`."""
    if type(value) is not kind:
        raise TypeError(f"{value!r:.40} is no {kind.__name__}")


def require_count(value: Any) -> None:
    """Raise a `TypeError` or a `ValueError` unless a property is a whole number from 0 to 2**63 - 1."""
    require_type(value, int)
    if not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r:.40} is out of range")


def require_attempt_id(value: Any) -> None:
    """Raise a `TypeError` or a `ValueError` unless a property is an attempt id.

    It becomes a part of paths.
    """
    require_type(value, str)
    if not is_attempt_id(value):
        raise ValueError(f"{value!r:.40} is no attempt id")


def _corrupt(where: str, problem: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(f"{where} {problem}: it is damaged or incomplete. {restore_from_backup()}")


def _split(body: bytes) -> list[bytes]:
    described, count = struct.unpack_from("<2I", body)
    if count > len(body) // _U32.size:
        raise ValueError(f"{count} handles do not fit into {len(body)} bytes")
    lengths = struct.unpack_from(f"<{count}I", body, 2 * _U32.size)
    start = (2 + count) * _U32.size
    parts = []
    for length in (described, *lengths):
        parts.append(body[start : start + length])
        start += length
    if start != len(body):
        raise ValueError(f"its parts have {start} bytes, but its body has {len(body)}")
    return parts


def _inflate(body: bytes) -> bytes:
    decompressor = zlib.decompressobj()
    inflated = decompressor.decompress(body, LARGEST_BODY)
    if decompressor.unconsumed_tail or not decompressor.eof:
        raise ValueError("its body is larger than the limit of metadata, or cut off")
    return inflated

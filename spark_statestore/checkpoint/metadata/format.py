"""The metadata object of a checkpoint: bytes to values and back.

docs/format.md shows the layout. Nothing here touches a file.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from typing import Any, Final

from spark_statestore.errors import CorruptCheckpointError, UnsupportedFormatError
from spark_statestore.state.handles.codec import HandleContext, decode_handle
from spark_statestore.state.handles.incremental import IncrementalStateHandle

__all__ = [
    "INLINE_STATE_OFFSET",
    "METADATA_FORMAT_VERSION",
    "CheckpointMetadata",
    "NamedState",
    "StoreId",
    "decode_metadata",
    "encode_metadata",
    "owner_of",
]

METADATA_FORMAT_VERSION: Final = 1

_MAGIC: Final = b"\x89SSTM\r\n\x1a"
_END: Final = b"SSTE"
# Magic, format version, flags, unused, attempt, bytes of inline state, bytes of the body.
_HEADER: Final = struct.Struct("<8sHHI8sQQ")
_FOOTER: Final = struct.Struct("<I4s")
_BODY_LENGTHS: Final = struct.Struct("<II")

INLINE_STATE_OFFSET: Final = _HEADER.size
"""Where state that stays inside the metadata starts, in bytes."""

_LARGEST_BODY: Final = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoreId:
    """Which store of a query: its operator, partition and name."""

    operator: int
    partition: int
    name: str = "default"

    def __str__(self) -> str:
        return f"operator {self.operator}, partition {self.partition}, store {self.name}"


@dataclass(frozen=True, slots=True)
class NamedState:
    """One column family of a version.

    Attributes
    ----------
    name
        Its name; the plain state of an operator is called ``default``.
    rows
        Keys that it has.
    key_schema, value_schema
        Spark's schemas, as Spark's JSON.
    key_encoder
        How keys are indexed: ``hash`` or ``prefix``.
    prefix_columns
        Leading key columns that prefix scans use; 0 for ``hash``.
    """

    name: str
    rows: int
    key_schema: str
    value_schema: str
    key_encoder: str
    prefix_columns: int

    @classmethod
    def from_json(cls, node: dict[str, Any]) -> NamedState:
        """Read what the shim or a metadata object says of a state."""
        return cls(
            name=node["name"],
            rows=node["rows"],
            key_schema=node["keySchema"],
            value_schema=node["valueSchema"],
            key_encoder=node["keyEncoder"],
            prefix_columns=node["prefixColumns"],
        )

    def to_json(self) -> dict[str, Any]:
        """Counterpart of `from_json`."""
        return {
            "name": self.name,
            "rows": self.rows,
            "keySchema": self.key_schema,
            "valueSchema": self.value_schema,
            "keyEncoder": self.key_encoder,
            "prefixColumns": self.prefix_columns,
        }


@dataclass(frozen=True, slots=True)
class CheckpointMetadata:
    """What a checkpoint says of itself.

    Attributes
    ----------
    store
        The store.
    version
        The version.
    attempt
        The commit attempt that wrote it, 16 hex digits.
    parent_attempt
        The attempt that wrote the version before it; None for the first version.
    created_ms
        When, in milliseconds since 1970.
    written_by
        Version of this package.
    states
        The column families.
    handle
        The streams of the version.
    """

    store: StoreId
    version: int
    attempt: str
    parent_attempt: str | None
    created_ms: int
    written_by: str
    states: tuple[NamedState, ...]
    handle: IncrementalStateHandle


def encode_metadata(metadata: CheckpointMetadata, inline_state: bytes, handle: bytes) -> bytes:
    """The metadata object.

    Parameters
    ----------
    inline_state
        State that stays inside the object, at `INLINE_STATE_OFFSET`.
    handle
        The metadata's handle, encoded: it also travels on its own, and encoding it takes time.
    """
    properties = {
        "operator": metadata.store.operator,
        "partition": metadata.store.partition,
        "store": metadata.store.name,
        "version": metadata.version,
        "parentAttempt": metadata.parent_attempt,
        "createdMs": metadata.created_ms,
        "writtenBy": metadata.written_by,
        "states": [state.to_json() for state in metadata.states],
    }
    described = json.dumps(properties, separators=(",", ":")).encode()
    body = zlib.compress(_BODY_LENGTHS.pack(len(described), len(handle)) + described + handle, 1)
    header = _HEADER.pack(
        _MAGIC,
        METADATA_FORMAT_VERSION,
        0,
        0,
        bytes.fromhex(metadata.attempt),
        len(inline_state),
        len(body),
    )
    checksum = zlib.crc32(body, zlib.crc32(inline_state, zlib.crc32(header)))
    return b"".join([header, inline_state, body, _FOOTER.pack(checksum, _END)])


def decode_metadata(data: bytes, context: HandleContext, where: str) -> CheckpointMetadata:
    """Read a metadata object, checking all of it.

    Parameters
    ----------
    where
        The object's URL, for messages.

    Raises
    ------
    CorruptCheckpointError
        If the bytes are not those that were written.
    UnsupportedFormatError
        If a newer release wrote them.
    """
    if len(data) < _HEADER.size or data[: len(_MAGIC)] != _MAGIC:
        what = "is empty" if not data else f"does not start as metadata does ({len(data)} bytes)"
        raise _corrupt(where, what)
    _, version, _, _, attempt, inline_length, body_length = _HEADER.unpack_from(data)
    if version > METADATA_FORMAT_VERSION:
        raise UnsupportedFormatError(
            f"{where} has metadata format {version}, but this release reads formats up to "
            f"{METADATA_FORMAT_VERSION}. Upgrade spark-statestore to the release that wrote it; nothing was changed."
        )
    if len(data) != _HEADER.size + inline_length + body_length + _FOOTER.size:
        raise _corrupt(where, f"is {len(data)} bytes long, which is not the length it was written with")
    checksum, end = _FOOTER.unpack_from(data, len(data) - _FOOTER.size)
    if end != _END or checksum != zlib.crc32(memoryview(data)[: -_FOOTER.size]):
        raise _corrupt(where, "does not match its checksum")
    start = _HEADER.size + inline_length
    try:
        body = _inflate(data[start : start + body_length])
        described_length, handle_length = _BODY_LENGTHS.unpack_from(body)
        described = body[_BODY_LENGTHS.size :][:described_length]
        handle = body[_BODY_LENGTHS.size + described_length :]
        if len(handle) != handle_length:
            raise ValueError("the handle is cut off")
        properties = json.loads(described)
        decoded = decode_handle(handle, context)
        if not isinstance(decoded, IncrementalStateHandle):
            raise TypeError(f"the handle is a {type(decoded).__name__}")
        return CheckpointMetadata(
            store=StoreId(properties["operator"], properties["partition"], properties["store"]),
            version=properties["version"],
            attempt=attempt.hex(),
            parent_attempt=properties["parentAttempt"],
            created_ms=properties["createdMs"],
            written_by=properties["writtenBy"],
            states=tuple(NamedState.from_json(node) for node in properties["states"]),
            handle=decoded,
        )
    except (KeyError, TypeError, ValueError, RecursionError, struct.error, zlib.error) as error:
        if isinstance(error, CorruptCheckpointError | UnsupportedFormatError):
            raise
        raise _corrupt(where, f"cannot be read: {error}") from error


def owner_of(data: bytes) -> str | None:
    """The attempt that wrote a metadata object, None if these bytes are no metadata."""
    if len(data) < _HEADER.size or data[: len(_MAGIC)] != _MAGIC:
        return None
    attempt: bytes = _HEADER.unpack_from(data)[4]
    return attempt.hex()


def _inflate(body: bytes) -> bytes:
    decompressor = zlib.decompressobj()
    inflated = decompressor.decompress(body, _LARGEST_BODY)
    if decompressor.unconsumed_tail or not decompressor.eof:
        raise ValueError("its body is larger than metadata can be, or cut off")
    return inflated


def _corrupt(where: str, what: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"{where} {what}: it is damaged or only a part of it was written. Copy it back from a backup, or start "
        "from an earlier version; nothing was changed."
    )

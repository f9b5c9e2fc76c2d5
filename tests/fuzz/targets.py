"""Readers of untrusted bytes: each with the errors that it may raise, and valid bytes.

A target reads arbitrary bytes, and must return the result or raise one of its errors. Any other exception is
a fault, `MemoryError` too: a few bytes must not cause large allocations.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from spark_statestore.backend.protocol import FrameSocket, Kind, check_request
from spark_statestore.errors import CheckpointError, ProtocolError
from spark_statestore.files import MemoryFileSystem
from spark_statestore.formats.change_batches import CHANGE_SCHEMA, pack, read_change_batch
from spark_statestore.operator_state.metadata import decode_operators
from spark_statestore.operator_state.stream_format import Reader, decode_header
from spark_statestore.query.logs import CommitEntry, OffsetEntry
from spark_statestore.query.operators import StatefulOperator
from spark_statestore.query.savepoint import decode_savepoint
from spark_statestore.storage.file_handles import FileStateHandle, SegmentFileStateHandle
from spark_statestore.storage.handle_codec import HandleContext, decode_handle
from spark_statestore.storage.incremental_handle import IncrementalStateHandle
from spark_statestore.store.changelog import parts_of
from spark_statestore.store.metadata import CheckpointMetadata, decode_metadata
from tests.unit.backend.backends import frame, requests_of
from tests.unit.damaged_bytes import encoded
from tests.unit.store.stores import message

__all__ = ["DIRECTORY", "TARGETS", "Target", "reencoded"]

DIRECTORY = "/query/state/0/0"
"""Directory of the store whose handles are read."""

DATA = Path(__file__).parent.parent / "unit" / "store" / "data"
_FOOTER = struct.Struct("<I4s")
_HEADER = struct.Struct("<8sHHI8sQQ")


@dataclass(frozen=True)
class Target:
    """A reader, its valid inputs, and the errors that it may raise."""

    reader: Callable[[bytes], object]
    seeds: list[bytes]
    errors: tuple[type[Exception], ...]

    def takes(self, data: bytes) -> bool:
        """Return whether it accepts some bytes; fail if it refuses them with another error."""
        try:
            self.reader(data)
        except self.errors as error:
            if isinstance(error, MemoryError):
                raise
            return False
        return True


def reencoded(body: bytes, like: bytes) -> bytes:
    """Build a metadata object with another body and matching checksums, as an attacker could."""
    *start, inline, _ = _HEADER.unpack_from(like)
    state = like[_HEADER.size : _HEADER.size + inline]
    packed = zlib.compress(body, 1)
    whole = _HEADER.pack(*start, inline, len(packed)) + state + packed
    return whole + _FOOTER.pack(zlib.crc32(whole), b"SSTE")


def _body(data: bytes) -> bytes:
    *_, inline, length = _HEADER.unpack_from(data)
    start = _HEADER.size + inline
    return zlib.decompress(data[start : start + length])


def _inside(handle: IncrementalStateHandle) -> None:
    """Resolve a version's handle as a load does; fail if it leads out of its store."""
    for entry in handle:
        stream = entry.state.delegate_state_handle
        if isinstance(stream, FileStateHandle | SegmentFileStateHandle):
            below = stream.path.removeprefix(f"{DIRECTORY}/")
            owner = getattr(stream, "attempt_id", "")
            if below == stream.path or ".." in below.split("/") or "/" in owner or "\0" in below + owner:
                raise AssertionError(f"{stream} is outside of {DIRECTORY}")
        for part in parts_of(entry.state, "a version"):
            if part.end <= part.start:
                raise AssertionError(f"{part} has no bytes")


CONTEXT = HandleContext(MemoryFileSystem(), DIRECTORY)

VERSIONS = [path.read_bytes() for path in sorted(DATA.glob("format-1/0/*/chk-*/_metadata*"))]
LIKE = VERSIONS[-1]
OPERATORS = [path.read_bytes() for path in sorted(DATA.glob("format-1/operators/chk-1/_metadata"))]
SAVEPOINTS = [path.read_bytes() for path in sorted(DATA.glob("format-1/savepoints/*/_metadata"))]
STREAMS = [path.read_bytes() for path in sorted(DATA.glob("format-1/operators/chk-1/*-*"))]
STREAMS = [data for data in STREAMS if data.startswith(b"\x89SSTO")]


def _metadata(data: bytes) -> object:
    metadata: CheckpointMetadata = decode_metadata(data, CONTEXT, "a version")
    _inside(metadata.handle)
    return metadata


def _handles(data: bytes) -> list[bytes]:
    """Return the handles in a version's metadata object."""
    body = _body(data)
    described, count = struct.unpack_from("<2I", body)
    lengths = struct.unpack_from(f"<{count}I", body, 8)
    start = 8 + 4 * count + described
    return [body[start : start + lengths[0]]]


def _handle(data: bytes) -> object:
    handle = decode_handle(data, CONTEXT)
    if isinstance(handle, IncrementalStateHandle):
        _inside(handle)
    return handle


def _frames(data: bytes) -> object:
    sender, receiver = socket.socketpair()
    with sender, receiver:
        sender.sendall(data[: 64 << 10])
        sender.shutdown(socket.SHUT_WR)
        frames = FrameSocket(receiver)
        received = []
        while (frame := frames.receive()) is not None:
            if frame.kind is Kind.CONTROL:
                check_request(frame.json())
            received.append(frame)
        return received


def _changes(data: bytes) -> object:
    batch = read_change_batch(pa.py_buffer(data), full=True)
    # The decoded object is inspected, and encoded again.
    batch.to_pylist()
    return pack(batch)


def _operator_state(data: bytes) -> object:
    header = decode_header(data, "a stream")
    reader = Reader(data, "a stream")
    for offset in range(0, len(data), 97):
        for method in (reader.element, reader.part):
            # Most offsets are invalid.
            with contextlib.suppress(CheckpointError):
                method(offset, 2)
    return header


def _messages() -> list[bytes]:
    small = message({b"a": b"1", b"bb": b""}, removed=[b"c"], appended={b"d": b"22"})
    large = message({b"%8d" % number: b"%16d" % (number // 9) for number in range(400)})
    batches = [pa.ipc.read_record_batch(buffer, CHANGE_SCHEMA) for buffer in (small, large)]
    packed = pack(batches[1])
    return [encoded(batch, codec) for batch in (*batches, packed) for codec in (None, "zstd")]


def _requests() -> list[bytes]:
    rest = frame(Kind.HANDLE, b"handle") + frame(Kind.END)
    return [frame(Kind.CONTROL, json.dumps(request).encode()) + rest for request in requests_of("/x")]


LOG = b'v1\n{"batchWatermarkMs":0,"conf":{"spark.sql.shuffle.partitions":"2"}}\n{"logOffset":3}'
COMMIT = b'v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{"0":[["ab","cd"]]}}'
OPERATOR = (
    b'v2\n{"operatorInfo":{"operatorId":0,"operatorName":"stateStoreSave"},"operatorPropertiesJson":"{}",'
    b'"stateStoreInfo":[{"storeName":"default","numColsPrefixKey":0,"numPartitions":2,'
    b'"stateSchemaFilePaths":["file:/x/state/0/_stateSchema/default/0_a"]}]}'
)


TARGETS = {
    "frames": Target(_frames, _requests(), (ProtocolError, ConnectionError)),
    "changes": Target(_changes, _messages(), (pa.ArrowException,)),
    "handle": Target(
        _handle, [handle for data in VERSIONS[-12:] for handle in _handles(data)], (CheckpointError,)
    ),
    "metadata": Target(_metadata, VERSIONS, (CheckpointError,)),
    # With matching checksums.
    "body": Target(
        lambda data: _metadata(reencoded(data, LIKE)), [*map(_body, VERSIONS[-12:])], (CheckpointError,)
    ),
    "operators": Target(
        lambda data: decode_operators(reencoded(data, OPERATORS[-1]), CONTEXT, "operators"),
        [*map(_body, OPERATORS)],
        (CheckpointError,),
    ),
    "savepoint": Target(
        lambda data: decode_savepoint(reencoded(data, SAVEPOINTS[-1]), "file:/s", "a savepoint"),
        [*map(_body, SAVEPOINTS)],
        (CheckpointError,),
    ),
    "operator state": Target(_operator_state, STREAMS, (CheckpointError,)),
    "offsets": Target(lambda data: OffsetEntry.decode(data, "a log"), [LOG], (CheckpointError,)),
    "commits": Target(lambda data: CommitEntry.decode(data, "a log"), [COMMIT], (CheckpointError,)),
    "operator": Target(lambda data: StatefulOperator.decode(data, "a file"), [OPERATOR], (CheckpointError,)),
}
"""Every reader, by name."""

"""What reads bytes that others may have written: each reader, what it may raise, and bytes that it takes.

A target takes whatever bytes there are, and must come back with what it read or with one of its errors. Everything
else that is raised is a fault, a `MemoryError` too: what a few bytes ask for must not be taken.
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

from spark_statestore.checkpoint.files import MemoryFileSystem
from spark_statestore.checkpoint.metadata import CheckpointMetadata, decode_metadata, decode_operators
from spark_statestore.checkpoint.query.logs import CommitEntry, OffsetEntry
from spark_statestore.checkpoint.query.operators import StatefulOperator
from spark_statestore.errors import CheckpointError, ProtocolError
from spark_statestore.savepoint.savepoint import decode_savepoint
from spark_statestore.server.checks import check_request
from spark_statestore.server.protocol import FrameSocket, Kind
from spark_statestore.state.change_batches import CHANGE_SCHEMA, pack, read_change_batch
from spark_statestore.state.changes import parts_of
from spark_statestore.state.handles import FileStateHandle, SegmentFileStateHandle
from spark_statestore.state.handles.codec import HandleContext, decode_handle
from spark_statestore.state.handles.incremental import IncrementalStateHandle
from spark_statestore.state.operator.format import Reader, decode_header
from tests.checkpoint.stores import message
from tests.state.damage import encoded

__all__ = ["DIRECTORY", "TARGETS", "Target", "resealed"]

DIRECTORY = "/query/state/0/0"
"""Where the store lies whose handles are read."""

DATA = Path(__file__).parent.parent / "checkpoint" / "data"
_FOOTER = struct.Struct("<I4s")
_HEADER = struct.Struct("<8sHHI8sQQ")


@dataclass(frozen=True)
class Target:
    """One reader.

    Attributes
    ----------
    read
        Reads bytes.
    seeds
        Bytes that it reads.
    errors
        What it may raise.
    """

    read: Callable[[bytes], object]
    seeds: list[bytes]
    errors: tuple[type[Exception], ...]

    def takes(self, data: bytes) -> bool:
        """Whether it reads some bytes; fails if it does not refuse them as it must."""
        try:
            self.read(data)
        except self.errors as error:
            if isinstance(error, MemoryError):
                raise
            return False
        return True


def resealed(body: bytes, like: bytes) -> bytes:
    """A metadata object with another body, as whoever can write a checkpoint makes one: all checksums match."""
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
    """Follow a version's handle as a load does; fail if it leads out of its store."""
    for entry in handle:
        stream = entry.state.delegate_state_handle
        if isinstance(stream, FileStateHandle | SegmentFileStateHandle):
            below = stream.path.removeprefix(f"{DIRECTORY}/")
            owner = getattr(stream, "owner", "")
            if below == stream.path or ".." in below.split("/") or "/" in owner or "\0" in below + owner:
                raise AssertionError(f"{stream} lies outside of {DIRECTORY}")
        for part in parts_of(entry.state, "a version"):
            if part.end <= part.start:
                raise AssertionError(f"{part} has no bytes")


CONTEXT = HandleContext(MemoryFileSystem(), DIRECTORY, confined=True)
ANYWHERE = HandleContext(MemoryFileSystem(), DIRECTORY)

VERSIONS = [path.read_bytes() for path in sorted(DATA.glob("format-v*/0/*/chk-*/_metadata*"))]
LIKE = VERSIONS[-1]
OPERATORS = [path.read_bytes() for path in sorted(DATA.glob("format-v*/operators/chk-1/_metadata"))]
SAVEPOINTS = [path.read_bytes() for path in sorted(DATA.glob("format-v*/savepoints/*/_metadata"))]
STREAMS = [path.read_bytes() for path in sorted(DATA.glob("format-v*/operators/chk-1/*-*"))]
STREAMS = [data for data in STREAMS if data.startswith(b"\x89SSTO")]


def _metadata(data: bytes) -> object:
    found: CheckpointMetadata = decode_metadata(data, CONTEXT, "a version")
    _inside(found.handle)
    return found


def _handles(data: bytes) -> list[bytes]:
    """The handles in a metadata object of a version."""
    body = _body(data)
    described, count = struct.unpack_from("<2I", body)
    lengths = struct.unpack_from(f"<{count}I", body, 8)
    start = 8 + 4 * count + described
    return [body[start : start + lengths[0]]]


def _handle(data: bytes) -> object:
    found = decode_handle(data, CONTEXT)
    if isinstance(found, IncrementalStateHandle):
        _inside(found)
    return found


def _frames(data: bytes) -> object:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(data[: 64 << 10])
        ours.shutdown(socket.SHUT_WR)
        frames = FrameSocket(theirs)
        found = []
        while (frame := frames.receive()) is not None:
            if frame.kind is Kind.CONTROL:
                check_request(frame.json())
            found.append(frame)
        return found


def _framed(*frames: tuple[Kind, bytes]) -> bytes:
    header = struct.Struct("<BBHIQ")
    return b"".join(
        header.pack(kind, 0, 0, 0x31545353, len(payload)) + payload
        for kind, payload in (*frames, (Kind.END, b""))
    )


def _changes(data: bytes) -> object:
    batch = read_change_batch(pa.py_buffer(data), full=True)
    # What is read is looked at, and written again.
    batch.to_pylist()
    return pack(batch)


def _operator_state(data: bytes) -> object:
    found = decode_header(data, "a stream")
    reader = Reader(data, "a stream")
    for offset in range(0, len(data), 97):
        for read in (reader.element, reader.part):
            # Most offsets lead to nothing.
            with contextlib.suppress(CheckpointError):
                read(offset, 2)
    return found


def _messages() -> list[bytes]:
    small = message({b"a": b"1", b"bb": b""}, removed=[b"c"], appended={b"d": b"22"})
    large = message({b"%8d" % number: b"%16d" % (number // 9) for number in range(400)})
    batches = [pa.ipc.read_record_batch(one, CHANGE_SCHEMA) for one in (small, large)]
    packed = pack(batches[1])
    return [encoded(batch, codec) for batch in (*batches, packed) for codec in (None, "lz4", "zstd")]


def _requests() -> list[bytes]:
    store = {
        "instance": "i",
        "root": "file:/x",
        "operator": 0,
        "partition": 1,
        "name": "default",
        "options": {},
    }
    named = {"version": 3, "attempt": "0123456789abcdef", "idInPath": True}
    requests = [
        {"op": "load", "version": 3, "id": "ab", "objects": ["chk-1/_metadata"], "kept": [1, 3], "from": 1},
        {"op": "lineage", "version": 3, "oldest": 1, "state": "default"},
        {"op": "changes", "state": "default", **named},
        {"op": "commit", "hasParent": True, "hasBase": False, "parentAttempt": None, "states": [], **named},
        {"op": "materialise", "version": 3, "states": [{"name": "default"}]},
        {"op": "cleanup", "retainFrom": 2, "mostVersions": 0, **named},
    ]
    return [
        _framed((Kind.CONTROL, json.dumps({"store": store, **request}).encode()), (Kind.HANDLE, b"handle"))
        for request in requests
    ]


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
    "handle": Target(_handle, [one for data in VERSIONS[-12:] for one in _handles(data)], (CheckpointError,)),
    "metadata": Target(_metadata, VERSIONS, (CheckpointError,)),
    # With the right checksums around it.
    "body": Target(
        lambda data: _metadata(resealed(data, LIKE)), [*map(_body, VERSIONS[-12:])], (CheckpointError,)
    ),
    "operators": Target(
        lambda data: decode_operators(resealed(data, OPERATORS[-1]), ANYWHERE, "operators"),
        [*map(_body, OPERATORS)],
        (CheckpointError,),
    ),
    "savepoint": Target(
        lambda data: decode_savepoint(resealed(data, SAVEPOINTS[-1]), "file:/s", "a savepoint"),
        [*map(_body, SAVEPOINTS)],
        (CheckpointError,),
    ),
    "operator state": Target(_operator_state, STREAMS, (CheckpointError,)),
    "offsets": Target(lambda data: OffsetEntry.decode(data, "a log"), [LOG], (CheckpointError,)),
    "commits": Target(lambda data: CommitEntry.decode(data, "a log"), [COMMIT], (CheckpointError,)),
    "operator": Target(lambda data: StatefulOperator.decode(data, "a file"), [OPERATOR], (CheckpointError,)),
}
"""Every reader, by name."""

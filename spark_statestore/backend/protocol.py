"""Frames carry the messages between the JVM and the backend, and requests have known fields.

See docs/format.md.
"""

from __future__ import annotations

import enum
import json
import re
import socket
import struct
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa

from spark_statestore.errors import ProtocolError
from spark_statestore.files.request_context import RequestContext
from spark_statestore.formats.metadata import is_attempt_id

PROTOCOL_VERSION: Final = 2
"""Version of frames, requests and answers; both sides must have the same one."""

_MAGIC: Final = 0x31545353
# Kind, an unused byte, index of the column family, magic, payload length, CRC-32 of the payload.
_HEADER: Final = struct.Struct("<BxHIQI")

# Small frames are buffered up to this size and leave in one system call.
_GATHER_BYTES: Final = 64 * 1024

# The buffer for a larger payload grows as bytes arrive: a forged length alone must not allocate memory.
_TRUSTED_BYTES: Final = 16 << 20


class Kind(enum.IntEnum):
    """Kinds of frames."""

    CONTROL = 1
    """A JSON object: a request or its answer."""
    HANDLE = 2
    """A state handle: one Arrow record batch message."""
    DATA = 3
    """Changes of one column family: one Arrow record batch message, as it is stored."""
    END = 4
    """End of a message."""
    ERROR = 5
    """A JSON object that describes a failure; it ends the message."""
    OBJECT = 6
    """A whole metadata object of a store whose checkpoints are on the driver."""
    STREAM = 7
    """End of a stream of changes; the next one follows."""


# Largest payload of each kind in bytes.
_LIMITS: Final = {
    Kind.CONTROL: 16 << 20,
    Kind.HANDLE: 256 << 20,
    Kind.DATA: (1 << 31) - 1,
    Kind.END: 0,
    Kind.ERROR: 16 << 20,
    Kind.OBJECT: (1 << 31) - 1,
    Kind.STREAM: 0,
}


class Frame(NamedTuple):
    """One frame.

    Attributes
    ----------
    column_family
        For `Kind.DATA`: position of its column family in the request.
    checksum
        CRC-32 of the payload. That of `Kind.DATA` is not verified here: it becomes part of the
        checksum of the stream, which every load verifies.
    """

    kind: Kind
    column_family: int
    payload: pa.Buffer
    checksum: int

    def json(self) -> dict[str, Any]:
        """Return the payload as a JSON object."""
        try:
            node = json.loads(memoryview(self.payload).tobytes())
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"a control frame is not valid JSON: {error}") from error
        if not isinstance(node, dict):
            raise ProtocolError(f"a control frame is a JSON {type(node).__name__} instead of an object")
        return node


class FrameSocket:
    """A connected stream socket that sends and receives frames, for one thread at a time.

    Attributes
    ----------
    deadline
        Time of `time.monotonic` at which receiving raises a `TimeoutError`; None for never.
    context
        The request that is served; suspended while the socket transfers bytes. None if it is not supervised.
    has_answered
        Whether the end of a message was sent since a frame was received.
    """

    context: RequestContext | None = None
    has_answered = False

    def __init__(self, connection: socket.socket) -> None:
        self.deadline: float | None = None
        self._socket = connection
        # Bytes received and not consumed yet: from _start to _end.
        self._received = memoryview(bytearray(_GATHER_BYTES))
        self._start = 0
        self._end = 0
        self._waiting: list[bytes | memoryview] = []
        self._waiting_bytes = 0
        # Parts of messages that have ended.
        self._waiting_ended = 0
        self._ended = True
        self._taken_over = False

    def receive(self, most: int | None = None) -> Frame | None:
        """Read a frame with a payload of at most `most` bytes.

        Return None if the peer closed the connection between frames.

        Raises
        ------
        ProtocolError
            If the bytes are not a frame, the payload is too large, or its checksum is wrong.
        ConnectionError
            If the connection breaks within a frame.
        """
        if not self._gather(_HEADER.size, may_end=True):
            self._ended = True
            return None
        number, column_family, magic, length, checksum = _HEADER.unpack_from(self._received, self._start)
        self._start += _HEADER.size
        if magic != _MAGIC or number not in Kind._value2member_map_:
            raise ProtocolError("the received bytes are not a frame of this protocol")
        kind = Kind(number)
        limit = _LIMITS[kind] if most is None else min(most, _LIMITS[kind])
        if length > limit:
            raise ProtocolError(f"a {kind.name} frame of {length} bytes is larger than the {limit} allowed")
        payload = self._payload(length)
        if kind is not Kind.DATA and zlib.crc32(payload) != checksum:
            raise ProtocolError(f"a {kind.name} frame of {length} bytes does not match its checksum")
        self._ended = kind is Kind.END
        self.has_answered = False
        return Frame(kind, column_family, payload, checksum)

    def expect_end(self) -> None:
        """Read the end of a message; raise `ProtocolError` if another frame follows."""
        frame = self.receive()
        if frame is None or frame.kind is not Kind.END:
            raise ProtocolError("unexpected frame after the end of the request")

    def drain(self) -> None:
        """Read and discard the rest of a message."""
        while not self._ended:
            self.receive()

    def send(self, kind: Kind, payload: bytes | memoryview | pa.Buffer = b"", column_family: int = 0) -> None:
        """Queue a frame.

        It leaves at the latest with the end of the message, or once the next request was received.
        """
        view = memoryview(payload).cast("B")
        self._waiting += [_HEADER.pack(kind, column_family, _MAGIC, len(view), zlib.crc32(view)), view]
        self._waiting_bytes += len(view)
        if kind in (Kind.END, Kind.ERROR):
            # Set before the bytes leave: the watchdog must not send an error of its own after this answer.
            self.has_answered = True
            self._waiting_ended = len(self._waiting)
        # A client may send several requests before it reads: their answers leave together.
        is_last = kind is Kind.END and self._start == self._end
        if self._waiting_bytes >= _GATHER_BYTES or is_last or kind is Kind.ERROR:
            self._flush()

    def send_json(self, kind: Kind, node: dict[str, Any]) -> None:
        """Queue a control or error frame."""
        self.send(kind, json.dumps(node, separators=(",", ":")).encode())

    def discard_waiting(self) -> None:
        """Drop the frames of an unfinished message that have not been sent yet."""
        del self._waiting[self._waiting_ended :]
        self._waiting_bytes = sum(map(len, self._waiting))

    def take_over(self) -> FrameSocket:
        """Return the connection for use by another thread; the hung thread no longer closes it."""
        connection = FrameSocket(self._socket)
        connection._received, connection._start, connection._end = self._received, self._start, self._end
        connection._ended = self._ended
        connection.has_answered = self.has_answered
        self.discard_waiting()
        connection._waiting_bytes = self._waiting_bytes
        connection._waiting = self._take_waiting()
        connection._waiting_ended = len(connection._waiting)
        self._taken_over = True
        return connection

    def expire_after(self, seconds: float) -> None:
        """Set the seconds without a transferred byte after which a `TimeoutError` is raised."""
        self._socket.settimeout(seconds)

    def is_connected(self) -> bool:
        """Return False if the peer closed the connection; bytes that it sent before may still be unread."""
        try:
            return self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def close(self) -> None:
        """Close the connection."""
        if not self._taken_over:
            self._socket.close()

    def _take_waiting(self) -> list[bytes | memoryview]:
        parts, self._waiting = self._waiting, []
        self._waiting_bytes = self._waiting_ended = 0
        return parts

    def _flush(self) -> None:
        parts = [part for part in self._take_waiting() if len(part)]
        context = self._begin_transfer()
        while parts:
            sent = self._socket.sendmsg(parts[:64])
            while parts and sent >= len(parts[0]):
                sent -= len(parts[0])
                del parts[0]
            if sent:
                parts[0] = memoryview(parts[0])[sent:]
        if context is not None:
            context.heartbeat()

    def _payload(self, length: int) -> pa.Buffer:
        if length <= self._end - self._start:
            return pa.py_buffer(bytes(self._take(length)))
        size = min(length, _TRUSTED_BYTES)
        payload = pa.allocate_buffer(size, resizable=size < length)
        got = self._end - self._start
        memoryview(payload).cast("B")[:got] = self._take(got)
        while True:
            self._fill(payload, got)
            if size == length:
                return payload
            got, size = size, min(length, 2 * size)
            payload.resize(size)

    def _fill(self, payload: pa.Buffer, got: int) -> None:
        with memoryview(payload) as view, view.cast("B") as target:
            while got < len(target):
                got += self._receive_into(target[got:])

    def _gather(self, size: int, *, may_end: bool = False) -> bool:
        """Buffer at least `size` bytes; return False if the peer closed the connection instead."""
        have = self._end - self._start
        if have >= size:
            return True
        self._received[:have] = self._received[self._start : self._end]
        self._start, self._end = 0, have
        while self._end < size:
            n = self._receive_into(self._received[self._end :], may_end=may_end and self._end == 0)
            if n == 0:
                return False
            self._end += n
        return True

    def _take(self, size: int) -> memoryview:
        self._start += size
        return self._received[self._start - size : self._start]

    def _receive_into(self, target: memoryview, *, may_end: bool = False) -> int:
        if self.deadline is not None:
            seconds = self.deadline - time.monotonic()
            if seconds <= 0:
                raise TimeoutError("the expected bytes did not arrive in time")
            self._socket.settimeout(seconds)
        if self._waiting_ended:
            # The client may wait for an answer before it sends more.
            self._flush()
        context = self._begin_transfer()
        n = self._socket.recv_into(target)
        if context is not None:
            context.heartbeat()
        if n == 0 and not may_end:
            raise ConnectionResetError("the connection was closed within a message")
        return n

    def _begin_transfer(self) -> RequestContext | None:
        context = self.context
        if context is not None:
            context.suspend()
        return context


_ID: Final = re.compile(r"[0-9A-Za-z]{1,64}")
_LARGEST: Final = (1 << 63) - 1


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0


def _is_id(value: Any) -> bool:
    return value is None or (isinstance(value, str) and _ID.fullmatch(value) is not None)


def _is_list(is_item: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(is_item, value))


def _is_options(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_text(text) for text in value.values())


_Fields = Mapping[str, Callable[[Any], bool]]

_STORE: Final[_Fields] = {
    "instance": _is_text,
    "root": _is_text,
    "operator": _is_number,
    "partition": _is_number,
    "name": _is_text,
    "options": _is_options,
}
_STORE_OPTIONAL: Final[_Fields] = {
    "commits": lambda value: value is None or _is_text(value),
    "run": _is_text,
    "minDeltasForSnapshot": _is_number,
}

_VERSION: Final[_Fields] = {"version": _is_count, "attemptId": is_attempt_id, "idInPath": _is_flag}
_COLUMN_FAMILIES: Final[_Fields] = {"columnFamilies": _is_list(lambda value: isinstance(value, dict))}

_FILE: Final[_Fields] = {"path": _is_text, "options": _is_options}

# Required and optional fields of each request.
_FIELDS: Final[Mapping[str, tuple[_Fields, _Fields]]] = {
    "load": (
        {"version": _is_count},
        {
            "id": _is_id,
            "from": _is_count,
            "fromId": _is_id,
            "raw": _is_flag,
            "after": _is_count,
            "afterAttemptId": is_attempt_id,
            "metadataPaths": _is_list(_is_text),
            "driverRange": lambda value: _is_list(_is_count)(value) and len(value) == 2,
        },
    ),
    "lineage": ({"version": _is_count, "oldest": _is_count, "columnFamily": _is_text}, {"id": _is_id}),
    "changes": ({**_VERSION, "columnFamily": _is_text}, {}),
    "commit": (
        {**_VERSION, **_COLUMN_FAMILIES, "hasParent": _is_flag, "hasBase": _is_flag},
        {
            "parentAttemptId": lambda value: value is None or is_attempt_id(value),
            "oldestBaseVersion": _is_number,
            "knownSince": _is_count,
            "merge": _is_flag,
            "handOver": _is_flag,
        },
    ),
    "publish": (
        {"version": _is_count, "attempts": _is_list(is_attempt_id)},
        {"objects": _is_list(_is_text), "discarded": _is_list(_is_text)},
    ),
    "snapshot": ({"version": _is_count, **_COLUMN_FAMILIES}, {"since": _is_count}),
    "check": ({"options": _is_options, "directories": _is_flag}, {}),
    "close": ({"instances": _is_list(_is_text), "runs": _is_list(_is_text)}, {}),
    "readFile": ({**_FILE, "start": _is_count, "size": _is_count}, {}),
    "createFile": ({**_FILE, "overwrite": _is_flag, "repeated": _is_flag}, {}),
    "fileStatus": ({**_FILE, "isFile": _is_flag}, {}),
    "listDirectory": (_FILE, {}),
    "deleteFile": (_FILE, {}),
    "deleteFiles": ({**_FILE, "names": _is_list(lambda value: _is_text(value) and "/" not in value)}, {}),
    "makeDirectory": (_FILE, {}),
    "settlePartitions": ({**_FILE, "canHaveIds": _is_flag, "start": _is_id}, {"query": _is_text}),
    "cleanup": (
        {**_VERSION, "retainFrom": _is_count, "mostVersions": _is_number},
        {"handOver": _is_flag},
    ),
}


def check_request(request: Mapping[str, Any]) -> None:
    """Check the fields of a request before it is served, since many of them become parts of paths."""
    op = request.get("op")
    if not isinstance(op, str) or op not in _FIELDS:
        raise ProtocolError(f"unknown request {op!r:.40}")
    required, optional = _FIELDS[op]
    if "options" not in required and op != "close":
        _check_store(op, request.get("store"))
    _check(op, request, required, optional)
    if op == "cleanup" and request["retainFrom"] > request["version"]:
        raise ProtocolError(
            f"the request 'cleanup' would discard the newest version, {request['version']}: it retains "
            f"versions from {request['retainFrom']}"
        )


def _check_store(op: str, store: Any) -> None:
    if not isinstance(store, dict):
        raise ProtocolError(f"the request {op!r} has no store")
    _check(op, store, _STORE, _STORE_OPTIONAL)


def _check(op: str, node: Mapping[str, Any], required: _Fields, optional: _Fields) -> None:
    for name in required:
        if name not in node:
            raise ProtocolError(f"the request {op!r} lacks {name!r}")
    for name, fits in (*required.items(), *optional.items()):
        if name in node and not fits(node[name]):
            raise ProtocolError(f"the request {op!r} has the invalid value {node[name]!r:.80} of {name!r}")

"""Frames between the JVM and the backend; docs/format.md describes the wire."""

from __future__ import annotations

import enum
import json
import socket
import struct
import time
from typing import Any, Final

import pyarrow as pa

from spark_statestore.checkpoint.files.work import Work
from spark_statestore.errors import ProtocolError

__all__ = ["PROTOCOL_VERSION", "Frame", "FrameSocket", "Kind"]

PROTOCOL_VERSION: Final = 6
"""Changes whenever frames, requests or answers change."""

_MAGIC: Final = 0x31545353
# Kind, flags, state index, magic, payload length.
_HEADER: Final = struct.Struct("<BBHIQ")

_MAX_CONTROL: Final = 16 << 20
_MAX_HANDLE: Final = 256 << 20
_MAX_DATA: Final = (1 << 31) - 1

# The payload is as it is stored, and its CRC-32 stands between it and the header.
_SEALED: Final = 1
_CHECKSUM_BYTES: Final = 4

# Small frames wait for company until so many bytes have gathered, and arrive together.
_GATHER_BYTES: Final = 64 * 1024

# Memory for a larger payload is taken as it arrives: whoever announces much has to send it.
_TRUSTED_BYTES: Final = 16 << 20


class Kind(enum.IntEnum):
    """Kinds of frames."""

    CONTROL = 1
    """A JSON object: what is asked, or what is answered."""
    HANDLE = 2
    """A state handle: one Arrow record batch message."""
    DATA = 3
    """Changes of one named state: one Arrow record batch message."""
    END = 4
    """Nothing more follows in this message."""
    ERROR = 5
    """A JSON object that says what went wrong; the message ends after it."""
    OBJECT = 6
    """A whole metadata object, of a store whose metadata is in no file."""
    STREAM = 7
    """A stream of changes ends; what follows is of another."""


_LIMITS: Final = {
    Kind.CONTROL: _MAX_CONTROL,
    Kind.HANDLE: _MAX_HANDLE,
    Kind.DATA: _MAX_DATA,
    Kind.END: 0,
    Kind.ERROR: _MAX_CONTROL,
    Kind.OBJECT: _MAX_DATA,
    Kind.STREAM: 0,
}


class Frame:
    """One frame.

    Attributes
    ----------
    kind
        What it is.
    state
        For `Kind.DATA`: which of the message's named states it belongs to, by position.
    payload
        Its bytes.
    checksum
        Of changes that are sealed, compressed as they are to be stored: their CRC-32.
    """

    __slots__ = ("checksum", "kind", "payload", "state")

    def __init__(self, kind: Kind, state: int, payload: pa.Buffer, checksum: int | None = None) -> None:
        self.kind = kind
        self.state = state
        self.payload = payload
        self.checksum = checksum

    def json(self) -> dict[str, Any]:
        """The payload as a JSON object.

        Raises
        ------
        ProtocolError
            If it is none.
        """
        try:
            node = json.loads(memoryview(self.payload).tobytes())
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"a control frame is no JSON: {error}") from error
        if not isinstance(node, dict):
            raise ProtocolError(f"a control frame is a JSON {type(node).__name__} instead of an object")
        return node


class FrameSocket:
    """Frames over a connected stream socket; one thread at a time uses it.

    Attributes
    ----------
    deadline
        When receiving ends with a `TimeoutError`, as `time.monotonic` counts; None for never.
    work
        What the thread does with storage between frames, if somebody watches over it.
    has_answered
        Whether the end of a message was sent since something was received.
    """

    work: Work | None = None
    has_answered = False

    def __init__(self, connection: socket.socket) -> None:
        self.deadline: float | None = None
        self._socket = connection
        # What was received and not read yet.
        self._received = memoryview(bytearray(_GATHER_BYTES))
        self._start = 0
        self._end = 0
        self._waiting: list[bytes | memoryview] = []
        self._waiting_bytes = 0
        self._ended = True
        self._taken_over = False

    def receive(self, most: int | None = None) -> Frame | None:
        """Read a frame; None when the other side has closed the connection between frames.

        Parameters
        ----------
        most
            Accept no larger payload than this.

        Raises
        ------
        ProtocolError
            If what arrives is no frame, or is too large.
        ConnectionError
            If the connection breaks within a frame.
        """
        if not self._gather(_HEADER.size, may_end=True):
            self._ended = True
            return None
        number, flags, state, magic, length = _HEADER.unpack_from(self._received, self._start)
        self._start += _HEADER.size
        if magic != _MAGIC or number not in Kind._value2member_map_:
            raise ProtocolError("what arrived is no frame of this protocol")
        kind = Kind(number)
        limit = _LIMITS[kind] if most is None else min(most, _LIMITS[kind])
        if length > limit:
            raise ProtocolError(f"a {kind.name} frame of {length} bytes is larger than the {limit} allowed")
        checksum = None
        if flags & _SEALED:
            self._gather(_CHECKSUM_BYTES)
            checksum = int.from_bytes(self._take(_CHECKSUM_BYTES), "little")
        payload = self._payload(length)
        self._ended = kind is Kind.END
        self.has_answered = False
        return Frame(kind, state, payload, checksum)

    def drain(self) -> None:
        """Read and forget the rest of a message."""
        while not self._ended:
            self.receive()

    def send(self, kind: Kind, payload: bytes | memoryview | pa.Buffer = b"", state: int = 0) -> None:
        """Queue a frame; it leaves at the latest with the end of the message."""
        view = memoryview(payload).cast("B")
        self._waiting += [_HEADER.pack(kind, 0, state, _MAGIC, len(view)), view]
        self._waiting_bytes += len(view)
        if self._waiting_bytes >= _GATHER_BYTES or kind in (Kind.END, Kind.ERROR):
            # Before it leaves: nobody else may say anything then.
            self.has_answered = kind in (Kind.END, Kind.ERROR)
            self._flush()

    def send_json(self, kind: Kind, node: dict[str, Any]) -> None:
        """Queue a control or error frame."""
        self.send(kind, json.dumps(node, separators=(",", ":")).encode())

    def discard_waiting(self) -> None:
        """Forget the frames that have not left yet."""
        self._waiting = []
        self._waiting_bytes = 0

    def take_over(self) -> FrameSocket:
        """The same connection for another thread, while the one that used it hangs; to that one it is closed."""
        other = FrameSocket(self._socket)
        other._received, other._start, other._end = self._received, self._start, self._end
        other._ended = self._ended
        other.has_answered = self.has_answered
        self._taken_over = True
        return other

    def expire_after(self, seconds: float) -> None:
        """Fail with a `TimeoutError` where nothing comes or goes for so long."""
        self._socket.settimeout(seconds)

    def is_closed_by_other_side(self) -> bool:
        """Whether the other side has gone, though what it sent before may still be unread."""
        try:
            return self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Close the connection."""
        if not self._taken_over:
            self._socket.close()

    def _flush(self) -> None:
        parts = [part for part in self._waiting if len(part)]
        self.discard_waiting()
        work = self._begin_transfer()
        while parts:
            sent = self._socket.sendmsg(parts[:64])
            while parts and sent >= len(parts[0]):
                sent -= len(parts[0])
                del parts[0]
            if sent:
                parts[0] = memoryview(parts[0])[sent:]
        if work is not None:
            work.get_on()

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
        """Have so many bytes at hand; False if the other side has closed the connection instead."""
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
            left = self.deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("what was awaited did not arrive in time")
            self._socket.settimeout(left)
        work = self._begin_transfer()
        n = self._socket.recv_into(target)
        if work is not None:
            work.get_on()
        if n == 0 and not may_end:
            raise ConnectionResetError("the connection was closed within a message")
        return n

    def _begin_transfer(self) -> Work | None:
        work = self.work
        if work is not None:
            work.pause()
        return work

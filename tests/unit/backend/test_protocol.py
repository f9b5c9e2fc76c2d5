"""Frames over a socket: round trips, checksums, and bytes that are not frames."""

from __future__ import annotations

import socket
import struct
import threading
import zlib
from collections.abc import Iterator

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from spark_statestore.backend.protocol import FrameSocket, Kind
from spark_statestore.errors import ProtocolError

HEADER = struct.Struct("<BxHIQI")
MAGIC = 0x31545353


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    for one in (ours, theirs):
        one.settimeout(10)
    with ours, theirs:
        yield ours, theirs


@given(
    st.lists(
        st.tuples(
            st.sampled_from([Kind.CONTROL, Kind.HANDLE, Kind.DATA]),
            st.binary(max_size=40),
            st.integers(0, 65535),
        ),
        max_size=8,
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_frames_round_trip(
    sockets: tuple[socket.socket, socket.socket], sent: list[tuple[Kind, bytes, int]]
) -> None:
    ours, theirs = map(FrameSocket, sockets)
    for kind, payload, state in sent:
        ours.send(kind, payload, state)
    ours.send(Kind.END)
    got = []
    while (frame := theirs.receive()).kind is not Kind.END:
        got.append((frame.kind, bytes(frame.payload), frame.column_family))
    assert got == sent


@given(st.lists(st.tuples(st.integers(0, 200_000), st.integers(0, 2**32 - 1)), max_size=3))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
def test_data_frames_arrive_with_the_checksum_of_their_sender(
    sockets: tuple[socket.socket, socket.socket], sent: list[tuple[int, int]]
) -> None:
    ours, theirs = sockets
    written = b""
    for size, checksum in sent:
        written += HEADER.pack(Kind.DATA, 7, MAGIC, size, checksum)
        written += (bytes(range(256)) * (size // 256 + 1))[:size]
    sender = threading.Thread(target=ours.sendall, args=(written + HEADER.pack(Kind.END, 0, MAGIC, 0, 0),))
    sender.start()
    frames = FrameSocket(theirs)
    got = []
    while (frame := frames.receive()).kind is not Kind.END:
        assert (
            bytes(frame.payload)
            == (bytes(range(256)) * (frame.payload.size // 256 + 1))[: frame.payload.size]
        )
        got.append((frame.payload.size, frame.checksum))
    sender.join()
    assert got == sent


def test_send_buffers_small_frames_until_the_end_of_the_message(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    ours = FrameSocket(sockets[0])
    ours.send(Kind.DATA, b"small")
    sockets[1].setblocking(False)
    with pytest.raises(BlockingIOError):
        sockets[1].recv(1)
    ours.discard_waiting()
    ours.send(Kind.END)
    assert sockets[1].recv(100) == HEADER.pack(Kind.END, 0, MAGIC, 0, 0)
    ours.send(Kind.DATA, pa.py_buffer(bytes(70_000)))
    assert sockets[1].recv(20) == HEADER.pack(Kind.DATA, 0, MAGIC, 70_000, zlib.crc32(bytes(70_000)))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (HEADER.pack(Kind.CONTROL, 0, 0x31545354, 0, 0), "not a frame of this protocol"),
        (HEADER.pack(9, 0, MAGIC, 0, 0), "not a frame of this protocol"),
        (HEADER.pack(0, 0, MAGIC, 0, 0), "not a frame of this protocol"),
        (HEADER.pack(Kind.CONTROL, 0, MAGIC, (16 << 20) + 1, 0), "CONTROL frame of 16777217 bytes"),
        (HEADER.pack(Kind.HANDLE, 0, MAGIC, (256 << 20) + 1, 0), "HANDLE frame"),
        (HEADER.pack(Kind.DATA, 0, MAGIC, 1 << 31, 0), "DATA frame"),
        (HEADER.pack(Kind.END, 0, MAGIC, 1, 0), "END frame of 1 bytes"),
        (HEADER.pack(Kind.END, 0, MAGIC, 0, 1), "END frame of 0 bytes does not match its checksum"),
        (
            HEADER.pack(Kind.CONTROL, 0, MAGIC, 2, 1) + b"{}",
            "CONTROL frame of 2 bytes does not match its checksum",
        ),
        (
            HEADER.pack(Kind.HANDLE, 0, MAGIC, 2, 1) + b"{}",
            "HANDLE frame of 2 bytes does not match its checksum",
        ),
        (
            HEADER.pack(Kind.OBJECT, 0, MAGIC, 2, 1) + b"{}",
            "OBJECT frame of 2 bytes does not match its checksum",
        ),
        (HEADER.pack(Kind.DATA, 0, MAGIC, 2**64 - 1, 0), "larger than"),
    ],
)
def test_receive_refuses_bytes_that_are_not_a_frame(
    sockets: tuple[socket.socket, socket.socket], header: bytes, message: str
) -> None:
    sockets[0].sendall(header)
    with pytest.raises(ProtocolError, match=message):
        FrameSocket(sockets[1]).receive()


def test_receive_refuses_a_payload_above_the_callers_limit(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = map(FrameSocket, sockets)
    ours.send(Kind.CONTROL, b"12345")
    ours.send(Kind.END)
    with pytest.raises(ProtocolError, match="5 bytes is larger than the 4 allowed"):
        theirs.receive(4)


def test_receive_raises_if_the_connection_closes_within_a_frame(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    frame = HEADER.pack(Kind.CONTROL, 0, MAGIC, 2, zlib.crc32(b"{}")) + b"{}"
    for length in range(len(frame) + 1):
        ours, theirs = socket.socketpair()
        with theirs:
            with ours:
                ours.sendall(frame[:length])
            frames = FrameSocket(theirs)
            if 0 < length < len(frame):
                with pytest.raises(ConnectionResetError, match="within a message"):
                    frames.receive()
            elif length:
                assert frames.receive().json() == {}
            assert length in range(1, len(frame)) or frames.receive() is None


@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b"3", b"null", b"\xff", b"[" * 5_000])
def test_json_refuses_a_payload_that_is_not_an_object(
    sockets: tuple[socket.socket, socket.socket], payload: bytes
) -> None:
    ours, theirs = map(FrameSocket, sockets)
    ours.send(Kind.CONTROL, payload)
    ours.send(Kind.END)
    frame = theirs.receive()
    with pytest.raises(ProtocolError, match="a control frame is"):
        frame.json()


def test_drain_skips_the_rest_of_a_message(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = map(FrameSocket, sockets)
    for _ in range(3):
        ours.send(Kind.DATA, b"x")
    ours.send(Kind.END)
    ours.send_json(Kind.CONTROL, {"next": 1})
    ours.send(Kind.END)
    theirs.receive()
    theirs.drain()
    assert theirs.receive().json() == {"next": 1}


def frame(kind: Kind, payload: bytes = b"") -> bytes:
    return HEADER.pack(kind, 0, MAGIC, len(payload), zlib.crc32(payload)) + payload


ASKED = frame(Kind.CONTROL, b"{}") + frame(Kind.END)


def receive_request(frames: FrameSocket) -> None:
    assert [frames.receive().kind, frames.receive().kind] == [Kind.CONTROL, Kind.END]


def answer(frames: FrameSocket, number: int) -> bytes:
    frames.send(Kind.CONTROL, b"%d" % number)
    frames.send(Kind.END)
    return frame(Kind.CONTROL, b"%d" % number) + frame(Kind.END)


def received(connection: socket.socket) -> bytes:
    connection.setblocking(False)
    try:
        return connection.recv(1 << 16)
    except BlockingIOError:
        return b""
    finally:
        connection.settimeout(10)


def test_answers_to_requests_that_arrived_together_leave_together(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    client, frames = sockets[0], FrameSocket(sockets[1])
    client.sendall(2 * ASKED)
    receive_request(frames)
    first = answer(frames, 1)
    assert received(client) == b""
    receive_request(frames)
    assert received(client) == b""
    second = answer(frames, 2)
    assert received(client) == first + second


def test_answer_leaves_before_the_rest_of_the_next_request_is_awaited(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    client, frames = sockets[0], FrameSocket(sockets[1])
    client.sendall(ASKED + ASKED[:30])
    receive_request(frames)
    first = answer(frames, 1)
    waiting = threading.Thread(target=receive_request, args=(frames,))
    waiting.start()
    assert client.recv(1 << 16) == first
    client.sendall(ASKED[30:])
    waiting.join()


def test_error_follows_the_answers_before_it_and_replaces_its_own(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    client, frames = sockets[0], FrameSocket(sockets[1])
    client.sendall(3 * ASKED)
    receive_request(frames)
    first = answer(frames, 1)
    receive_request(frames)
    frames.send(Kind.HANDLE, b"begun")
    frames.discard_waiting()
    frames.send(Kind.ERROR, b"{}")
    assert received(client) == first + frame(Kind.ERROR, b"{}")


def test_take_over_has_the_finished_answers(sockets: tuple[socket.socket, socket.socket]) -> None:
    client, frames = sockets[0], FrameSocket(sockets[1])
    client.sendall(2 * ASKED)
    receive_request(frames)
    first = answer(frames, 1)
    frames.send(Kind.HANDLE, b"begun")
    other = frames.take_over()
    other.send(Kind.ERROR, b"{}")
    assert received(client) == first + frame(Kind.ERROR, b"{}")

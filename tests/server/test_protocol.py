"""Frames over a socket: there and back, and what is no frame."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from spark_statestore.errors import ProtocolError
from spark_statestore.server.protocol import FrameSocket, Kind

HEADER = struct.Struct("<BBHIQ")
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
def test_frames_arrive_as_they_were_sent(
    sockets: tuple[socket.socket, socket.socket], sent: list[tuple[Kind, bytes, int]]
) -> None:
    ours, theirs = map(FrameSocket, sockets)
    for kind, payload, state in sent:
        ours.send(kind, payload, state)
    ours.send(Kind.END)
    got = []
    while (frame := theirs.receive()).kind is not Kind.END:
        got.append((frame.kind, bytes(frame.payload), frame.state))
    assert got == sent


@given(
    st.lists(st.tuples(st.integers(0, 200_000), st.one_of(st.none(), st.integers(0, 2**32 - 1))), max_size=3)
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
def test_payloads_and_their_checksums_arrive_whatever_pieces_they_come_in(
    sockets: tuple[socket.socket, socket.socket], sent: list[tuple[int, int | None]]
) -> None:
    ours, theirs = sockets
    written = b""
    for size, checksum in sent:
        sealed = b"" if checksum is None else struct.pack("<I", checksum)
        written += HEADER.pack(Kind.DATA, len(sealed) // 4, 7, MAGIC, size) + sealed
        written += (bytes(range(256)) * (size // 256 + 1))[:size]
    sender = threading.Thread(target=ours.sendall, args=(written + HEADER.pack(Kind.END, 0, 0, MAGIC, 0),))
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


def test_nothing_leaves_before_the_end_unless_it_is_much(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    ours = FrameSocket(sockets[0])
    ours.send(Kind.DATA, b"small")
    sockets[1].setblocking(False)
    with pytest.raises(BlockingIOError):
        sockets[1].recv(1)
    ours.discard_waiting()
    ours.send(Kind.END)
    assert sockets[1].recv(100) == HEADER.pack(Kind.END, 0, 0, MAGIC, 0)
    ours.send(Kind.DATA, pa.py_buffer(bytes(70_000)))
    assert sockets[1].recv(16) == HEADER.pack(Kind.DATA, 0, 0, MAGIC, 70_000)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (HEADER.pack(Kind.CONTROL, 0, 0, 0x31545354, 0), "no frame of this protocol"),
        (HEADER.pack(9, 0, 0, MAGIC, 0), "no frame of this protocol"),
        (HEADER.pack(0, 0, 0, MAGIC, 0), "no frame of this protocol"),
        (HEADER.pack(Kind.CONTROL, 0, 0, MAGIC, (16 << 20) + 1), "CONTROL frame of 16777217 bytes"),
        (HEADER.pack(Kind.HANDLE, 0, 0, MAGIC, (256 << 20) + 1), "HANDLE frame"),
        (HEADER.pack(Kind.DATA, 0, 0, MAGIC, 1 << 31), "DATA frame"),
        (HEADER.pack(Kind.END, 0, 0, MAGIC, 1), "END frame of 1 bytes"),
        (HEADER.pack(Kind.DATA, 0, 0, MAGIC, 2**64 - 1), "larger than"),
    ],
)
def test_what_is_no_frame_is_refused(
    sockets: tuple[socket.socket, socket.socket], header: bytes, message: str
) -> None:
    sockets[0].sendall(header)
    with pytest.raises(ProtocolError, match=message):
        FrameSocket(sockets[1]).receive()


def test_a_frame_larger_than_wanted_is_refused(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = map(FrameSocket, sockets)
    ours.send(Kind.CONTROL, b"12345")
    ours.send(Kind.END)
    with pytest.raises(ProtocolError, match="5 bytes is larger than the 4 allowed"):
        theirs.receive(4)


def test_a_connection_may_end_between_frames_and_not_within(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    frame = HEADER.pack(Kind.CONTROL, 0, 0, MAGIC, 2) + b"{}"
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
def test_a_control_frame_must_be_an_object(
    sockets: tuple[socket.socket, socket.socket], payload: bytes
) -> None:
    ours, theirs = map(FrameSocket, sockets)
    ours.send(Kind.CONTROL, payload)
    ours.send(Kind.END)
    frame = theirs.receive()
    with pytest.raises(ProtocolError, match="a control frame is"):
        frame.json()


def test_the_rest_of_a_message_can_be_skipped(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = map(FrameSocket, sockets)
    for _ in range(3):
        ours.send(Kind.DATA, b"x")
    ours.send(Kind.END)
    ours.send_json(Kind.CONTROL, {"next": 1})
    ours.send(Kind.END)
    theirs.receive()
    theirs.drain()
    assert theirs.receive().json() == {"next": 1}

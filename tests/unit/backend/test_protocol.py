"""Frames over a socket: round trips, checksums, and bytes that are not frames."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings

from spark_statestore.backend.protocol import FrameSocket, Kind
from spark_statestore.errors import ProtocolError
from tests.unit.backend.backends import HEADER, MAGIC, frame

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def sockets() -> Iterator[Pair]:
    client_end, server_end = socket.socketpair()
    client_end.settimeout(10)
    server_end.settimeout(10)
    with client_end, server_end:
        yield client_end, server_end


kinds = st.sampled_from([Kind.CONTROL, Kind.HANDLE, Kind.DATA])


@given(st.lists(st.tuples(kinds, st.binary(max_size=40), st.integers(0, 65535)), max_size=8))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_frames_round_trip(sockets: Pair, sent: list[tuple[Kind, bytes, int]]) -> None:
    sender, receiver = map(FrameSocket, sockets)
    for kind, payload, state in sent:
        sender.send(kind, payload, state)
    sender.send(Kind.END)
    got = []
    while (received := receiver.receive()).kind is not Kind.END:
        got.append((received.kind, bytes(received.payload), received.column_family))
    assert got == sent


@given(st.lists(st.tuples(st.integers(0, 200_000), st.integers(0, 2**32 - 1)), max_size=3))
# The payload is received in growing parts, the first of 16 MiB.
@example([(16 << 20, 1)])
@example([((16 << 20) + 1, 1), ((33 << 20) + 5, 2)])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
def test_data_frames_keep_the_checksum_of_their_sender(sockets: Pair, sent: list[tuple[int, int]]) -> None:
    client_end, server_end = sockets
    stream = b""
    for size, checksum in sent:
        stream += HEADER.pack(Kind.DATA, 7, MAGIC, size, checksum)
        stream += (bytes(range(256)) * (size // 256 + 1))[:size]
    sender = threading.Thread(target=client_end.sendall, args=(stream + frame(Kind.END),))
    sender.start()
    frames = FrameSocket(server_end)
    got = []
    while (received := frames.receive()).kind is not Kind.END:
        size = received.payload.size
        assert bytes(received.payload) == (bytes(range(256)) * (size // 256 + 1))[:size]
        got.append((size, received.checksum))
    sender.join()
    assert got == sent


def test_send_buffers_small_frames_until_the_end_of_the_message(sockets: Pair) -> None:
    sender = FrameSocket(sockets[0])
    sender.send(Kind.DATA, b"small")
    sockets[1].setblocking(False)
    with pytest.raises(BlockingIOError):
        sockets[1].recv(1)
    sender.discard_waiting()
    sender.send(Kind.END)
    assert sockets[1].recv(100) == frame(Kind.END)
    sender.send(Kind.DATA, pa.py_buffer(bytes(70_000)))
    assert sockets[1].recv(HEADER.size) == frame(Kind.DATA, bytes(70_000))[: HEADER.size]


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
        (HEADER.pack(Kind.CONTROL, 0, MAGIC, 2, 1) + b"{}", "CONTROL frame of 2 bytes does not match its"),
        (HEADER.pack(Kind.HANDLE, 0, MAGIC, 2, 1) + b"{}", "HANDLE frame of 2 bytes does not match its"),
        (HEADER.pack(Kind.OBJECT, 0, MAGIC, 2, 1) + b"{}", "OBJECT frame of 2 bytes does not match its"),
        (HEADER.pack(Kind.DATA, 0, MAGIC, 2**64 - 1, 0), "larger than"),
    ],
)
def test_receive_refuses_bytes_that_are_not_a_frame(sockets: Pair, header: bytes, message: str) -> None:
    sockets[0].sendall(header)
    with pytest.raises(ProtocolError, match=message):
        FrameSocket(sockets[1]).receive()


def test_receive_raises_if_the_connection_closes_within_a_frame() -> None:
    sent = frame(Kind.CONTROL, b"{}")
    for length in range(len(sent) + 1):
        client_end, server_end = socket.socketpair()
        with server_end:
            with client_end:
                client_end.sendall(sent[:length])
            frames = FrameSocket(server_end)
            if 0 < length < len(sent):
                with pytest.raises(ConnectionResetError, match="within a message"):
                    frames.receive()
                continue
            if length:
                assert frames.receive().json() == {}
            assert frames.receive() is None


@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b"3", b"null", b"\xff", b"[" * 5_000])
def test_json_refuses_a_payload_that_is_not_an_object(sockets: Pair, payload: bytes) -> None:
    sender, receiver = map(FrameSocket, sockets)
    sender.send(Kind.CONTROL, payload)
    sender.send(Kind.END)
    with pytest.raises(ProtocolError, match="a control frame is"):
        receiver.receive().json()


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


def test_answers_to_requests_that_arrived_together_leave_together(sockets: Pair) -> None:
    client, frames = sockets[0], FrameSocket(sockets[1])
    client.sendall(2 * ASKED)
    receive_request(frames)
    first = answer(frames, 1)
    assert received(client) == b""
    receive_request(frames)
    assert received(client) == b""
    second = answer(frames, 2)
    assert received(client) == first + second


def test_answer_leaves_before_the_rest_of_the_next_request_is_awaited(sockets: Pair) -> None:
    client, frames = sockets[0], FrameSocket(sockets[1])
    client.sendall(ASKED + ASKED[:30])
    receive_request(frames)
    first = answer(frames, 1)
    waiting = threading.Thread(target=receive_request, args=(frames,))
    waiting.start()
    assert client.recv(1 << 16) == first
    client.sendall(ASKED[30:])
    waiting.join()


@pytest.mark.parametrize("takes_over", [False, True], ids=["same thread", "watchdog"])
def test_error_follows_the_answers_before_it_and_replaces_its_own(sockets: Pair, takes_over: bool) -> None:
    client, frames = sockets[0], FrameSocket(sockets[1])
    client.sendall(2 * ASKED)
    receive_request(frames)
    first = answer(frames, 1)
    receive_request(frames)
    frames.send(Kind.HANDLE, b"begun")
    if takes_over:
        frames = frames.take_over()
    else:
        frames.discard_waiting()
    frames.send(Kind.ERROR, b"{}")
    assert received(client) == first + frame(Kind.ERROR, b"{}")

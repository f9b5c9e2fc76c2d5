"""The handshake of backend connections: the peer's user, versions, and timeouts."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from spark_statestore._version import __version__
from spark_statestore.backend import handshake, listener
from spark_statestore.backend.handshake import peer_user, require_own_user
from spark_statestore.backend.listener import Listener
from spark_statestore.backend.protocol import PROTOCOL_VERSION, Kind
from spark_statestore.errors import AuthenticationError
from tests.unit.backend.backends import HEADER, MAGIC, Backend, Client, commit, data, frame
from tests.unit.store.stores import attempt_id

NOBODY = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process of another user")


def test_listener_refuses_a_request_without_a_handshake(backend: Backend, tmp_path: Path) -> None:
    with backend.connect() as connection:
        client = Client(connection)
        request = commit(tmp_path, 1, attempt_id())
        assert client.ask(request, data({b"a": b"1"})).error["type"] != ""
        assert client.is_closed()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"protocol": 99}, f"protocol 99.*protocol {PROTOCOL_VERSION}"),
        ({"protocol": None}, f"protocol None.*protocol {PROTOCOL_VERSION}"),
        ({"version": "99.0"}, f"99.0.*{__version__}.*install the same version"),
        ({"version": "1\nERROR forged"}, r"'1\\nERROR forged'"),
    ],
)
def test_handshake_refuses_another_version(backend: Backend, change: dict[str, Any], expected: str) -> None:
    with backend.connect() as connection:
        client = Client(connection)
        answer = client.handshake(**change)
        assert answer.error["type"] == "VersionMismatchError"
        assert re.search(expected, answer.error["message"])
        assert client.is_closed()


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "not a frame"),
        (HEADER.pack(Kind.CONTROL, 0, MAGIC, 4097, 0) + bytes(4097), "larger than the 4096 allowed"),
        (frame(Kind.CONTROL, b"[]"), "instead of an object"),
        (frame(Kind.DATA), "starts with a DATA frame"),
    ],
    ids=["http", "large", "no-object", "no-control"],
)
def test_handshake_refuses_unreadable_frames(backend: Backend, sent: bytes, expected: str) -> None:
    with backend.connect() as connection:
        connection.sendall(sent)
        client = Client(connection)
        error = client.answer().error
        assert error["type"] == "ProtocolError"
        assert expected in error["message"]
        assert client.is_closed()


# Another user

INTRUDER = f"""
import encodings.idna, os, socket, sys  # later imports may be readable by this user only
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
where = sys.argv[1]
received = b""
try:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(20)
    connection.connect(where)
    try:
        connection.sendall(sys.stdin.buffer.read())
    except BrokenPipeError:
        pass  # refused without an answer
    while piece := connection.recv(65536):
        received += piece
except OSError as error:
    received += repr(error).encode()
sys.stdout.buffer.write(received)
"""


def as_nobody(where: str, sent: bytes) -> bytes:
    process = subprocess.run(
        [sys.executable, "-c", INTRUDER, where], input=sent, capture_output=True, check=True, timeout=60
    )
    return process.stdout


@as_root
def test_listener_refuses_a_process_of_another_user() -> None:
    running = Backend()
    try:
        directory = running.path.parent
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert directory.stat().st_uid == os.geteuid()
        assert b"PermissionError" in as_nobody(str(running.path), b"")
        # Also if the permissions of its directory were widened.
        directory.chmod(0o711)
        running.path.chmod(0o666)
        versions = {"protocol": PROTOCOL_VERSION, "version": __version__}
        sent = frame(Kind.CONTROL, json.dumps(versions).encode()) + frame(Kind.END)
        answer = as_nobody(str(running.path), sent)
        assert b"AuthenticationError" in answer
        assert f"user {NOBODY}".encode() in answer
        with running.client() as client:
            assert client.ask({"op": "explode"}).error["type"] == "ProtocolError"
    finally:
        assert running.stop() == 0


def test_only_the_own_user_is_accepted() -> None:
    client_end, server_end = socket.socketpair()
    with client_end, server_end:
        require_own_user(peer_user(client_end))
    with pytest.raises(AuthenticationError, match=f"a process of user {os.geteuid() + 1} connected"):
        require_own_user(os.geteuid() + 1)


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o701])
def test_listener_refuses_a_directory_that_other_users_can_enter(tmp_path: Path, mode: int) -> None:
    directory = tmp_path / "open"
    directory.mkdir()
    directory.chmod(mode)
    with pytest.raises(AuthenticationError, match=f"mode {mode:o}: other users could connect"):
        Listener(str(directory / "socket"))
    assert list(directory.iterdir()) == []


# Slow clients


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a backend that gives handshake half a second, and two at a time."""
    monkeypatch.setattr(handshake, "HANDSHAKE_TIMEOUT", 0.5)
    monkeypatch.setattr(listener, "_MAX_HANDSHAKES", 2)
    with tempfile.TemporaryDirectory(prefix="sst-", dir="/tmp") as directory:
        address = f"{directory}/socket"
        serving = Listener(address)
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield address


def connect(address: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(20)
    connection.connect(address)
    return connection


def test_handshake_times_out_although_bytes_arrive(impatient: str) -> None:
    with connect(impatient) as slow:
        start = time.monotonic()
        dripped = frame(Kind.CONTROL, b'{"version": "' + b"a" * 64 + b'"}') + frame(Kind.END)

        def drip(byte: int) -> None:
            time.sleep(0.05)
            slow.send(bytes([byte]))

        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            list(map(drip, dripped))
        assert time.monotonic() - start < 0.05 * len(dripped) / 2


def test_silent_connections_block_new_ones_for_one_timeout_at_most(impatient: str) -> None:
    with ExitStack() as silent:
        for _ in range(6):
            silent.enter_context(connect(impatient))
        connection = silent.enter_context(connect(impatient))
        assert Client(connection).handshake().error is None
        # A connection after its handshake may be silent.
        time.sleep(0.7)
        assert Client(connection).ask({"op": "explode"}).error["type"] == "ProtocolError"


def test_listener_survives_a_thread_limit(
    impatient: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = threading.Thread.start
    failures = iter([RuntimeError("can't start new thread")] * 3)

    def start_or_not(thread: threading.Thread) -> None:
        for error in failures:
            raise error
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_not)
    for _ in range(3):
        with connect(impatient) as refused:
            assert Client(refused).is_closed()
    with connect(impatient) as connection:
        assert Client(connection).handshake().error is None
    assert "could not serve a connection" in caplog.text

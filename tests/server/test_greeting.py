"""Who gets in to the backend: who knows the token, of this user, and nobody else."""

from __future__ import annotations

import json
import os
import secrets
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spark_statestore._version import __version__
from spark_statestore.errors import AuthenticationError
from spark_statestore.server import greeting, listener
from spark_statestore.server.greeting import BACKEND, SHIM, proof_of
from spark_statestore.server.listener import Listener
from spark_statestore.server.protocol import PROTOCOL_VERSION, FrameSocket, Kind
from tests.checkpoint.stores import attempt, message
from tests.server.backends import TOKEN, Backend, Client, commit

HEADER = struct.Struct("<BBHIQ")
MAGIC = 0x31545353
NOBODY = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process of another user")


@pytest.fixture(scope="module", params=["unix", "tcp"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    running = Backend(tcp=request.param == "tcp")
    yield running
    assert running.stop() == 0


def hello(challenge: str) -> dict[str, Any]:
    return {"challenge": challenge, "protocol": PROTOCOL_VERSION, "version": __version__}


def framed(node: bytes) -> bytes:
    return HEADER.pack(Kind.CONTROL, 0, 0, MAGIC, len(node)) + node + HEADER.pack(Kind.END, 0, 0, MAGIC, 0)


@contextmanager
def stranger(backend: Backend) -> Iterator[Client]:
    with backend.connect() as connection:
        yield Client(connection)


# Who does not know the token


@pytest.mark.parametrize(
    "answer", [{}, {"proof": None}, {"proof": 3}, {"proof": []}, {"proof": "ä\ud800"}, {"proof": "0" * 64}]
)
def test_a_proof_that_is_none_is_refused(backend: Backend, answer: dict[str, Any]) -> None:
    with stranger(backend) as client:
        assert client.ask(hello("ab" * 32)).error is None
        error = client.ask(answer).error
        assert error["type"] == "AuthenticationError"
        assert TOKEN not in error["message"]
        assert client.is_closed()


def test_a_request_without_a_greeting_does_nothing(backend: Backend, tmp_path: Path) -> None:
    asked = commit(tmp_path, 1, attempt())
    with stranger(backend) as client:
        assert client.ask(asked, (Kind.DATA, message({b"a": b"1"}), 0)).error["type"] != ""
    with stranger(backend) as client:
        assert client.ask(hello("ab" * 32)).error is None
        # In the place of a proof.
        client.frames.send_json(Kind.CONTROL, asked)
        client.frames.send(Kind.END)
        assert client.answer().error["type"] == "AuthenticationError"
        assert client.is_closed()
    assert list(tmp_path.iterdir()) == []


def test_the_token_does_not_travel_and_what_does_opens_no_second_connection(backend: Backend) -> None:
    def overheard(connection: socket.socket) -> tuple[bytes, list[Any]]:
        """The bytes of a greeting that is welcome, and what was answered."""
        sent = b""
        answers = []
        challenge = secrets.token_hex(32)
        node: dict[str, Any] = hello(challenge)
        frames = FrameSocket(connection)
        for _ in range(2):
            piece = framed(json.dumps(node).encode())
            connection.sendall(piece)
            sent += piece
            answers.append(frames.receive())
            assert frames.receive().kind is Kind.END
            if "challenge" in answers[-1].json():
                node = {"proof": proof_of(TOKEN, SHIM, challenge, answers[-1].json()["challenge"])}
        return sent, answers

    with backend.connect() as connection:
        sent, answers = overheard(connection)
        assert [frame.kind for frame in answers] == [Kind.CONTROL] * 2
        said = sent + b"".join(bytes(frame.payload) for frame in answers)
        assert TOKEN.encode() not in said
    with stranger(backend) as client:
        client.socket.sendall(sent)
        assert client.answer().error is None
        assert client.answer().error["type"] == "AuthenticationError"
        assert client.is_closed()


def test_the_backends_own_proof_is_of_no_use_to_a_stranger(backend: Backend) -> None:
    with stranger(backend) as one, stranger(backend) as other:
        asked = one.ask(hello("ab" * 32)).control["challenge"]
        # The other connection is to answer what the first one was asked.
        answered = other.ask(hello(asked)).control
        assert one.ask({"proof": answered["proof"]}).error["type"] == "AuthenticationError"
        assert other.ask({"proof": answered["proof"]}).error["type"] == "AuthenticationError"


def test_a_token_of_another_backend_opens_nothing(backend: Backend) -> None:
    other = Backend(token=secrets.token_hex(32))
    try:
        with stranger(other) as client:
            theirs = client.ask(hello("ab" * 32)).control
            # It cannot pass for the first one either.
            assert theirs["proof"] != proof_of(TOKEN, BACKEND, "ab" * 32, theirs["challenge"])
            shown = proof_of(TOKEN, SHIM, "ab" * 32, theirs["challenge"])
            assert client.ask({"proof": shown}).error["type"] == "AuthenticationError"
    finally:
        other.stop()


# Another user

INTRUDER = f"""
import encodings.idna, os, socket, sys  # what is needed later may lie where only this user can read
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
where = sys.argv[1]
said = b""
try:
    if where.isdigit():
        connection = socket.create_connection(("127.0.0.1", int(where)), 20)
    else:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(20)
        connection.connect(where)
    try:
        connection.sendall(sys.stdin.buffer.read())
    except BrokenPipeError:
        pass  # refused before it said anything
    while piece := connection.recv(65536):
        said += piece
except OSError as error:
    said += repr(error).encode()
sys.stdout.buffer.write(said)
"""


def as_nobody(where: str, sent: bytes) -> bytes:
    done = subprocess.run(
        [sys.executable, "-c", INTRUDER, where], input=sent, capture_output=True, check=True, timeout=60
    )
    return done.stdout


@as_root
def test_a_process_of_another_user_cannot_reach_the_socket() -> None:
    running = Backend()
    try:
        directory = running.path.parent
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert directory.stat().st_uid == os.geteuid()
        assert b"PermissionError" in as_nobody(str(running.path), b"")
        # Not even where somebody opened the way to it.
        directory.chmod(0o711)
        running.path.chmod(0o666)
        said = as_nobody(str(running.path), framed(b"{}"))
        assert b"AuthenticationError" in said
        assert f"user {NOBODY}".encode() in said
        with running.client() as client:
            assert client.ask({"op": "explode"}).error["type"] == "ProtocolError"
    finally:
        assert running.stop() == 0


@as_root
def test_a_process_of_another_user_that_reaches_the_port_learns_and_does_nothing(tmp_path: Path) -> None:
    running = Backend(tcp=True)
    try:
        challenge = ("ab" * 32).encode()
        greets = framed(
            b'{"challenge":"%s","protocol":%d,"version":"%s"}'
            % (challenge, PROTOCOL_VERSION, __version__.encode())
        )
        said = as_nobody(str(running.ready["port"]), greets + framed(b'{"proof":"%s"}' % challenge))
        assert b"AuthenticationError" in said
        assert TOKEN.encode() not in said
    finally:
        assert running.stop() == 0


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o701])
def test_a_socket_that_others_could_reach_is_not_made(tmp_path: Path, mode: int) -> None:
    directory = tmp_path / "open"
    directory.mkdir()
    directory.chmod(mode)
    with pytest.raises(AuthenticationError, match=f"mode {mode:o}: others could reach it"):
        Listener(str(directory / "socket"), TOKEN)
    assert list(directory.iterdir()) == []


# Who takes long


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a backend that gives greetings half a second, and two at a time."""
    monkeypatch.setattr(greeting, "GREETING_SECONDS", 0.5)
    monkeypatch.setattr(listener, "_MOST_GREETINGS", 2)
    with tempfile.TemporaryDirectory(prefix="sst-", dir="/tmp") as directory:
        address = f"{directory}/socket"
        serving = Listener(address, TOKEN)
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield address


def connect(address: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(20)
    connection.connect(address)
    return connection


def test_a_greeting_in_drops_is_not_waited_for(impatient: str) -> None:
    with connect(impatient) as slow:
        start = time.monotonic()
        dripped = framed(b'{"challenge": "' + b"a" * 64 + b'"}')
        ended = False
        for byte in dripped:
            try:
                slow.send(bytes([byte]))
            except (BrokenPipeError, ConnectionResetError):
                ended = True
                break
            time.sleep(0.05)
        assert ended
        assert time.monotonic() - start < 0.05 * len(dripped) / 2


def test_silent_connections_keep_nobody_out_for_long(impatient: str) -> None:
    silent = [connect(impatient) for _ in range(6)]
    try:
        with connect(impatient) as connection:
            assert Client(connection).greet().error is None
            # That one may be silent now.
            time.sleep(0.7)
            assert Client(connection).ask({"op": "explode"}).error["type"] == "ProtocolError"
    finally:
        for connection in silent:
            connection.close()


def test_a_backend_that_can_start_no_thread_goes_on(
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
        assert Client(connection).greet().error is None
    assert "could not serve a connection" in caplog.text


def test_what_a_driver_prints_does_not_stop_the_backend(tmp_path: Path) -> None:
    done = tmp_path / "done"
    (tmp_path / "sitecustomize.py").write_text(
        "import pathlib, sys, threading, time\n"
        "def much():\n"
        "    time.sleep(1)\n"
        "    for _ in range(1000):\n"
        "        print('x' * 1000)\n"
        f"    pathlib.Path({str(done)!r}).touch()\n"
        "if 'spark_statestore.server' in str(sys.orig_argv):\n"
        "    threading.Thread(target=much, daemon=True).start()\n"
    )
    running = Backend(environment={"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"})
    reader = threading.Thread(target=running.process.stderr.read, daemon=True)
    reader.start()
    deadline = time.monotonic() + 20
    while not done.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert done.exists()
    with running.client() as client:
        assert client.ask({"op": "explode"}).error["type"] == "ProtocolError"
    running.process.stdin.close()
    assert running.process.wait(20) == 0
    reader.join(20)
    running.stop()

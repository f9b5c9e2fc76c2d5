"""A backend process as the JVM starts one, and a client of its socket."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_statestore._version import __version__
from spark_statestore.backend.handlers import Requests
from spark_statestore.backend.protocol import PROTOCOL_VERSION, Frame, FrameSocket, Kind
from spark_statestore.errors import StateStoreError


class Backend:
    """One running ``python -m spark_statestore.backend``."""

    def __init__(
        self,
        *,
        memory: int | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        # Short, since a socket's path is.
        self._directory = tempfile.TemporaryDirectory(prefix="sst-", dir="/tmp")
        self.path = Path(self._directory.name) / "socket"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "spark_statestore.backend", "--listen", str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | (environment or {}),
            # A background shell ignores SIGINT, which child processes inherit.
            preexec_fn=lambda: (signal.signal(signal.SIGINT, signal.SIG_DFL), _limit(memory)),  # noqa: PLW1509
        )
        self.ready: dict[str, Any] = json.loads(self.process.stdout.readline())

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(30)
        connection.connect(str(self.path))
        return connection

    @contextmanager
    def client(self) -> Iterator[Client]:
        with self.connect() as connection:
            client = Client(connection)
            answer = client.handshake()
            assert answer.error is None, answer
            yield client

    def stop(self) -> int:
        """Let it go, as a JVM that ends does; gives its exit status."""
        self.process.stdin.close()
        try:
            return self.process.wait(20)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self.process.stdout.close()
            self.process.stderr.close()
            self._directory.cleanup()


def _limit(memory: int | None) -> None:
    # A background shell ignores SIGINT, which child processes inherit.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if memory is not None:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


@dataclass
class Answer:
    """Frames of one response."""

    control: dict[str, Any]
    error: dict[str, Any] | None
    frames: list[Frame]

    def of(self, kind: Kind) -> list[bytes]:
        return [bytes(frame.payload) for frame in self.frames if frame.kind is kind]


class Client:
    """Client of a backend, with the shim's protocol."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.frames = FrameSocket(connection)

    def handshake(self, **changes: Any) -> Answer:
        """Send the versions of a handshake, with these changes."""
        return self.ask({"protocol": PROTOCOL_VERSION, "version": __version__} | changes)

    def ask(self, request: dict[str, Any], *frames: tuple[Kind, bytes, int]) -> Answer:
        self.frames.send_json(Kind.CONTROL, request)
        for kind, payload, state in frames:
            self.frames.send(kind, payload, state)
        self.frames.send(Kind.END)
        return self.answer()

    def ask_together(
        self, *requests: tuple[dict[str, Any], Sequence[tuple[Kind, bytes, int]]]
    ) -> list[Answer]:
        """Send all requests, with the frames after each, then read answers until the connection closes."""
        sent = bytearray()
        for request, frames in requests:
            for kind, payload, state in (
                (Kind.CONTROL, json.dumps(request).encode(), 0),
                *frames,
                (Kind.END, b"", 0),
            ):
                data = bytes(payload)
                sent += struct.pack("<BxHIQI", kind, state, 0x31545353, len(data), zlib.crc32(data)) + data
        self.socket.sendall(sent)
        answers = []
        with contextlib.suppress(ConnectionResetError):
            answers.extend(self.answer() for _ in requests)
        return answers

    def answer(self) -> Answer:
        answer = Answer({}, None, [])
        while True:
            frame = self.frames.receive()
            if frame is None:
                raise ConnectionResetError("the backend closed the connection")
            if frame.kind is Kind.END:
                return answer
            if frame.kind is Kind.ERROR:
                answer.error = frame.json()
                return answer
            if frame.kind is Kind.CONTROL:
                answer.control = frame.json()
            answer.frames.append(frame)

    def is_closed(self) -> bool:
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True


def store(root: Path | str, instance: str = "one", **options: str) -> dict[str, Any]:
    """Return the field `store` of requests: location, identity and options of a store."""
    return {
        "instance": f"{root} {instance}",
        "root": f"file:{root}",
        "operator": 0,
        "partition": 3,
        "name": "default",
        "options": options,
    }


def state(name: str = "default", rows: int = 0) -> dict[str, Any]:
    """A named state, as a commit describes it."""
    return {
        "name": name,
        "rows": rows,
        "keySchema": "{}",
        "valueSchema": "{}",
        "keyEncoder": "hash",
        "prefixColumns": 0,
        "orderingColumns": [],
        "internal": False,
        "createdAtVersion": 0,
    }


def commit(root: Path | str, version: int, attempt_id: str, **changes: Any) -> dict[str, Any]:
    """The request that commits a version."""
    return {
        "op": "commit",
        "store": store(root),
        "version": version,
        "attemptId": attempt_id,
        "idInPath": False,
        "hasParent": False,
        "hasBase": False,
        "columnFamilies": [state()],
    } | changes


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@contextmanager
def serving(requests: Requests) -> Iterator[Client]:
    """Serve a client in this process, as a connection's thread of the backend does."""
    ours, theirs = socket.socketpair()

    def serve() -> None:
        frames = FrameSocket(theirs)
        while (frame := frames.receive()) is not None:
            try:
                requests.serve(frame.json(), frames)
            except StateStoreError as error:
                frames.drain()
                frames.send_json(Kind.ERROR, {"type": type(error).__name__, "message": str(error)})

    with ours, theirs:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield Client(ours)
        finally:
            ours.shutdown(socket.SHUT_RDWR)
            thread.join()

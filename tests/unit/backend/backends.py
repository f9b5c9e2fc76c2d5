"""A backend process as the JVM starts one, and a client of its socket."""

from __future__ import annotations

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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_statestore._version import __version__
from spark_statestore.backend.handlers import Requests
from spark_statestore.backend.protocol import PROTOCOL_VERSION, Frame, FrameSocket, Kind
from spark_statestore.errors import StateStoreError
from tests.unit.store.stores import message

HEADER = struct.Struct("<BxHIQI")
MAGIC = 0x31545353


def frame(kind: Kind, payload: bytes = b"", column_family: int = 0) -> bytes:
    """Return the bytes of a frame."""
    return HEADER.pack(kind, column_family, MAGIC, len(payload), zlib.crc32(payload)) + payload


class Backend:
    """One running ``python -m spark_statestore.backend``."""

    def __init__(self, *, memory: int | None = None, environment: dict[str, str] | None = None) -> None:
        # Short, since a socket's path is.
        self._directory = tempfile.TemporaryDirectory(prefix="sst-", dir="/tmp")
        self.path = Path(self._directory.name) / "socket"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "spark_statestore.backend", "--listen", str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | (environment or {}),
            preexec_fn=lambda: _prepare(memory),  # noqa: PLW1509
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
        """End its input, as a JVM that ends does; return its exit status."""
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


def _prepare(memory: int | None) -> None:
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

    def payloads(self, kind: Kind) -> list[bytes]:
        return [bytes(frame.payload) for frame in self.frames if frame.kind is kind]


class Client:
    """Client of a backend, with the shim's protocol."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.frames = FrameSocket(connection)

    def handshake(self, **changes: Any) -> Answer:
        """Send the versions of a handshake, with these changes."""
        return self.ask({"protocol": PROTOCOL_VERSION, "version": __version__} | changes)

    def begin(self, request: dict[str, Any], *frames: tuple[Kind, bytes, int]) -> None:
        """Send a request without its end."""
        self.frames.send_json(Kind.CONTROL, request)
        for kind, payload, state in frames:
            self.frames.send(kind, payload, state)

    def ask(self, request: dict[str, Any], *frames: tuple[Kind, bytes, int]) -> Answer:
        self.begin(request, *frames)
        self.frames.send(Kind.END)
        return self.answer()

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


def state(rows: int = 0) -> dict[str, Any]:
    """Return the column family `default`, as a commit describes it."""
    return {
        "name": "default",
        "rows": rows,
        "keySchema": "{}",
        "valueSchema": "{}",
        "keyEncoder": "hash",
        "prefixColumns": 0,
        "orderingColumns": [],
        "internal": False,
        "createdAtVersion": 0,
    }


def data(rows: dict[bytes, bytes]) -> tuple[Kind, bytes, int]:
    """Return the frame of changes that put rows into the first column family."""
    return (Kind.DATA, message(rows).to_pybytes(), 0)


def commit(root: Path | str, version: int, attempt_id: str, **changes: Any) -> dict[str, Any]:
    """Return the request that commits a version."""
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


def cleanup(root: Path | str, version: int, attempt_id: str, retain_from: int) -> dict[str, Any]:
    """Return the request that discards the versions before another one."""
    return {
        "op": "cleanup",
        "store": store(root),
        "version": version,
        "attemptId": attempt_id,
        "idInPath": False,
        "retainFrom": retain_from,
        "mostVersions": 0,
    }


def requests_of(root: Path | str) -> list[dict[str, Any]]:
    """Return valid requests of each kind for version 1 of a store."""
    version = {"store": store(root), "version": 1}
    attempt = version | {"attemptId": "0123456789abcdef", "idInPath": False}
    in_memory = {"store": store(root, "m", storage="memory"), "metadataPaths": ["chk-1/_metadata"]}
    options = {"checkpointsDir": f"file:{root}", "storageRetries": "5"}
    return [
        version | {"op": "load", "raw": True, "id": None},
        version | {"op": "load", "from": 1, "fromId": "0123456789abcdef"},
        version | {"op": "load", "driverRange": [1, 2]} | in_memory,
        version | {"op": "lineage", "oldest": 1, "columnFamily": "default"},
        attempt | {"op": "changes", "columnFamily": "default"},
        commit(root, 2, "0123456789abcdef", parentAttemptId="0123456789abcdef"),
        commit(root, 2, "0123456789abcdef", idInPath=True, hasParent=True, hasBase=True),
        version | {"op": "snapshot", "columnFamilies": [state()]},
        cleanup(root, 1, "0123456789abcdef", retain_from=1),
        {"op": "check", "directories": True, "options": options},
    ]


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@contextmanager
def serving(requests: Requests) -> Iterator[Client]:
    """Serve a client in this process, as a connection's thread of the backend does."""
    client_end, server_end = socket.socketpair()

    def serve() -> None:
        frames = FrameSocket(server_end)
        while (frame := frames.receive()) is not None:
            try:
                requests.serve(frame.json(), frames)
            except StateStoreError as error:
                frames.drain()
                frames.send_json(Kind.ERROR, {"type": type(error).__name__, "message": str(error)})

    with client_end, server_end:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield Client(client_end)
        finally:
            client_end.shutdown(socket.SHUT_RDWR)
            thread.join()

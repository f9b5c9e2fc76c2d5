"""Accepts connections and serves each on a thread of its own."""

from __future__ import annotations

import hmac
import logging
import os
import socket
import threading
import time
import traceback

from spark_statestore._version import __version__
from spark_statestore.errors import (
    AuthenticationError,
    ProtocolError,
    StateStoreError,
    VersionMismatchError,
)
from spark_statestore.server.protocol import PROTOCOL_VERSION, Frame, FrameSocket, Kind
from spark_statestore.server.requests import Requests

__all__ = ["Listener"]

_logger = logging.getLogger(__name__)

_LARGEST_HELLO = 4096
_HELLO_SECONDS = 10.0
_SEND_BUFFER_BYTES = 1 << 20


class Listener:
    """Listens where it is told.

    Parameters
    ----------
    address
        Path of a Unix domain socket to make, or ``tcp`` for any port of the loopback interface.
    token
        What every connection must show.
    """

    def __init__(self, address: str, token: str) -> None:
        self._token = token
        self._requests = Requests()
        if address == "tcp":
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self._socket.bind(("127.0.0.1", 0))
            self.port: int | None = self._socket.getsockname()[1]
        else:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.bind(address)
            os.chmod(address, 0o600)
            self.port = None
        self._socket.listen(512)

    def serve_forever(self) -> None:
        """Accept connections until the process ends."""
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                # Too many open files, most likely: those who are connected go on.
                _logger.exception("could not accept a connection")
                time.sleep(0.1)
                continue
            # State leaves in large pieces; the system may grant less.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
            if self.port is not None:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        frames = FrameSocket(connection)
        try:
            connection.settimeout(_HELLO_SECONDS)
            if self._greet(frames):
                connection.settimeout(None)
                while self._serve_request(frames):
                    pass
        except (ConnectionError, TimeoutError, BrokenPipeError) as error:
            _logger.debug("a connection ended: %s", error)
        except Exception:
            _logger.exception("a connection failed")
        finally:
            frames.close()

    def _greet(self, frames: FrameSocket) -> bool:
        try:
            hello = frames.receive(_LARGEST_HELLO)
            if hello is None:
                return False
            _check_hello(hello, self._token)
            end = frames.receive(0)
            if end is None or end.kind is not Kind.END:
                raise ProtocolError("a greeting goes on where it should end")
        except StateStoreError as error:
            _logger.warning("refused a connection: %s", error)
            _send_error(frames, error)
            return False
        frames.send_json(
            Kind.CONTROL, {"protocol": PROTOCOL_VERSION, "version": __version__, "pid": os.getpid()}
        )
        frames.send(Kind.END)
        return True

    def _serve_request(self, frames: FrameSocket) -> bool:
        """Serve one request; False when the connection is to be closed."""
        try:
            frame = frames.receive()
        except ProtocolError as error:
            _send_error(frames, error)
            return False
        if frame is None:
            return False
        try:
            if frame.kind is not Kind.CONTROL:
                raise ProtocolError(f"a request starts with a {frame.kind.name} frame")
            self._requests.serve(frame.json(), frames)
        except ConnectionError:
            raise
        except Exception as error:
            if not isinstance(error, StateStoreError):
                _logger.exception("a request failed unexpectedly")
            # The JVM reads only once it has sent everything.
            frames.drain()
            _send_error(frames, error)
        return True


def _check_hello(hello: Frame, token: str) -> None:
    if hello.kind is not Kind.CONTROL:
        raise ProtocolError(f"a connection starts with a {hello.kind.name} frame")
    node = hello.json()
    if not hmac.compare_digest(str(node.get("token", "")).encode(), token.encode()):
        raise AuthenticationError(
            "a connection to the state store backend did not show its token; only the JVM that started the "
            "backend may use it"
        )
    theirs = (node.get("protocol"), node.get("version"))
    if theirs != (PROTOCOL_VERSION, __version__):
        raise VersionMismatchError(
            f"the jar is version {theirs[1]} (protocol {theirs[0]}), the Python package is version {__version__} "
            f"(protocol {PROTOCOL_VERSION}): install the same version of both"
        )


def _send_error(frames: FrameSocket, error: Exception) -> None:
    frames.discard_waiting()
    message = str(error)
    if not isinstance(error, StateStoreError):
        message = f"{type(error).__name__}: {error} (in {_place(error)})"
    notes = getattr(error, "__notes__", [])
    frames.send_json(Kind.ERROR, {"type": type(error).__name__, "message": "\n".join([message, *notes])})


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else "unknown"

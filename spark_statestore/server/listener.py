"""Accepts connections and serves each on a thread of its own."""

from __future__ import annotations

import logging
import os
import socket
import stat
import threading
import time
import traceback
from typing import Final

from spark_statestore.errors import AuthenticationError, ProtocolError, StateStoreError
from spark_statestore.server.greeting import GREETING_SECONDS, greet, require_own_user
from spark_statestore.server.protocol import FrameSocket, Kind
from spark_statestore.server.requests import Requests

__all__ = ["Listener"]

_logger = logging.getLogger(__name__)

_SEND_BUFFER_BYTES = 1 << 20

# Connections that have not shown the token yet: the next one waits, as does a process that only wants threads.
_MOST_GREETINGS: Final = 256

# More than this of a message is not for people to read.
_LONGEST_MESSAGE: Final = 64 << 10


class Listener:
    """Listens where it is told.

    Parameters
    ----------
    address
        Path of a Unix domain socket to make, or ``tcp`` for any port of the loopback interface.
    token
        What every connection must show that it knows.

    Raises
    ------
    AuthenticationError
        If others can reach the directory of the socket.
    """

    def __init__(self, address: str, token: str) -> None:
        self._token = token
        self._requests = Requests()
        self._greetings = threading.BoundedSemaphore(_MOST_GREETINGS)
        if address == "tcp":
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self._socket.bind(("127.0.0.1", 0))
            self.port: int | None = self._socket.getsockname()[1]
        else:
            _require_private(os.path.dirname(address) or ".")
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.bind(address)
            os.chmod(address, 0o600)
            self.port = None
        self._socket.listen(512)

    def serve_forever(self) -> None:
        """Accept connections until the process ends."""
        while True:
            self._greetings.acquire()
            try:
                connection, _ = self._socket.accept()
            except OSError:
                # Too many open files, most likely: those who are connected go on.
                self._greetings.release()
                _logger.exception("could not accept a connection")
                time.sleep(0.1)
                continue
            try:
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
            except RuntimeError:
                # Too many threads, likewise.
                self._greetings.release()
                connection.close()
                _logger.exception("could not serve a connection")
                time.sleep(0.1)

    def _serve(self, connection: socket.socket) -> None:
        try:
            try:
                frames = FrameSocket(connection)
                is_welcome = self._greet(connection, frames)
            finally:
                self._greetings.release()
            if is_welcome:
                connection.settimeout(None)
                while self._serve_request(frames):
                    pass
        except (ConnectionError, TimeoutError, BrokenPipeError) as error:
            _logger.debug("a connection ended: %s", error)
        except Exception:
            _logger.exception("a connection failed")
        finally:
            connection.close()

    def _greet(self, connection: socket.socket, frames: FrameSocket) -> bool:
        # State leaves in large pieces; the system may grant less.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        if self.port is not None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(GREETING_SECONDS)
        try:
            require_own_user(connection)
            return greet(frames, self._token)
        except StateStoreError as error:
            _logger.warning("refused a connection: %s", error)
            _send_error(frames, error)
            return False

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


def _require_private(directory: str) -> None:
    status = os.stat(directory)
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise AuthenticationError(
            f"the socket of the state store backend is to lie in {directory}, which belongs to user "
            f"{status.st_uid} and has mode {stat.S_IMODE(status.st_mode):o}: others could reach it. It must belong to "
            f"user {os.geteuid()}, with mode 700."
        )


def _send_error(frames: FrameSocket, error: Exception) -> None:
    frames.discard_waiting()
    message = str(error)
    if not isinstance(error, StateStoreError):
        message = f"{type(error).__name__}: {error} (in {_place(error)})"
    notes = getattr(error, "__notes__", [])
    message = "\n".join([message, *notes])
    if len(message) > _LONGEST_MESSAGE:
        message = f"{message[:_LONGEST_MESSAGE]}... ({len(message)} characters)"
    frames.send_json(Kind.ERROR, {"type": type(error).__name__, "message": message})


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else "unknown"

"""The listener accepts connections on the backend's socket, and serves each on a thread of its own."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import traceback
from typing import Final

from spark_statestore.backend.handlers import Requests
from spark_statestore.backend.handshake import (
    HANDSHAKE_TIMEOUT,
    handshake,
    peer_user,
    require_own_user,
    require_private,
)
from spark_statestore.backend.protocol import FrameSocket, Kind
from spark_statestore.errors import ProtocolError, StateStoreError

_logger = logging.getLogger(__name__)

_SEND_BUFFER_BYTES = 1 << 20

# Connections in their handshake at a time: bounds the threads that silent processes can occupy.
_MAX_HANDSHAKES: Final = 256

# Longer error messages are cut.
_LONGEST_MESSAGE: Final = 64 << 10


class Listener:
    """A Unix domain socket that serves requests of the own user's processes.

    The directory of the socket must have mode 0700.
    """

    def __init__(self, address: str) -> None:
        self._requests = Requests()
        self._handshakes = threading.BoundedSemaphore(_MAX_HANDSHAKES)
        require_private(os.path.dirname(address) or ".")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(address)
        os.chmod(address, 0o600)
        self._socket.listen(512)

    def serve_forever(self) -> None:
        """Accept connections until the process ends."""
        while True:
            self._handshakes.acquire()
            try:
                connection, _ = self._socket.accept()
            except OSError:
                # Most likely EMFILE; open connections are still served.
                self._handshakes.release()
                _logger.exception("could not accept a connection")
                time.sleep(0.1)
                continue
            try:
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
            except RuntimeError:
                # Thread limit reached; open connections are still served.
                self._handshakes.release()
                connection.close()
                _logger.exception("could not serve a connection")
                time.sleep(0.1)

    def _serve(self, connection: socket.socket) -> None:
        frames = FrameSocket(connection)
        try:
            try:
                is_accepted = self._handshake(connection, frames)
            finally:
                self._handshakes.release()
            if is_accepted:
                connection.settimeout(None)
                while self._serve_request(frames):
                    pass
        except (ConnectionError, TimeoutError, BrokenPipeError) as error:
            _logger.debug("a connection ended: %s", error)
        except Exception:
            _logger.exception("a connection failed")
        finally:
            # Not the socket itself: the watchdog may have taken it over, to answer a hung request.
            frames.close()

    def _handshake(self, connection: socket.socket, frames: FrameSocket) -> bool:
        # Fewer context switches while state is sent; the system may grant less.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        connection.settimeout(HANDSHAKE_TIMEOUT)
        try:
            require_own_user(peer_user(connection))
            return handshake(frames)
        except StateStoreError as error:
            _logger.warning("refused a connection: %s", error)
            _send_error(frames, error)
            return False

    def _serve_request(self, frames: FrameSocket) -> bool:
        """Serve one request; return False if the connection must be closed."""
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
            if frames.has_answered:
                # The client would take an error frame for the answer to its next request.
                return True
            # The JVM reads the answer only after it has sent the whole request.
            frames.drain()
            _send_error(frames, error)
        return True


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

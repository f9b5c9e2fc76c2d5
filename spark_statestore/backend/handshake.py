"""The handshake of a new connection is a mutual challenge-response; the token itself is never sent.

Each side sends a random challenge, and responds to the other's with an HMAC of both. A recorded handshake is therefore
useless for another connection, and a process that impersonates the backend does not learn the token.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import socket
import struct
import time
from typing import Any, Final

from spark_statestore._version import __version__
from spark_statestore.backend.protocol import PROTOCOL_VERSION, Frame, FrameSocket, Kind
from spark_statestore.errors import AuthenticationError, ProtocolError, VersionMismatchError

__all__ = ["HANDSHAKE_TIMEOUT", "SHIM", "BACKEND", "handshake", "handshake_response", "require_own_user"]

HANDSHAKE_TIMEOUT: Final = 10.0
"""Timeout of a whole handshake, in seconds."""

SHIM: Final = "shim"
"""Role of the JVM in `handshake_response`."""

BACKEND: Final = "backend"
"""Role of the backend in `handshake_response`."""

_MAX_HANDSHAKE_BYTES: Final = 4096
_CHALLENGE: Final = re.compile(r"[0-9a-f]{32,128}")

# struct ucred of SO_PEERCRED: pid, uid and gid of the peer.
_CREDENTIALS: Final = struct.Struct("iII")


def handshake_response(token: str, role: str, shim_challenge: str, backend_challenge: str) -> str:
    """Return the HMAC-SHA256, in hex, that proves knowledge of the token.

    The role, `SHIM` or `BACKEND`, is part of the message, so that one side's response cannot be reflected.
    """
    message = f"{role}:{shim_challenge}:{backend_challenge}"
    return hmac.new(token.encode(), message.encode(), hashlib.sha256).hexdigest()


def handshake(frames: FrameSocket, token: str) -> bool:
    """Authenticate a new connection; return False if the peer closed it meanwhile.

    Raises
    ------
    AuthenticationError
        If the peer does not know the token.
    VersionMismatchError
        If the peer has another version.
    ProtocolError
        If the peer sends anything but a handshake.
    TimeoutError
        If it takes longer than `HANDSHAKE_TIMEOUT`.
    """
    frames.deadline = time.monotonic() + HANDSHAKE_TIMEOUT
    opening = _receive(frames)
    if opening is None:
        return False
    protocol, version = opening.get("protocol"), opening.get("version")
    if (protocol, version) != (PROTOCOL_VERSION, __version__):
        raise VersionMismatchError(
            f"the jar is version {version!r:.40} (protocol {protocol!r:.40}), the Python package is version "
            f"{__version__!r} (protocol {PROTOCOL_VERSION}): install the same version of both"
        )
    challenge = opening.get("challenge")
    if not isinstance(challenge, str) or not _CHALLENGE.fullmatch(challenge):
        raise ProtocolError("a handshake without a challenge of 32 to 128 hex digits")
    own_challenge = secrets.token_hex(32)
    frames.send_json(
        Kind.CONTROL,
        {
            "protocol": PROTOCOL_VERSION,
            "version": __version__,
            "pid": os.getpid(),
            "challenge": own_challenge,
            "response": handshake_response(token, BACKEND, challenge, own_challenge),
        },
    )
    frames.send(Kind.END)
    answer = _receive(frames)
    if answer is None:
        return False
    response = answer.get("response")
    expected = handshake_response(token, SHIM, challenge, own_challenge)
    if not isinstance(response, str) or not hmac.compare_digest(
        response.encode(errors="replace"), expected.encode()
    ):
        raise AuthenticationError(
            "a connection to the state store backend was refused: its response does not match the token. Only the JVM that "
            "started the backend may connect"
        )
    frames.send_json(Kind.CONTROL, {})
    frames.send(Kind.END)
    frames.deadline = None
    return True


def require_own_user(connection: socket.socket) -> None:
    """Refuse a process of another user, on systems with ``SO_PEERCRED``.

    The mode of the socket's directory keeps other users out already; this holds if that mode was changed.

    Raises
    ------
    AuthenticationError
        If the peer runs as another user.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(credentials)
    if user != os.geteuid():
        raise AuthenticationError(
            f"a process of user {user} connected to the state store backend of user {os.geteuid()}; only the JVM "
            "that started the backend may connect"
        )


def _receive(frames: FrameSocket) -> dict[str, Any] | None:
    frame: Frame | None = frames.receive(_MAX_HANDSHAKE_BYTES)
    if frame is None:
        return None
    if frame.kind is not Kind.CONTROL:
        raise ProtocolError(f"a connection starts with a {frame.kind.name} frame instead of a handshake")
    node = frame.json()
    end = frames.receive(0)
    if end is None or end.kind is not Kind.END:
        raise ProtocolError("unexpected frame after the end of the handshake")
    return node

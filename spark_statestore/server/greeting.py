"""How both sides of a new connection show that they know the token, which never travels over it.

Each side sends a challenge that it uses once, and answers the other's with a keyed hash of both. So what is
overheard on one connection opens no other, and a process that took the backend's place learns nothing.
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
from spark_statestore.errors import AuthenticationError, ProtocolError, VersionMismatchError
from spark_statestore.server.protocol import PROTOCOL_VERSION, Frame, FrameSocket, Kind

__all__ = ["GREETING_SECONDS", "SHIM", "BACKEND", "greet", "proof_of", "require_own_user"]

GREETING_SECONDS: Final = 10.0
"""How long a greeting may take, all of it."""

SHIM: Final = "shim"
"""Who proves that it knows the token: the JVM."""

BACKEND: Final = "backend"
"""Who proves that it knows the token: the backend."""

_LARGEST_GREETING: Final = 4096
_CHALLENGE: Final = re.compile(r"[0-9a-f]{32,128}")

# Process, user and group, as Linux tells them of the other end of a Unix domain socket.
_CREDENTIALS: Final = struct.Struct("iII")


def proof_of(token: str, who: str, challenge: str, other_challenge: str) -> str:
    """What shows that somebody knows the token.

    Parameters
    ----------
    who
        `SHIM` or `BACKEND`: what one of them says is of no use to say for the other.
    challenge
        The one that the shim sent.
    other_challenge
        The one that the backend sent.
    """
    said = f"{who}:{challenge}:{other_challenge}"
    return hmac.new(token.encode(), said.encode(), hashlib.sha256).hexdigest()


def greet(frames: FrameSocket, token: str) -> bool:
    """Greet who has connected; False if the connection ended meanwhile.

    Raises
    ------
    AuthenticationError
        If the other side does not know the token.
    VersionMismatchError
        If it is of another version.
    ProtocolError
        If it says something else.
    TimeoutError
        If it takes longer than `GREETING_SECONDS`.
    """
    frames.deadline = time.monotonic() + GREETING_SECONDS
    hello = _receive(frames)
    if hello is None:
        return False
    theirs = (hello.get("protocol"), hello.get("version"))
    if theirs != (PROTOCOL_VERSION, __version__):
        raise VersionMismatchError(
            f"the jar is version {theirs[1]!r:.40} (protocol {theirs[0]!r:.40}), the Python package is version "
            f"{__version__!r} (protocol {PROTOCOL_VERSION}): install the same version of both"
        )
    challenge = hello.get("challenge")
    if not isinstance(challenge, str) or not _CHALLENGE.fullmatch(challenge):
        raise ProtocolError("a greeting without a challenge of 32 to 128 hex digits")
    mine = secrets.token_hex(32)
    frames.send_json(
        Kind.CONTROL,
        {
            "protocol": PROTOCOL_VERSION,
            "version": __version__,
            "pid": os.getpid(),
            "challenge": mine,
            "proof": proof_of(token, BACKEND, challenge, mine),
        },
    )
    frames.send(Kind.END)
    answer = _receive(frames)
    if answer is None:
        return False
    shown = answer.get("proof")
    expected = proof_of(token, SHIM, challenge, mine)
    if not isinstance(shown, str) or not hmac.compare_digest(
        shown.encode(errors="replace"), expected.encode()
    ):
        raise AuthenticationError(
            "a connection to the state store backend did not prove that it knows the token; only the JVM that "
            "started the backend may use it"
        )
    frames.send_json(Kind.CONTROL, {})
    frames.send(Kind.END)
    frames.deadline = None
    return True


def require_own_user(connection: socket.socket) -> None:
    """Refuse a process of another user, where the system tells whose it is.

    Nobody else should be able to reach the socket; this holds where somebody changed its directory's mode.

    Raises
    ------
    AuthenticationError
        If it is another user's.
    """
    if connection.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(told)
    if user != os.geteuid():
        raise AuthenticationError(
            f"a process of user {user} has connected to the state store backend of user {os.geteuid()}; only the JVM "
            "that started the backend may use it"
        )


def _receive(frames: FrameSocket) -> dict[str, Any] | None:
    frame: Frame | None = frames.receive(_LARGEST_GREETING)
    if frame is None:
        return None
    if frame.kind is not Kind.CONTROL:
        raise ProtocolError(f"a connection starts with a {frame.kind.name} frame")
    node = frame.json()
    end = frames.receive(0)
    if end is None or end.kind is not Kind.END:
        raise ProtocolError("a greeting goes on where it should end")
    return node

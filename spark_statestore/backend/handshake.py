"""A connection to the backend starts with a check of the peer's user and a comparison of versions.

The mode of the socket's directory keeps processes of other users out. The peer's user, which the kernel
attests, is checked too: that holds if the mode was changed.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import time
from typing import Final

from spark_statestore._version import __version__
from spark_statestore.backend.protocol import PROTOCOL_VERSION, FrameSocket, Kind
from spark_statestore.errors import AuthenticationError, ProtocolError, VersionMismatchError

__all__ = ["HANDSHAKE_TIMEOUT", "handshake", "peer_user", "require_own_user", "require_private"]

HANDSHAKE_TIMEOUT: Final = 10.0
"""Timeout of a whole handshake, in seconds."""

_MAX_HANDSHAKE_BYTES: Final = 4096

# struct ucred of SO_PEERCRED: pid, uid and gid of the peer.
_CREDENTIALS: Final = struct.Struct("iII")


def require_private(directory: str) -> None:
    """Raise `AuthenticationError` if other users can access the directory of the socket."""
    status = os.stat(directory)
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.geteuid() or mode & 0o077:
        raise AuthenticationError(
            f"the directory of the state store backend's socket, {directory}, belongs to user "
            f"{status.st_uid} and has mode {mode:o}: other users could connect. It must belong to user "
            f"{os.geteuid()} and have mode 700."
        )


def peer_user(connection: socket.socket) -> int | None:
    """Return the user id of the process at the other end.

    It is None on systems without ``SO_PEERCRED``, as macOS.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    _, user, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return int(user)


def require_own_user(user: int | None) -> None:
    """Raise `AuthenticationError` if a peer's user is known, and is not the user of this process."""
    if user is not None and user != os.geteuid():
        raise AuthenticationError(
            f"a process of user {user} connected to the state store backend of user {os.geteuid()}; only the "
            "JVM that started the backend may connect"
        )


def handshake(frames: FrameSocket) -> bool:
    """Compare versions on a new connection; return False if the peer closed it meanwhile.

    Raises
    ------
    VersionMismatchError
        If the peer has another version.
    ProtocolError
        If the peer sends anything but a handshake.
    TimeoutError
        If it takes longer than `HANDSHAKE_TIMEOUT`.
    """
    frames.deadline = time.monotonic() + HANDSHAKE_TIMEOUT
    frame = frames.receive(_MAX_HANDSHAKE_BYTES)
    if frame is None:
        return False
    if frame.kind is not Kind.CONTROL:
        raise ProtocolError(f"a connection starts with a {frame.kind.name} frame instead of a handshake")
    opening = frame.json()
    end = frames.receive(0)
    if end is None or end.kind is not Kind.END:
        raise ProtocolError("unexpected frame after the end of the handshake")
    protocol, version = opening.get("protocol"), opening.get("version")
    if (protocol, version) != (PROTOCOL_VERSION, __version__):
        raise VersionMismatchError(
            f"the jar is version {version!r:.40} (protocol {protocol!r:.40}), the Python package is version "
            f"{__version__!r} (protocol {PROTOCOL_VERSION}): install the same version of both"
        )
    frames.send_json(Kind.CONTROL, {})
    frames.send(Kind.END)
    frames.deadline = None
    return True

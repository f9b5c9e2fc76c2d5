"""Fake backend process that answers with the bytes in a file. It is started like a backend: see `installed`.

The file ``answer`` beside the script has the answer to the next request. If a file ``stranger`` exists, the
process opens the socket's directory to all, serves as another user, and appends what it receives to that
file.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from pathlib import Path

from tests.support.paths import ROOT

__all__ = ["installed"]

NOBODY = 65534


def installed(directory: Path) -> str:
    """Return an interpreter, for the option ``python``, that runs this program instead of the backend."""
    script = directory / "python"
    script.write_text(
        f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m tests.spark.impostor {directory} "$@"\n'
    )
    script.chmod(0o755)
    return str(script)


def main() -> None:
    """Serve until standard input ends."""
    from spark_statestore._version import __version__
    from spark_statestore.backend.handshake import handshake
    from spark_statestore.backend.protocol import PROTOCOL_VERSION, FrameSocket, Kind

    directory, address = Path(sys.argv[1]), sys.argv[-1]
    stranger = directory / "stranger"
    received = stranger.open("ab", buffering=0) if stranger.exists() else None
    if received is not None:
        os.chmod(os.path.dirname(address), 0o777)
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen(64)
    ready = {"ready": True, "pid": os.getpid(), "version": __version__, "protocol": PROTOCOL_VERSION}
    sys.stdout.write(json.dumps(ready) + "\n")
    sys.stdout.flush()

    def leave() -> None:
        sys.stdin.read()
        os._exit(0)

    def serve(connection: socket.socket) -> None:
        with connection:
            if received is not None:
                received.write(b"connected\n" + connection.recv(1 << 16))
            frames = FrameSocket(connection)
            if not handshake(frames):
                return
            while (frame := frames.receive()) is not None:
                if frame.kind is Kind.END:
                    connection.sendall((directory / "answer").read_bytes())

    threading.Thread(target=leave, daemon=True).start()
    while True:
        threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()


if __name__ == "__main__":
    main()

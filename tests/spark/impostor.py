"""A process in the place of a backend, which answers whatever a file says. Run as a backend is: see `installed`.

The file ``answer`` beside the script holds the bytes that the next request is answered with; ``stranger``, if it is
there, has the process greet without knowing the token.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from pathlib import Path

__all__ = ["installed"]


def installed(directory: Path) -> str:
    """An interpreter, as the option ``python`` names it, that runs this in the place of the backend."""
    script = directory / "python"
    root = Path(__file__).parent.parent.parent
    script.write_text(
        f'#!/bin/sh\nPYTHONPATH={root} exec {sys.executable} -m tests.spark.impostor {directory} "$@"\n'
    )
    script.chmod(0o755)
    return str(script)


def main() -> None:
    """Serve until standard input ends."""
    from spark_statestore._version import __version__
    from spark_statestore.server.greeting import greet
    from spark_statestore.server.protocol import PROTOCOL_VERSION, FrameSocket, Kind

    directory, address = Path(sys.argv[1]), sys.argv[-1]
    token = sys.stdin.readline().strip()
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
            frames = FrameSocket(connection)
            if not greet(frames, "0" * 64 if (directory / "stranger").exists() else token):
                return
            while (frame := frames.receive()) is not None:
                if frame.kind is Kind.END:
                    connection.sendall((directory / "answer").read_bytes())

    threading.Thread(target=leave, daemon=True).start()
    while True:
        threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()


if __name__ == "__main__":
    main()

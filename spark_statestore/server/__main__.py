"""Run the backend: ``python -m spark_statestore.server --listen <socket path>|tcp``.

The JVM shim starts this. The first line of standard input is the token; when standard input ends,
the process that started the backend is gone, and so is the backend.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import threading


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m spark_statestore.server")
    parser.add_argument("--listen", required=True, help="path of a Unix domain socket, or tcp")
    arguments = parser.parse_args()
    # The JVM reads one line of standard output. What a driver prints would come before it, or fill the pipe in time.
    answer = open(os.dup(1), "w", encoding="utf-8")  # noqa: SIM115 - open as long as the process
    os.dup2(2, 1)

    def say(node: dict[str, object]) -> None:
        answer.write(json.dumps(node) + "\n")
        answer.flush()

    # An interrupt in the terminal is meant for the driver, which ends standard input when it goes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    token = sys.stdin.readline().strip()
    if not token:
        say({"error": "no token arrived on standard input"})
        sys.exit(2)
    try:
        _import_pyarrow()
        from spark_statestore._version import __version__
        from spark_statestore.server.lifecycle import run
    except ImportError as error:
        say({"error": _missing(error)})
        sys.exit(1)
    threading.Thread(target=_follow_parent, args=(arguments.listen,), daemon=True).start()
    run(arguments.listen, token, __version__, say)


def _import_pyarrow() -> None:
    # pyarrow takes numpy along where it is installed: memory and start-up time for what is never called here.
    before = sys.modules.get("numpy")
    sys.modules["numpy"] = None  # type: ignore[assignment]
    try:
        import pyarrow  # noqa: F401
    finally:
        del sys.modules["numpy"]
        if before is not None:
            sys.modules["numpy"] = before


def _missing(error: ImportError) -> str:
    return (
        f"{error}. The backend needs pyarrow and fsspec in the interpreter {sys.executable}: "
        f"'{sys.executable} -m pip install pyarrow fsspec', or name another interpreter with "
        "spark.sql.streaming.stateStore.backend.python."
    )


def _follow_parent(listen: str) -> None:
    # A blocking read of a pipe ends exactly when the last writer, the JVM, is gone.
    while os.read(0, 4096):
        pass
    if listen != "tcp":
        # A JVM that was killed cannot remove the socket and the directory that it made for it.
        with contextlib.suppress(OSError):
            os.unlink(listen)
            os.rmdir(os.path.dirname(listen))
    os._exit(0)


if __name__ == "__main__":
    main()

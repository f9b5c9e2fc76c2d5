"""``python -m spark_statestore.backend --listen <socket path>`` runs the backend process of a JVM.

Standard input ends with the JVM; then the backend exits.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import threading

from spark_statestore.temporary import keep_while_alive, remove


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m spark_statestore.backend")
    parser.add_argument("--listen", required=True, help="path of the Unix domain socket to create")
    arguments = parser.parse_args()
    # The JVM reads one line of standard output: whatever libraries print there must go to standard error.
    answer = open(os.dup(1), "w", encoding="utf-8")  # noqa: SIM115 - open as long as the process
    os.dup2(2, 1)

    def report(node: dict[str, object]) -> None:
        answer.write(json.dumps(node) + "\n")
        answer.flush()

    # Ctrl-C in a terminal reaches the whole process group but is meant for the driver.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_while_alive(os.path.dirname(arguments.listen))
    try:
        _import_pyarrow()
        from spark_statestore.backend.lifecycle import run
    except ImportError as error:
        report({"error": _missing(error)})
        sys.exit(1)
    threading.Thread(target=_follow_parent, args=(arguments.listen,), daemon=True).start()
    run(arguments.listen, report)


def _import_pyarrow() -> None:
    # pyarrow imports numpy if it is installed, which costs memory and start-up time and is never used here.
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
    # A blocking read of a pipe returns 0 exactly when the last writer, the JVM, has ended.
    while os.read(0, 4096):
        pass
    # A killed JVM cannot remove the socket and its directory.
    with contextlib.suppress(OSError):
        os.unlink(listen)
    remove(os.path.dirname(listen))
    os._exit(0)


if __name__ == "__main__":
    main()

"""``python -m spark_statestore.backend --listen <socket path>`` runs the backend process of a JVM.

Standard input ends with the JVM; then the backend exits.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys

from spark_statestore.child_process import answer_on_standard_output, end_with_parent, ignore_interrupts
from spark_statestore.temporary import keep_while_alive, remove


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m spark_statestore.backend")
    parser.add_argument("--listen", required=True, help="path of the Unix domain socket to create")
    arguments = parser.parse_args()
    # The JVM reads one line.
    report = answer_on_standard_output()
    ignore_interrupts()
    keep_while_alive(os.path.dirname(arguments.listen))
    try:
        _import_pyarrow()
        from spark_statestore.backend.lifecycle import run
    except ImportError as error:
        report({"error": _missing(error)})
        sys.exit(1)
    end_with_parent(lambda: _remove(arguments.listen))
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


def _remove(listen: str) -> None:
    # A killed JVM cannot remove the socket and its directory.
    with contextlib.suppress(OSError):
        os.unlink(listen)
    remove(os.path.dirname(listen))


if __name__ == "__main__":
    main()

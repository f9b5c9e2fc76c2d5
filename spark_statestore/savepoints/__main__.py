"""``python -m spark_statestore.savepoints`` settles the partitions of a query that is about to start.

The backend runs it as a process of its own: it needs numpy, which the backend does without, and its memory
is free afterwards. Standard input has the request as one line of JSON, and ends with the backend. Standard
output has lines of JSON: how far it is, then the result or the error.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import Any

from spark_statestore.options import StorageOptions


def main() -> None:
    """Serve one request."""
    answers = open(os.dup(1), "w", encoding="utf-8")  # noqa: SIM115 - open as long as the process
    # What libraries print there goes to standard error.
    os.dup2(2, 1)

    def answer(node: dict[str, Any]) -> None:
        answers.write(json.dumps(node) + "\n")
        answers.flush()

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_follow_parent, daemon=True).start()
    try:
        from spark_statestore.savepoints.rescale_in_place import settle_partitions

        number = settle_partitions(
            request["path"],
            StorageOptions.parse(request["options"]),
            request.get("query"),
            request["canHaveIds"],
            lambda done, total: answer({"done": done, "total": total}),
        )
        answer({"partitions": number})
    except Exception as error:  # noqa: BLE001 - the backend reports it
        answer({"error": {"type": type(error).__name__, "message": str(error)}})


def _follow_parent() -> None:
    # A blocking read of a pipe returns 0 exactly when the last writer, the backend, has ended.
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()

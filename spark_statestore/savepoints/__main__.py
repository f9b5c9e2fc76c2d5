"""``python -m spark_statestore.savepoints`` settles the partitions of a query that is about to start.

The backend runs it as a process of its own: it needs numpy, which the backend does without, and its memory
is free afterwards. Standard input has the request as one line of JSON, and ends with the backend. Standard
output has lines of JSON: how far it is, then the result or the error.
"""

from __future__ import annotations

import json
import sys

from spark_statestore.child_process import answer_on_standard_output, end_with_parent, ignore_interrupts
from spark_statestore.options import StorageOptions


def main() -> None:
    """Serve one request."""
    answer = answer_on_standard_output()
    ignore_interrupts()
    request = json.loads(sys.stdin.readline())
    end_with_parent()
    try:
        from spark_statestore.savepoints.rescale_in_place import settle_partitions

        number = settle_partitions(
            request["path"],
            StorageOptions.parse(request["options"]),
            request.get("query"),
            request["canHaveIds"],
            lambda completed, total: answer({"done": completed, "total": total}),
        )
        answer({"partitions": number})
    except Exception as error:  # noqa: BLE001 - the backend reports it
        answer({"error": {"type": type(error).__name__, "message": str(error)}})


if __name__ == "__main__":
    main()

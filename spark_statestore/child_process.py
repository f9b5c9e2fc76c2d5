"""Standard input and output of a process of this package that another process has started."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from typing import Any


def answer_on_standard_output() -> Callable[[dict[str, Any]], None]:
    """Return a function that writes an answer, one line of JSON, to standard output.

    Prints of libraries go to standard error from then on.
    """
    answers = open(os.dup(1), "w", encoding="utf-8")  # noqa: SIM115 - open as long as the process
    os.dup2(2, 1)

    def answer(node: dict[str, Any]) -> None:
        answers.write(json.dumps(node) + "\n")
        answers.flush()

    return answer


def ignore_interrupts() -> None:
    """Ignore Ctrl-C, which a terminal sends to the whole process group, and which is meant for the driver."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def end_with_parent(clean_up: Callable[[], None] = lambda: None) -> None:
    """End this process once standard input ends, as it does with the process that has started this one."""

    def follow() -> None:
        # A blocking read of a pipe returns 0 exactly when the last writer has ended.
        while os.read(0, 4096):
            pass
        clean_up()
        os._exit(0)

    threading.Thread(target=follow, daemon=True).start()

"""Daemon that forks Spark's Python workers and keeps loaded modules out of their garbage collections.

PySpark's daemon collects all garbage after each task of a worker that is reused. With pandas and pyarrow
loaded that takes more processor time than a task with few rows does. With this daemon the objects of modules
are frozen after the task that loads them, and later collections pass over them. Garbage of tasks is collected
as before.

`spark_statestore.configure` uses it where the interpreter of the workers has the package; elsewhere set
``spark.python.daemon.module`` to ``spark_statestore.worker_daemon`` before the session starts.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any


def freezing(worker: Callable[..., int]) -> Callable[..., int]:
    """Return the function that runs a task, followed by `gc.freeze` if the task has loaded modules."""
    modules = 0

    def run(*arguments: Any) -> int:
        nonlocal modules
        code = worker(*arguments)
        if len(sys.modules) != modules:
            modules = len(sys.modules)
            # gc.freeze would keep the task's garbage in memory.
            gc.collect()
            gc.freeze()
        return code

    return run


def main() -> None:
    """Run PySpark's daemon until its JVM ends it; with ``--probe``, end once it can run."""
    from pyspark import daemon

    if sys.argv[1:] == ["--probe"]:
        return
    daemon.worker = freezing(daemon.worker)
    daemon.manager()


if __name__ == "__main__":
    main()

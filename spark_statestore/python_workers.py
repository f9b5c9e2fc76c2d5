"""Settings with which Spark's Python workers take less time for each task."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

SOCKETS_KEY: Final = "spark.python.unix.domain.socket.enabled"

INTERPRETER_KEY: Final = "spark.statestore.pythonWorkers"
"""Setting by which a JVM that runs tasks tries the daemon of `spark_statestore.worker_daemon`.

Its value is the interpreter of the tasks. The JVM sets the daemon if that interpreter can import it.
"""


def settings_of_workers(
    present: Mapping[str, str], has_executors: bool, *, has_unix_sockets: bool
) -> dict[str, str]:
    """Return settings for workers, without those that are present. A worker fails with none of them.

    Executors that are processes of their own decide on sockets by themselves.

    Parameters
    ----------
    present
        The settings of the session.
    has_executors
        Whether executors are processes of their own.
    has_unix_sockets
        Whether this Spark can talk to its workers through Unix domain sockets, as Spark 4.1 and later can.
    """
    # As PySpark names it to executors.
    settings = {INTERPRETER_KEY: os.environ.get("PYSPARK_PYTHON", "python3")}
    if has_unix_sockets and not has_executors and SOCKETS_KEY not in present and _has_short_sockets(present):
        settings[SOCKETS_KEY] = "true"
    return settings


def _has_short_sockets(present: Mapping[str, str]) -> bool:
    # The path of a socket has at most 107 bytes; by default it is in Java's directory of temporary files.
    places = [
        *(value for key, value in present.items() if key.startswith("spark.driver.")),
        # Java and Spark's scripts take options from several, such as _JAVA_OPTIONS and SPARK_SUBMIT_OPTS.
        *os.environ.values(),
    ]
    is_moved = any("java.io.tmpdir" in place for place in places)
    return not is_moved and "spark.python.unix.domain.socket.dir" not in present

"""Settings with which Spark's Python workers take less time for each task."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import Final

DAEMON_KEY: Final = "spark.python.daemon.module"
SOCKETS_KEY: Final = "spark.python.unix.domain.socket.enabled"

_DAEMON: Final = "spark_statestore.worker_daemon"
_PROBE_SECONDS: Final = 30


def settings_of_workers(present: Mapping[str, str], *, has_unix_sockets: bool) -> dict[str, str]:
    """Return settings for workers on this machine, without those that are present.

    A worker fails with none of them: the daemon of `spark_statestore.worker_daemon` is among them only if the
    workers' interpreter can import it, and sockets only if their paths are short enough.

    Parameters
    ----------
    present
        The settings of the session.
    has_unix_sockets
        Whether this Spark can talk to its workers through Unix domain sockets, as Spark 4.1 and later can.
    """
    settings = {}
    interpreter = present.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable
    if DAEMON_KEY not in present and _can_import_daemon(interpreter):
        settings[DAEMON_KEY] = _DAEMON
    if has_unix_sockets and SOCKETS_KEY not in present and _has_short_sockets(present):
        settings[SOCKETS_KEY] = "true"
    return settings


def _can_import_daemon(interpreter: str) -> bool:
    # Another process, as this one may have found the package through entries of its own in sys.path.
    path = shutil.which(interpreter)
    if path is None:
        return False
    try:
        probe = subprocess.run(
            [path, "-c", f"import {_DAEMON}"], capture_output=True, check=False, timeout=_PROBE_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return probe.returncode == 0


def _has_short_sockets(present: Mapping[str, str]) -> bool:
    # The path of a socket has at most 107 bytes; by default it is in Java's directory of temporary files.
    places = [
        *(value for key, value in present.items() if key.startswith("spark.driver.")),
        os.environ.get("JDK_JAVA_OPTIONS", ""),
        os.environ.get("JAVA_TOOL_OPTIONS", ""),
        os.environ.get("PYSPARK_SUBMIT_ARGS", ""),
    ]
    is_moved = any("java.io.tmpdir" in place for place in places)
    return not is_moved and "spark.python.unix.domain.socket.dir" not in present

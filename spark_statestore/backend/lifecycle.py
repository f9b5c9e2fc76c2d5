"""The backend's life: announce the socket to the JVM, then serve requests until the process ends."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import pyarrow as pa

import spark_statestore
from spark_statestore._version import __version__
from spark_statestore.backend.listener import Listener
from spark_statestore.backend.protocol import PROTOCOL_VERSION
from spark_statestore.temporary import remove_abandoned

_logger = logging.getLogger(__name__)


def run(address: str, report: Callable[[dict[str, object]], None]) -> None:
    """Listen, announce the socket with one JSON `report` to the JVM, and serve until the process ends."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    # Each connection has a thread of its own; Arrow's threads would compete with them.
    pa.set_cpu_count(1)
    _disable_pandas()
    listener = Listener(address)
    report(
        {
            "ready": True,
            "pid": os.getpid(),
            "version": __version__,
            "protocol": PROTOCOL_VERSION,
            "location": os.path.dirname(spark_statestore.__file__),
        }
    )
    threading.Thread(target=_remove_abandoned, args=(address,), daemon=True).start()
    listener.serve_forever()


def _remove_abandoned(address: str) -> None:
    for path in remove_abandoned(os.path.dirname(os.path.dirname(address))):
        _logger.info("removed %s, whose process was killed", path)


class _NoPandas(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "pandas":
            raise ModuleNotFoundError("the state store backend does not use pandas", name=fullname)
        return None


def _disable_pandas() -> None:
    """Make pyarrow's one import of pandas fail.

    pyarrow imports pandas when it first converts Python objects, and caches the outcome. The backend does not
    use pandas, whose import takes 200 ms and tens of megabytes, in the first commit. Later imports by other
    packages, such as a file system's driver, are not affected.
    """
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)

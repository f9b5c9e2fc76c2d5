"""From the first line of standard output to the last request."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import pyarrow as pa

import spark_statestore
from spark_statestore.server.listener import Listener
from spark_statestore.server.protocol import PROTOCOL_VERSION

__all__ = ["run"]


def run(address: str, token: str, version: str, say: Callable[[dict[str, object]], None]) -> None:
    """Listen, say so, and serve until the process ends.

    Parameters
    ----------
    address, token
        See `Listener`.
    version
        Version of the package.
    say
        Writes one JSON object to the JVM.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    # Many connections are at work at once, each with its own thread: more would only compete.
    pa.set_cpu_count(1)
    _settle_without_pandas()
    listener = Listener(address, token)
    say(
        {
            "ready": True,
            "pid": os.getpid(),
            "version": version,
            "protocol": PROTOCOL_VERSION,
            "port": listener.port,
            "location": os.path.dirname(spark_statestore.__file__),
        }
    )
    listener.serve_forever()


class _NoPandas(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "pandas":
            raise ModuleNotFoundError("the state store backend does without pandas", name=fullname)
        return None


def _settle_without_pandas() -> None:
    """Have pyarrow look for pandas now, and not find it.

    It looks when it first makes an array of Python objects, and remembers what it found. Nothing
    here needs pandas, but importing it takes 200 ms and tens of megabytes, within the first commit.
    Whoever else imports pandas, such as a file system's driver, finds it as ever.
    """
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)

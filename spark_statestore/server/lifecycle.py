"""From the first line of standard output to the last request."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable

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

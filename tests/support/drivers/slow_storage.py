"""fsspec driver for ``slow://``: local files whose calls are delayed, or hang.

The behaviour is read at each call from a JSON file, which the environment variable ``SLOW_STORAGE`` names:
``delay``, seconds for every call; and ``hang``, a list of objects with ``operation``, ``path`` (a part of
it), and ``until``, a file: a matching call hangs until that file exists. It creates a file of that name with
the suffix ``.hung``; only one call hangs for each. ``reset`` is a list of such objects, with ``mark``: one
matching call fails with a connection reset, and creates that file.
"""

from __future__ import annotations

import errno
import json
import os
import time
from typing import Any

from fsspec.implementations.local import LocalFileSystem


class SlowFileSystem(LocalFileSystem):
    """The driver."""

    protocol = "slow"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(item) for item in path]
        return LocalFileSystem._strip_protocol(str(path).removeprefix("slow://"))

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, **kwargs: Any) -> Any:
        _wait("read" if mode == "rb" else "write", path)
        return super()._open(path, mode=mode, block_size=block_size, **kwargs)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        # Exclusive at the time of writing, like S3.
        with self.open(path, "xb" if mode == "create" else "wb") as file:
            file.write(value)

    def rm_file(self, path: str) -> None:
        _wait("remove", path)
        super().rm_file(path)

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        _wait("move", path2)
        super().mv(path1, path2, **kwargs)

    def info(self, path: str, **kwargs: Any) -> Any:
        _wait("info", path)
        return super().info(path, **kwargs)


def _wait(operation: str, path: str) -> None:
    with open(os.environ["SLOW_STORAGE"]) as file:
        behaviour = json.load(file)
    # A listing stats every file, and is one call.
    time.sleep(behaviour.get("delay", 0) if operation != "info" else 0)
    for fault in behaviour.get("hang", ()):
        if _is_first(fault, operation, path, fault["until"] + ".hung"):
            while not os.path.exists(fault["until"]):
                time.sleep(0.02)
    for fault in behaviour.get("reset", ()):
        if _is_first(fault, operation, path, fault["mark"]):
            raise ConnectionResetError(errno.ECONNRESET, "connection reset by a test")


def _is_first(fault: dict[str, str], operation: str, path: str, mark: str) -> bool:
    if fault["operation"] != operation or fault["path"] not in path:
        return False
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True

"""A driver with no more than fsspec requires, whose calls can fail, like those of SFTP, SMB and DBFS."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Collection, Iterator
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFileSystem

__all__ = ["FailingCalls", "PlainDriver", "RenamingDriver"]


class FailingCalls:
    """Counts calls of storage, and lets some of them fail."""

    def __init__(self) -> None:
        self._calls: list[str] = []
        self._failing: Collection[int] | None = ()
        self._error: Callable[[], BaseException] | None = None

    @contextlib.contextmanager
    def failing(
        self, error: Callable[[], BaseException] | None, at: Collection[int] | None
    ) -> Iterator[list[str]]:
        """Let the calls of these numbers fail, from 1, or all of them; return the list of the calls."""
        self._calls, self._error, self._failing = [], error, at
        try:
            yield self._calls
        finally:
            self._error, self._failing = None, ()

    def call(self, name: str) -> None:
        """Count a call; raise the error that is set for it."""
        self._calls.append(name)
        if self._error is not None and (self._failing is None or len(self._calls) in self._failing):
            raise self._error()


class _Store(MemoryFileSystem):
    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.store: dict[str, Any] = {}
        self.pseudo_dirs = [""]


class _Written(io.BytesIO):
    def __init__(self, driver: PlainDriver, path: str) -> None:
        super().__init__()
        self._driver = driver
        self._path = path

    def close(self) -> None:
        if not self.closed:
            content = self.getvalue()
            # Closed first, so that the finalizer does not put the file again.
            super().close()
            self._driver.put(self._path, content)


class PlainDriver(AbstractFileSystem):  # type: ignore[misc]
    """Files in memory with fsspec's own `exists`, `isdir`, `find`, `pipe_file`, `cat_file`, `rm` and `mv`."""

    protocol = "plain"
    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.calls = FailingCalls()
        self._store = _Store()

    def put(self, path: str, data: bytes) -> None:
        self.calls.call("put")
        self._store.pipe_file(path, data)

    def ls(self, path: str, detail: bool = True, **_: Any) -> Any:
        self.calls.call("ls")
        return self._store.ls(path, detail=detail)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        self.calls.call("info")
        entry: dict[str, Any] = self._store.info(path)
        return entry

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        self.calls.call("open")
        if mode == "xb" and self._store.exists(path):
            raise FileExistsError(path)
        return io.BytesIO(self._store.cat_file(path)) if mode == "rb" else _Written(self, path)

    def _rm(self, path: str) -> None:
        self.calls.call("rm")
        self._store.rm_file(path)

    def rm_file(self, path: str) -> None:
        self._rm(path)

    def rmdir(self, path: str) -> None:
        self.calls.call("rmdir")
        self._store.rmdir(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self.calls.call("makedirs")
        self._store.makedirs(path, exist_ok=exist_ok)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        self.calls.call("cp")
        self._store.cp_file(path1, path2)


class RenamingDriver(PlainDriver):
    """A driver that renames, and refuses to rename to an existing file."""

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        self.calls.call("mv")
        if self._store.exists(path2):
            raise FileExistsError(path2)
        self._store.pipe_file(path2, self._store.cat_file(path1))
        self._store.rm_file(path1)

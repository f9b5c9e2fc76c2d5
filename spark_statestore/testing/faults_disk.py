"""Files of a fault-injecting file system, and the effect of a crash on them."""

from __future__ import annotations

import io
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from fsspec.implementations.memory import MemoryFileSystem

from spark_statestore.testing.faults_plan import FaultPlan

T = TypeVar("T")

Durability = Literal["finished", "synced"]
"""The data that survives a crash: finished files, as on an object store, or synced bytes, as on a disk."""


class _PrivateMemory(MemoryFileSystem):  # type: ignore[misc]
    """Memory files of one instance; fsspec keeps them in the class, for the whole process."""

    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.store: dict[str, Any] = {}
        self.pseudo_dirs = [""]


class Disk:
    """State that fault-injecting file systems of the same name share."""

    def __init__(self, name: str, fs: Any, durability: Durability, empty_names: bool) -> None:
        self.name = name
        self.fs = _PrivateMemory() if fs is None else fs
        self.durability = durability
        self.empty_names = empty_names
        self.plan = FaultPlan()
        # Content after a crash of each file that is not durable: its old bytes, or None for no file.
        self.unsynced: dict[str, bytes | None] = {}

    def call(
        self,
        operation: str,
        path: str,
        effect: Callable[[], T],
        torn: Callable[[], object] | None = None,
        epoch: int | None = None,
    ) -> T:
        return self.plan.call(operation, path, effect, torn=torn, crash=self.crash, epoch=epoch)

    def put(self, path: str, data: bytes, *, exclusive: bool = False) -> None:
        if exclusive and self.fs.exists(path):
            raise FileExistsError(path)
        if self.durability == "synced" and path not in self.unsynced:
            self.unsynced[path] = self.fs.cat_file(path) if self.fs.isfile(path) else None
        self.fs.pipe_file(path, data)

    def tear(self, path: str, data: bytes, *, exclusive: bool = False) -> None:
        # An object that did not arrive whole does not exist.
        if self.durability == "synced":
            self.put(path, data[: len(data) // 2], exclusive=exclusive)

    def remove(self, path: str) -> None:
        self.fs.rm_file(path)
        self.unsynced.pop(path, None)

    def below(self, path: str) -> list[str]:
        return [entry for entry in self.unsynced if f"{entry}/".startswith(f"{path}/")]

    def remove_tree(self, path: str, *, recursive: bool) -> None:
        self.fs.rm(path, recursive=recursive)
        for entry in self.below(path):
            del self.unsynced[entry]

    def remove_half(self, path: str) -> None:
        files = self.names(path, sorted(self.fs.find(path)))
        for file in files[: (len(files) + 1) // 2]:
            self.remove(file)

    def move(self, source: str, target: str) -> None:
        self.fs.mv(source, target, recursive=self.fs.isdir(source))
        for entry in self.below(target):
            del self.unsynced[entry]
        for entry in self.below(source):
            self.unsynced[target + entry[len(source) :]] = self.unsynced.pop(entry)

    def names(self, path: str, listed: list[str]) -> list[str]:
        # The wrapped file system may begin its paths in another way.
        start = len(self.fs._strip_protocol(path))
        whole = [path + name[start:] for name in listed]
        return whole if path.startswith("/") else [name.lstrip("/") for name in whole]

    def crash(self) -> None:
        with self.plan.lock:
            self.plan.crashed = True
            for path, durable in self.unsynced.items():
                if durable is not None or self.empty_names:
                    self.fs.pipe_file(path, durable or b"")
                elif self.fs.exists(path):
                    self.fs.rm_file(path)
            self.unsynced.clear()


class FaultyOutput:
    """A file that is being written; no `io.IOBase`, whose finalizer would close and so publish it."""

    def __init__(self, disk: Disk, path: str, mode: str) -> None:
        self._disk = disk
        self._path = path
        self._exclusive = "x" in mode
        self._data = bytearray()
        self._epoch = disk.plan.epoch
        self.mode = mode
        self.closed = False
        disk.call("open", path, self._open)

    def _open(self) -> None:
        if self._exclusive and self._disk.fs.exists(self._path):
            raise FileExistsError(self._path)
        self._show()

    def _show(self) -> None:
        # A growing file is visible on a disk, but not on an object store.
        if self._disk.durability == "synced":
            self._disk.put(self._path, bytes(self._data))

    def _append(self, data: bytes) -> int:
        self._data += data
        self._show()
        return len(data)

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append bytes."""
        self._require_open()
        content = bytes(data)
        half = content[: len(content) // 2]
        return self._call("write", lambda: self._append(content), lambda: self._append(half))

    def flush(self) -> None:
        """Do nothing but count the call."""
        self._require_open()
        self._call("flush", lambda: None)

    def sync(self) -> None:
        """Make the written bytes durable with durability ``synced``."""
        self._require_open()
        self._call("sync", lambda: self._disk.unsynced.pop(self._path, None))

    def close(self) -> None:
        """Finish the file."""
        if not self.closed:
            self._call("close", self._finish)
            self.closed = True

    def discard(self) -> None:
        """Abandon the file; on a disk its visible part stays."""
        if not self.closed:
            self._call("discard", lambda: None)
            self.closed = True

    def _finish(self) -> None:
        if self._disk.durability == "finished":
            self._disk.put(self._path, bytes(self._data), exclusive=self._exclusive)

    def _call(self, operation: str, effect: Callable[[], T], torn: Callable[[], object] | None = None) -> T:
        return self._disk.call(operation, self._path, effect, torn, self._epoch)

    def _require_open(self) -> None:
        if self.closed:
            raise ValueError(f"{self._path} is closed")

    def tell(self) -> int:
        return len(self._data)

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class FaultyInput(io.BytesIO):
    """A file opened for reading, with its content at that time."""

    def __init__(self, disk: Disk, path: str) -> None:
        super().__init__(disk.call("open", path, lambda: disk.fs.cat_file(path)))
        self._disk = disk
        self._path = path
        self._epoch = disk.plan.epoch

    def read(self, size: int | None = -1, /) -> bytes:
        return self._call(lambda: io.BytesIO.read(self, size))

    def readinto(self, buffer: Any, /) -> int:
        return self._call(lambda: io.BytesIO.readinto(self, buffer))

    def _call(self, effect: Callable[[], T]) -> T:
        return self._disk.call("read", self._path, effect, epoch=self._epoch)

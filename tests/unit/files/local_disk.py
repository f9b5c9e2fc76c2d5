"""Fault injection for local files: failing system calls, and power loss.

The package's own `LocalFileSystem` runs on real files. Its system calls below one directory pass through this
module, which counts them, lets them fail or end early, or ends their process. It also tracks what POSIX
guarantees after a power loss: the bytes of a file at its last fsync, and the names in a directory at its last
fsync. Every later change may survive or not, independently and in any order; a `Loss` selects which ones do.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from spark_statestore.files import local, urls
from spark_statestore.testing.faults_plan import Call, Fault, FaultPlan


@dataclass
class File:
    """A file: its bytes, and those at its last fsync."""

    data: bytearray = field(default_factory=bytearray)
    synced: bytes | None = None


Changes = list[tuple[str, "File | Directory | None"]]


@dataclass
class Directory:
    """A directory: its names, those that are safe, and the changes since."""

    entries: dict[str, File | Directory] = field(default_factory=dict)
    safe: dict[str, File | Directory] = field(default_factory=dict)
    unsafe: list[Changes] = field(default_factory=list)

    def change(self, *changes: tuple[str, File | Directory | None]) -> None:
        self.unsafe.append(list(changes))
        _apply(self.entries, changes)

    def sync(self) -> None:
        self.safe, self.unsafe = dict(self.entries), []


def _apply(entries: dict[str, Any], changes: Any) -> None:
    for name, node in changes:
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


@dataclass(frozen=True)
class Loss:
    """Selection of the unsynced changes that survive a power loss.

    `keeps` tells whether a change of a directory survives, by its number from the oldest one and from the
    newest one; `content` returns the surviving bytes of a file that was never synced, given all of them.
    """

    keeps: Callable[[int, int], bool]
    content: Callable[[bytes], bytes]


LOSSES: dict[str, Loss] = {
    "nothing": Loss(lambda old, new: False, lambda data: b""),
    "names": Loss(lambda old, new: True, lambda data: b""),
    "halves": Loss(lambda old, new: True, lambda data: data[: len(data) // 2]),
    "newest": Loss(lambda old, new: new == 0, lambda data: data),
    "oldest": Loss(lambda old, new: old == 0, lambda data: data),
    "others": Loss(lambda old, new: old % 2 == 1, lambda data: bytes(len(data))),
}


class LocalDisk:
    """The files below a directory, with the methods of `FaultInjectingFileSystem` that a bench calls.

    Every mutation and every sync is a call, and so are reads and listings: ``open``, ``tmpfile``, ``write``,
    ``fsync``, ``link``, ``rename``, ``unlink``, ``mkdir``, ``rmdir``, ``read`` and ``list``. `loss` is the
    effect of the next crash; None for a crash of the process alone. Calls that the file system `lacks`, of
    ``tmpfile`` and ``link``, are refused.
    """

    def __init__(self, root: Path, *, lacks: frozenset[str] = frozenset()) -> None:
        self.root = str(root)
        self._lacks = lacks
        self.plan = FaultPlan()
        self.loss: Loss | None = None
        self.tree = Directory()
        self._open_files: list[Any] = []
        self.descriptors: dict[int, tuple[str, File | Directory, int]] = {}

    # As a bench has it

    def url(self, path: str) -> str:
        return f"{self.root}/{path}"

    def inject(self, *faults: Fault) -> None:
        self.plan.inject(*faults)

    def inject_more(self, fault: Fault) -> None:
        self.plan.add(fault)

    @property
    def calls(self) -> list[Call]:
        return self.plan.calls

    @property
    def wrapped(self) -> LocalDisk:
        return self

    def find(self, path: str) -> list[str]:
        return sorted(str(file) for file in Path(path).rglob("*") if not file.is_dir())

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def rm(self, path: str, *, recursive: bool) -> None:
        assert recursive
        shutil.rmtree(path)
        self._set(path, None)
        self.resolve(path)[0].sync()

    def restart(self) -> None:
        with self.plan.lock:
            if self.plan.crashed:
                self.plan.crashed = False
                self.plan.epoch += 1
            self.plan.inject()
        while self._open_files:
            self._open_files.pop().close()
        # A process has one object for all of its local files, which knows what it has synced.
        for fsync in (False, True):
            urls._opened.pop(("file", fsync, 0), None)

    def crash(self) -> None:
        """End the process; with a `loss`, the power fails as well."""
        with self.plan.lock:
            self.plan.crashed = True
            if self.loss is not None:
                self._lose(self.tree, self.root, self.loss)

    def _lose(self, directory: Directory, path: str, loss: Loss) -> None:
        entries = dict(directory.safe)
        for number, changes in enumerate(directory.unsafe):
            if loss.keeps(number, len(directory.unsafe) - 1 - number):
                _apply(entries, changes)
        for entry in os.scandir(path):
            if entry.name not in entries:
                shutil.rmtree(entry.path) if entry.is_dir() else os.unlink(entry.path)
        for name, node in entries.items():
            target = f"{path}/{name}"
            if isinstance(node, Directory):
                os.makedirs(target, exist_ok=True)
                self._lose(node, target, loss)
                continue
            if node.synced is None:
                node.synced = loss.content(bytes(node.data))
            node.data = bytearray(node.synced)
            # Most files are unchanged; writing takes ten times as long as reading.
            if not os.path.exists(target) or Path(target).read_bytes() != node.synced:
                Path(target).write_bytes(node.synced)
        directory.entries, directory.safe, directory.unsafe = dict(entries), entries, []

    # System calls

    def has(self, path: Any) -> bool:
        return isinstance(path, str) and path.startswith(self.root)

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        if not flags & (os.O_CREAT | (os.O_TMPFILE & ~os.O_DIRECTORY)):
            fd = os.open(path, flags, mode)
            self.descriptors[fd] = (path, self.node(path), self.plan.epoch)
            return fd
        operation = "open" if flags & os.O_CREAT else "tmpfile"
        self._require(operation, path)
        descriptors: list[int] = []

        def effect() -> int:
            fd = os.open(path, flags, mode)
            descriptors.append(fd)
            file = File()
            self.descriptors[fd] = (path, file, self.plan.epoch)
            if operation == "open":
                self._set(path, file)
            return fd

        try:
            return self._call(operation, path, effect)
        except BaseException:
            # The descriptor of a created file is lost.
            for fd in descriptors:
                self.close(fd)
            raise

    def open_file(self, path: str, mode: str, **options: Any) -> Any:
        if "x" in mode:
            fd = self.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            self._open_files.append(os.fdopen(fd, "wb", buffering=0))
            return self._open_files[-1]
        self._call("read", path, lambda: None)
        return open(path, mode, **options)

    def write(self, fd: int, data: Any) -> int:
        return self._write(fd, bytes(data))

    def writev(self, fd: int, parts: Any) -> int:
        return self._write(fd, b"".join(parts))

    def _write(self, fd: int, data: bytes) -> int:
        path, file, epoch = self.descriptors[fd]
        assert isinstance(file, File)

        def write(part: bytes) -> int:
            count = os.write(fd, part)
            file.data += part[:count]
            return count

        torn = data[: len(data) // 2]
        return self._call("write", path, lambda: write(data), lambda: write(torn), epoch=epoch)

    def fsync(self, fd: int) -> None:
        path, node, epoch = self.descriptors[fd]

        def effect() -> None:
            if isinstance(node, Directory):
                node.sync()
            else:
                node.synced = bytes(node.data)

        self._call("fsync", path, effect, epoch=epoch)

    def close(self, fd: int) -> None:
        self.descriptors.pop(fd, None)
        os.close(fd)

    def link(self, source: str, path: str, **options: Any) -> None:
        self._require("link", path)
        if source.startswith("/proc/self/fd/"):
            _, node, epoch = self.descriptors[int(source.rpartition("/")[2])]
        else:
            node, epoch = self.node(source), self.plan.epoch

        def effect() -> None:
            os.link(source, path, **options)
            self._set(path, node)

        self._call("link", path, effect, epoch=epoch)

    def replace(self, source: str, path: str) -> None:
        def effect() -> None:
            os.replace(source, path)
            parent, name = self.resolve(path)
            parent.change((name, self.node(source)), (source.rpartition("/")[2], None))

        self._call("rename", path, effect)

    def unlink(self, path: str) -> None:
        self._call("unlink", path, lambda: self._gone(os.unlink, path))

    def rmdir(self, path: str) -> None:
        self._call("rmdir", path, lambda: self._gone(os.rmdir, path))

    def rmtree(self, path: str) -> None:
        with os.scandir(path) as entries:
            children = list(entries)
        for entry in children:
            (self.rmtree if entry.is_dir(follow_symlinks=False) else self.unlink)(entry.path)
        self.rmdir(path)

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        def effect() -> None:
            os.mkdir(path, mode)
            self._set(path, Directory())

        self._call("mkdir", path, effect)

    def scandir(self, path: str) -> Any:
        self._call("list", path, lambda: None)
        return os.scandir(path)

    def _gone(self, remove: Callable[[str], None], path: str) -> None:
        remove(path)
        self._set(path, None)

    def _set(self, path: str, node: File | Directory | None) -> None:
        """Let a name refer to a file or directory, or to none."""
        parent, name = self.resolve(path)
        parent.change((name, node))

    def _call(
        self,
        operation: str,
        path: str,
        effect: Callable[[], Any],
        torn: Callable[[], object] | None = None,
        epoch: int | None = None,
    ) -> Any:
        return self.plan.call(operation, path, effect, torn=torn, crash=self.crash, epoch=epoch)

    def _require(self, operation: str, path: str) -> None:
        if operation in self._lacks:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), path)

    def node(self, path: str) -> File | Directory:
        node: File | Directory = self.tree
        for name in path[len(self.root) :].split("/"):
            if name:
                if not isinstance(node, Directory) or name not in node.entries:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
                node = node.entries[name]
        return node

    def resolve(self, path: str) -> tuple[Directory, str]:
        parent, _, name = path.rstrip("/").rpartition("/")
        node = self.node(parent)
        assert isinstance(node, Directory)
        return node, name


class _Calls:
    """Replacement of `os` in the package's modules."""

    def __init__(self, disk: LocalDisk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        replacement = getattr(self._disk, name, None)
        if replacement is None or not callable(real):
            return real

        def call(first: Any, *arguments: Any, **options: Any) -> Any:
            file = arguments[0] if name == "link" else first
            is_ours = file in self._disk.descriptors if isinstance(file, int) else self._disk.has(file)
            result = (replacement if is_ours else real)(first, *arguments, **options)
            if name == "open" and not is_ours:
                # The number of a file that was closed is another one's.
                self._disk.descriptors.pop(result, None)
            return result

        return call


@contextlib.contextmanager
def local_disk(root: Path, *, lacks: frozenset[str] = frozenset()) -> Iterator[LocalDisk]:
    """Install the disk of a directory, and restart it at the end: its files are then closed."""
    disk = LocalDisk(root, lacks=lacks)
    with installed(disk):
        yield disk
        disk.restart()


@contextlib.contextmanager
def installed(disk: LocalDisk) -> Iterator[LocalDisk]:
    """Let the package's local files of this process pass through a disk."""

    class Trees:
        @staticmethod
        def rmtree(path: str) -> None:
            (disk.rmtree if disk.has(path) else shutil.rmtree)(path)

    def open_file(path: str, mode: str = "r", **options: Any) -> Any:
        return (disk.open_file if disk.has(path) else open)(path, mode, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "os", _Calls(disk))
        patch.setattr(local, "shutil", Trees)
        patch.setattr(local, "open", open_file, raising=False)
        yield disk

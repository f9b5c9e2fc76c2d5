"""An fsspec file system with fault injection, for tests of storage in files."""

from __future__ import annotations

import itertools
import weakref
from typing import Any, ClassVar

import fsspec

from spark_statestore.testing.faults_disk import Disk, Durability, FaultyInput, FaultyOutput
from spark_statestore.testing.faults_plan import Call, Fault

_numbers = itertools.count(1)


class FaultInjectingFileSystem(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """A wrapper of an fsspec file system that injects faults into its calls.

    Every call that touches storage is counted and logged: ``open``, ``read``, ``write``, ``flush``,
    ``sync``, ``close``, ``discard``, ``pipe_file``, ``cat_file``, ``info`` (also for `exists`, `isdir` and
    `isfile`), ``ls``, ``find``, ``rm_file``, ``rm``, ``rmdir``, ``mkdir``, ``makedirs``, ``mv`` and
    ``cp_file``. The plan given to `inject` selects the calls with faults. Faults are deterministic: equal
    sequences of calls meet the same faults. Directories behave as on the wrapped file system.

    With ``durability="finished"`` a file appears when it is closed, whole, and is durable from
    then on, as on an object store. With ``"synced"`` it is visible while it grows from the moment it
    is opened, and a crash reverts it to its last ``sync``; names, removals and directories are
    durable at once. A file that no ``sync`` ever reached is gone, or empty with ``empty_names``.

    Unlike other file systems of fsspec, `exists`, `isdir` and `isfile` raise errors instead of returning
    False.

    Parameters
    ----------
    fs
        The file system to wrap; by default files in memory, of this one alone.
    durability, empty_names
        The data that survives a crash, see above.
    name
        The authority of its URLs. File systems of one name in one process, such as those that
        fsspec opens for a URL, share files, faults and log; only the first one's other parameters
        count.

    Examples
    --------
    >>> fs = FaultInjectingFileSystem(durability="synced")
    >>> fs.inject(Fault("tear", at=2))
    >>> fs.pipe_file("one", b"1234")
    >>> fs.pipe_file("two", b"1234")
    Traceback (most recent call last):
    OSError: injected fault: tear at call 2 pipe_file two
    >>> fs.cat_file("two")
    b'12'
    >>> fs.crash()
    >>> fs.restart()
    >>> fs.exists("one")
    False

    Against storage of this package, by URL or by object:

    >>> from spark_statestore.files import FsspecFileSystem, open_file_system
    >>> files, path = open_file_system(fs.url("state/0/3"), fsync=True)
    >>> files.create(f"{path}/synced", b"1234")
    >>> fs.crash()
    >>> fs.restart()
    >>> FsspecFileSystem(fs, "faulty").read(f"{path}/synced")
    b'1234'
    """

    protocol = "faulty"
    cachable = False
    _disks: ClassVar[weakref.WeakValueDictionary[str, Disk]] = weakref.WeakValueDictionary()

    def __init__(
        self,
        fs: Any = None,
        *,
        durability: Durability = "finished",
        empty_names: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__()
        name = name or f"disk-{next(_numbers)}"
        disk = self._disks.get(name)
        if disk is None:
            disk = self._disks.setdefault(name, Disk(name, fs, durability, empty_names))
        self._disk = disk

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        return {"name": str(path).partition("://")[2].partition("/")[0]}

    def url(self, path: str) -> str:
        """Return a URL by which `fsspec` and this package open the file system and a path in it."""
        fsspec.register_implementation("faulty", FaultInjectingFileSystem, clobber=True)
        return f"faulty://{self._disk.name}/{path.lstrip('/')}"

    @property
    def wrapped(self) -> Any:
        """The wrapped file system, whose calls are not counted."""
        return self._disk.fs

    # Faults

    def inject(self, *faults: Fault) -> None:
        """Inject faults by number of the call; restart the count, and clear earlier faults and the log."""
        self._disk.plan.inject(*faults)

    def inject_more(self, fault: Fault) -> None:
        """Inject one more fault without restarting the count."""
        self._disk.plan.add(fault)

    @property
    def calls(self) -> list[Call]:
        """The calls since the last `inject`."""
        return self._disk.plan.calls

    def crash(self) -> None:
        """Drop what is not durable; every call fails until `restart`."""
        self._disk.crash()

    def restart(self) -> None:
        """Restart after a crash, without faults; files that were open stay unusable."""
        plan = self._disk.plan
        with plan.lock:
            if plan.crashed:
                plan.crashed = False
                plan.epoch += 1
            plan.inject()

    # Files

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        if mode == "rb":
            return FaultyInput(self._disk, path)
        if mode in ("wb", "xb"):
            return FaultyOutput(self._disk, path, mode)
        raise ValueError(f"a file is opened with mode rb, wb or xb here, not {mode!r}")

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        path, data, exclusive = self._strip_protocol(path), bytes(value), mode == "create"
        self._disk.call(
            "pipe_file",
            path,
            lambda: self._disk.put(path, data, exclusive=exclusive),
            lambda: self._disk.tear(path, data, exclusive=exclusive),
        )

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        path = self._strip_protocol(path)
        return bytes(
            self._disk.call("cat_file", path, lambda: self.wrapped.cat_file(path, start=start, end=end))
        )

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        self._disk.call(
            "cp_file",
            path1,
            lambda: self._disk.put(path2, self.wrapped.cat_file(path1)),
            lambda: self._disk.tear(path2, self.wrapped.cat_file(path1)),
        )

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        self._disk.call("mv", path1, lambda: self._disk.move(path1, path2))

    def rm_file(self, path: str) -> None:
        path = self._strip_protocol(path)
        self._disk.call("rm_file", path, lambda: self._disk.remove(path))

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        for target in [path] if isinstance(path, str) else path:
            self._rm_one(self._strip_protocol(target), recursive)

    def _rm_one(self, path: str, recursive: bool) -> None:
        self._disk.call(
            "rm",
            path,
            lambda: self._disk.remove_tree(path, recursive=recursive),
            lambda: self._disk.remove_half(path),
        )

    # Directories and what is in them

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        return {**self._disk.call("info", path, lambda: self.wrapped.info(path)), "name": path}

    def exists(self, path: str, **kwargs: Any) -> bool:
        return self._type(path) is not None

    def isdir(self, path: str) -> bool:
        return self._type(path) == "directory"

    def isfile(self, path: str) -> bool:
        return self._type(path) == "file"

    def _type(self, path: str) -> str | None:
        try:
            return str(self.info(path)["type"])
        except FileNotFoundError:
            return None

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        path = self._strip_protocol(path)
        entries = self._disk.call("ls", path, lambda: self.wrapped.ls(path, detail=True))
        names = self._disk.names(path, [entry["name"] for entry in entries])
        if not detail:
            return names
        return [{**entry, "name": name} for entry, name in zip(entries, names, strict=True)]

    def find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        **kwargs: Any,
    ) -> Any:
        path = self._strip_protocol(path)
        listed = self._disk.call(
            "find",
            path,
            lambda: self.wrapped.find(path, maxdepth=maxdepth, withdirs=withdirs, detail=True),
        )
        names = self._disk.names(path, list(listed))
        if not detail:
            return names
        return {name: {**entry, "name": name} for name, entry in zip(names, listed.values(), strict=True)}

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        self._disk.call("mkdir", path, lambda: self.wrapped.mkdir(path, create_parents=create_parents))

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        path = self._strip_protocol(path)
        self._disk.call("makedirs", path, lambda: self.wrapped.makedirs(path, exist_ok=exist_ok))

    def rmdir(self, path: str) -> None:
        path = self._strip_protocol(path)
        self._disk.call("rmdir", path, lambda: self.wrapped.rmdir(path))

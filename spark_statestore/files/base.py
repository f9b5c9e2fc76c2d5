"""The file system interface of checkpoint storage."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

Buffer = bytes | bytearray | memoryview


def join(base: str, *names: str) -> str:
    """Return the path of names below a directory; paths use ``/`` on every file system."""
    return "/".join([base.rstrip("/"), *names])


def parent_of(path: str) -> str:
    """Return the parent directory of a path."""
    return path.rstrip("/").rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class FileStatus:
    """An entry of a listing.

    Attributes
    ----------
    path
        Path of the file.
    size
        Size in bytes.
    modified
        Time of the last write in seconds since 1970; None where the file system does not provide it.
    is_directory
        Whether it is a directory; its size is 0.
    """

    path: str
    size: int
    modified: float | None = field(default=None, compare=False)
    is_directory: bool = False


class FileOutput(ABC):
    """A new file that is being written.

    Readers see the whole file once `close` has returned; until then a file system may show nothing or a part.
    `abandon` removes what was written.
    """

    @abstractmethod
    def write(self, data: Buffer) -> None:
        """Append bytes."""

    def write_parts(self, parts: Sequence[Buffer]) -> None:
        """Append several pieces of data."""
        self.write(parts[0] if len(parts) == 1 else b"".join(parts))

    @abstractmethod
    def close(self) -> None:
        """Finish the file."""

    @abstractmethod
    def abandon(self) -> None:
        """Stop writing and remove the file; safe to call after a failure."""


def has_file(files: FileSystem, path: str) -> bool:
    """Return whether a file exists, with one request.

    `FileSystem.exists` also finds directories, for which an object store may list a prefix.
    """
    try:
        files.read(path, 0, 1)
    except FileNotFoundError:
        return False
    return True


def write_whole(output: FileOutput, data: Buffer) -> None:
    """Write a new file in place; remove it on failure."""
    try:
        output.write(data)
        output.close()
    except BaseException:
        output.abandon()
        raise


class FileSystem(ABC):
    """A file system.

    Paths are strings without a scheme. A missing file raises `FileNotFoundError`, every other failure an
    `OSError`. Implementations are safe to use from several threads.

    Attributes
    ----------
    scheme
        The URL scheme, such as ``file`` or ``s3``.
    """

    scheme: str

    def url(self, path: str) -> str:
        """Return the URL of a path, for messages and external pointers."""
        return f"{self.scheme}://{path}"

    @abstractmethod
    def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        """Read a file: all of it, or `size` bytes from `start` (fewer at its end)."""

    @abstractmethod
    def size(self, path: str) -> int:
        """Return the size of a file in bytes; raise `IsADirectoryError` for a directory."""

    @abstractmethod
    def open_input(self, path: str) -> BinaryIO:
        """Open a file for reading from its start."""

    @abstractmethod
    def open_output(self, path: str) -> FileOutput:
        """Open a new file for writing.

        Raise `FileExistsError` where the file system detects an existing one.
        """

    @abstractmethod
    def create(self, path: str, data: Buffer) -> None:
        """Write a whole new file; raise `FileExistsError` if it exists.

        The file appears atomically, also if the process is killed meanwhile, unless a subclass documents an
        exception.
        """

    def create_of_parts(self, path: str, parts: Sequence[Buffer]) -> None:
        """Write a whole new file from several pieces of data, as `create`."""
        self.create(path, parts[0] if len(parts) == 1 else b"".join(parts))

    @abstractmethod
    def replace(self, path: str, data: Buffer) -> None:
        """Write a whole file, replacing an existing one atomically: readers see the old or the new one."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove a file."""

    def delete_files(self, paths: Sequence[str]) -> None:
        """Remove files, missing or not, with one request for several where the file system can."""
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                self.delete(path)

    @abstractmethod
    def delete_directory(self, path: str, *, recursive: bool = False) -> None:
        """Remove a directory, missing or not; without `recursive` it must be empty."""

    @abstractmethod
    def make_directory(self, path: str) -> None:
        """Make a directory and its parents, unless it exists; do nothing on object stores."""

    def make_durable(self, path: str) -> None:  # noqa: B027 - most have nothing to do
        """Sync a whole file that another process wrote, which may have ended before it synced the file."""

    def sync_directory(self, path: str) -> None:  # noqa: B027 - most have nothing to do
        """Sync a directory, so that files removed from it do not reappear after a crash."""

    def prepare(self, directory: str) -> None:  # noqa: B027 - most have nothing to do
        """Prepare a directory for a file that will be created in it soon.

        This is an optimisation without visible files. File systems for which it costs a request do nothing.
        """

    def locate(self, path: str) -> tuple[str, int] | None:
        """Return the file that has a path's bytes, and where they begin in it.

        Return None while they are in memory alone.
        """
        return path, 0

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Return whether a file or directory exists."""

    @abstractmethod
    def is_directory(self, path: str) -> bool:
        """Return whether a path is a directory."""

    def has_link(self, directory: str, relative: str) -> bool:
        """Return whether a path below a directory contains a symbolic link or ends at no plain file.

        False on file systems without links. The path of the directory itself may contain links.
        """
        return False

    @abstractmethod
    def list_files(self, path: str) -> Iterator[FileStatus]:
        """List every file below a directory, at any depth; yield nothing if the directory does not exist."""

    def list_directory(self, path: str) -> list[FileStatus]:
        """List the files and directories of a directory, not those below.

        Object stores have no directories: for one that does not exist the list is empty there.
        """
        start = len(path.rstrip("/")) + 1
        entries: dict[str, FileStatus] = {}
        for status in self.list_files(path):
            name, below, _ = status.path[start:].partition("/")
            whole = join(path, name)
            entries.setdefault(whole, FileStatus(whole, 0, is_directory=True) if below else status)
        return list(entries.values())

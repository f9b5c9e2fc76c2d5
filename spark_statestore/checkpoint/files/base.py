"""What checkpoint storage needs of a place that holds files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

__all__ = ["FileOutput", "FileStatus", "FileSystem", "join", "parent_of", "write_whole"]

Buffer = bytes | bytearray | memoryview


def join(base: str, *names: str) -> str:
    """Path of something below a directory; paths use ``/`` on every file system."""
    return "/".join([base.rstrip("/"), *names])


def parent_of(path: str) -> str:
    """The directory that a path lies in."""
    return path.rstrip("/").rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class FileStatus:
    """A file as a listing shows it.

    Attributes
    ----------
    path
        Its path.
    size
        Bytes.
    modified
        When it was last written, in seconds since 1970; None where the file system does not say.
    """

    path: str
    size: int
    modified: float | None = field(default=None, compare=False)


class FileOutput(ABC):
    """A new file that is being written.

    It exists for readers, whole, once `close` has returned; until then a file system may show
    nothing or a part. `abandon` removes whatever was written.
    """

    @abstractmethod
    def write(self, data: Buffer) -> None:
        """Append bytes."""

    def write_parts(self, parts: Sequence[Buffer]) -> None:
        """Append bytes that lie in several places."""
        self.write(parts[0] if len(parts) == 1 else b"".join(parts))

    @abstractmethod
    def flush(self) -> None:
        """Hand buffered bytes to the operating system or the remote client."""

    @abstractmethod
    def sync(self) -> None:
        """Make what was written durable, where the file system can before `close`."""

    @abstractmethod
    def close(self) -> None:
        """Finish the file."""

    @abstractmethod
    def abandon(self) -> None:
        """Stop writing and remove the file; safe to call after a failure."""


def write_whole(output: FileOutput, data: Buffer) -> None:
    """Write a new file in place; nothing is left of it if that fails."""
    try:
        output.write(data)
        output.close()
    except BaseException:
        output.abandon()
        raise


class FileSystem(ABC):
    """Files by path.

    Paths are strings without a scheme. A missing file raises `FileNotFoundError`, everything else
    that goes wrong an `OSError`. Implementations are safe to use from several threads.
    """

    @property
    @abstractmethod
    def scheme(self) -> str:
        """The URL scheme, such as ``file`` or ``s3``."""

    @property
    def keeps_files(self) -> bool:
        """Whether files outlive this process."""
        return True

    def url(self, path: str) -> str:
        """The path as a URL, for messages and external pointers."""
        return f"{self.scheme}://{path}"

    @abstractmethod
    def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        """Bytes of a file: all of it, or `size` bytes from `start` (fewer at its end)."""

    @abstractmethod
    def size(self, path: str) -> int:
        """Bytes of a file; `IsADirectoryError` if the path is a directory."""

    @abstractmethod
    def open_input(self, path: str) -> BinaryIO:
        """Open a file for reading, seekable."""

    @abstractmethod
    def open_output(self, path: str) -> FileOutput:
        """Begin a new file; `FileExistsError` where the file system can tell."""

    @abstractmethod
    def create(self, path: str, data: Buffer) -> None:
        """Write a whole new file; `FileExistsError` if there is one.

        The file appears at once and whole, also when the process dies meanwhile, unless a
        subclass says otherwise.
        """

    def create_of_parts(self, path: str, parts: Sequence[Buffer]) -> None:
        """As `create`, of bytes that lie in several places."""
        self.create(path, parts[0] if len(parts) == 1 else b"".join(parts))

    @abstractmethod
    def replace(self, path: str, data: Buffer) -> None:
        """Write a whole file over whatever is there; readers see the old one or the new one."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove a file."""

    @abstractmethod
    def delete_directory(self, path: str, *, recursive: bool = False) -> None:
        """Remove a directory, missing or not; without `recursive` it must be empty."""

    @abstractmethod
    def make_directory(self, path: str, *, exist_ok: bool = True) -> None:
        """Make a directory and its parents; nothing to do where directories do not exist."""

    def make_durable(self, path: str) -> None:  # noqa: B027 - most have nothing to do
        """See to it that a whole file which somebody else wrote survives a crash as one does that is written here.

        Its writer may have ended before that was sure.

        Raises
        ------
        OSError
            If that is not sure.
        """

    def sync_directory(self, path: str) -> None:  # noqa: B027 - most have nothing to do
        """See to it that what was removed from a directory does not come back after a crash.

        Raises
        ------
        OSError
            If that is not sure.
        """

    def prepare(self, directory: str) -> None:  # noqa: B027 - most have nothing to do
        """Do what can be done ahead for a file that will be created in a directory soon.

        Nothing depends on it, and it shows in no listing of files. Where that costs a request, nothing is done.

        Raises
        ------
        OSError
            If it could not be done.
        """

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Whether there is a file or directory."""

    @abstractmethod
    def is_directory(self, path: str) -> bool:
        """Whether the path is a directory."""

    def has_link(self, directory: str, relative: str) -> bool:
        """Whether the way from a directory to a file below it leads over a symbolic link, or to no plain file.

        So it is on file systems that have such. The directory itself may be reached by links.
        """
        return False

    @abstractmethod
    def list_files(self, path: str) -> Iterator[FileStatus]:
        """Every file below a directory, at any depth; nothing if there is no such directory."""

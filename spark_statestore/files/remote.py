"""Remote file systems through drivers of fsspec."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from spark_statestore.files.base import (
    Buffer,
    FileOutput,
    FileStatus,
    FileSystem,
    join,
    parent_of,
    write_whole,
)
from spark_statestore.files.fsspec_driver import (
    CheckedDriver,
    as_os_errors,
    creates_exclusively,
    disable_cached_listings,
    finds_files_itself,
    is_object_store,
    protocols_of,
    renames_files,
    warn_of_inexclusive_create,
    warn_of_replace_in_steps,
)
from spark_statestore.files.transient import answer_of, causes_of

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["FsspecFileSystem"]

# Keys of the modification time by driver.
_TIMES = ("mtime", "LastModified", "last_modified", "modified", "updated", "created")

# Characters of glob patterns, which fsspec's calls for several paths expand.
_MAGIC = re.compile(r"[*?\[]")

# A driver may list a directory by several calls, and report that it is missing if a file in it is removed
# meanwhile.
_LISTINGS = 5


class _FsspecOutput(FileOutput):
    def __init__(
        self, fs: CheckedDriver, path: str, url: str, mode: str = "wb", *, fsync: bool = False
    ) -> None:
        self._fs = fs
        self._path = path
        self._url = url
        self._fsync = fsync
        self._file = fs.open(path, mode)
        self._exists_already = False

    def write(self, data: Buffer) -> None:
        with as_os_errors(self._url):
            self._file.write(data)

    def _sync(self) -> None:
        # Most drivers cannot sync: their files are durable once they are closed.
        self._file.flush()
        if hasattr(self._file, "sync"):
            self._file.sync()
        else:
            with contextlib.suppress(AttributeError, io.UnsupportedOperation):
                os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._fsync and not self._file.closed:
            self._sync()
        try:
            with as_os_errors(self._url):
                self._file.close()
        except FileExistsError:
            self._exists_already = True
            raise

    def abandon(self) -> None:
        discard = getattr(self._file, "discard", None)
        with contextlib.suppress(Exception):
            if discard is not None:
                discard()
            # The garbage collector would close, and thereby upload, a buffered file.
            self._file.closed = True
        if not self._exists_already:
            with contextlib.suppress(Exception):
                self._fs.rm_file(self._path)


class FsspecFileSystem(FileSystem):
    """Files of an fsspec file system.

    `create` is atomic and exclusive where the driver is. With a driver whose `pipe_file` is fsspec's own it
    checks for the file and then writes it, which is logged as a warning when the file system is opened.
    Object stores show a file only when it is whole. `replace` is atomic where the driver renames a file to
    another one; where it copies or has to remove the other one first, that is logged as a warning.

    Only a file that the driver's `info`, `ls` or `cat_file` calls missing is missing. fsspec's own `exists`,
    `isdir` and `find` are not used, as they take every error for absence.

    Parameters
    ----------
    fs
        The driver.
    scheme
        URL scheme of its files.
    fsync
        Whether files are synced before they count as finished, where the driver's files have a
        ``sync`` method or a descriptor. Object stores need no such thing.
    """

    _creates_by_rename = False

    def __init__(self, fs: AbstractFileSystem, scheme: str, *, fsync: bool = False) -> None:
        disable_cached_listings(fs)
        self._fs = CheckedDriver(fs, self.url)
        self.scheme = scheme
        self._driver_name = type(fs).__qualname__
        self._has_directories = not is_object_store(fs)
        self._finds_files_itself = not self._has_directories and finds_files_itself(fs)
        self._renames_files = renames_files(fs)
        self._fsync = fsync and self._has_directories
        self._is_exclusive = creates_exclusively(fs)
        # With fsync, create opens the file in mode "xb" instead.
        if not (self._is_exclusive or self._fsync or self._creates_by_rename):
            warn_of_inexclusive_create(self._driver_name, scheme)
        # Readers of a file in fsspec's memory share one position.
        self._shares_positions = "memory" in protocols_of(fs)

    def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        end = None if size is None else start + size
        if start == 0 and end is None:
            return cast(bytes, self._fs.cat_file(path))
        try:
            return cast(bytes, self._fs.cat_file(path, start=start, end=end))
        except OSError as error:
            # The answer of object stores to a range behind the end of the file.
            if error.errno == errno.EINVAL and self.size(path) <= start:
                return b""
            raise

    def size(self, path: str) -> int:
        info = self._info(path)
        if info["type"] == "directory":
            raise IsADirectoryError(path)
        return int(info["size"])

    def open_input(self, path: str) -> BinaryIO:
        if self._shares_positions:
            return io.BytesIO(self.read(path))
        # A cached listing may have an old size, or lack the file.
        self._forget_listings(path)
        return cast(BinaryIO, self._fs.open(path, "rb"))

    def open_output(self, path: str) -> FileOutput:
        return _FsspecOutput(self._fs, path, self.url(path), fsync=self._fsync)

    def create(self, path: str, data: Buffer) -> None:
        if self._fsync:
            self._write_synced(path, data, "xb")
        elif self._is_exclusive:
            try:
                self._fs.pipe_file(path, bytes(data), mode="create")
            except OSError as error:
                # Drivers do not recognise what each service answers to a conditional request.
                if any(answer_of(cause)[0] == HTTPStatus.PRECONDITION_FAILED for cause in causes_of(error)):
                    raise FileExistsError(path) from error
                raise
        elif self.exists(path):
            raise FileExistsError(path)
        else:
            self._fs.pipe_file(path, bytes(data))

    def replace(self, path: str, data: Buffer) -> None:
        if not self._has_directories:
            self._fs.pipe_file(path, bytes(data))
            return
        # Writing in place could leave a partial file where the old one was whole.
        staging = join(parent_of(path), f".inprogress.{uuid.uuid4()}")
        if self._fsync:
            self._write_synced(staging, data, "wb")
        else:
            self._fs.pipe_file(staging, bytes(data))
        try:
            try:
                self._move(staging, path)
            except FileExistsError:
                # The driver cannot replace a file in one step.
                warn_of_replace_in_steps(self._driver_name, self.scheme)
                self._replace_in_steps(staging, path)
        except BaseException:
            with contextlib.suppress(Exception):
                self._fs.rm_file(staging)
            raise

    def _replace_in_steps(self, staging: str, path: str) -> None:
        """Rename a file to another one, which is kept until that is done.

        An error leaves the old one or the new one.
        """
        old = join(parent_of(path), f".inprogress.{uuid.uuid4()}")
        if self.exists(path):
            self._move(path, old)
        try:
            self._move(staging, path)
        except BaseException:
            with contextlib.suppress(Exception):
                self._move(old, path)
            raise
        with contextlib.suppress(Exception):
            self._fs.rm_file(old)

    def delete(self, path: str) -> None:
        self._fs.rm_file(path)

    def delete_directory(self, path: str, *, recursive: bool = False) -> None:
        self._forget_listings(path)
        with contextlib.suppress(FileNotFoundError):
            if recursive and self._finds_files_itself and not _MAGIC.search(path):
                # Several objects in one request. With a pattern it would delete what matches.
                self._fs.rm(path, recursive=True)
            elif recursive:
                # fsspec's rm leaves out directories that it cannot list.
                self._delete_below(path)
            elif self._has_directories:
                self._fs.rmdir(path)

    def _delete_below(self, path: str) -> None:
        below = self._walk(path, with_directories=True) if self._has_directories else self.list_files(path)
        # Remove content before its directory.
        for status in reversed(list(below)):
            with contextlib.suppress(FileNotFoundError):
                if status.is_directory:
                    self._fs.rmdir(status.path)
                else:
                    self._fs.rm_file(status.path)
        if self._has_directories:
            self._fs.rmdir(path)

    def _move(self, path: str, to: str) -> None:
        if self._renames_files:
            self._fs.mv(path, to)
            return
        # fsspec's mv does the same, but expands patterns.
        if not self._shares_positions:
            warn_of_replace_in_steps(self._driver_name, self.scheme)
        self._fs.cp_file(path, to)
        self._fs.rm_file(path)

    def make_directory(self, path: str) -> None:
        if self._has_directories:
            self._fs.makedirs(path, exist_ok=True)

    def make_durable(self, path: str) -> None:
        # Drivers cannot sync existing files.
        if self._fsync:
            self.replace(path, self.read(path))

    def exists(self, path: str) -> bool:
        return self._type_of(path) is not None

    def is_directory(self, path: str) -> bool:
        return self._type_of(path) == "directory"

    def _type_of(self, path: str) -> str | None:
        try:
            return str(self._info(path)["type"])
        except FileNotFoundError:
            return None

    def _info(self, path: str) -> dict[str, Any]:
        self._forget_listings(path)
        return cast(dict[str, Any], self._fs.info(path))

    def _forget_listings(self, path: str) -> None:
        # Some drivers look for a file in a listing of its directory.
        for directory in (path, parent_of(path)):
            self._fs.invalidate_cache(directory)

    def list_files(self, path: str) -> Iterator[FileStatus]:
        if not self._finds_files_itself:
            yield from self._walk(path)
            return
        self._forget_listings(path)
        try:
            details: dict[str, dict[str, Any]] = self._fs.find(path, detail=True)
        except FileNotFoundError:
            return
        for name, detail in details.items():
            yield FileStatus(name, int(detail.get("size") or 0), _modified(detail))

    def _walk(self, path: str, *, with_directories: bool = False) -> Iterator[FileStatus]:
        """List every file below a directory, and its directories before what they contain."""
        directories = [path]
        while directories:
            try:
                entries = self.list_directory(directories.pop())
            except (FileNotFoundError, NotADirectoryError):
                continue
            for status in entries:
                if status.is_directory:
                    directories.append(status.path)
                if with_directories or not status.is_directory:
                    yield status

    def list_directory(self, path: str) -> list[FileStatus]:
        try:
            details = self._list(path)
        except FileNotFoundError:
            if self._has_directories:
                raise
            return []
        itself = self._fs._strip_protocol(path).rstrip("/")
        # Object stores may have an object for the directory itself.
        return [status for detail in details if (status := self._status_of(detail)).path != itself]

    def _list(self, path: str) -> list[dict[str, Any]]:
        for _ in range(_LISTINGS):
            self._forget_listings(path)
            try:
                return cast(list[dict[str, Any]], self._fs.ls(path, detail=True))
            except FileNotFoundError as error:
                missing = error
            if not self._has_directories or self._type_of(path) != "directory":
                raise missing
        raise OSError(f"the directory {self.url(path)} exists and cannot be listed: {missing}") from missing

    def _status_of(self, detail: dict[str, Any]) -> FileStatus:
        is_directory = detail["type"] == "directory"
        size = 0 if is_directory else int(detail.get("size") or 0)
        return FileStatus(detail["name"].rstrip("/"), size, _modified(detail), is_directory)

    def _write_synced(self, path: str, data: Buffer, mode: str) -> None:
        write_whole(_FsspecOutput(self._fs, path, self.url(path), mode, fsync=True), data)


def _modified(detail: dict[str, Any]) -> float | None:
    for name in _TIMES:
        value = detail.get(name)
        if isinstance(value, str):
            try:
                value = datetime.fromisoformat(value)
            except ValueError:
                continue
        if isinstance(value, datetime):
            return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
        if isinstance(value, int | float):
            return float(value)
    return None

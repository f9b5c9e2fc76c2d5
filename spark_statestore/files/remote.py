"""Remote file systems through drivers of fsspec."""

from __future__ import annotations

import contextlib
import errno
import inspect
import io
import logging
import os
import re
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from spark_statestore.files.access import access_error
from spark_statestore.files.base import (
    Buffer,
    FileOutput,
    FileStatus,
    FileSystem,
    join,
    parent_of,
    write_whole,
)
from spark_statestore.files.transient import answer_of

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["FsspecFileSystem", "as_os_errors", "driver_for_calls"]

_logger = logging.getLogger(__name__)

# Keys of the modification time by driver.
_TIMES = ("mtime", "LastModified", "last_modified", "modified", "updated", "created")

# Object stores: directories are prefixes of names, and making one costs a request.
_OBJECT_STORES = {"s3", "gs", "gcs", "abfs", "abfss", "az", "oci", "oss", "cos", "r2"}


# Characters of glob patterns, which fsspec's calls for several paths expand.
_MAGIC = re.compile(r"[*?\[]")


@contextlib.contextmanager
def as_os_errors(url: str) -> Iterator[None]:
    """Convert errors of drivers' HTTP libraries into `OSError`."""
    try:
        yield
    except Exception as error:
        if (refused := access_error(error, url)) is not None:
            raise refused from error
        if isinstance(error, OSError | ValueError | TypeError):
            raise
        raise OSError(f"{type(error).__name__}: {error}") from error


class _FsspecOutput(FileOutput):
    def __init__(
        self, fs: AbstractFileSystem, path: str, url: str, mode: str = "wb", *, fsync: bool = False
    ) -> None:
        self._fs = fs
        self._path = path
        self._url = url
        self._fsync = fsync
        self._file = fs.open(path, mode)
        self._is_anothers = False

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
            self._is_anothers = True
            raise

    def abandon(self) -> None:
        discard = getattr(self._file, "discard", None)
        with contextlib.suppress(Exception):
            if discard is not None:
                discard()
            # The garbage collector would close, and thereby upload, a buffered file.
            self._file.closed = True
        if not self._is_anothers:
            with contextlib.suppress(Exception):
                self._fs.rm_file(self._path)


class FsspecFileSystem(FileSystem):
    """Files of an fsspec file system.

    `create` is atomic and exclusive where the driver is (s3fs, gcsfs, adlfs: one conditional PUT). With a driver whose
    `pipe_file` is fsspec's own it checks for the file and then writes it, which is logged as a warning when the file
    system is opened. Object stores show a file only when it is whole.

    Parameters
    ----------
    fs
        The driver.
    scheme
        URL scheme of its files.
    fsync
        Whether files are synced before they count as finished, where the driver's files have a
        ``sync`` method or a descriptor. Object stores need no such thing.
    calls
        The driver for all but writing streams, see `driver_for_calls`; by default the same.
    """

    _creates_by_rename = False

    def __init__(
        self,
        fs: AbstractFileSystem,
        scheme: str,
        *,
        fsync: bool = False,
        calls: AbstractFileSystem | None = None,
    ) -> None:
        self._fs = fs if calls is None else calls
        self._streams = fs
        self._scheme = scheme
        self._has_directories = not _is_object_store(fs)
        self._fsync = fsync and self._has_directories
        self._exclusively = _exclusive_arguments(self._fs)
        # With fsync, create opens the file in mode "xb" instead.
        if self._exclusively is None and not self._fsync and not self._creates_by_rename:
            _warn_of_inexclusive_create(type(fs).__qualname__, scheme)
        # Readers of a file in fsspec's memory share one position.
        self._shares_positions = "memory" in _protocols(fs)

    @property
    def scheme(self) -> str:
        return self._scheme

    def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        end = None if size is None else start + size
        if start == 0 and end is None:
            return cast(bytes, self._fs.cat_file(path))
        try:
            return cast(bytes, self._fs.cat_file(path, start=start, end=end))
        except OSError as error:
            # The answer of S3 to a range behind the end of the file.
            if error.errno == errno.EINVAL and self.size(path) <= start:
                return b""
            raise

    def size(self, path: str) -> int:
        self._fs.invalidate_cache(path)
        info: dict[str, Any] = self._fs.info(path)
        if info["type"] == "directory":
            raise IsADirectoryError(path)
        return int(info["size"])

    def open_input(self, path: str) -> BinaryIO:
        if self._shares_positions:
            return io.BytesIO(self.read(path))
        # A cached listing may have an old size, or lack the file.
        self._fs.invalidate_cache(path)
        return cast(BinaryIO, self._fs.open(path, "rb"))

    def open_output(self, path: str) -> FileOutput:
        return _FsspecOutput(self._streams, path, self.url(path), fsync=self._fsync)

    def create(self, path: str, data: Buffer) -> None:
        if self._fsync:
            self._write_synced(path, data, "xb")
            return
        if self._exclusively is not None:
            try:
                self._fs.pipe_file(path, bytes(data), **self._exclusively)
            except Exception as error:
                if _is_of_existing_file(error):
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
                self._fs.rm_file(path)
                self._move(staging, path)
        except BaseException:
            with contextlib.suppress(Exception):
                self._fs.rm_file(staging)
            raise

    def delete(self, path: str) -> None:
        self._fs.rm_file(path)

    def delete_directory(self, path: str, *, recursive: bool = False) -> None:
        self._fs.invalidate_cache(path)
        with contextlib.suppress(FileNotFoundError):
            if recursive and _MAGIC.search(path):
                # The driver's rm expands patterns, which may match other files, too.
                self._delete_below(path)
            elif recursive:
                self._fs.rm(path, recursive=True)
            elif self._has_directories:
                self._fs.rmdir(path)

    def _delete_below(self, path: str) -> None:
        found: dict[str, dict[str, Any]] = self._fs.find(path, withdirs=self._has_directories, detail=True)
        # Remove content before its directory.
        for name in sorted(found, key=lambda name: (-name.count("/"), name)):
            with contextlib.suppress(FileNotFoundError):
                if found[name].get("type") == "directory":
                    self._fs.rmdir(name)
                else:
                    self._fs.rm_file(name)

    def _move(self, path: str, to: str) -> None:
        from fsspec import AbstractFileSystem

        if _MAGIC.search(path) and type(self._fs).mv is AbstractFileSystem.mv:
            # AbstractFileSystem.mv expands patterns, too.
            self._fs.cp_file(path, to)
            self._fs.rm_file(path)
        else:
            self._fs.mv(path, to)

    def make_directory(self, path: str) -> None:
        if self._has_directories:
            self._fs.makedirs(path, exist_ok=True)

    def make_durable(self, path: str) -> None:
        # Drivers cannot sync existing files.
        if self._fsync:
            self.replace(path, self.read(path))

    def exists(self, path: str) -> bool:
        self._fs.invalidate_cache(path)
        return cast(bool, self._fs.exists(path))

    def is_directory(self, path: str) -> bool:
        self._fs.invalidate_cache(path)
        return cast(bool, self._fs.isdir(path))

    def list_files(self, path: str) -> Iterator[FileStatus]:
        self._fs.invalidate_cache(path)
        try:
            found: dict[str, dict[str, Any]] = self._fs.find(path, detail=True)
        except FileNotFoundError as error:
            if (refused := access_error(error, self.url(path))) is not None:
                raise refused from error
            return
        for name, detail in found.items():
            yield FileStatus(name, int(detail.get("size") or 0), _modified(detail))

    def list_directory(self, path: str) -> list[FileStatus]:
        self._fs.invalidate_cache(path)
        try:
            found: list[dict[str, Any]] = self._fs.ls(path, detail=True)
        except FileNotFoundError as error:
            if (refused := access_error(error, self.url(path))) is not None:
                raise refused from error
            if self._has_directories:
                raise
            return []
        statuses = []
        for detail in found:
            name = detail["name"].rstrip("/")
            # Object stores may have an object for the directory itself.
            if name != self._fs._strip_protocol(path).rstrip("/"):
                is_directory = detail["type"] == "directory"
                size = 0 if is_directory else int(detail.get("size") or 0)
                statuses.append(FileStatus(name, size, _modified(detail), is_directory))
        return statuses

    def _write_synced(self, path: str, data: Buffer, mode: str) -> None:
        write_whole(_FsspecOutput(self._fs, path, self.url(path), mode, fsync=True), data)


def driver_for_calls(fs: AbstractFileSystem) -> AbstractFileSystem:
    """Return a driver without cached listings and without retries of its own, where the driver supports that.

    Cached listings of object stores miss what other processes write, and a listing of another thread may be outdated when
    it ends.

    A driver that retries an exclusive create by itself mistakes its own file for another process's if only the first
    answer was lost. It would also multiply the number of tries.
    """
    if not _is_object_store(fs):
        return fs
    options = dict(fs.storage_options)
    config = options.get("config_kwargs") or {}
    # A configured number of retries is kept.
    once = type(fs).__module__ == "s3fs.core" and "retries" not in config
    if once:
        options["config_kwargs"] = config | {"retries": {"total_max_attempts": 1}}
    own = type(fs)(*fs.storage_args, **options, skip_instance_cache=True)
    if once:
        own.retries = 1
    # Most drivers use fsspec's dircache; the cache of another driver is invalidated at each call.
    with contextlib.suppress(AttributeError):
        own.dircache.use_listings_cache = False
    return own


def _exclusive_arguments(fs: AbstractFileSystem) -> dict[str, Any] | None:
    """Return the arguments with which a driver's `pipe_file` creates a file exclusively; None if it cannot."""
    from fsspec import AbstractFileSystem

    if getattr(fs.pipe_file, "__func__", None) is AbstractFileSystem.pipe_file:
        # It takes a mode, and checks for the file before it writes.
        return None
    parameters = inspect.signature(fs.pipe_file).parameters
    if "mode" in parameters:
        return {"mode": "create"}
    if "overwrite" in parameters:
        # adlfs
        return {"overwrite": False}
    # A driver that forwards all arguments, such as fsspec's DirFileSystem, does what the driver below it does.
    inner = getattr(fs, "fs", None)
    forwards = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return _exclusive_arguments(inner) if forwards and isinstance(inner, AbstractFileSystem) else None


def _is_of_existing_file(error: BaseException | None) -> bool:
    """Return whether storage refused a conditional request because the file exists.

    s3fs recognises the answer of AWS alone, which names the condition that failed; MinIO does not. Older versions of adlfs
    leave the error to their callers.
    """
    while error is not None:
        if (
            answer_of(error)[0] == HTTPStatus.PRECONDITION_FAILED
            or type(error).__name__ == "ResourceExistsError"
        ):
            return True
        error = error.__cause__
    return False


@cache
def _warn_of_inexclusive_create(driver: str, scheme: str) -> None:
    """Log once for a driver that it cannot create files exclusively."""
    _logger.warning(
        "the fsspec driver %s of %s:// cannot create files exclusively: its pipe_file has no such mode. Of two attempts that "
        "commit the same version at the same time the later one wins. Upgrade the driver.",
        driver,
        scheme,
    )


def _protocols(fs: AbstractFileSystem) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def _is_object_store(fs: AbstractFileSystem) -> bool:
    return not _OBJECT_STORES.isdisjoint(_protocols(fs))


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

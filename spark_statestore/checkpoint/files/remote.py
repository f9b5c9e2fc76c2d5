"""Every other file system, through fsspec."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from spark_statestore.checkpoint.files.base import (
    Buffer,
    FileOutput,
    FileStatus,
    FileSystem,
    join,
    parent_of,
    write_whole,
)

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["FsspecFileSystem", "driver_for_calls"]

# What drivers call the time of a file's last change; all but the first are of one driver or two.
_TIMES = ("mtime", "LastModified", "last_modified", "modified", "updated", "created")

# Here directories are only the leading parts of names, and making one costs a request.
_OBJECT_STORES = {"s3", "gs", "gcs", "abfs", "abfss", "az", "oci", "oss", "cos", "r2"}


# What makes a pattern of a path in the calls of fsspec that take many.
_MAGIC = re.compile(r"[*?\[]")


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
    """Of drivers that let the errors of their HTTP library through."""
    try:
        yield
    except (OSError, ValueError, TypeError):
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


class _FsspecOutput(FileOutput):
    def __init__(self, fs: AbstractFileSystem, path: str, mode: str = "wb", *, fsync: bool = False) -> None:
        self._fs = fs
        self._path = path
        self._fsync = fsync
        self._file = fs.open(path, mode)

    def write(self, data: Buffer) -> None:
        with _as_os_errors():
            self._file.write(data)

    def flush(self) -> None:
        # fsspec's flush may force a part of an upload out early, which helps nobody.
        pass

    def sync(self) -> None:
        # Most drivers have nothing of the kind: what they have finished is durable.
        self._file.flush()
        if hasattr(self._file, "sync"):
            self._file.sync()
        else:
            with contextlib.suppress(AttributeError, io.UnsupportedOperation):
                os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._fsync and not self._file.closed:
            self.sync()
        with _as_os_errors():
            self._file.close()

    def abandon(self) -> None:
        discard = getattr(self._file, "discard", None)
        with contextlib.suppress(Exception):
            if discard is not None:
                discard()
            # A buffered file that is closed later, by the garbage collector, would be uploaded.
            self._file.closed = True
        with contextlib.suppress(Exception):
            self._fs.rm_file(self._path)


class FsspecFileSystem(FileSystem):
    """Files of an fsspec file system.

    `create` is atomic and exclusive where the driver is (s3fs, gcsfs: one conditional PUT); else
    it looks first and then writes. Object stores show a file only when it is whole.

    Parameters
    ----------
    fs
        The driver.
    scheme
        What URLs of its files start with.
    fsync
        Whether files are synced before they count as finished, where the driver's files have a
        ``sync`` method or a descriptor. Object stores need no such thing.
    calls
        The driver for all but writing streams, see `driver_for_calls`; by default the same.
    """

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
        # All readers of one of fsspec's files in memory have one position.
        self._shares_positions = "memory" in _protocols(fs)

    @property
    def scheme(self) -> str:
        return self._scheme

    def url(self, path: str) -> str:
        return f"{self._scheme}://{path}"

    def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        end = None if size is None else start + size
        if start == 0 and end is None:
            return cast(bytes, self._fs.cat_file(path))
        try:
            return cast(bytes, self._fs.cat_file(path, start=start, end=end))
        except OSError as error:
            # How S3 answers where nothing lies in the range.
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
        # Its size would be that of the last listing, or it would not be there.
        self._fs.invalidate_cache(path)
        return cast(BinaryIO, self._fs.open(path, "rb"))

    def open_output(self, path: str) -> FileOutput:
        return _FsspecOutput(self._streams, path, fsync=self._fsync)

    def create(self, path: str, data: Buffer) -> None:
        if self._fsync:
            self._write_synced(path, data, "xb")
            return
        try:
            self._fs.pipe_file(path, bytes(data), mode="create")
        except TypeError:
            # A driver from before fsspec knew modes.
            if self._fs.exists(path):
                raise FileExistsError(path) from None
            self._fs.pipe_file(path, bytes(data))

    def replace(self, path: str, data: Buffer) -> None:
        if not self._has_directories:
            self._fs.pipe_file(path, bytes(data))
            return
        # Written in place it could end as a part, or as nothing, where the old file was whole.
        staging = join(parent_of(path), f".inprogress.{uuid.uuid4()}")
        if self._fsync:
            self._write_synced(staging, data, "wb")
        else:
            self._fs.pipe_file(staging, bytes(data))
        try:
            try:
                self._move(staging, path)
            except FileExistsError:
                # A driver that cannot do it in one step.
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
                # What the driver removes as a whole it first takes for a pattern, which may fit others' files too.
                self._delete_below(path)
            elif recursive:
                self._fs.rm(path, recursive=True)
            elif self._has_directories:
                self._fs.rmdir(path)

    def _delete_below(self, path: str) -> None:
        found: dict[str, dict[str, Any]] = self._fs.find(path, withdirs=self._has_directories, detail=True)
        # What lies in a directory before the directory.
        for name in sorted(found, key=lambda name: (-name.count("/"), name)):
            with contextlib.suppress(FileNotFoundError):
                if found[name].get("type") == "directory":
                    self._fs.rmdir(name)
                else:
                    self._fs.rm_file(name)

    def _move(self, path: str, to: str) -> None:
        from fsspec import AbstractFileSystem

        if _MAGIC.search(path) and type(self._fs).mv is AbstractFileSystem.mv:
            # Likewise.
            self._fs.cp_file(path, to)
            self._fs.rm_file(path)
        else:
            self._fs.mv(path, to)

    def make_directory(self, path: str, *, exist_ok: bool = True) -> None:
        if self._has_directories:
            self._fs.makedirs(path, exist_ok=exist_ok)

    def make_durable(self, path: str) -> None:
        # No driver syncs what is there.
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
        except FileNotFoundError:
            return
        for name, detail in found.items():
            yield FileStatus(name, int(detail.get("size") or 0), _modified(detail))

    def _write_synced(self, path: str, data: Buffer, mode: str) -> None:
        write_whole(_FsspecOutput(self._fs, path, mode, fsync=True), data)


def driver_for_calls(fs: AbstractFileSystem) -> AbstractFileSystem:
    """A driver that answers from storage alone, and tells at once what failed, where that can be asked of it.

    Drivers of object stores answer from their last listing. Other processes write to the same store, and another thread's
    listing may end after what it says has changed.

    A driver that makes calls again unseen takes its own file for another one's: it finds what its first try has
    created when only the answer to that was lost. It would also multiply the tries.
    """
    if not _is_object_store(fs):
        return fs
    options = dict(fs.storage_options)
    config = options.get("config_kwargs") or {}
    # Whoever set how often it tries wants it so.
    once = type(fs).__module__ == "s3fs.core" and "retries" not in config
    if once:
        options["config_kwargs"] = config | {"retries": {"total_max_attempts": 1}}
    own = type(fs)(*fs.storage_args, **options, skip_instance_cache=True)
    if once:
        own.retries = 1
    # Most have one of fsspec's; what another driver keeps is dropped at each call.
    with contextlib.suppress(AttributeError):
        own.dircache.use_listings_cache = False
    return own


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

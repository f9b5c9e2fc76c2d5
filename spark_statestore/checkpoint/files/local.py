"""Local files, and network mounts that look like local files."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import uuid
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from spark_statestore.checkpoint.files.base import (
    Buffer,
    FileOutput,
    FileStatus,
    FileSystem,
    parent_of,
    write_whole,
)
from spark_statestore.checkpoint.files.durable_names import DurableNames
from spark_statestore.checkpoint.files.spare import SpareFile

__all__ = ["LocalFileSystem"]

_STAGING_PREFIX = ".inprogress."
# Where hard links or unnamed files are not supported at all, rather than failing this once.
_UNSUPPORTED = {errno.EOPNOTSUPP, errno.EISDIR, errno.EPERM, errno.EINVAL, errno.ENOSYS, errno.EXDEV}

# One system call takes no more of them everywhere; many small ones are better joined anyway.
_GATHERED_PARTS = 64


def _make_directory(path: str, exist_ok: bool) -> bool:
    """Make one directory; False if it is there already, as it may be."""
    try:
        os.mkdir(path)
    except FileExistsError:
        if not exist_ok or not os.path.isdir(path):
            raise
        return False
    return True


def _open_plain(path: str, flags: int) -> int:
    """Open a file to read; a pipe, which nobody may ever write to, or a device is refused."""
    fd = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(fd).st_mode
    # Of a directory, whoever opens it says so.
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a plain file", path)
    return fd


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_all(fd: int, data: Buffer) -> None:
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(fd, view) :]


def _write_parts(fd: int, parts: Sequence[Buffer]) -> None:
    if not 1 < len(parts) <= _GATHERED_PARTS:
        _write_all(fd, b"".join(parts))
        return
    left = os.writev(fd, parts)
    for part in parts:
        view = memoryview(part).cast("B")
        if left < len(view):
            _write_all(fd, view[left:])
        left = max(0, left - len(view))


class _LocalOutput(FileOutput):
    def __init__(self, path: str, *, fsync: bool) -> None:
        self._path = path
        self._fsync = fsync
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115 - closed by close or abandon

    def write(self, data: Buffer) -> None:
        _write_all(self._file.fileno(), data)

    def write_parts(self, parts: Sequence[Buffer]) -> None:
        _write_parts(self._file.fileno(), parts)

    def flush(self) -> None:
        pass

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._fsync and not self._file.closed:
            self.sync()
            _sync(parent_of(self._path))
        self._file.close()

    def abandon(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)


class LocalFileSystem(FileSystem):
    """Files of this machine's file system.

    A file given to `create` or `replace` is written under no name or a hidden one and then linked
    to its name, so it appears whole or not at all. Where the file system has no hard links,
    `create` writes in place: a crash can then leave a part, which readers recognise by its
    checksum.

    Parameters
    ----------
    fsync
        Whether files and the directories that name them are synced before a call returns.
    """

    def __init__(self, *, fsync: bool = False) -> None:
        self._fsync = fsync
        self._unnamed_files = hasattr(os, "O_TMPFILE")
        self._hard_links = hasattr(os, "link")
        self._spare = SpareFile()
        self._names = DurableNames(_sync) if fsync else None

    @property
    def scheme(self) -> str:
        return "file"

    def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        with open(path, "rb", buffering=0, opener=_open_plain) as file:
            if start:
                file.seek(start)
            if size is None:
                return file.readall()
            # So much memory is taken before anything is read.
            size = min(size, max(0, os.fstat(file.fileno()).st_size - start))
            parts = []
            while size > 0 and (part := file.read(size)):
                parts.append(part)
                size -= len(part)
            return b"".join(parts)

    def size(self, path: str) -> int:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return status.st_size

    def open_input(self, path: str) -> BinaryIO:
        return open(path, "rb", opener=_open_plain)

    def open_output(self, path: str) -> FileOutput:
        return _LocalOutput(path, fsync=self._fsync)

    def create(self, path: str, data: Buffer) -> None:
        self.create_of_parts(path, [data])

    def create_of_parts(self, path: str, parts: Sequence[Buffer]) -> None:
        if self._unnamed_files and self._create_unnamed(path, parts):
            return
        if self._hard_links and self._create_linked(path, parts):
            return
        write_whole(self.open_output(path), b"".join(parts))

    def replace(self, path: str, data: Buffer) -> None:
        staging = self._stage(path, [data])
        try:
            os.replace(staging, path)
        except BaseException:
            os.unlink(staging)
            raise
        self._sync_name(path)

    def delete(self, path: str) -> None:
        os.unlink(path)

    def delete_directory(self, path: str, *, recursive: bool = False) -> None:
        with contextlib.suppress(FileNotFoundError):
            if recursive:
                shutil.rmtree(path)
            else:
                os.rmdir(path)
        # What was in there may need what is removed next: it must not come back without that.
        with contextlib.suppress(FileNotFoundError):
            self._sync_name(path)

    def make_directory(self, path: str, *, exist_ok: bool = True) -> None:
        try:
            made = _make_directory(path, exist_ok)
        except FileNotFoundError:
            self.make_directory(parent_of(path))
            # This method, called again, would not end where the parent takes no directories, as in /proc.
            made = _make_directory(path, exist_ok)
        if self._names is not None:
            self._names.make_durable(path, is_new=made)

    def make_durable(self, path: str) -> None:
        if self._fsync:
            _sync(path)
            self._sync_name(path)

    def sync_directory(self, path: str) -> None:
        if self._fsync:
            _sync(path)

    def prepare(self, directory: str) -> None:
        self.make_directory(directory)
        if self._names is not None:
            self._names.expect(directory)
        if self._unnamed_files:
            self._spare.make(directory)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def has_link(self, directory: str, relative: str) -> bool:
        path = directory
        for name in relative.split("/"):
            path = f"{path}/{name}"
            try:
                mode = os.lstat(path).st_mode
            except OSError:
                # Whoever needs it finds out what it is.
                return False
            if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                return True
        return False

    def list_files(self, path: str) -> Iterator[FileStatus]:
        pending = [path]
        while pending:
            directory = pending.pop()
            try:
                with os.scandir(directory) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            pending.append(entry.path)
                        else:
                            with contextlib.suppress(FileNotFoundError):
                                status = entry.stat()
                                yield FileStatus(entry.path, status.st_size, status.st_mtime)
            except (FileNotFoundError, NotADirectoryError):
                continue

    def _create_unnamed(self, path: str, parts: Sequence[Buffer]) -> bool:
        spare = self._spare.take()
        # It may be of another disk than this path, or of a directory that is gone.
        if spare is not None and self._link_unnamed(spare, path, parts):
            return True
        try:
            fd = os.open(parent_of(path), os.O_TMPFILE | os.O_WRONLY, 0o644)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            self._unnamed_files = False
            return False
        if not self._link_unnamed(fd, path, parts):
            self._unnamed_files = False
        return self._unnamed_files

    def _link_unnamed(self, fd: int, path: str, parts: Sequence[Buffer]) -> bool:
        """Write an open file without a name and give it one; False if this file cannot have that name."""
        try:
            _write_parts(fd, parts)
            if self._fsync:
                os.fsync(fd)
            # A directory descriptor is what makes CPython follow the link to the open file.
            os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)
        except FileExistsError:
            raise
        except OSError as error:
            # Without /proc there is no such link; without its directory there is no such file.
            no_proc = error.errno == errno.ENOENT and os.path.isdir(parent_of(path))
            if error.errno not in _UNSUPPORTED and not no_proc:
                raise
            return False
        finally:
            os.close(fd)
        self._sync_name(path)
        return True

    def _create_linked(self, path: str, parts: Sequence[Buffer]) -> bool:
        staging = self._stage(path, parts)
        try:
            os.link(staging, path)
        except FileExistsError:
            raise
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            self._hard_links = False
            return False
        finally:
            os.unlink(staging)
        self._sync_name(path)
        return True

    def _stage(self, path: str, parts: Sequence[Buffer]) -> str:
        staging = f"{parent_of(path)}/{_STAGING_PREFIX}{uuid.uuid4()}"
        fd = os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            _write_parts(fd, parts)
            if self._fsync:
                os.fsync(fd)
        except BaseException:
            os.unlink(staging)
            raise
        finally:
            os.close(fd)
        return staging

    def _sync_name(self, path: str) -> None:
        if self._fsync:
            _sync(parent_of(path))

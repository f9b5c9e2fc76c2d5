"""Local files, and files of network mounts."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import stat
import threading
import uuid
import weakref
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from spark_statestore.files.base import Buffer, FileOutput, FileStatus, FileSystem, parent_of, write_whole

__all__ = ["LocalFileSystem"]

_logger = logging.getLogger(__name__)

_STAGING_PREFIX = ".inprogress."
# Errors that mean that hard links or unnamed files are not supported, rather than a failure of this call.
_UNSUPPORTED = {errno.EOPNOTSUPP, errno.EISDIR, errno.EPERM, errno.EINVAL, errno.ENOSYS, errno.EXDEV}

# Features that the file system of a device may lack.
_UNNAMED_FILES = "unnamed files"
_HARD_LINKS = "hard links"

# Within IOV_MAX on every platform; joining is faster for many small parts.
_GATHERED_PARTS = 64


def _make_directory(path: str) -> bool:
    """Make one directory; return False if it exists already."""
    try:
        os.mkdir(path)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
        return False
    return True


def _mode_of(path: str) -> int | None:
    """Return the mode of a file or directory; None if it does not exist.

    `os.path.exists` hides every error.
    """
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def _device_of(path: str) -> int:
    return os.stat(path or "/").st_dev


def _open_plain(path: str, flags: int) -> int:
    """Open a file for reading; refuse devices and pipes, which may block forever."""
    fd = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(fd).st_mode
    # Reading a directory fails with an error of its own.
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
    bytes_written = os.writev(fd, parts)
    for part in parts:
        view = memoryview(part).cast("B")
        if bytes_written < len(view):
            _write_all(fd, view[bytes_written:])
        bytes_written = max(0, bytes_written - len(view))


# Shared by all file systems of a process, as each preallocated file takes a file descriptor.
_MAX_PREALLOCATED = 64
_permits = threading.BoundedSemaphore(_MAX_PREALLOCATED)

# Bounds the memory of a process that opens ever new stores.
_MAX_REMEMBERED = 4096


class PreallocatedFile:
    """At most one open unnamed file, which leaves no trace if it is never used.

    Where many files were removed within the last minutes, ext4 takes ten times as long to create a file as to
    write it: it skips their inodes one by one. The next file is therefore created off the critical path: of
    50 stores with 24 versions each, cleanups between them and ext4, the median commit took 1.6 ms without
    `LocalFileSystem.prepare`, 1.2 with the directory alone, and 0.5 with this file.
    """

    def __init__(self) -> None:
        # Descriptor and process.
        self._file: list[tuple[int, int]] = []
        weakref.finalize(self, _close_preallocated, self._file)

    def make(self, directory: str) -> None:
        """Create the file in a directory, unless there is one already or the process has too many."""
        if self._file or not _permits.acquire(blocking=False):
            return
        try:
            self._file.append((os.open(directory, os.O_TMPFILE | os.O_WRONLY, 0o644), os.getpid()))
        except BaseException:
            _permits.release()
            raise

    def take(self) -> int | None:
        """Return the descriptor of the file and give up its ownership; None if there is no file."""
        try:
            descriptor, owner = self._file.pop()
        except IndexError:
            return None
        _permits.release()
        if owner != os.getpid():
            # After a fork the parent process owns the file, too.
            os.close(descriptor)
            return None
        return descriptor


def _close_preallocated(file: list[tuple[int, int]]) -> None:
    while file:
        os.close(file.pop()[0])
        _permits.release()


class DirectoryFsync:
    """Makes the name of a directory durable by syncing its parent directory, up to the root of the mount.

    This includes directories that exist already: the process that made one may have been killed before it
    synced the name. Parents are synced once per process.
    """

    def __init__(self) -> None:
        self._above: set[str] = set()
        self._expected: set[str] = set()

    def make_durable(self, directory: str, *, is_new: bool) -> None:
        """Sync the parent directories of a directory.

        Parameters
        ----------
        is_new
            Whether this process has just made the directory.
        """
        if directory in self._expected:
            self._expected.discard(directory)
            if not is_new:
                return
        parent = parent_of(directory) or "/"
        if is_new:
            _sync(parent)
        else:
            # A parent without read permission belongs to another user, who made it.
            with contextlib.suppress(PermissionError):
                _sync(parent)
        if parent not in self._above:
            if not os.path.ismount(parent):
                self.make_durable(parent, is_new=False)
            if len(self._above) >= _MAX_REMEMBERED:
                self._above.clear()
            self._above.add(parent)

    def expect(self, directory: str) -> None:
        """Remember that a directory is durable, so that the next call for it does not sync again."""
        if len(self._expected) >= _MAX_REMEMBERED:
            self._expected.clear()
        self._expected.add(directory)


class _LocalOutput(FileOutput):
    def __init__(self, path: str, *, fsync: bool) -> None:
        self._path = path
        self._fsync = fsync
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115 - closed by close or abandon

    def write(self, data: Buffer) -> None:
        _write_all(self._file.fileno(), data)

    def write_parts(self, parts: Sequence[Buffer]) -> None:
        _write_parts(self._file.fileno(), parts)

    def close(self) -> None:
        if self._fsync and not self._file.closed:
            os.fsync(self._file.fileno())
            _sync(parent_of(self._path))
        self._file.close()

    def abandon(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)


class LocalFileSystem(FileSystem):
    """Files of a file system that the operating system mounts.

    `create` and `replace` write an unnamed or hidden file and then link it to its name, so that it appears
    whole or not at all. On a device without hard links, `create` writes in place: a crash can then leave a
    partial file, which readers detect by its checksum. This is logged as a warning.

    Parameters
    ----------
    fsync
        Whether files and the directories that name them are synced before a call returns.
    """

    scheme = "file"

    def __init__(self, *, fsync: bool = False) -> None:
        self._fsync = fsync
        self._unnamed_files = hasattr(os, "O_TMPFILE")
        self._hard_links = hasattr(os, "link")
        # Missing features by device: a process uses several file systems.
        self._lacking: defaultdict[int, set[str]] = defaultdict(set)
        self._preallocated = PreallocatedFile()
        self._directories = DirectoryFsync() if fsync else None

    def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        with open(path, "rb", buffering=0, opener=_open_plain) as file:
            if start:
                file.seek(start)
            if size is None:
                return file.readall()
            # read allocates the requested size up front.
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
        lacking = self._lacking_in(parent_of(path))
        if self._unnamed_files and _UNNAMED_FILES not in lacking and self._create_unnamed(path, parts):
            return
        if self._hard_links and _HARD_LINKS not in lacking and self._create_linked(path, parts):
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
        # The removal must be durable before files that the removed ones refer to are removed.
        with contextlib.suppress(FileNotFoundError):
            self._sync_name(path)

    def make_directory(self, path: str) -> None:
        try:
            is_new = _make_directory(path)
        except FileNotFoundError:
            self.make_directory(parent_of(path))
            # No recursion: it would not end where the parent refuses directories, as in /proc.
            is_new = _make_directory(path)
        if self._directories is not None:
            self._directories.make_durable(path, is_new=is_new)

    def make_durable(self, path: str) -> None:
        if self._fsync:
            _sync(path)
            self._sync_name(path)

    def sync_directory(self, path: str) -> None:
        if self._fsync:
            _sync(path)

    def prepare(self, directory: str) -> None:
        self.make_directory(directory)
        if self._directories is not None:
            self._directories.expect(directory)
        if self._unnamed_files and _UNNAMED_FILES not in self._lacking_in(directory):
            self._preallocated.make(directory)

    def exists(self, path: str) -> bool:
        return _mode_of(path) is not None

    def is_directory(self, path: str) -> bool:
        mode = _mode_of(path)
        return mode is not None and stat.S_ISDIR(mode)

    def has_link(self, directory: str, relative: str) -> bool:
        path = directory
        for name in relative.split("/"):
            path = f"{path}/{name}"
            try:
                mode = os.lstat(path).st_mode
            except (FileNotFoundError, NotADirectoryError):
                # Opening the file reports the error.
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

    def list_directory(self, path: str) -> list[FileStatus]:
        listing = []
        with os.scandir(path) as entries:
            for entry in entries:
                # Deleted since, or a link to a missing file.
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat()
                    is_directory = stat.S_ISDIR(status.st_mode)
                    size = 0 if is_directory else status.st_size
                    listing.append(
                        FileStatus(f"{path.rstrip('/')}/{entry.name}", size, status.st_mtime, is_directory)
                    )
        return listing

    def _create_unnamed(self, path: str, parts: Sequence[Buffer]) -> bool:
        preallocated = self._preallocated.take()
        # Its directory may be on another device than this path, or be removed.
        if preallocated is not None and self._link_unnamed(preallocated, path, parts):
            return True
        try:
            fd = os.open(parent_of(path), os.O_TMPFILE | os.O_WRONLY, 0o644)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
        else:
            if self._link_unnamed(fd, path, parts):
                return True
        self._lacking[_device_of(parent_of(path))].add(_UNNAMED_FILES)
        return False

    def _link_unnamed(self, fd: int, path: str, parts: Sequence[Buffer]) -> bool:
        """Write an open unnamed file and link it to a name; return False if it cannot be linked there."""
        try:
            _write_parts(fd, parts)
            if self._fsync:
                os.fsync(fd)
            # CPython calls linkat, which follows the link to the open file, only with a directory descriptor.
            os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)
        except FileExistsError:
            raise
        except OSError as error:
            # ENOENT means that /proc is missing, or that the directory is.
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
            self._warn_of_missing_links(parent_of(path))
            return False
        finally:
            os.unlink(staging)
        self._sync_name(path)
        return True

    def _lacking_in(self, directory: str) -> set[str]:
        """Return what the file system of a directory lacks, as far as it is known."""
        return self._lacking.get(_device_of(directory), set()) if self._lacking else set()

    def _warn_of_missing_links(self, directory: str) -> None:
        lacking = self._lacking[_device_of(directory)]
        if _HARD_LINKS not in lacking:
            lacking.add(_HARD_LINKS)
            _logger.warning(
                "the file system of %s has no hard links, so that new files are not created atomically "
                "there: if the process is killed meanwhile, an incomplete file remains, also one of Spark's "
                "logs. Use another file system for checkpoints.",
                directory,
            )

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

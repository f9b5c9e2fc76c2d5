"""HDFS, through fsspec's drivers for WebHDFS and libhdfs."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from spark_statestore.files.base import Buffer, FileStatus, join, parent_of
from spark_statestore.files.remote import FsspecFileSystem, as_os_errors
from spark_statestore.files.transient import is_transient

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["HDFS_SCHEMES", "HdfsFileSystem"]

_logger = logging.getLogger(__name__)

HDFS_SCHEMES = {"hdfs", "webhdfs"}

_WEB = "webhdfs"


class HdfsFileSystem(FsspecFileSystem):
    """Files of HDFS.

    HDFS shows a file from its first byte, and its drivers replace existing files. `create` and `replace` therefore write
    a staging file and rename it: HDFS renames in one step, and to an existing file only if that is asked for. So
    `create` is atomic and exclusive, and so is `replace` over WebHDFS. The driver for libhdfs can only remove the old file
    first; a process that is killed in between leaves none.

    Parameters
    ----------
    fs
        The driver.
    scheme
        URL scheme of its files: hdfs or webhdfs.
    fsync
        Drivers cannot sync files of HDFS, which is logged as a warning.
    """

    _creates_by_rename = True

    def __init__(self, fs: AbstractFileSystem, scheme: str, *, fsync: bool = False) -> None:
        super().__init__(fs, scheme)
        self._driver = fs
        self._fs = self._streams = _CheckedDriver(fs, scheme)
        if fsync:
            _warn_of_unsynced_files(scheme)
        options: dict[str, Any] = fs.storage_options
        port = options.get("port")
        # libhdfs takes the name "default" for Hadoop's configured file system.
        host = options.get("host", "default").replace("default", "")
        self._authority = f"{host}:{port}" if host and port else host

    def url(self, path: str) -> str:
        return f"{self.scheme}://{self._authority}{path}"

    def size(self, path: str) -> int:
        info: dict[str, Any] = self._fs.info(path)
        if info["type"] == "directory":
            raise IsADirectoryError(path)
        return int(info["size"])

    def create(self, path: str, data: Buffer) -> None:
        staging = self._write_staging(path, data)
        try:
            if not self._rename(staging, path):
                raise FileExistsError(path)
        except BaseException:
            self._discard(staging)
            raise

    def replace(self, path: str, data: Buffer) -> None:
        staging = self._write_staging(path, data)
        try:
            if self.scheme == _WEB:
                self._rename_through_web(staging, path, renameoptions="OVERWRITE")
            else:
                with contextlib.suppress(FileNotFoundError):
                    self._fs.rm_file(path)
                self._fs.mv(staging, path)
        except BaseException:
            self._discard(staging)
            raise

    def _write_staging(self, path: str, data: Buffer) -> str:
        staging = join(parent_of(path), f".inprogress.{uuid.uuid4()}")
        try:
            self._fs.pipe_file(staging, bytes(data))
        except BaseException:
            self._discard(staging)
            raise
        return staging

    def _rename(self, staging: str, path: str) -> bool:
        """Rename a staging file; return False if the other path exists."""
        if self.scheme == _WEB:
            return self._rename_through_web(staging, path)
        try:
            self._fs.mv(staging, path)
        except OSError as error:
            if is_transient(error) or not self.exists(path):
                raise
            return False
        return True

    def _rename_through_web(self, staging: str, path: str, **options: str) -> bool:
        # The driver's mv has no such options, and drops the answer.
        with as_os_errors(self.url(path)):
            answer = self._driver._call("RENAME", "put", staging, destination=path, **options)
        # There is no answer with an option: then HDFS reports an error instead.
        return bool(options) or bool(answer.json()["boolean"])

    def _discard(self, path: str) -> None:
        with contextlib.suppress(Exception):
            self._fs.rm_file(path)

    def delete_directory(self, path: str, *, recursive: bool = False) -> None:
        try:
            self._fs.rm(path, recursive=recursive)
        except FileNotFoundError:
            pass
        except ValueError:
            # The driver for libhdfs removes directories only with their content.
            if recursive:
                raise

    def exists(self, path: str) -> bool:
        # Methods of the same name of the driver return False if it cannot be told.
        return self._type_of(path) is not None

    def is_directory(self, path: str) -> bool:
        return self._type_of(path) == "directory"

    def _type_of(self, path: str) -> str | None:
        try:
            return str(self._fs.info(path)["type"])
        except FileNotFoundError:
            return None

    def list_files(self, path: str) -> Iterator[FileStatus]:
        # The driver's find skips directories that it cannot list.
        directories = [path.rstrip("/")]
        while directories:
            with contextlib.suppress(FileNotFoundError):
                for status in self.list_directory(directories.pop()):
                    if status.is_directory:
                        directories.append(status.path)
                    else:
                        yield status

    def list_directory(self, path: str) -> list[FileStatus]:
        return [_status(detail) for detail in self._fs.ls(path, detail=True)]


class _CheckedDriver:
    """A driver whose calls raise `OSError` for what the service refuses; that of WebHDFS raises `RuntimeError`."""

    def __init__(self, fs: AbstractFileSystem, scheme: str) -> None:
        self._fs = fs
        self._scheme = scheme

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._fs, name)
        if not callable(member):
            return member

        def call(path: str, *arguments: Any, **options: Any) -> Any:
            with as_os_errors(f"{self._scheme}://{path}"):
                return member(path, *arguments, **options)

        return call


def _status(detail: dict[str, Any]) -> FileStatus:
    is_directory = detail["type"] == "directory"
    milliseconds = detail.get("modificationTime")
    modified = None if milliseconds is None else milliseconds / 1000
    return FileStatus(detail["name"], 0 if is_directory else int(detail["size"]), modified, is_directory)


@cache
def _warn_of_unsynced_files(scheme: str) -> None:
    _logger.warning(
        "fsync has no effect on %s://: no driver can sync its files. HDFS replicates them, which survives the loss of a "
        "machine; against the loss of power everywhere set dfs.datanode.synconclose on the data nodes.",
        scheme,
    )

"""HDFS, through fsspec's drivers for WebHDFS and libhdfs."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import uuid
from dataclasses import replace
from functools import cache
from typing import IO, TYPE_CHECKING, Any

from spark_statestore.files.base import Buffer, FileOutput, FileStatus, join, parent_of
from spark_statestore.files.fsspec_driver import as_os_errors
from spark_statestore.files.remote import FsspecFileSystem
from spark_statestore.files.transient import is_transient

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_logger = logging.getLogger(__name__)

HDFS_SCHEMES = {"hdfs", "webhdfs"}

_WEB = "webhdfs"


class HdfsFileSystem(FsspecFileSystem):
    """Files of HDFS.

    HDFS shows a file from its first byte, and its drivers replace existing files. `create` and `replace`
    therefore write a staging file and rename it: HDFS renames in one step, and to an existing file only if
    that is asked for. So `create` is atomic and exclusive, and `replace` is atomic over WebHDFS. The driver
    for libhdfs can only rename the old file first; a process that is killed in between leaves none of that
    name.

    Parameters
    ----------
    fs
        The driver.
    scheme
        URL scheme of its files: hdfs or webhdfs.
    fsync
        Whether data nodes sync a file's blocks before it counts as finished. The driver for libhdfs cannot
        ask for that, which is logged as a warning.
    """

    _creates_by_rename = True

    def __init__(self, fs: AbstractFileSystem, scheme: str, *, fsync: bool = False) -> None:
        super().__init__(fs, scheme)
        self._driver = fs
        self._syncs = fsync and scheme == _WEB
        if fsync and not self._syncs:
            _warn_of_unsynced_files(scheme)
        options: dict[str, Any] = fs.storage_options
        port = options.get("port")
        # libhdfs takes the name "default" for Hadoop's configured file system.
        host = options.get("host", "default").replace("default", "")
        self._authority = f"{host}:{port}" if host and port else host

    def url(self, path: str) -> str:
        return f"{self.scheme}://{self._authority}{path}"

    def open_output(self, path: str) -> FileOutput:
        # The driver appends, for which data nodes cannot be asked to sync.
        return _SyncedOutput(self, path) if self._syncs else super().open_output(path)

    def create(self, path: str, data: Buffer) -> None:
        staging = self._write_staging(path, data)
        try:
            if not self._rename(staging, path):
                raise FileExistsError(path)
        except BaseException:
            self.discard(staging)
            raise

    def replace(self, path: str, data: Buffer) -> None:
        staging = self._write_staging(path, data)
        try:
            if self.scheme == _WEB:
                self._rename_through_web(staging, path, renameoptions="OVERWRITE")
            else:
                self._replace_in_steps(staging, path)
        except BaseException:
            self.discard(staging)
            raise

    def _write_staging(self, path: str, data: Buffer) -> str:
        staging = join(parent_of(path), f".inprogress.{uuid.uuid4()}")
        try:
            self.write_in_place(staging, bytes(data))
        except BaseException:
            self.discard(staging)
            raise
        return staging

    def write_in_place(self, path: str, data: bytes | IO[bytes]) -> None:
        """Write a file, replacing one that exists; with fsync its blocks are synced."""
        if self.scheme != _WEB:
            self._fs.pipe_file(path, data)
            return
        # The driver's pipe_file creates an empty file and appends to it, in twice as many requests.
        options = {"createflag": "CREATE,OVERWRITE,SYNC_BLOCK"} if self._syncs else {"overwrite": "true"}
        with as_os_errors(self.url(path)):
            answer = self._driver._call("CREATE", "put", path, redirect=False, **options)
            to = self._driver._apply_proxy(answer.headers["Location"])
            kind = {"content-type": "application/octet-stream"}
            self._driver.session.put(to, data=data, headers=kind).raise_for_status()

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

    def discard(self, path: str) -> None:
        """Remove what was written of a file, if that is possible."""
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

    def _status_of(self, detail: dict[str, Any]) -> FileStatus:
        status = super()._status_of(detail)
        milliseconds = detail.get("modificationTime")
        return status if milliseconds is None else replace(status, modified=milliseconds / 1000)


class _SyncedOutput(FileOutput):
    """A file that is sent when it is closed; until then it is in a temporary file."""

    def __init__(self, files: HdfsFileSystem, path: str) -> None:
        self._files = files
        self._path = path
        self._buffer: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this

    def write(self, data: Buffer) -> None:
        self._buffer.write(data)

    def close(self) -> None:
        if not self._buffer.closed:
            self._buffer.seek(0)
            self._files.write_in_place(self._path, self._buffer)
            self._buffer.close()

    def abandon(self) -> None:
        self._buffer.close()
        self._files.discard(self._path)


@cache
def _warn_of_unsynced_files(scheme: str) -> None:
    _logger.warning(
        "fsync has no effect on %s://: its driver cannot sync files. Use webhdfs://, or set "
        "dfs.datanode.synconclose on the data nodes.",
        scheme,
    )

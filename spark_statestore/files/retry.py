"""A file system wrapper that retries transient failures of storage calls."""

from __future__ import annotations

import contextlib
import io
import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, TypeVar, cast

from spark_statestore.errors import CheckpointIOError
from spark_statestore.files.access import access_error
from spark_statestore.files.base import Buffer, FileOutput, FileStatus, FileSystem
from spark_statestore.files.request_context import check_cancelled, count_retry, heartbeat
from spark_statestore.files.transient import is_transient
from spark_statestore.options import DEFAULT_STORAGE_RETRIES

_logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_FIRST_SECONDS = 0.2
_LONGEST_SECONDS = 10.0


class _Call:
    """One storage call with its retries."""

    def __init__(self, operation: str, url: str, retries: int) -> None:
        self._description = f"{operation} {url}"
        self._url = url
        self._retries_left = retries
        self._tries = 0
        self._start = time.monotonic()

    @property
    def is_retry(self) -> bool:
        """True if an earlier try failed; it may have taken effect if only its response was lost."""
        return self._tries > 0

    def run(self, attempt: Callable[[], _T]) -> _T:
        while True:
            try:
                result = attempt()
            except Exception as error:
                if not is_transient(error):
                    if (refused := access_error(error, self._url)) is not None and refused is not error:
                        raise refused from error
                    raise
                self._tries += 1
                if self._retries_left == 0:
                    raise self._exhausted(error) from error
                self._wait(error)
            else:
                heartbeat()
                return result

    def _wait(self, error: Exception) -> None:
        # Equal jitter: throttled clients do not retry in lockstep.
        most = min(_LONGEST_SECONDS, _FIRST_SECONDS * 2 ** (self._tries - 1))
        seconds = random.uniform(most / 2, most)  # noqa: S311 - no secret
        self._retries_left -= 1
        _logger.warning("%s failed and is retried in %.1f s: %s", self._description, seconds, error)
        heartbeat()
        time.sleep(seconds)
        check_cancelled()
        count_retry()
        heartbeat()

    def _exhausted(self, error: Exception) -> OSError:
        seconds = time.monotonic() - self._start
        text = (
            f"{error} (tried {self._tries} times within {seconds:.1f} s)" if self._tries > 1 else str(error)
        )
        return TimeoutError(text) if isinstance(error, TimeoutError) else OSError(text)


class _RetryingInput(io.RawIOBase):
    def __init__(self, files: RetryingFileSystem, path: str) -> None:
        self._files = files
        self._path = path
        self._position = 0
        # The finalizer closes the stream, even one that could not be opened.
        self._source: BinaryIO | None = None
        # Open the file now to report a missing file early.
        self._source = files.read_at(path, None, 0, 0)[0]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._source, data = self._files.read_at(self._path, self._source, self._position, len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        super().close()
        if self._source is not None:
            self._source.close()


class RetryingFileSystem(FileSystem):
    """A file system that retries transient failures, with exponential backoff and jitter.

    A call whose answer was lost may have had its effect. A retried `create` that finds the file compares its
    content: if it is equal, an earlier try of this call wrote it. `create_of_parts` writes metadata, which
    names its writer, so that it compares at the first try, too. A retried `delete` treats a missing file as
    deleted. Streams that are being written are not restarted; their retries are up to the driver.

    Parameters
    ----------
    files
        The file system.
    retries
        Largest number of retries of one call.
    """

    def __init__(self, files: FileSystem, retries: int = DEFAULT_STORAGE_RETRIES) -> None:
        self.wrapped = files
        self.scheme = files.scheme
        self._retries = retries
        # Set once storage has refused to create a file again.
        self.is_exclusive = False

    def url(self, path: str) -> str:
        return self.wrapped.url(path)

    def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        return self.run("reading", path, lambda: self.wrapped.read(path, start, size))

    def size(self, path: str) -> int:
        return self.run("reading the size of", path, lambda: self.wrapped.size(path))

    def open_input(self, path: str) -> BinaryIO:
        return cast(BinaryIO, io.BufferedReader(_RetryingInput(self, path)))

    def open_output(self, path: str) -> FileOutput:
        return self.run("opening", path, lambda: self.wrapped.open_output(path))

    def create(self, path: str, data: Buffer) -> None:
        call = self._call("writing", path)

        def attempt() -> None:
            try:
                self.wrapped.create(path, data)
            except FileExistsError:
                if not call.is_retry or self.wrapped.read(path) != data:
                    raise

        call.run(attempt)

    def create_of_parts(self, path: str, parts: Sequence[Buffer]) -> None:
        def attempt() -> None:
            try:
                self.wrapped.create_of_parts(path, parts)
            except FileExistsError:
                # Also at the first try: a driver's HTTP library may have sent it twice.
                if self.wrapped.read(path) != b"".join(parts):
                    raise

        self.run("writing", path, attempt)

    def replace(self, path: str, data: Buffer) -> None:
        self.run("replacing", path, lambda: self.wrapped.replace(path, data))

    def delete(self, path: str) -> None:
        call = self._call("deleting", path)

        def attempt() -> None:
            try:
                self.wrapped.delete(path)
            except FileNotFoundError:
                if not call.is_retry:
                    raise

        call.run(attempt)

    def delete_files(self, paths: Sequence[str]) -> None:
        if paths:
            self.run("deleting", paths[0], lambda: self.wrapped.delete_files(paths))

    def delete_directory(self, path: str, *, recursive: bool = False) -> None:
        self.run("deleting", path, lambda: self.wrapped.delete_directory(path, recursive=recursive))

    def make_directory(self, path: str) -> None:
        self.run("creating", path, lambda: self.wrapped.make_directory(path))

    def prepare(self, directory: str) -> None:
        self.wrapped.prepare(directory)

    def locate(self, path: str) -> tuple[str, int] | None:
        return self.wrapped.locate(path)

    def exists(self, path: str) -> bool:
        return self.run("checking for", path, lambda: self.wrapped.exists(path))

    def is_directory(self, path: str) -> bool:
        return self.run("checking for", path, lambda: self.wrapped.is_directory(path))

    def make_durable(self, path: str) -> None:
        self.run("syncing", path, lambda: self.wrapped.make_durable(path))

    def sync_directory(self, path: str) -> None:
        self.run("syncing", path, lambda: self.wrapped.sync_directory(path))

    def has_link(self, directory: str, relative: str) -> bool:
        return self.wrapped.has_link(directory, relative)

    def list_files(self, path: str) -> Iterator[FileStatus]:
        yield from self.run("listing", path, lambda: list(self.wrapped.list_files(path)))

    def list_directory(self, path: str) -> list[FileStatus]:
        return self.run("listing", path, lambda: self.wrapped.list_directory(path))

    def read_at(self, path: str, source: BinaryIO | None, position: int, size: int) -> tuple[BinaryIO, bytes]:
        """Read from an open file at an offset, reopening it after a transient failure, or open it first.

        Return the open file, and the bytes read: none at its end.
        """
        opened = source

        def attempt() -> bytes:
            nonlocal opened
            if opened is None:
                opened = self.wrapped.open_input(path)
                opened.seek(position)
            try:
                return opened.read(size)
            except BaseException:
                broken, opened = opened, None
                with contextlib.suppress(Exception):
                    broken.close()
                raise

        data = self.run("reading", path, attempt)
        return cast(BinaryIO, opened), data

    def run(self, operation: str, path: str, attempt: Callable[[], _T]) -> _T:
        """Make a call of the wrapped file system, with retries; messages name it by `operation`."""
        return self._call(operation, path).run(attempt)

    def _call(self, operation: str, path: str) -> _Call:
        return _Call(operation, self.wrapped.url(path), self._retries)


def require_exclusive_creation(files: FileSystem, path: str, parts: Sequence[Buffer]) -> None:
    """Check once that storage does not replace a file that is created again.

    The check is made with the first such file of a process.

    A service that does not know conditional requests ignores the condition, without an error. To be called
    for files whose name several writers may choose, with one that this process has created: the first one has
    it.
    """
    # Local files have no retries, and are created exclusively.
    if not isinstance(files, RetryingFileSystem) or files.is_exclusive:
        return
    try:
        # Retries take a file with the same content for their own.
        files.wrapped.create_of_parts(path, parts)
    except FileExistsError:
        files.is_exclusive = True
    except Exception:  # noqa: BLE001 - the file is written; the next one is a test as well
        return
    else:
        raise CheckpointIOError(
            f"the storage of {files.url(path)} replaces a file that is created exclusively: of two queries "
            "with one checkpoint neither would notice the other, and either could replace state that the "
            "other one has committed. Upgrade the service to a version with conditional requests "
            "(If-None-Match), or use another one. With configure(..., spark_files='hadoop', commit='task') "
            "and spark.sql.streaming.stateStore.checkpointFormatVersion=2 nothing depends on it but the "
            "detection of a second query."
        )

"""Calls of storage that failed for the moment are made again."""

from __future__ import annotations

import contextlib
import io
import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, TypeVar, cast

from spark_statestore.checkpoint.files.base import Buffer, FileOutput, FileStatus, FileSystem
from spark_statestore.checkpoint.files.transient import is_transient
from spark_statestore.checkpoint.files.work import count_retry, got_on, require_wanted
from spark_statestore.options import DEFAULT_STORAGE_RETRIES

__all__ = ["RetryingFileSystem"]

_logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_FIRST_SECONDS = 0.2
_LONGEST_SECONDS = 10.0


class _Call:
    """One call, made again as often as it may be."""

    def __init__(self, what: str, retries: int) -> None:
        self._what = what
        self._left = retries
        self._made = 0
        self._start = time.monotonic()

    @property
    def is_again(self) -> bool:
        """Whether an earlier try has failed, though perhaps only its answer was lost."""
        return self._made > 0

    def run(self, once: Callable[[], _T]) -> _T:
        while True:
            try:
                result = once()
            except Exception as error:
                if not is_transient(error):
                    raise
                self._made += 1
                if self._left == 0:
                    raise self._exhausted(error) from error
                self._wait(error)
            else:
                got_on()
                return result

    def _wait(self, error: Exception) -> None:
        # Half of it by chance: whoever was turned away together does not come back together.
        most = min(_LONGEST_SECONDS, _FIRST_SECONDS * 2 ** (self._made - 1))
        seconds = random.uniform(most / 2, most)  # noqa: S311 - no secret
        self._left -= 1
        _logger.warning("%s failed and is tried again in %.1f s: %s", self._what, seconds, error)
        got_on()
        time.sleep(seconds)
        require_wanted()
        count_retry()
        got_on()

    def _exhausted(self, error: Exception) -> OSError:
        seconds = time.monotonic() - self._start
        told = f"{error} (tried {self._made} times within {seconds:.1f} s)" if self._made > 1 else str(error)
        return TimeoutError(told) if isinstance(error, TimeoutError) else OSError(told)


class _RetryingInput(io.RawIOBase):
    def __init__(self, files: RetryingFileSystem, path: str) -> None:
        self._files = files
        self._path = path
        self._position = 0
        # Told now if it is not there.
        self._source: BinaryIO | None = files.read_on(path, None, 0, 0)[0]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._source, data = self._files.read_on(self._path, self._source, self._position, len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_CUR:
            offset += self._position
        elif whence == io.SEEK_END:
            offset += self._files.size(self._path)
        if offset < 0:
            raise ValueError(f"there is no byte {offset} in {self._path}")
        self._position = offset
        if self._source is not None:
            self._source.seek(offset)
        return offset

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        super().close()
        if self._source is not None:
            self._source.close()


class RetryingFileSystem(FileSystem):
    """A file system of which calls that failed for the moment are made again, after a while that grows by half chance.

    A call whose answer was lost has perhaps had its effect. So a file that `create` then finds is compared with what
    was to be written: if it is the same, it was this call that wrote it. What comes in parts is metadata, which names
    its writer; of that it is so from the first try on. What `delete` then does not find, it has deleted. A stream
    that is being written is not begun again; there it is up to the driver to try again what it can.

    Parameters
    ----------
    files
        The file system.
    retries
        How often a call is made again at most.
    """

    def __init__(self, files: FileSystem, retries: int = DEFAULT_STORAGE_RETRIES) -> None:
        self.wrapped = files
        self._retries = retries

    @property
    def scheme(self) -> str:
        return self.wrapped.scheme

    @property
    def keeps_files(self) -> bool:
        return self.wrapped.keeps_files

    def url(self, path: str) -> str:
        return self.wrapped.url(path)

    def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        return self._run("reading", path, lambda: self.wrapped.read(path, start, size))

    def size(self, path: str) -> int:
        return self._run("looking at", path, lambda: self.wrapped.size(path))

    def open_input(self, path: str) -> BinaryIO:
        return cast(BinaryIO, io.BufferedReader(_RetryingInput(self, path)))

    def open_output(self, path: str) -> FileOutput:
        return self._run("beginning", path, lambda: self.wrapped.open_output(path))

    def create(self, path: str, data: Buffer) -> None:
        call = self._call("writing", path)

        def once() -> None:
            try:
                self.wrapped.create(path, data)
            except FileExistsError:
                if not call.is_again or self.wrapped.read(path) != data:
                    raise

        call.run(once)

    def create_of_parts(self, path: str, parts: Sequence[Buffer]) -> None:
        def once() -> None:
            try:
                self.wrapped.create_of_parts(path, parts)
            except FileExistsError:
                # Also at the first try: a driver's HTTP library may have sent it twice.
                if self.wrapped.read(path) != b"".join(parts):
                    raise

        self._run("writing", path, once)

    def replace(self, path: str, data: Buffer) -> None:
        self._run("replacing", path, lambda: self.wrapped.replace(path, data))

    def delete(self, path: str) -> None:
        call = self._call("deleting", path)

        def once() -> None:
            try:
                self.wrapped.delete(path)
            except FileNotFoundError:
                if not call.is_again:
                    raise

        call.run(once)

    def delete_directory(self, path: str, *, recursive: bool = False) -> None:
        self._run("deleting", path, lambda: self.wrapped.delete_directory(path, recursive=recursive))

    def make_directory(self, path: str, *, exist_ok: bool = True) -> None:
        self._run("making", path, lambda: self.wrapped.make_directory(path, exist_ok=exist_ok))

    def prepare(self, directory: str) -> None:
        self.wrapped.prepare(directory)

    def exists(self, path: str) -> bool:
        return self._run("looking for", path, lambda: self.wrapped.exists(path))

    def is_directory(self, path: str) -> bool:
        return self._run("looking for", path, lambda: self.wrapped.is_directory(path))

    def make_durable(self, path: str) -> None:
        self._run("syncing", path, lambda: self.wrapped.make_durable(path))

    def sync_directory(self, path: str) -> None:
        self._run("syncing", path, lambda: self.wrapped.sync_directory(path))

    def has_link(self, directory: str, relative: str) -> bool:
        return self.wrapped.has_link(directory, relative)

    def list_files(self, path: str) -> Iterator[FileStatus]:
        yield from self._run("listing", path, lambda: list(self.wrapped.list_files(path)))

    def read_on(self, path: str, source: BinaryIO | None, position: int, size: int) -> tuple[BinaryIO, bytes]:
        """Read on in a file that is open, opening it again where that fails.

        Parameters
        ----------
        source
            The file; None to open it.
        position
            Where in it.

        Returns
        -------
        tuple
            The file to read on in, and what was read: nothing at its end.
        """
        opened = source

        def once() -> bytes:
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

        data = self._run("reading", path, once)
        return cast(BinaryIO, opened), data

    def _run(self, what: str, path: str, once: Callable[[], _T]) -> _T:
        return self._call(what, path).run(once)

    def _call(self, what: str, path: str) -> _Call:
        return _Call(f"{what} {self.wrapped.url(path)}", self._retries)

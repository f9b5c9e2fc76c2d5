"""Files in the memory of this process."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from typing import BinaryIO

from spark_statestore.files.base import Buffer, FileOutput, FileStatus, FileSystem


class _MemoryOutput(FileOutput):
    def __init__(self, files: MemoryFileSystem, path: str) -> None:
        self._files = files
        self._path = path
        self._buffer = io.BytesIO()

    def write(self, data: Buffer) -> None:
        self._buffer.write(data)

    def close(self) -> None:
        if not self._buffer.closed:
            self._files.create(self._path, self._buffer.getvalue())
            self._buffer.close()

    def abandon(self) -> None:
        self._buffer.close()


class MemoryFileSystem(FileSystem):
    """Files in the memory of this object.

    Directories are prefixes of file names, as on an object store.
    """

    scheme = "process-memory"

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        data = self._files.get(path)
        if data is None:
            raise FileNotFoundError(path)
        return data if start == 0 and size is None else data[start : None if size is None else start + size]

    def size(self, path: str) -> int:
        if self.is_directory(path):
            raise IsADirectoryError(path)
        return len(self.read(path))

    def open_input(self, path: str) -> BinaryIO:
        return io.BytesIO(self.read(path))

    def open_output(self, path: str) -> FileOutput:
        return _MemoryOutput(self, path)

    def create(self, path: str, data: Buffer) -> None:
        with self._lock:
            if path in self._files:
                raise FileExistsError(path)
            self._files[path] = bytes(data)

    def replace(self, path: str, data: Buffer) -> None:
        with self._lock:
            self._files[path] = bytes(data)

    def delete(self, path: str) -> None:
        with self._lock:
            if self._files.pop(path, None) is None:
                raise FileNotFoundError(path)

    def delete_directory(self, path: str, *, recursive: bool = False) -> None:
        if recursive:
            for status in list(self.list_files(path)):
                self.delete(status.path)

    def make_directory(self, path: str) -> None:
        """Do nothing: directories are prefixes of file names."""

    def exists(self, path: str) -> bool:
        return path in self._files or self.is_directory(path)

    def is_directory(self, path: str) -> bool:
        return next(self.list_files(path), None) is not None

    def list_files(self, path: str) -> Iterator[FileStatus]:
        start = path.rstrip("/") + "/"
        with self._lock:
            statuses = [FileStatus(p, len(d)) for p, d in self._files.items() if p.startswith(start)]
        yield from statuses

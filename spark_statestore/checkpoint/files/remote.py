"""Every other file system, through fsspec."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from spark_statestore.checkpoint.files.base import Buffer, FileOutput, FileStatus, FileSystem

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["FsspecFileSystem"]

# Here directories are only the leading parts of names, and making one costs a request.
_OBJECT_STORES = {"s3", "gs", "gcs", "abfs", "abfss", "az", "oci", "oss", "cos", "r2"}


class _FsspecOutput(FileOutput):
    def __init__(self, fs: AbstractFileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self._file = fs.open(path, "wb")

    def write(self, data: Buffer) -> None:
        self._file.write(data)

    def flush(self) -> None:
        # fsspec's flush may force a part of an upload out early, which helps nobody.
        pass

    def sync(self) -> None:
        pass

    def close(self) -> None:
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
    """

    def __init__(self, fs: AbstractFileSystem, scheme: str) -> None:
        self._fs = fs
        self._scheme = scheme
        protocol = (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)
        self._has_directories = not _OBJECT_STORES.intersection(protocol)

    @property
    def scheme(self) -> str:
        return self._scheme

    def url(self, path: str) -> str:
        return f"{self._scheme}://{path}"

    def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        end = None if size is None else start + size
        if start == 0 and end is None:
            return cast(bytes, self._fs.cat_file(path))
        return cast(bytes, self._fs.cat_file(path, start=start, end=end))

    def open_input(self, path: str) -> BinaryIO:
        return cast(BinaryIO, self._fs.open(path, "rb"))

    def open_output(self, path: str) -> FileOutput:
        return _FsspecOutput(self._fs, path)

    def create(self, path: str, data: Buffer) -> None:
        try:
            self._fs.pipe_file(path, bytes(data), mode="create")
        except TypeError:
            # A driver from before fsspec knew modes.
            if self._fs.exists(path):
                raise FileExistsError(path) from None
            self._fs.pipe_file(path, bytes(data))

    def replace(self, path: str, data: Buffer) -> None:
        self._fs.pipe_file(path, bytes(data))

    def delete(self, path: str) -> None:
        self._fs.rm_file(path)

    def delete_directory(self, path: str, *, recursive: bool = False) -> None:
        self._fs.invalidate_cache(path)
        with contextlib.suppress(FileNotFoundError):
            if recursive:
                self._fs.rm(path, recursive=True)
            elif self._has_directories:
                self._fs.rmdir(path)

    def make_directory(self, path: str, *, exist_ok: bool = True) -> None:
        if self._has_directories:
            self._fs.makedirs(path, exist_ok=exist_ok)

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
            yield FileStatus(name, int(detail.get("size") or 0))

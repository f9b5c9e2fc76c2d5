"""A file system that shows merged files at the paths that they would have in their stores' directories."""

from __future__ import annotations

import errno
import io
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import BinaryIO, TypeVar

from spark_statestore.files.base import Buffer, FileOutput, FileStatus, FileSystem
from spark_statestore.formats.metadata import INLINE_STATE_OFFSET, attempt_id_of
from spark_statestore.storage.merged_files import MergedFiles
from spark_statestore.storage.merged_index import LogicalFile
from spark_statestore.storage.metadata_streams import require_exclusive_metadata

T = TypeVar("T")


class MergedFileSystem(FileSystem):
    """A file system with the merged files of one query.

    A merged file hides a file at the same path, of a run that did not merge. In checkpoint format v1 that is
    another attempt, which is shown as ``<path>.<attempt id>``. New files are not merged, see
    `MergedFiles.add`.
    """

    def __init__(self, files: FileSystem, merged: MergedFiles) -> None:
        self.scheme = files.scheme
        self._files = files
        self._merged = merged
        # Paths of hidden files, by the paths at which they were listed.
        self._hidden: dict[str, str] = {}

    def url(self, path: str) -> str:
        return self._files.url(path)

    def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        return self._with(
            path,
            lambda logical: self._merged.read(logical, start, size),
            lambda below: self._files.read(below, start, size),
        )

    def size(self, path: str) -> int:
        return self._with(path, lambda logical: logical.size, self._files.size)

    def open_input(self, path: str) -> BinaryIO:
        return self._with(
            path, lambda logical: io.BytesIO(self._merged.read(logical)), self._files.open_input
        )

    def locate(self, path: str) -> tuple[str, int] | None:
        return self._with(path, self._merged.locate, self._located)

    def open_output(self, path: str) -> FileOutput:
        return self._files.open_output(path)

    def create(self, path: str, data: Buffer) -> None:
        self._require_new(path)
        self._files.create(path, data)

    def create_of_parts(self, path: str, parts: Sequence[Buffer]) -> None:
        self._require_new(path)
        self._files.create_of_parts(path, parts)
        require_exclusive_metadata(self._files, path, parts)

    def replace(self, path: str, data: Buffer) -> None:
        content = bytes(data)
        attempt_id = attempt_id_of(content)
        if attempt_id is None or self._merged.find(path) is None:
            self._files.replace(path, content)
        else:
            self._merged.supersede(path, attempt_id, content)

    def delete(self, path: str) -> None:
        if not self._merged.discard(path):
            self._files.delete(self._hidden.pop(path, path))

    def delete_directory(self, path: str, *, recursive: bool = False) -> None:
        if recursive:
            for status in self._merged.list_files(path):
                self._merged.discard(status.path)
        elif self._merged.list_files(path):
            # Of another attempt at the version, in checkpoint format v1.
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        self._files.delete_directory(path, recursive=recursive)

    def make_directory(self, path: str) -> None:
        self._files.make_directory(path)

    def make_durable(self, path: str) -> None:
        self._with(path, self._make_physical_durable, self._make_durable_below)

    def sync_directory(self, path: str) -> None:
        self._files.sync_directory(path)

    def prepare(self, directory: str) -> None:
        self._files.prepare(directory)

    def exists(self, path: str) -> bool:
        return self._merged.find(path) is not None or self._files.exists(path)

    def is_directory(self, path: str) -> bool:
        return self._files.is_directory(path) or bool(self._merged.list_files(path))

    def has_link(self, directory: str, relative: str) -> bool:
        return self._files.has_link(directory, relative)

    def list_files(self, path: str) -> Iterator[FileStatus]:
        merged = {status.path: status for status in self._merged.list_files(path)}
        yield from merged.values()
        for status in self._files.list_files(path):
            if self._merged.is_physical(status.path):
                continue
            if status.path in merged:
                shown = f"{status.path}.{self._attempt_below(status.path)}"
                self._hidden[shown] = status.path
                status = replace(status, path=shown)
            if status.path not in merged:
                yield status

    def _attempt_below(self, path: str) -> str | None:
        return attempt_id_of(self._files.read(path, 0, INLINE_STATE_OFFSET))

    def _make_physical_durable(self, logical: LogicalFile) -> None:
        if (place := self._merged.locate(logical)) is None:
            raise FileNotFoundError(
                f"{self._merged.url}: {logical.path} is in no file: it was added or handed over, and is not "
                "published"
            )
        self._files.make_durable(place[0])

    def _make_durable_below(self, path: str) -> None:
        # Storage without anything to sync does not look for the file.
        if not self._files.exists(path):
            raise FileNotFoundError(self.url(path))
        self._files.make_durable(path)

    def _located(self, path: str) -> tuple[str, int] | None:
        # A missing file may be a hidden one.
        if not self._files.exists(path):
            raise FileNotFoundError(self.url(path))
        return self._files.locate(path)

    def _require_new(self, path: str) -> None:
        if self._merged.find(path) is not None:
            raise FileExistsError(self.url(path))

    def _hidden_name(self, path: str) -> str | None:
        """Return the path of the file that is shown with its attempt behind the name.

        Return None if there is none.
        """
        name, _, attempt_id = path.rpartition(".")
        if not name or self._merged.find(name) is None or self._attempt_below(name) != attempt_id:
            return None
        return name

    def _with(self, path: str, merged: Callable[[LogicalFile], T], below: Callable[[str], T]) -> T:
        """Return a function's result for the merged file at a path.

        If there is none, return the result of `below` for the path.
        """
        began = time.monotonic()
        if (logical := self._merged.find(path)) is None:
            try:
                return below(path)
            except FileNotFoundError:
                # Another process, as that of the driver, may have published it since this one listed the
                # directory.
                if (version := self._merged.version_of(path)) is not None:
                    self._merged.look_for_others(began, version)
                    logical = self._merged.find(path)
                if logical is None:
                    if (name := self._hidden_name(path)) is None:
                        self._merged.require_no_damage(path)
                        raise
                    return below(name)
        try:
            return merged(logical)
        except FileNotFoundError:
            # Another process, that of the running query, has rewritten or discarded it.
            self._merged.forget()
            if (logical := self._merged.find(path)) is None:
                raise
            return merged(logical)

"""The physical files of merged files: listed, read, created and deleted in their directory."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from spark_statestore.files.base import FileStatus, FileSystem, has_file, join
from spark_statestore.files.failures import require_no_link
from spark_statestore.files.local import LocalFileSystem
from spark_statestore.files.request_context import heartbeat
from spark_statestore.files.retry import require_exclusive_creation
from spark_statestore.formats.merged_files import (
    IndexEntry,
    MergedObject,
    PhysicalName,
    decode_index,
    encode_physical_file,
)
from spark_statestore.storage.metadata_streams import read_without_state

# Files of up to so many bytes are read whole, for the loads of many stores; bytes and seconds for which they
# are kept.
_READ_WHOLE: Final = 8 << 20
_CACHED: Final = 64 << 20
_CACHED_SECONDS: Final = 30.0


class PhysicalFiles:
    """The directory of a query's physical files, which need not exist. Thread-safe."""

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._has_directory = False
        self._created = 0
        self._contents: OrderedDict[PhysicalName, bytes] = OrderedDict()
        self._cached_until = 0.0
        self._counting = threading.Lock()
        # Held by the one thread that reads a whole file.
        self._reading = threading.Lock()

    @property
    def url(self) -> str:
        """URL of the directory."""
        return self._files.url(self._directory)

    def path(self, name: PhysicalName) -> str:
        """Return the path of a file."""
        return join(self._directory, str(name))

    def contains(self, path: str) -> bool:
        """Return True for a path in the directory."""
        return path.startswith(f"{self._directory}/")

    def list(self) -> dict[PhysicalName, FileStatus]:
        """Return the files in the directory; raise `OSError` if it is a link."""
        require_no_link(self._files, *self._directory.rsplit("/", 1))
        return {
            name: status
            for status in self._files.list_files(self._directory)
            if (name := PhysicalName.parse(status.path[len(self._directory) + 1 :])) is not None
        }

    def read_index(self, name: PhysicalName) -> Sequence[IndexEntry] | None:
        """Return the index of a file; None if another process has deleted the file."""
        heartbeat()
        path = self.path(name)
        try:
            return decode_index(read_without_state(self._files, path), self._files.url(path))
        except FileNotFoundError:
            return None

    def read(self, name: PhysicalName, size: int, start: int, length: int) -> bytes:
        """Read a part of a file of `size` bytes.

        On an object store the whole file is read, and kept for a while for other stores.
        """
        if size > _READ_WHOLE or isinstance(self._files, LocalFileSystem):
            return self._files.read(self.path(name), start, length)
        with self._reading:
            content = self._contents.get(name)
            if content is None:
                content = self._contents[name] = self._files.read(self.path(name))
                while sum(map(len, self._contents.values())) > _CACHED:
                    self._contents.popitem(last=False)
            else:
                self._contents.move_to_end(name)
            self._cached_until = time.monotonic() + _CACHED_SECONDS
        return content[start : start + length]

    def release_memory(self, *, at_once: bool = False) -> None:
        """Drop files from memory that were not read for a while; nothing while one is being read."""
        if self._reading.acquire(blocking=False):
            try:
                if at_once or time.monotonic() > self._cached_until:
                    self._contents.clear()
            finally:
                self._reading.release()

    def create(self, name: PhysicalName, objects: Sequence[MergedObject]) -> int | None:
        """Write a file and return its size; None if the name is taken."""
        encoded = encode_physical_file(secrets.token_hex(8), objects)
        if not self._has_directory:
            self._files.make_directory(self._directory)
            self._has_directory = True
        try:
            self._files.create_of_parts(self.path(name), encoded.parts)
        except FileExistsError:
            return None
        require_exclusive_creation(self._files, self.path(name), encoded.parts)
        with self._counting:
            self._created += 1
        return encoded.size

    def take_created(self) -> int:
        """Return the number of files that were written since the last call."""
        with self._counting:
            created, self._created = self._created, 0
        return created

    def delete(self, names: Iterable[PhysicalName]) -> None:
        """Delete files, missing or not."""
        heartbeat()
        self._files.delete_files([self.path(name) for name in names])

    def exists(self, name: PhysicalName) -> bool:
        """Return True if a file exists."""
        return has_file(self._files, self.path(name))

"""Merging of the metadata objects that many stores publish at once into one file, as FLIP-306 merges files of state.

A *logical file* has the path that it would have in its store's directory. Its bytes are in a *physical file*,
``_merged/<oldest version>-<newest version>-<number>`` beside the operators' directories.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
import zlib
from collections.abc import Callable, Collection, Sequence
from typing import Final

from spark_statestore.errors import CorruptCheckpointError
from spark_statestore.files.base import FileStatus, FileSystem, join
from spark_statestore.files.request_context import check_cancelled
from spark_statestore.formats.merged_files import MergedObject, PhysicalName
from spark_statestore.formats.metadata import EncodedObject
from spark_statestore.storage.merged_index import (
    UNRANKED,
    LogicalFile,
    MergedIndex,
    PhysicalFile,
    Place,
    place_of,
)
from spark_statestore.storage.physical_files import PhysicalFiles

__all__ = ["LARGEST_MERGED", "MERGED_DIRECTORY", "MergedFiles", "Supersede"]

MERGED_DIRECTORY: Final = "_merged"
"""Directory of the physical files, beside the directories of a query's operators."""

LARGEST_MERGED: Final = 1 << 20
"""Bytes up to which a metadata object is worth merging: a larger one is written while other tasks go on."""

# Bytes from which on a physical file is published before its batch ends.
_LARGE: Final = 4 << 20

# Seconds for which a listing serves the first cleanups of all stores.
_LISTED_SECONDS: Final = 10.0

# Seconds after a publication in which no other run can have taken a query over.
_OWNED_SECONDS: Final = 10.0

_logger = logging.getLogger(__name__)

Supersede = Callable[[LogicalFile, bool], None]
"""Called before a logical file without a checkpoint id is published; raises an error if Spark has committed its version.

The flag tells that another attempt at the version is known.
"""


class MergedFiles:
    """The merged files of one query, as one run of the query in this process sees them.

    The directory is listed once, at the first use, since the run adds all later files itself. An index is read when a
    version is looked for that the file's name covers, or with all others for a listing. Thread-safe.

    Parameters
    ----------
    files
        The file system.
    state_directory
        The query's state directory there.
    """

    def __init__(self, files: FileSystem, state_directory: str) -> None:
        self._state = state_directory.rstrip("/")
        self._files = PhysicalFiles(files, join(self._state, MERGED_DIRECTORY))
        # Guards what follows up to the next lock, and is not held during calls of the storage.
        self._lock = threading.Lock()
        # Replaced as a whole: a thread works on with the one that it began with.
        self._index = MergedIndex()
        self._published: set[str] = set()
        self._owned_until = 0.0
        # The newest version that this run has published.
        self._newest = 0
        self._listed_until = 0.0
        # Held by the one thread that reads the directory or indexes.
        self._reading = threading.Lock()
        self._sweeping = threading.Lock()

    @property
    def url(self) -> str:
        """URL of the directory of the physical files."""
        return self._files.url

    # Looking up.

    def find(self, path: str) -> LogicalFile | None:
        """Return the logical file at a path, None if there is none.

        ``<path>.<attempt id>`` is the one of an attempt, which another one may have superseded.

        Raises
        ------
        OSError
            If the directory or an index cannot be read.
        UnsupportedFormatError
            If an index is of a newer release.
        CorruptCheckpointError
            If a damaged file may have a later attempt at a version without an id.
        """
        if (place := self._place_of(path)) is None:
            return None
        store, checkpoint, attempt_id = place
        index = self._with_indexes(checkpoint.version)
        with self._lock:
            found = index.find(store, checkpoint, attempt_id)
            if checkpoint.id is None and (error := index.damage(checkpoint, found)) is not None:
                raise error
            return found

    def require_no_damage(self, path: str) -> None:
        """Raise unless all files that may contain a missing path could be read.

        Raises
        ------
        CorruptCheckpointError
            If one is damaged.
        """
        if (place := self._place_of(path)) is not None:
            index = self._with_indexes(place[1].version)
            with self._lock:
                if (error := index.damage(place[1], None)) is not None:
                    raise error

    def damaged_files(self) -> list[CorruptCheckpointError]:
        """Return the errors of the files that cannot be read.

        Raises
        ------
        OSError, UnsupportedFormatError
            See `find`.
        """
        index = self._with_indexes(None)
        with self._lock:
            return list(index.damaged.values())

    def list_files(self, directory: str) -> list[FileStatus]:
        """Return all logical files below a directory, with the modification times of their physical files.

        Those of a damaged file are left out, with a warning.

        Raises
        ------
        OSError, UnsupportedFormatError
            See `find`.
        """
        index = self._with_indexes(None)
        directory = directory.rstrip("/")
        if directory != self._state and not directory.startswith(f"{self._state}/"):
            return []
        with self._lock:
            return [
                FileStatus(join(self._state, path), one.size, one.physical.modified)
                for path, one in index.below(directory[len(self._state) + 1 :])
            ]

    def read(self, logical: LogicalFile, start: int = 0, size: int | None = None) -> bytes:
        """Read a logical file: all of it, or `size` bytes from `start`.

        Raises
        ------
        OSError
            If the physical file cannot be read.
        """
        end = logical.size if size is None else min(logical.size, start + size)
        while True:
            with self._lock:
                physical, offset, data = logical.physical, logical.start, logical.data
            if data is not None or physical.name is None:
                return (data or b"")[start:end]
            try:
                return self._files.read(physical.name, physical.size, offset + start, max(0, end - start))
            except FileNotFoundError:
                with self._lock:
                    if logical.physical is physical:
                        raise
                # It was rewritten meanwhile.

    def locate(self, logical: LogicalFile) -> tuple[str, int] | None:
        """Return the path of the physical file and the offset in it; None while it is not published."""
        with self._lock:
            name = logical.physical.name
            return None if name is None else (self._files.path(name), logical.start)

    def is_newest(self, logical: LogicalFile) -> bool:
        """Return True unless another run has published the same version since; the storage is asked.

        Raises
        ------
        OSError
            If the storage cannot be read.
        """
        with self._lock:
            if (name := logical.physical.name) is None:
                return True
            numbers = itertools.count(name.number + 1)
            following = (PhysicalName(name.oldest, name.newest, number) for number in numbers)
            unknown = next(one for one in following if one not in self._index.physical)
        return not self._files.exists(unknown) and self._files.exists(name)

    # Writing.

    def add(self, path: str, attempt_id: str, encoded: EncodedObject, supersede: Supersede) -> None:
        """Add a version's metadata to the next physical file, which is published early once it is large.

        Raises
        ------
        OSError, StateStoreError
            If it cannot be published, see `publish`.
        ValueError
            If the path is not that of metadata below the state directory.
        """
        place = self._place_of(path)
        if place is None or place[2] is not None:
            raise ValueError(f"{path!r} is not the path of a version's metadata below {self._state!r}")
        store, checkpoint, _ = place
        full = None
        with self._lock:
            index = self._index
            pending = index.pending
            # A repeated request, whose answer was lost, counts once.
            old = index.find(store, checkpoint, attempt_id)
            if old is not None and old.physical is pending:
                index.remove(old)
            data = bytes(encoded)
            index.insert(LogicalFile(store, checkpoint, attempt_id, UNRANKED, len(data), pending, data=data))
            pending.size += len(data)
            if pending.size >= _LARGE:
                full = index.take_pending()
        if full is not None:
            self._publish(index, full, supersede)

    def publish(self, attempts: Collection[str], supersede: Supersede) -> tuple[list[str], int]:
        """Publish what was added and is not published yet.

        Parameters
        ----------
        attempts
            The attempts of the batch.
        supersede
            See `Supersede`.

        Returns
        -------
        missing : list of str
            The attempts that were not added since the last call: another backend had them.
        size : int
            Bytes written by this call.

        Raises
        ------
        OSError, StateStoreError
            If it cannot be written, or `supersede` refuses it; none of it exists then.
        """
        with self._lock:
            index = self._index
            pending = index.take_pending()
        self._files.release_memory()
        if pending.live:
            self._publish(index, pending, supersede)
        with self._lock:
            missing = [attempt for attempt in attempts if attempt not in self._published]
            self._published.clear()
        return missing, pending.size

    def supersede(self, path: str, attempt_id: str, data: bytes) -> None:
        """Publish metadata that supersedes a logical file, in a physical file of its own.

        Raises
        ------
        OSError, StateStoreError
            See `publish`.
        """
        if (present := self.find(path)) is None:
            raise FileNotFoundError(path)
        pending = PhysicalFile()
        one = LogicalFile(
            present.store, present.checkpoint, attempt_id, UNRANKED, len(data), pending, data=data
        )
        with self._lock:
            index = self._index
            index.insert(one)
        self._publish(index, pending, lambda *_: None)

    def physical_files(self) -> list[tuple[FileStatus, list[str]]]:
        """Return the physical files, each with the paths of its logical files.

        Raises
        ------
        OSError, CorruptCheckpointError, UnsupportedFormatError
            See `find`.
        """
        index = self._with_indexes(None)
        with self._lock:
            paths = {one: join(self._state, path) for path, one in index.below("")}
            return [
                (FileStatus(self._files.path(name), one.size, one.modified), [paths[of] for of in one.live])
                for name, one in index.physical.items()
            ]

    def is_empty(self) -> bool:
        """Return True if there are no merged files; see `find` for errors."""
        return not self._with_indexes(None).physical

    def look_for_others(self) -> None:
        """List the directory again, unless that was done a moment ago, for files of concurrent runs; see `find` for errors."""
        index = self._with_indexes(None)
        with self._lock:
            is_recent = time.monotonic() < self._listed_until
            self._listed_until = max(self._listed_until, time.monotonic() + _LISTED_SECONDS)
        if not is_recent:
            self._read_directory(index)

    def is_physical(self, path: str) -> bool:
        """Return True for the path of a physical file."""
        return self._files.contains(path)

    def discard(self, path: str) -> bool:
        """Discard a logical file; `sweep` deletes its physical file once all in it are discarded. False if there is none.

        It is not recorded: a later run finds what was discarded again in the physical files that remain.

        Raises
        ------
        OSError, CorruptCheckpointError, UnsupportedFormatError
            See `find`.
        """
        if (place := self._place_of(path)) is None:
            return False
        index = self._with_indexes(place[1].version)
        with self._lock:
            if (logical := index.find(*place)) is None:
                return False
            index.remove(logical)
        return True

    def has_garbage(self) -> bool:
        """Return True if there is something to `sweep`."""
        with self._lock:
            return bool(self._index.empty() or self._index.sparse(self._newest))

    def sweep(self) -> None:
        """Delete physical files whose logical files are discarded, and rewrite those with few others.

        To be called after a publication: a run that has ended must delete nothing, since its query may have been rolled back to
        a version that it discarded.

        Raises
        ------
        OSError
            If files cannot be read or written. No logical file that is not discarded is lost.
        """
        if not self._sweeping.acquire(blocking=False):
            return
        try:
            with self._lock:
                index = self._index
                empty = index.empty()
                sparse = index.sparse(self._newest)
            self._delete(index, empty)
            if sparse:
                self._rewrite(index, sparse)
        finally:
            self._sweeping.release()

    def forget(self) -> None:
        """Forget what is published, which frees memory: the directory is listed again at the next use."""
        with self._lock:
            self._index = MergedIndex(self._index.pending)
            self._owned_until = 0.0
        self._files.release_memory(at_once=True)

    def _publish(self, index: MergedIndex, pending: PhysicalFile, supersede: Supersede) -> None:
        try:
            is_known = False
            while True:
                with self._lock:
                    objects = list(pending.live)
                    is_owned = time.monotonic() < self._owned_until
                versions = {one.checkpoint.version for one in objects}
                for version in versions:
                    self._read_indexes(index, version)
                with self._lock:
                    is_known = index.rank(objects) or bool(index.damaged) or is_known
                    name = index.next_name(versions)
                unnamed = next((one for one in objects if one.checkpoint.id is None), None)
                if unnamed is not None and (is_known or not is_owned):
                    supersede(unnamed, is_known)
                check_cancelled()
                if (size := self._create(name, objects)) is not None:
                    break
                # By another run, or by this one: the storage's answer was lost.
                is_known = True
                with self._lock:
                    for one in objects:
                        one.rank = UNRANKED
                self._read_directory(index)
        except BaseException:
            with self._lock:
                for one in list(pending.live):
                    index.remove(one)
            raise
        with self._lock:
            index.place(pending, name, size, objects)
            self._published.update(one.attempt_id for one in objects)
            self._owned_until = time.monotonic() + _OWNED_SECONDS
            self._newest = max(self._newest, *versions)

    def _rewrite(self, index: MergedIndex, sparse: Sequence[PhysicalFile]) -> None:
        """Copy the logical files that are left in physical files into a new one, then delete those."""
        with self._lock:
            objects = [one for physical in sparse for one in physical.live]
            name = index.next_name({one.checkpoint.version for one in objects}) if objects else None
        if name is not None:
            if (size := self._create(name, objects)) is None:
                # Another run does the same.
                self.forget()
                return
            with self._lock:
                index.place(PhysicalFile(), name, size, objects)
        with self._lock:
            empty = [one for one in index.empty() if one in sparse]
        self._delete(index, empty)

    def _create(self, name: PhysicalName, objects: Sequence[LogicalFile]) -> int | None:
        """Write a physical file and return its size; None if the name is taken."""
        merged = []
        for one in objects:
            data = self.read(one)
            merged.append(MergedObject(one.path, one.attempt_id, one.rank, data, zlib.crc32(data)))
        return self._files.create(name, merged)

    def _delete(self, index: MergedIndex, files: Sequence[PhysicalFile]) -> None:
        names = [one.name for one in files if one.name is not None]
        if names:
            self._files.delete(names)
            with self._lock:
                for name in names:
                    index.physical.pop(name, None)

    # Reading.

    def _with_indexes(self, version: int | None) -> MergedIndex:
        """Return the index, after reading the files that may contain a version, or all."""
        with self._lock:
            index = self._index
        self._read_indexes(index, version)
        return index

    def _read_indexes(self, index: MergedIndex, version: int | None) -> None:
        if index.unread is not None and not index.unread:
            return
        with self._reading:
            if index.unread is None:
                index.unread = self._files.list()
            for name in [name for name in index.unread if version is None or name.covers(version)]:
                self._read_index(index, name, index.unread[name])
                with self._lock:
                    del index.unread[name]

    def _read_directory(self, index: MergedIndex) -> None:
        """List the directory again, for the files that another run has added."""
        with self._reading:
            listed = self._files.list()
            with self._lock:
                index.unread = {
                    name: status
                    for name, status in listed.items()
                    if name not in index.physical and name not in index.damaged
                }

    def _read_index(self, index: MergedIndex, name: PhysicalName, status: FileStatus) -> None:
        try:
            entries = self._files.read_index(name)
        except CorruptCheckpointError as error:
            # An attempt whose machine lost power may have left a part of it. Reading a version that may be in it is an error.
            _logger.warning("the versions in a file of a batch are not found: %s", error)
            with self._lock:
                index.damaged[name] = error
            return
        if entries is None:
            return
        with self._lock:
            index.take_up(name, status, entries)

    def _place_of(self, path: str) -> Place | None:
        start = f"{self._state}/"
        return place_of(path[len(start) :]) if path.startswith(start) else None

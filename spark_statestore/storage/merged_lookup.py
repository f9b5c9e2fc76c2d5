"""Lookup of merged files: which physical file has a version's metadata, and its bytes."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from spark_statestore.errors import CorruptCheckpointError
from spark_statestore.files.base import FileStatus, FileSystem, join
from spark_statestore.formats.merged_files import IndexEntry, PhysicalName
from spark_statestore.storage.merged_index import LogicalFile, MergedIndex, Place, place_of
from spark_statestore.storage.physical_files import PhysicalFiles

MERGED_DIRECTORY: Final = "_merged"
"""Directory of the physical files, beside the directories of a query's operators."""

# Listings of a directory in which files are deleted meanwhile.
_TRIES: Final = 5

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MergedUsage:
    """Number and size of a query's merged files, and of the logical files in them that are not discarded.

    Files whose index was not read yet are without their logical files.
    """

    physical_files: int
    storage_bytes: int
    logical_files: int
    live_bytes: int


class MergedLookup:
    """The merged files of one query, found and read below its state directory.

    The directory is listed at the first use. An index is read when a version is looked for that the file's
    name covers, or with all others for a listing. Thread-safe.

    What reads raises `OSError` if the storage fails, and `UnsupportedFormatError` if an index is of a newer
    release.
    """

    def __init__(self, files: FileSystem, state_directory: str) -> None:
        self._state = state_directory.rstrip("/")
        self._files = PhysicalFiles(files, join(self._state, MERGED_DIRECTORY))
        # Guards the index, and is not held during calls of the storage.
        self._lock = threading.Lock()
        # Replaced as a whole: a thread works on with the one that it began with.
        self._index = MergedIndex()
        # The newest version that is known to be committed, and when it was known, as a time of
        # `time.monotonic`.
        self._committed = (0, -math.inf)
        # Held by the one thread that reads the directory or indexes.
        self._reading = threading.Lock()

    @property
    def url(self) -> str:
        """URL of the directory of the physical files."""
        return self._files.url

    def find(self, path: str) -> LogicalFile | None:
        """Return the logical file at a path, None if there is none.

        ``<path>.<attempt id>`` is the one of an attempt, which another one may have superseded.

        Raises
        ------
        CorruptCheckpointError
            If a damaged file may have a later attempt at a version without an id.
        """
        if (place := self._place_of(path)) is None:
            return None
        began = time.monotonic()
        logical, error = self._find(place)
        if error is not None:
            # Another process may have published the version again since the directory was listed.
            self.look_for_others(began, place[1].version)
            logical, error = self._find(place)
        if error is not None:
            raise may_be_in(place, error) from error
        return logical

    def _find(self, place: Place) -> tuple[LogicalFile | None, CorruptCheckpointError | None]:
        index = self._with_indexes(place[1].version)
        with self._lock:
            logical = index.find(*place)
            return logical, None if place[1].id is not None else index.damage(place[1], logical)

    def require_no_damage(self, path: str) -> None:
        """Raise `CorruptCheckpointError` if a damaged file may contain a missing path."""
        if (place := self._place_of(path)) is not None:
            index = self._with_indexes(place[1].version)
            with self._lock:
                if (error := index.damage(place[1], None)) is not None:
                    raise may_be_in(place, error) from error

    def is_in_doubt(self, path: str) -> bool:
        """Return True if a damaged file may have another attempt at a version without a checkpoint id.

        A file of the store's own would not count beside it.
        """
        if (place := self._place_of(path)) is None or place[1].id is not None:
            return False
        index = self._with_indexes(place[1].version)
        with self._lock:
            return index.damage(place[1], None) is not None

    def damage_in(self, versions: range, also: Collection[int] = ()) -> CorruptCheckpointError | None:
        """Return the error of a damaged file that may have one of some versions; None without such a file.

        Such a file is read again first: it may have been restored.
        """
        index = self._with_indexes(None)
        if self._damage_in(index, versions, also) is None:
            return None
        self._read_directory(index)
        self._read_indexes(index, None)
        return self._damage_in(index, versions, also)

    def damaged_files(self) -> list[CorruptCheckpointError]:
        """Return the errors of the files that cannot be read."""
        index = self._with_indexes(None)
        with self._lock:
            return list(index.damaged.values())

    def list_files(self, directory: str) -> list[FileStatus]:
        """Return all logical files below a directory, with the modification times of their physical files.

        Those of a damaged file are left out, with a warning: see `damage_in` before files are deleted.
        """
        index = self._with_indexes(None)
        directory = directory.rstrip("/")
        if directory != self._state and not directory.startswith(f"{self._state}/"):
            return []
        with self._lock:
            return [
                FileStatus(join(self._state, path), logical.size, logical.physical.modified)
                for path, logical in index.below(directory[len(self._state) + 1 :])
            ]

    def read(self, logical: LogicalFile, start: int = 0, size: int | None = None) -> bytes:
        """Read a logical file: all of it, or `size` bytes from `start`.

        Raise `OSError` if another process has not published it.
        """
        end = logical.size if size is None else min(logical.size, start + size)
        while True:
            with self._lock:
                physical, offset, data = logical.physical, logical.start, logical.data
                is_elsewhere = physical is self._index.elsewhere
            if is_elsewhere:
                logical = self._published_elsewhere(logical)
                continue
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
        """Return True unless another run has published the same version since; the storage is asked."""
        with self._lock:
            if (name := logical.physical.name) is None:
                return True
            numbers = itertools.count(name.number + 1)
            following = (PhysicalName(name.oldest, name.newest, number) for number in numbers)
            unknown = next(name_after for name_after in following if name_after not in self._index.physical)
        if not name.is_copy and self._files.exists(unknown):
            # No run publishes again what is copied, since it is committed.
            return False
        return self._files.exists(name)

    def names_of(self, version: int) -> frozenset[PhysicalName]:
        """Return the physical files that may have a version, as the storage lists them now."""
        self.look_for_others(time.monotonic(), version)
        index = self._with_indexes(version)
        with self._lock:
            return frozenset(name for name in (*index.physical, *index.damaged) if name.covers(version))

    def physical_files(self) -> list[tuple[FileStatus, list[str]]]:
        """Return the physical files, each with the paths of its logical files."""
        index = self._with_indexes(None)
        with self._lock:
            paths = {logical: join(self._state, path) for path, logical in index.below("")}
            return [
                (
                    FileStatus(self._files.path(name), physical.size, physical.modified),
                    [paths[logical] for logical in physical.live],
                )
                for name, physical in index.physical.items()
            ]

    def publication_times(self, versions: Collection[int]) -> dict[int, float]:
        """Return when versions were published, in seconds since 1970.

        The times are as exact as the storage's modification times. A version that is not merged, whose
        physical file was rewritten since, or whose time is not known, is left out.
        """
        times: dict[int, float] = {}
        for version in versions:
            index = self._with_indexes(version)
            with self._lock:
                for name, physical in index.physical.items():
                    if name.is_copy or physical.modified is None or not name.covers(version):
                        continue
                    if any(logical.checkpoint.version == version for logical in physical.live):
                        times[version] = max(times.get(version, 0.0), physical.modified)
        return times

    def usage(self) -> MergedUsage:
        """Return what is known of number and size, without a call of the storage."""
        with self._lock:
            index = self._index
            indexed_files = index.physical.values()
            unread = index.unread or {}
            return MergedUsage(
                len(indexed_files) + len(unread.keys() | index.damaged.keys()),
                sum(file.size for file in indexed_files) + sum(file.size for file in unread.values()),
                sum(len(file.live) for file in indexed_files),
                sum(file.live_bytes for file in indexed_files),
            )

    def take_created(self) -> int:
        """Return the number of physical files that were written here since the last call."""
        return self._files.take_created()

    def is_empty(self) -> bool:
        """Return True if there are no merged files."""
        return not self._with_indexes(None).physical

    def committed_at(self, version: int) -> float:
        """Return a time of `time.monotonic` at which a version was known to be committed.

        It is the same for all stores.
        """
        with self._lock:
            if version > self._committed[0]:
                self._committed = version, time.monotonic()
            return self._committed[1]

    def look_for_others(self, since: float, version: int | None = None) -> None:
        """Find what other processes had published at a time of `time.monotonic`, of one version or all.

        One listing serves many stores. What was discarded here stays so.
        """
        index = self._with_indexes(version)
        if index.listed_at <= since:
            self._read_directory(index, since)
            self._read_indexes(index, version)

    def is_physical(self, path: str) -> bool:
        """Return True for the path of a physical file."""
        return self._files.contains(path)

    def forget(self) -> None:
        """Forget what is published, which frees memory: the directory is listed again at the next use.

        What was discarded and is not deleted is found again.
        """
        with self._lock:
            if self._index.listed_at <= time.monotonic():
                self._index = MergedIndex(self._index)
        self._files.release_memory(at_once=True)

    def _published_elsewhere(self, logical: LogicalFile) -> LogicalFile:
        """Return the place of a file that another process has published."""
        version = logical.checkpoint.version
        self.look_for_others(time.monotonic(), version)
        index = self._with_indexes(version)
        with self._lock:
            published = index.find(logical.store, logical.checkpoint, logical.attempt_id)
        if published is None or published.physical is index.elsewhere:
            raise FileNotFoundError(f"{self.url}: no file has {logical.path}, which was handed over")
        return published

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
                self._list(index)
            for _ in range(_TRIES):
                unread = index.unread or {}
                names = [name for name in unread if version is None or name.covers(version)]
                vanished = [name for name in names if not self._read_index(index, name, unread[name])]
                if not vanished:
                    return
                # Another process has deleted them, and copied what is not discarded to files that are not in
                # this listing.
                self._list(index)
        raise OSError(
            f"{self.url}: {vanished[0]} is listed and cannot be found: the files change while they are read, "
            "or the listings of this storage are outdated. Try again; nothing was changed."
        )

    def _damage_in(
        self, index: MergedIndex, versions: range, also: Collection[int]
    ) -> CorruptCheckpointError | None:
        with self._lock:
            for name, error in sorted(index.damaged.items()):
                covers_any = name.oldest < versions.stop and name.newest >= versions.start
                if covers_any or any(map(name.covers, also)):
                    return error
            return None

    def _read_directory(self, index: MergedIndex, since: float = math.inf) -> None:
        """List the directory again, for the files that another run has added.

        Do nothing if another thread did it since a time.
        """
        with self._reading:
            if index.listed_at <= since:
                self._list(index)

    def _list(self, index: MergedIndex) -> None:
        """List the directory, by the thread that reads: what is not known is read at the next use."""
        began = time.monotonic()
        with self._lock:
            # Before the listing, so that `forget` drops one which begins too early.
            index.listed_at = min(index.listed_at, began)
            names = list(index.physical)
        listed = self._files.list()
        with self._lock:
            for name in names:
                if name not in listed:
                    # Another process has deleted it.
                    index.drop(name)
            index.unread = {name: status for name, status in listed.items() if name not in index.physical}
            for name in index.damaged.keys() - listed.keys():
                del index.damaged[name]
            index.listed_at = began

    def _read_index(self, index: MergedIndex, name: PhysicalName, status: FileStatus) -> bool:
        """Read the index of a file; return False if the file does not exist any more."""
        damage = None
        entries: Sequence[IndexEntry] | None = ()
        try:
            entries = self._files.read_index(name)
        except CorruptCheckpointError as error:
            # An attempt whose machine lost power may have left a part of it. Reading a version that may be in
            # it is an error.
            _logger.warning("the versions in a file of a batch are not found: %s", error)
            damage = error
        if entries is None:
            return False
        with self._lock:
            if damage is not None:
                index.damaged[name] = damage
            else:
                index.damaged.pop(name, None)
                index.take_up(name, status, entries)
            if index.unread is not None:
                del index.unread[name]
        return True

    def version_of(self, path: str) -> int | None:
        """Return the version at the path of a metadata file; None for every other path."""
        return None if (place := self._place_of(path)) is None else place[1].version

    def _place_of(self, path: str) -> Place | None:
        start = f"{self._state}/"
        return place_of(path[len(start) :]) if path.startswith(start) else None


def may_be_in(place: Place, error: CorruptCheckpointError) -> CorruptCheckpointError:
    """Return the error for a version that may be in a damaged file."""
    store, checkpoint, _ = place
    # The store's name is left out where it is the default.
    where = ", ".join(map(" ".join, zip(("operator", "partition", "store"), store.split("/"), strict=False)))
    return CorruptCheckpointError(f"{checkpoint} of {where} may be in a damaged file of a batch: {error}")

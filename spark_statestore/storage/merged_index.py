"""The index of merged files in memory: which physical file has a version's metadata. No I/O, and no lock of its own."""

from __future__ import annotations

import bisect
import itertools
import math
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from spark_statestore.errors import CorruptCheckpointError
from spark_statestore.files.base import FileStatus
from spark_statestore.formats.merged_files import IndexEntry, PhysicalName
from spark_statestore.formats.metadata import INLINE_STATE_OFFSET
from spark_statestore.storage.checkpoint_storage import METADATA_FILE_NAME, CheckpointName

UNRANKED: Final = sys.maxsize
"""Rank of a logical file whose physical file is not published."""

# Bytes of discarded files that are not worth a rewrite, and bytes that are rewritten at once.
_LITTLE: Final = 1 << 20
_REWRITTEN: Final = 4 << 20


@dataclass(eq=False, slots=True)
class PhysicalFile:
    """A file with the metadata objects of many stores.

    Attributes
    ----------
    name
        Its name; None until it is published.
    size
        Size in bytes.
    modified
        Time of its publication in seconds since 1970, None if unknown.
    live
        The logical files that are not discarded, in order.
    live_bytes
        Their size.
    supersedes
        Files with attempts that attempts in this one supersede. It is deleted after them: they would count again.
    """

    name: PhysicalName | None = None
    size: int = 0
    modified: float | None = None
    live: dict[LogicalFile, None] = field(default_factory=dict)
    live_bytes: int = 0
    supersedes: set[PhysicalFile] = field(default_factory=set)

    def take(self, one: LogicalFile) -> None:
        """Add a logical file to those that are not discarded."""
        self.live[one] = None
        self.live_bytes += one.size

    def drop(self, one: LogicalFile) -> None:
        """Remove a logical file from those that are not discarded."""
        del self.live[one]
        self.live_bytes -= one.size


@dataclass(eq=False, slots=True)
class LogicalFile:
    """A metadata object inside a physical file.

    Attributes
    ----------
    store
        The store's directory below the state directory.
    checkpoint
        Its version.
    attempt_id
        The attempt that wrote it.
    rank
        Its place among the attempts at the same path: the highest one counts.
    size
        Size in bytes.
    physical, start
        The physical file, and the offset in it.
    data
        The bytes until the physical file is published.
    """

    store: str
    checkpoint: CheckpointName
    attempt_id: str
    rank: int
    size: int
    physical: PhysicalFile
    start: int = 0
    data: bytes | None = None

    @property
    def path(self) -> str:
        """Path below the state directory."""
        return f"{self.store}/{self.checkpoint.directory}/{METADATA_FILE_NAME}"


Place = tuple[str, CheckpointName, str | None]
"""The store, the version and the attempt that a path names."""


def place_of(path: str) -> Place | None:
    """Return what a path below the state directory names; None if it is not of a version's metadata."""
    store, _, name = path.rpartition("/chk-")
    directory, _, file = name.partition("/")
    checkpoint = CheckpointName.parse(f"chk-{directory}") if store else None
    if checkpoint is None or not file.startswith(METADATA_FILE_NAME):
        return None
    suffix = file[len(METADATA_FILE_NAME) :]
    if suffix and not suffix.startswith("."):
        return None
    return store, checkpoint, suffix[1:] or None


def _order_of(one: LogicalFile) -> tuple[int, str]:
    # Two runs that do not know of each other give the same rank; every run must prefer the same attempt.
    return one.rank, "" if one.rank == UNRANKED else one.attempt_id


class MergedIndex:
    """The logical files of one query, by store and version, and their physical files.

    Attributes
    ----------
    physical
        The published files whose index was read.
    unread
        Other files of the directory; None before it was listed.
    listed_at
        Time of `time.monotonic` at which the listing began; infinite before.
    damaged
        Files whose index cannot be read, with the errors.
    pending
        The file that is published next.
    elsewhere
        Stands for the files in which another process publishes what was handed over.

    Parameters
    ----------
    before
        An index whose files that are not known to be published are taken over.
    """

    def __init__(self, before: MergedIndex | None = None) -> None:
        self._stores: dict[str, dict[CheckpointName, list[LogicalFile]]] = {}
        # By directory: the stores whose directory is that, or below.
        self._below: dict[str, list[str]] = {}
        self.physical: dict[PhysicalName, PhysicalFile] = {}
        self.unread: dict[PhysicalName, FileStatus] | None = None
        self.listed_at = math.inf
        self.damaged: dict[PhysicalName, CorruptCheckpointError] = {}
        self.pending: PhysicalFile = PhysicalFile() if before is None else before.pending
        self.elsewhere: PhysicalFile = PhysicalFile() if before is None else before.elsewhere
        for one in (*self.pending.live, *self.elsewhere.live):
            self._found(one).append(one)

    def find(
        self, store: str, checkpoint: CheckpointName, attempt_id: str | None = None
    ) -> LogicalFile | None:
        """Return the logical file that counts for a version, or that of one attempt; None if there is none."""
        found = self._stores.get(store, {}).get(checkpoint, ())
        return next((one for one in reversed(found) if attempt_id in (None, one.attempt_id)), None)

    def unpublished(self, store: str, checkpoint: CheckpointName) -> list[LogicalFile]:
        """Return the attempts at a version whose physical file is not known to exist."""
        found = self._stores.get(store, {}).get(checkpoint, ())
        return [one for one in found if one.physical.name is None]

    def damage(self, checkpoint: CheckpointName, found: LogicalFile | None) -> CorruptCheckpointError | None:
        """Return the error of a file that may have a version, or without ids a later attempt at it than the one found."""
        other = None if found is None else found.physical.name
        for name, error in self.damaged.items():
            # What is copied is committed, so that no attempt followed it. While a copy is written, the originals are there.
            is_older = other is not None and (
                other.is_copy
                or name.is_copy
                or ((name.oldest, name.newest) == (other.oldest, other.newest) and name.number < other.number)
            )
            if name.covers(checkpoint.version) and (
                found is None or (checkpoint.id is None and not is_older)
            ):
                return error
        return None

    def below(self, directory: str) -> Iterator[tuple[str, LogicalFile]]:
        """Yield the logical files below a directory of the state directory, with their paths there.

        The path of a superseded one ends with its attempt.
        """
        if (place := place_of(f"{directory}/{METADATA_FILE_NAME}")) is not None:
            groups: Iterable[list[LogicalFile]] = [self._stores.get(place[0], {}).get(place[1], [])]
        else:
            stores = self._below.get(directory, ())
            groups = (found for store in stores for found in self._stores[store].values())
        for found in groups:
            for one in found:
                yield one.path if one is found[-1] else f"{one.path}.{one.attempt_id}", one

    def insert(self, one: LogicalFile) -> None:
        """Add a logical file after those of a lower or the same rank."""
        found = self._found(one)
        bisect.insort(found, one, key=_order_of)
        self._order(found)
        one.physical.take(one)

    def take_up(self, name: PhysicalName, status: FileStatus, entries: Iterable[IndexEntry]) -> None:
        """Add a physical file of another run, or of an earlier one, with the logical files in its index."""
        physical = self.physical[name] = PhysicalFile(name, status.size, status.modified)
        for entry in entries:
            place = place_of(entry.path)
            assert place is not None  # noqa: S101 - decode_index has checked the path
            store, checkpoint, _ = place
            copy = self.find(store, checkpoint, entry.attempt_id)
            # A rewrite, or a publication whose answer was lost, leaves two copies: every run prefers the same one.
            if copy is not None and copy.physical is not self.elsewhere:
                other = copy.physical.name
                if other is None or other > name:
                    continue
            if copy is not None:
                self.remove(copy)
            self.insert(
                LogicalFile(
                    store, checkpoint, entry.attempt_id, entry.rank, entry.size, physical, entry.start
                )
            )

    def remove(self, one: LogicalFile) -> None:
        """Remove a logical file, unless it was removed before."""
        if one not in one.physical.live:
            return
        one.physical.drop(one)
        checkpoints = self._stores[one.store]
        checkpoints[one.checkpoint].remove(one)
        if not checkpoints[one.checkpoint]:
            del checkpoints[one.checkpoint]

    def drop(self, name: PhysicalName) -> None:
        """Remove a physical file that does not exist any more, with the logical files in it."""
        if (physical := self.physical.pop(name, None)) is not None:
            for one in list(physical.live):
                self.remove(one)

    def rank(self, objects: Iterable[LogicalFile]) -> bool:
        """Rank new files after those at their paths; return True if another attempt is published at one of them."""
        is_known = False
        for one in objects:
            found = self._stores[one.store][one.checkpoint]
            before = found[: found.index(one)]
            is_known = is_known or any(other.data is None for other in before)
            one.rank = before[-1].rank + 1 if before else 0
        return is_known

    @staticmethod
    def _order(found: Sequence[LogicalFile]) -> None:
        for before, after in itertools.pairwise(found):
            if before.physical is not after.physical:
                after.physical.supersedes.add(before.physical)

    def _found(self, one: LogicalFile) -> list[LogicalFile]:
        checkpoints = self._stores.get(one.store)
        if checkpoints is None:
            checkpoints = self._stores[one.store] = {}
            directory = one.store
            while directory:
                self._below.setdefault(directory, []).append(one.store)
                directory = directory.rpartition("/")[0]
            self._below.setdefault("", []).append(one.store)
        return checkpoints.setdefault(one.checkpoint, [])

    def take_pending(self) -> PhysicalFile:
        """Return the file that is published next, and begin another one."""
        taken, self.pending = self.pending, PhysicalFile()
        return taken

    def next_name(self, versions: Collection[int], *, is_copy: bool = False) -> PhysicalName:
        """Return the next free name of a physical file with these versions."""
        oldest, newest = min(versions), max(versions)
        known = [*self.physical, *self.damaged, *(self.unread or ())]
        numbers = [name.number for name in known if (name.oldest, name.newest) == (oldest, newest)]
        return PhysicalName(oldest, newest, max(numbers, default=-1) + 1, is_copy)

    def place(
        self, physical: PhysicalFile, name: PhysicalName, size: int, objects: Iterable[LogicalFile]
    ) -> None:
        """Record that a physical file was published with logical files, which may be in others until now."""
        physical.name, physical.size, physical.modified = name, size, time.time()
        self.physical[name] = physical
        start = INLINE_STATE_OFFSET
        for one in objects:
            # Another thread may have discarded it.
            if one in one.physical.live:
                one.physical.drop(one)
                physical.take(one)
                one.physical, one.start, one.data = physical, start, None
                found = self._found(one)
                self._order(found)
                # A repeated request, whose answer was lost, leaves a copy.
                for copy in [
                    other for other in found if other.attempt_id == one.attempt_id and other is not one
                ]:
                    self.remove(copy)
            start += one.size

    def empty(self) -> list[PhysicalFile]:
        """Return the files to delete: all in them is discarded."""
        empty: list[PhysicalFile] = []
        for one in self.physical.values():
            others = (other for other in one.supersedes if other.name in self.physical)
            if not one.live and all(other in empty for other in others):
                empty.append(one)
        return empty

    def sparse(self, version: int) -> list[PhysicalFile]:
        """Return the files to rewrite, so that all together take at most about twice the bytes that are not discarded.

        Parameters
        ----------
        version
            The version of the batch: what may not be committed yet stays where it is.
        """
        live = sum(one.live_bytes for one in self.physical.values())
        unused = sum(one.size for one in self.physical.values()) - live
        if unused <= live + _LITTLE:
            return []
        chosen = []
        most = _REWRITTEN
        old = [one for name, one in self.physical.items() if name.newest < version]
        for one in sorted(old, key=lambda one: one.live_bytes / max(1, one.size)):
            if unused <= live or one.live_bytes > most:
                break
            chosen.append(one)
            most -= one.live_bytes
            unused -= one.size - one.live_bytes
        return chosen

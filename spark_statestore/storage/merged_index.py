"""The index of merged files in memory: which physical file has a version's metadata.

It does no I/O, and has no lock of its own.
"""

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
from spark_statestore.storage.checkpoint_storage import CheckpointName
from spark_statestore.storage.completed_locations import METADATA_FILE_NAME

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
    modified
        Time of its publication in seconds since 1970, None if unknown.
    live, live_bytes
        The logical files that are not discarded, in order, and their size.
    supersedes
        Files with attempts that attempts in this one supersede. It is deleted after them: they would count
        again.
    replaces
        Files that have attempts of this one, too, which do not count there.
    successor
        A file with attempts of this one that was not published when this one was listed. Until it is, both
        may be the same.
    """

    name: PhysicalName | None = None
    size: int = 0
    modified: float | None = None
    live: dict[LogicalFile, None] = field(default_factory=dict)
    live_bytes: int = 0
    supersedes: set[PhysicalFile] = field(default_factory=set)
    replaces: set[PhysicalFile] = field(default_factory=set)
    successor: PhysicalFile | None = None

    def take(self, logical: LogicalFile) -> None:
        """Add a logical file to those that are not discarded."""
        self.live[logical] = None
        self.live_bytes += logical.size

    def drop(self, logical: LogicalFile) -> None:
        """Remove a logical file from those that are not discarded."""
        del self.live[logical]
        self.live_bytes -= logical.size


@dataclass(eq=False, slots=True)
class LogicalFile:
    """A metadata object inside a physical file.

    Attributes
    ----------
    store
        The store's directory below the state directory.
    rank
        Its place among the attempts at the same path: the highest one counts.
    start
        The offset in the physical file.
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


def _preference(name: PhysicalName) -> tuple[bool, int, PhysicalName]:
    # A copy counts rather than the files that it replaces, which are deleted. Copies among these have lower
    # numbers.
    return name.is_copy, name.number if name.is_copy else 0, name


def _order_of(logical: LogicalFile) -> tuple[int, str]:
    # Two runs that do not know of each other give the same rank; every run must prefer the same attempt.
    return logical.rank, "" if logical.rank == UNRANKED else logical.attempt_id


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
        The file that is published next; those of the index `before` are taken over.
    elsewhere
        Stands for the files in which another process publishes what was handed over.
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
        for logical in (*self.pending.live, *self.elsewhere.live):
            self._attempts(logical).append(logical)

    def find(
        self, store: str, checkpoint: CheckpointName, attempt_id: str | None = None
    ) -> LogicalFile | None:
        """Return the logical file that counts for a version, or that of one attempt.

        Return None if there is none.
        """
        attempts = self._stores.get(store, {}).get(checkpoint, ())
        return next(
            (logical for logical in reversed(attempts) if attempt_id in (None, logical.attempt_id)), None
        )

    def unpublished(self, store: str, checkpoint: CheckpointName) -> list[LogicalFile]:
        """Return the attempts at a version whose physical file is not known to exist."""
        attempts = self._stores.get(store, {}).get(checkpoint, ())
        return [logical for logical in attempts if logical.physical.name is None]

    def damage(
        self, checkpoint: CheckpointName, logical: LogicalFile | None
    ) -> CorruptCheckpointError | None:
        """Return the error of a damaged file that may have a version.

        Without checkpoint ids, return also that of a file that may have a later attempt than `logical`.
        """
        if logical is not None and checkpoint.id is not None:
            return None
        return self.damage_beside(checkpoint.version, None if logical is None else logical.physical.name)

    def damage_beside(self, version: int, own_name: PhysicalName | None) -> CorruptCheckpointError | None:
        """Return the error of a damaged file that may have a later attempt at a version than a file has.

        Without a file, it may have any attempt.
        """
        for name, error in self.damaged.items():
            # Copied versions are committed: later attempts are those of a write in place. The originals stay
            # until their copy is whole.
            is_older = own_name is not None and (
                (own_name.is_copy and not name.write)
                or name.is_copy
                or (
                    (name.oldest, name.newest) == (own_name.oldest, own_name.newest)
                    and (name.number, name.write) < (own_name.number, own_name.write)
                )
            )
            if name.covers(version) and not is_older:
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
            groups = (attempts for store in stores for attempts in self._stores[store].values())
        for attempts in groups:
            for logical in attempts:
                yield (
                    logical.path if logical is attempts[-1] else f"{logical.path}.{logical.attempt_id}",
                    logical,
                )

    def insert(self, logical: LogicalFile) -> None:
        """Add a logical file after those of a lower or the same rank."""
        attempts = self._attempts(logical)
        bisect.insort(attempts, logical, key=_order_of)
        self._order(attempts)
        logical.physical.take(logical)

    def take_up(self, name: PhysicalName, status: FileStatus, entries: Iterable[IndexEntry]) -> None:
        """Add a physical file of another run, or of an earlier one, with the logical files in its index."""
        physical = self.physical[name] = PhysicalFile(name, status.size, status.modified)
        for entry in entries:
            place = place_of(entry.path)
            assert place is not None  # noqa: S101 - decode_index has checked the path
            store, checkpoint, _ = place
            copy = self.find(store, checkpoint, entry.attempt_id)
            # A rewrite, or a publication whose answer was lost, leaves two copies: every run prefers the same
            # one.
            if copy is not None and copy.physical is not self.elsewhere:
                present_name = copy.physical.name
                if present_name is None or _preference(present_name) > _preference(name):
                    copy.physical.replaces.add(physical)
                    if present_name is None:
                        physical.successor = copy.physical
                    continue
            if copy is not None:
                physical.replaces.add(copy.physical)
                self.remove(copy)
            self.insert(
                LogicalFile(
                    store, checkpoint, entry.attempt_id, entry.rank, entry.size, physical, entry.start
                )
            )

    def remove(self, logical: LogicalFile) -> None:
        """Remove a logical file, unless it was removed before."""
        if logical not in logical.physical.live:
            return
        logical.physical.drop(logical)
        checkpoints = self._stores[logical.store]
        checkpoints[logical.checkpoint].remove(logical)
        if not checkpoints[logical.checkpoint]:
            del checkpoints[logical.checkpoint]

    def drop(self, name: PhysicalName) -> None:
        """Remove a physical file that does not exist any more, with the logical files in it."""
        if (physical := self.physical.pop(name, None)) is not None:
            for logical in list(physical.live):
                self.remove(logical)

    def rank(self, objects: Iterable[LogicalFile]) -> bool:
        """Rank new files after those at their paths.

        Return True if another attempt is published at one of them.
        """
        is_known = False
        for logical in objects:
            attempts = self._stores[logical.store][logical.checkpoint]
            before = attempts[: attempts.index(logical)]
            is_known = is_known or any(earlier.data is None for earlier in before)
            # Attempts in a damaged file are superseded, too, for it may be restored.
            lowest = self._above_damaged(logical.checkpoint.version)
            logical.rank = max(lowest, before[-1].rank + 1 if before else 0)
        return is_known

    def _above_damaged(self, version: int) -> int:
        """Return a rank above those that damaged files can have at a version; 0 without such a file."""
        if not any(name.covers(version) for name in self.damaged):
            return 0
        # A file's rank is at most the number of files with the version that were published before it.
        counts: dict[tuple[int, int], tuple[int, int]] = {}
        for name in (*self.physical, *self.damaged, *(self.unread or ())):
            if name.covers(version):
                number, write = counts.get((name.oldest, name.newest), (0, 0))
                counts[name.oldest, name.newest] = max(number, name.number), max(write, name.write)
        return sum(1 + number + write for number, write in counts.values())

    @staticmethod
    def _order(attempts: Sequence[LogicalFile]) -> None:
        for before, after in itertools.pairwise(attempts):
            if before.physical is not after.physical:
                after.physical.supersedes.add(before.physical)

    def _attempts(self, logical: LogicalFile) -> list[LogicalFile]:
        checkpoints = self._stores.get(logical.store)
        if checkpoints is None:
            checkpoints = self._stores[logical.store] = {}
            directory = logical.store
            while directory:
                self._below.setdefault(directory, []).append(logical.store)
                directory = directory.rpartition("/")[0]
            self._below.setdefault("", []).append(logical.store)
        return checkpoints.setdefault(logical.checkpoint, [])

    def take_pending(self) -> PhysicalFile:
        """Return the file that is published next, and begin another one."""
        physical, self.pending = self.pending, PhysicalFile()
        return physical

    def next_name(
        self, versions: Collection[int], *, is_copy: bool = False, is_written: bool = False
    ) -> PhysicalName:
        """Return the next free name of a physical file with these versions."""
        oldest, newest = min(versions), max(versions)
        names = [*self.physical, *self.damaged, *(self.unread or ())]
        numbers = [
            (name.number, name.write) for name in names if (name.oldest, name.newest) == (oldest, newest)
        ]
        if is_written:
            # The numbers of the others stay without gaps, see `MergedLookup.is_newest`.
            number, write = max(numbers, default=(0, 0))
            return PhysicalName(oldest, newest, number, write=write + 1)
        if is_copy:
            # Of two copies the newer one counts, see `_preference`.
            numbers += [(name.number, name.write) for name in names if name.is_copy]
        return PhysicalName(oldest, newest, max(numbers, default=(-1, 0))[0] + 1, is_copy)

    def place(
        self, physical: PhysicalFile, name: PhysicalName, size: int, objects: Iterable[LogicalFile]
    ) -> None:
        """Record that a physical file was published with logical files, which may be in others until now."""
        listed = self.physical.get(name)
        physical.name, physical.size, physical.modified = name, size, time.time()
        self.physical[name] = physical
        if listed is not None:
            self._take_over(listed, physical)
        start = INLINE_STATE_OFFSET
        for logical in objects:
            # Another thread may have discarded it.
            if logical in logical.physical.live:
                logical.physical.drop(logical)
                physical.take(logical)
                logical.physical, logical.start, logical.data = physical, start, None
                attempts = self._attempts(logical)
                self._order(attempts)
                # A repeated request, whose answer was lost, leaves a copy.
                for copy in [
                    attempt
                    for attempt in attempts
                    if attempt.attempt_id == logical.attempt_id and attempt is not logical
                ]:
                    self.remove(copy)
            start += logical.size

    def _take_over(self, listed: PhysicalFile, physical: PhysicalFile) -> None:
        """Replace a file that another thread has listed between its creation and its record: both are one."""
        for logical in list(listed.live):
            listed.drop(logical)
            physical.take(logical)
            logical.physical = physical
        physical.supersedes |= listed.supersedes
        physical.replaces |= listed.replaces
        for file in self.physical.values():
            for files in (file.supersedes, file.replaces):
                if listed in files:
                    files.remove(listed)
                    files.add(physical)
        physical.supersedes.discard(physical)
        physical.replaces.discard(physical)

    def empty(self) -> list[PhysicalFile]:
        """Return the files to delete: all in them is discarded."""
        empty: list[PhysicalFile] = []
        for physical in self.physical.values():
            if physical.successor is not None and physical.successor.name is None:
                continue
            superseded = (
                older
                for file in physical.supersedes
                for older in (file, *file.replaces)
                if older.name in self.physical and older is not physical
            )
            if not physical.live and all(older in empty for older in superseded):
                empty.append(physical)
        return empty

    def sparse(self, version: int) -> list[PhysicalFile]:
        """Return the files to rewrite.

        After that, all files together take at most about twice the bytes that are not discarded.

        Parameters
        ----------
        version
            The version of the batch: what may not be committed yet stays where it is.
        """
        live = sum(physical.live_bytes for physical in self.physical.values())
        unused = sum(physical.size for physical in self.physical.values()) - live
        if unused <= live + _LITTLE:
            return []
        chosen = []
        most = _REWRITTEN
        old = [physical for name, physical in self.physical.items() if name.newest < version]
        for physical in sorted(old, key=lambda physical: physical.live_bytes / max(1, physical.size)):
            if unused <= live or physical.live_bytes > most:
                break
            chosen.append(physical)
            most -= physical.live_bytes
            unused -= physical.size - physical.live_bytes
        return chosen

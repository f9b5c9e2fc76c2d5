"""Removes files in the directories of a query's stores that nothing needs.

Crashes leave such files: streams whose metadata was never published, attempts that lost against others. The
clean-up of a running query finds most of them in time; this finds them in queries that do not run, too.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from spark_statestore.checkpoint.files import FileStatus, FileSystem, join, open_file_system
from spark_statestore.checkpoint.files.failures import failing_to, read_file
from spark_statestore.checkpoint.ledger import take_inventory
from spark_statestore.checkpoint.metadata import CheckpointMetadata, StoreId, decode_metadata
from spark_statestore.checkpoint.metadata.format import read_object
from spark_statestore.checkpoint.pins import PINS_DIRECTORY, is_of_use, look_at_pins
from spark_statestore.checkpoint.query.checkpoint import COMMITS, ROLLED_BACK, QueryCheckpoint
from spark_statestore.checkpoint.query.layout import files_of_stores
from spark_statestore.checkpoint.query.logs import CommitEntry
from spark_statestore.checkpoint.query.orphans import STAGING_PREFIX, Decided, StoreFiles, orphans
from spark_statestore.checkpoint.query.verify import Problem
from spark_statestore.checkpoint.query.workers import Progress, for_each
from spark_statestore.checkpoint.storage import METADATA_FILE_NAME, CheckpointName
from spark_statestore.errors import (
    CheckpointError,
    CheckpointIOError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    IllegalStateError,
)
from spark_statestore.state.handles.codec import HandleContext
from spark_statestore.state.handles.file import discard_file
from spark_statestore.state.handles.owner import ATTEMPT

__all__ = ["DAY", "Collection", "Orphan", "gc"]

DAY: Final = 24 * 3600.0
"""Seconds."""

_TRIES: Final = 5

_OF_AN_ATTEMPT: Final = re.compile(rf"{re.escape(METADATA_FILE_NAME)}\.{ATTEMPT}")


@dataclass(frozen=True, slots=True)
class Orphan:
    """A file that nothing needs.

    Attributes
    ----------
    url
        The file.
    size
        Bytes.
    reason
        Why nothing needs it.
    """

    url: str
    size: int
    reason: str


@dataclass(frozen=True, slots=True)
class Collection:
    """What a collection of orphans came to.

    Attributes
    ----------
    path
        The checkpoint location.
    dry_run
        Whether nothing was removed.
    orphans
        What was removed, or would be.
    young
        Number of orphans that were left, because they have not been there for long enough.
    skipped
        Stores that were left alone, because something of them cannot be read.
    """

    path: str
    dry_run: bool
    orphans: tuple[Orphan, ...]
    young: int
    skipped: tuple[Problem, ...]

    @property
    def bytes(self) -> int:
        """Bytes of the orphans."""
        return sum(orphan.size for orphan in self.orphans)


def gc(
    path: str,
    dry_run: bool = False,
    *,
    older_than: float = DAY,
    stopped: bool = False,
    checkpoints_dir: str | None = None,
    progress: Progress | None = None,
) -> Collection:
    """Remove the files in the directories of a query's stores that nothing needs.

    These are state streams that no metadata names, directories of versions that were never published,
    attempts that Spark decided against, and parts of files that were being written when a process
    died; and pins that copies left whose process was killed. What a pin names is needed, what was rolled
    back is kept, and a store is left alone as a whole if any metadata in it cannot be read, is that of
    something else, or is missing of the version that the newest batch left.

    Parameters
    ----------
    dry_run
        Only look.
    older_than
        Seconds for which a file must have been there: a query that runs writes a stream before the
        metadata that names it. A pin must have been there for a day at least.
    stopped
        The query does not run, and will not while this does. Then the age of files in its stores is of no
        importance, and what a running query might still take up goes too: newer snapshots, versions of the
        batch that was not finished.
    checkpoints_dir
        The option ``checkpointsDir`` of the query, if it was set.
    progress
        Told how many stores are done, and of how many.

    Raises
    ------
    CheckpointNotFoundError
        If there is no checkpoint.
    CorruptCheckpointError, CheckpointIOError
        If Spark's logs, a pin or a directory cannot be read, or a file cannot be removed. Nothing that is
        needed was removed then.
    IllegalStateError
        If the query was said to be stopped, and runs.
    StorageError
        If the file system cannot be used.
    """
    checkpoint = QueryCheckpoint(path, checkpoints_dir=checkpoints_dir)
    before = None if stopped else time.time() - older_than
    noted = checkpoint.noted_batches()
    decided = _decided(checkpoint)
    newest = {version.store: version.name for version in checkpoint.stores()} if decided.last else {}
    collectors = [
        _Collector(checkpoint, store, newest.get(store), decided, noted, before)
        for store in _stores(checkpoint)
    ]
    found = for_each(lambda one: one.collect(dry_run=dry_run), collectors, progress)
    # Whoever copies need not be the query, and may take long.
    pins = _left_pins(checkpoint, time.time() - max(older_than, DAY), dry_run=dry_run)
    return Collection(
        checkpoint.url,
        dry_run,
        (*(orphan for one in found for orphan in one.orphans), *pins),
        sum(one.young for one in found),
        tuple(problem for one in found for problem in one.skipped),
    )


def _decided(checkpoint: QueryCheckpoint) -> Decided:
    batches = checkpoint.batches()
    attempts = {}
    for batch, entry in zip(batches, for_each(checkpoint.commit, batches), strict=True):
        ids = entry.state_ids or {}
        attempts[batch + 1] = {operator: frozenset(_flat(named)) for operator, named in ids.items()}
    files, state = open_file_system(checkpoint.state_url)
    pins = join(state, PINS_DIRECTORY)
    with failing_to("list", files, pins):
        pinned = look_at_pins(files, pins).pinned
    return Decided(attempts, frozenset(_rolled_back(checkpoint)), pinned, batches[-1] + 1 if batches else 0)


def _left_pins(checkpoint: QueryCheckpoint, before: float, *, dry_run: bool) -> list[Orphan]:
    """Remove pins of copies whose process was killed; what they kept goes with the next clean-up."""
    files, state = open_file_system(checkpoint.state_url)
    found = []
    for status in _list(files, join(state, PINS_DIRECTORY)):
        is_of_a_copy = is_of_use(status.path.rpartition("/")[2])
        if is_of_a_copy and status.modified is not None and status.modified < before:
            if not dry_run:
                discard_file(files, status.path)
            found.append(
                Orphan(files.url(status.path), status.size, "whoever pinned it has not ended in time")
            )
    return found


def _rolled_back(checkpoint: QueryCheckpoint) -> Iterable[str]:
    directory = checkpoint.path(ROLLED_BACK)
    with failing_to("list", checkpoint.files, directory):
        found = [status.path for status in checkpoint.files.list_files(directory)]
    for path in found:
        _, log, name = path.rsplit("/", 2)
        if log == COMMITS and name.isdigit():
            with failing_to("read", checkpoint.files, path):
                entry = CommitEntry.decode(checkpoint.files.read(path), checkpoint.files.url(path))
            for named in (entry.state_ids or {}).values():
                yield from _flat(named)


def _flat(named: Iterable[Iterable[str]]) -> Iterable[str]:
    return (attempt for partition in named for attempt in partition)


def _stores(checkpoint: QueryCheckpoint) -> list[StoreId]:
    """Every store that has files, whether the newest batch has it or not."""
    stores = {store for store, *_ in files_of_stores(checkpoint)}
    return sorted(stores, key=lambda store: (store.operator, store.partition, store.name))


def _list(files: FileSystem, directory: str) -> list[FileStatus]:
    with failing_to("list", files, directory):
        return list(files.list_files(directory))


class _Collector:
    """Collects the orphans of one store.

    Parameters
    ----------
    newest
        The version that the newest batch left, None if the store is none of that batch's.
    noted
        The batches of which Spark keeps anything.
    before
        Files written later are left alone; None if the query does not run.
    """

    def __init__(
        self,
        checkpoint: QueryCheckpoint,
        store: StoreId,
        newest: CheckpointName | None,
        decided: Decided,
        noted: list[int],
        before: float | None,
    ) -> None:
        self._checkpoint = checkpoint
        self._noted = noted
        self._store = store
        self._files, self._directory = open_file_system(checkpoint.open(store).url)
        self._context = HandleContext(self._files, self._directory, confined=True)
        self._newest = newest
        self._decided = decided
        self._before = before
        self._listing: dict[str, FileStatus] = {}
        self._known: dict[tuple[str, int, float], CheckpointMetadata] = {}
        self.orphans: list[Orphan] = []
        self.young = 0
        self.skipped: list[Problem] = []

    def collect(self, *, dry_run: bool) -> _Collector:
        """Find the orphans, and remove them."""
        try:
            found = self._look()
            if found and not dry_run:
                # What was published since may name one of them.
                again = self._look()
                found = {path: why for path, why in found.items() if path in again}
                self._require_stopped()
        except CheckpointError as error:
            self.skipped.append(Problem.of(str(self._store), error))
            return self
        directories: dict[str, None] = {}
        for path, why in found.items():
            if not dry_run:
                discard_file(self._files, path)
            self.orphans.append(Orphan(self._files.url(path), self._listing[path].size, why))
            directories[path.rpartition("/")[0]] = None
        if not dry_run:
            self._remove_empty(directories)
        return self

    def _require_stopped(self) -> None:
        if self._before is None and self._checkpoint.noted_batches() != self._noted:
            raise IllegalStateError(
                f"the query at {self._checkpoint.url} runs: it began or finished a batch meanwhile. Leave out that it is "
                "stopped, or stop it; of this store nothing was removed."
            )

    def _look(self) -> dict[str, str]:
        for _ in range(_TRIES):
            # Metadata may be removed or replaced between the listing and a look into it.
            with contextlib.suppress(FileNotFoundError):
                store = self._read()
                break
        else:
            raise CheckpointIOError(
                f"the files of {self._store} at {self._files.url(self._directory)} change as they are read: the query is "
                "cleaning up itself. Try again; nothing of this store was removed."
            )
        stopped = self._before is None
        found = orphans(store, self._decided, self._is_old, stopped=stopped)
        self.young = len(orphans(store, self._decided, lambda path: True, stopped=stopped)) - len(found)
        return found

    def _read(self) -> StoreFiles:
        self._listing = {status.path: status for status in _list(self._files, self._directory)}
        inventory = take_inventory(self._directory, self._listing.values())
        store = StoreFiles(self._store.operator, self._directory, inventory, self._newest)
        for name, files in inventory.checkpoints.items():
            for file in files:
                if file == METADATA_FILE_NAME or _OF_AN_ATTEMPT.fullmatch(file):
                    path = join(self._directory, name.directory, file)
                    store.metadata[name, file] = self._metadata(self._listing[path], name)
        if self._newest is not None and (self._newest, METADATA_FILE_NAME) not in store.metadata:
            # What it names is still needed, once it is back.
            raise CheckpointNotFoundError(
                f"{self._store} at {self._files.url(self._directory)} has no metadata of {self._newest}, which the newest "
                "batch left. Copy it back from a backup, or roll the query back; nothing of this store was removed."
            )
        store.staging += [
            path for path in self._listing if path.rpartition("/")[2].startswith(STAGING_PREFIX)
        ]
        return store

    def _metadata(self, status: FileStatus, name: CheckpointName) -> CheckpointMetadata:
        # Another attempt may take the name.
        key = (status.path, status.size, status.modified) if status.modified is not None else None
        if key is not None and key in self._known:
            return self._known[key]
        data = read_file(self._files, status.path, read_object)
        metadata = decode_metadata(data, self._context, self._files.url(status.path))
        attempt = (
            name.id or status.path.rpartition(f"/{METADATA_FILE_NAME}")[2].lstrip(".") or metadata.attempt
        )
        if (metadata.store, metadata.version, metadata.attempt) != (self._store, name.version, attempt):
            raise CorruptCheckpointError(
                f"{self._files.url(status.path)} holds the metadata of {metadata.store}, version {metadata.version} "
                f"(attempt {metadata.attempt}): files were moved or mixed up. Put the right ones back from a backup; "
                "nothing of this store was removed."
            )
        if key is not None:
            self._known[key] = metadata
        return metadata

    def _is_old(self, path: str) -> bool:
        modified = self._listing[path].modified
        return self._before is None or (modified is not None and modified < self._before)

    def _remove_empty(self, directories: Iterable[str]) -> None:
        for directory in directories:
            if not directory.endswith("/shared"):
                # Only where it is empty: that fails otherwise, and is meant to.
                try:
                    self._files.delete_directory(directory)
                except OSError:
                    continue

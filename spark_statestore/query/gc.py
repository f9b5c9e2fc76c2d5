"""Garbage collection of orphaned files in the directories of a query's stores.

Crashes leave orphans: streams whose metadata was never published, and attempts that Spark did not commit. The
maintenance of a running query removes most of them; this works for stopped queries, too.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from spark_statestore.errors import (
    CheckpointError,
    CheckpointIOError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    QueryRunningError,
)
from spark_statestore.files import FileStatus, FileSystem, join, open_file_system
from spark_statestore.files.failures import failing_to, read_file
from spark_statestore.formats.metadata import ATTEMPT
from spark_statestore.query.journal import KEPT
from spark_statestore.query.layout import files_of_stores
from spark_statestore.query.logs import CommitEntry
from spark_statestore.query.orphans import STAGING_PREFIX, CommittedAttempts, StoreFiles, orphans
from spark_statestore.query.parallel import Progress, parallel_map
from spark_statestore.query.query_checkpoint import COMMITS, ROLLED_BACK, QueryCheckpoint
from spark_statestore.query.running import require_not_running_here, storage_time
from spark_statestore.query.verify import Problem
from spark_statestore.storage import METADATA_FILE_NAME, CheckpointName
from spark_statestore.storage.file_handles import discard_file
from spark_statestore.storage.handle_codec import HandleContext
from spark_statestore.storage.merged_files import MergedFiles
from spark_statestore.storage.metadata_streams import read_object
from spark_statestore.store.holds import HOLDS_DIRECTORY, Holds, is_temporary_hold, read_holds
from spark_statestore.store.metadata import CheckpointMetadata, StoreId, decode_metadata
from spark_statestore.store.retention import parse_listing

__all__ = ["DAY", "GcResult", "Orphan", "gc"]

DAY: Final = 24 * 3600.0
"""Seconds."""

_TRIES: Final = 5

_OF_AN_ATTEMPT: Final = re.compile(rf"{re.escape(METADATA_FILE_NAME)}\.{ATTEMPT}")


@dataclass(frozen=True, slots=True)
class Orphan:
    """An orphaned file.

    Attributes
    ----------
    url
        URL of the file.
    size
        Bytes.
    reason
        Reason for the deletion.
    """

    url: str
    size: int
    reason: str


@dataclass(frozen=True, slots=True)
class GcResult:
    """The result of a garbage collection.

    Attributes
    ----------
    path
        The checkpoint location.
    dry_run
        True if nothing was removed.
    orphans
        Files that were removed, or would be in a dry run.
    young
        Number of orphans that were kept because they are too young.
    skipped
        Stores that were skipped because some of their files cannot be read.
    """

    path: str
    dry_run: bool
    orphans: tuple[Orphan, ...]
    young: int
    skipped: tuple[Problem, ...]

    @property
    def bytes(self) -> int:
        """Total size of the orphans."""
        return sum(orphan.size for orphan in self.orphans)


def gc(
    path: str,
    dry_run: bool = False,
    *,
    older_than: float = DAY,
    stopped: bool = False,
    purge: bool = False,
    checkpoints_dir: str | None = None,
    progress: Progress | None = None,
) -> GcResult:
    """Remove the orphaned files in the directories of a query's stores.

    Orphans are state streams that no metadata references, directories of versions that were never published,
    attempts that Spark did not commit, partial files of killed processes, and retention holds of copies whose
    process was killed. Versions that a hold names, what a write or rescale in place has not published yet,
    and files of rolled back batches are kept. A store is skipped if any metadata in it cannot be read or
    belongs to another store or version, or if the metadata of the newest batch's version is missing. All
    stores are skipped if a merged file is damaged that may have a version which a batch in the log or a hold
    needs.

    Parameters
    ----------
    dry_run
        Report orphans, remove nothing.
    older_than
        Minimum age of a file in seconds, by the storage's clock: a running query writes a stream before the
        metadata that references it. Holds must be at least a day old.
    stopped
        The query does not run, and is not started meanwhile. Then files of any age are removed, and also
        those that a running query might still use: newer snapshots, and versions of the uncommitted batch
        unless they have the newest batch's state in other streams than that batch.
    purge
        With `stopped`, also remove versions of batches before the oldest one in Spark's logs, and write the
        files anew that have metadata of unneeded versions beside that of others, so that none of their bytes
        are left. What only these versions need is removed by the next collection.
    checkpoints_dir
        The option ``checkpointsDir`` of the query, if it was set.
    progress
        Called with the number of stores done and their total.

    Raises
    ------
    CheckpointNotFoundError
        If there is no checkpoint.
    CorruptCheckpointError, CheckpointIOError
        If Spark's logs, a hold or a directory cannot be read, or a file cannot be removed. No file that is
        needed was removed.
    IllegalStateError
        If a rescale in place is not complete.
    QueryRunningError
        If ``stopped`` is given and the query runs.
    StorageError
        If the file system cannot be used.
    """
    checkpoint = QueryCheckpoint(path, checkpoints_dir=checkpoints_dir)
    purge = purge and stopped
    if stopped:
        require_not_running_here(checkpoint)
    now = _now(checkpoint)
    before = None if stopped else now - older_than
    logged = checkpoint.logged_batches()
    decided = _committed_attempts(checkpoint)
    newest = {version.store: version.name for version in checkpoint.stores()} if decided.last else {}
    merged_files = checkpoint.merged_files()
    # Any store may have versions in a damaged file.
    with failing_to("list", *open_file_system(checkpoint.state_url)):
        is_whole = merged_files.damage_in(decided.needed, decided.held_versions) is None
    collectors = [
        _Collector(checkpoint, merged_files, store, newest.get(store), decided, logged, before, purge=purge)
        for store in (_stores(checkpoint) if is_whole else ())
    ]
    collected = parallel_map(lambda collection: collection.collect(dry_run=dry_run), collectors, progress)
    merged = _remove_merged(
        checkpoint,
        merged_files,
        {path: why for collection in collected for path, why in collection.merged.items()},
        dry_run=dry_run,
        purge=purge,
    )
    # Copies are made by other processes than the query, and may take hours.
    holds = _remove_abandoned_holds(checkpoint, now - max(older_than, DAY), dry_run=dry_run)
    return GcResult(
        checkpoint.url,
        dry_run,
        (*(orphan for collection in collected for orphan in collection.orphans), *merged, *holds),
        sum(collection.young for collection in collected),
        (
            *(problem for collection in collected for problem in collection.skipped),
            *(Problem.from_error("merged files", error) for error in merged_files.damaged_files()),
        ),
    )


def _now(checkpoint: QueryCheckpoint) -> float:
    """Return the time by the clock that the modification times of the state are of."""
    files, state = open_file_system(checkpoint.state_url)
    with failing_to("look for", files, state):
        is_there = files.is_directory(state)
    return storage_time(files, state) if is_there else time.time()


def _committed_attempts(checkpoint: QueryCheckpoint) -> CommittedAttempts:
    batches = checkpoint.batches()
    attempts = {}
    for batch, entry in zip(batches, parallel_map(checkpoint.commit, batches), strict=True):
        attempts[batch + 1] = _by_operator(entry)
    holds = _holds(checkpoint)
    return CommittedAttempts(
        attempts,
        frozenset(_rolled_back(checkpoint)),
        holds.held_versions,
        holds.versions_in_use,
        batches[-1] + 1 if batches else 0,
    )


def _committed_since(
    checkpoint: QueryCheckpoint, decided: CommittedAttempts, paths: Iterable[str]
) -> CommittedAttempts:
    """Return what is decided now of the versions of orphans that a listing had.

    A write in place holds its version before it writes, until its attempts are published. So for each file of
    it that was listed before, the hold is read here, or the entry that names the attempts.
    """
    holds = _holds(checkpoint)
    if decided.last:
        # Raises if a rescale in place has ended without its last step: its journal names attempts.
        checkpoint.newest_batch()
    versions = {version for path in paths if (version := _version_of(path)) is not None}
    attempts = dict(decided.attempts)
    for version in versions & attempts.keys():
        try:
            attempts[version] = _by_operator(checkpoint.commit(version - 1))
        except CheckpointNotFoundError:
            # Purged or rolled back meanwhile: it decides nothing any more.
            attempts[version] = {}
    return replace(
        decided,
        attempts=attempts,
        held_versions=holds.held_versions,
        versions_in_use=holds.versions_in_use,
    )


def _version_of(path: str) -> int | None:
    """Return the version that wrote a file of a store; None if its name does not have it."""
    directory, _, name = path.rpartition("/")
    if (checkpoint := CheckpointName.parse(directory.rpartition("/")[2])) is not None:
        return checkpoint.version
    version = name.partition("-")[0]
    return int(version) if version.isascii() and version.isdigit() else None


def _by_operator(entry: CommitEntry) -> dict[int, frozenset[str]]:
    return {operator: frozenset(_flat(named)) for operator, named in (entry.state_ids or {}).items()}


def _holds(checkpoint: QueryCheckpoint) -> Holds:
    files, state = open_file_system(checkpoint.state_url)
    directory = join(state, HOLDS_DIRECTORY)
    with failing_to("list", files, directory):
        return read_holds(files, directory)


def _remove_abandoned_holds(checkpoint: QueryCheckpoint, before: float, *, dry_run: bool) -> list[Orphan]:
    """Remove retention holds of killed copies; the next cleanup deletes the held versions."""
    files, state = open_file_system(checkpoint.state_url)
    abandoned = []
    for status in _list(files, join(state, HOLDS_DIRECTORY)):
        is_of_a_copy = is_temporary_hold(status.path.rpartition("/")[2])
        if is_of_a_copy and status.modified is not None and status.modified < before:
            if not dry_run:
                discard_file(files, status.path)
            abandoned.append(
                Orphan(files.url(status.path), status.size, "the process that held it has ended")
            )
    return abandoned


def _remove_merged(
    checkpoint: QueryCheckpoint,
    merged: MergedFiles,
    unneeded: Mapping[str, str],
    *,
    dry_run: bool,
    purge: bool,
) -> list[Orphan]:
    """Remove the merged files that have unneeded versions only; write others anew without these."""
    files, _ = checkpoint.open_state()
    removed = []
    beside: list[str] = []
    with failing_to("list", *open_file_system(checkpoint.state_url)):
        physical_files = list(merged.physical_files())
    for status, versions in physical_files:
        gone = [path for path in versions if path in unneeded]
        if not gone or (len(gone) < len(versions) and not purge):
            continue
        removed.append(Orphan(files.url(status.path), status.size, unneeded[gone[0]]))
        if len(gone) < len(versions):
            beside += gone
        elif not dry_run:
            discard_file(files, status.path)
    if beside and not dry_run:
        with failing_to("write", files, checkpoint.state_url):
            merged.purge(beside)
    return removed


def _rolled_back(checkpoint: QueryCheckpoint) -> Iterable[str]:
    directory = checkpoint.path(ROLLED_BACK)
    with failing_to("list", checkpoint.files, directory):
        paths = [status.path for status in checkpoint.files.list_files(directory)]
    for path in paths:
        parent, log, name = path.rsplit("/", 2)
        # A rescale is not undone by its entries: the state of before goes with its batch.
        if log == COMMITS and name.isdigit() and parent.rpartition("/")[2] != KEPT:
            with failing_to("read", checkpoint.files, path):
                entry = CommitEntry.decode(checkpoint.files.read(path), checkpoint.files.url(path))
            for named in (entry.state_ids or {}).values():
                yield from _flat(named)


def _flat(named: Iterable[Iterable[str]]) -> Iterable[str]:
    return (attempt_id for partition in named for attempt_id in partition)


def _stores(checkpoint: QueryCheckpoint) -> list[StoreId]:
    """Return every store that has files, also those that the newest batch does not have."""
    stores = {store for store, *_ in files_of_stores(checkpoint)}
    return sorted(stores, key=lambda store: (store.operator, store.partition, store.name))


def _list(files: FileSystem, directory: str) -> list[FileStatus]:
    with failing_to("list", files, directory):
        return list(files.list_files(directory))


class _Collector:
    """Garbage collector of one store.

    `newest` is the version committed by the newest batch, None if that batch does not have the store;
    `logged` are the batches in Spark's logs; files are removed up to the modification time `before`, all
    files if it is None; with `purge` also versions of batches before those.
    """

    def __init__(
        self,
        checkpoint: QueryCheckpoint,
        merged: MergedFiles,
        store: StoreId,
        newest: CheckpointName | None,
        decided: CommittedAttempts,
        logged: list[int],
        before: float | None,
        *,
        purge: bool,
    ) -> None:
        self._checkpoint = checkpoint
        self._logged = logged
        self._store = store
        opened = checkpoint.open(store)
        self._files, self._directory = opened.files, opened.directory
        self._merged = merged
        self._context = HandleContext(self._files, self._directory)
        self._newest = newest
        self._decided = decided
        self._before = before
        self._purge = purge
        self._listing: dict[str, FileStatus] = {}
        self._decoded_metadata: dict[tuple[str, int, float], CheckpointMetadata] = {}
        self.orphans: list[Orphan] = []
        # Unneeded versions in merged files, with reasons.
        self.merged: dict[str, str] = {}
        self.young = 0
        self.skipped: list[Problem] = []

    def collect(self, *, dry_run: bool) -> _Collector:
        """Find the orphans, and remove them unless it is a dry run."""
        try:
            return self._collect(dry_run=dry_run)
        finally:
            # Decoded metadata of all stores could exceed the memory.
            self._decoded_metadata.clear()
            self._listing = {}

    def _collect(self, *, dry_run: bool) -> _Collector:
        try:
            reasons = self._scan()
            if reasons and not dry_run:
                self._decided = _committed_since(self._checkpoint, self._decided, reasons)
                # Metadata published since the scan may reference one of them, also that of a write in place
                # whose hold is gone.
                with failing_to("list", self._files, self._directory):
                    self._merged.look_for_others(since=time.monotonic())
                again = self._scan()
                reasons = {path: why for path, why in reasons.items() if path in again}
                self._require_stopped()
        except QueryRunningError:
            raise
        except CheckpointError as error:
            self.skipped.append(Problem.from_error(str(self._store), error))
            return self
        directories: dict[str, None] = {}
        for path, why in reasons.items():
            if self._merged.find(path) is not None:
                # Its file goes once no other store needs it.
                self.merged[path] = why
                continue
            if not dry_run:
                discard_file(self._files, path)
            self.orphans.append(Orphan(self._files.url(path), self._listing[path].size, why))
            directories[path.rpartition("/")[0]] = None
        if not dry_run:
            self._remove_empty(directories)
        return self

    def _require_stopped(self) -> None:
        if self._before is None and self._checkpoint.logged_batches() != self._logged:
            raise QueryRunningError(
                f"the query at {self._checkpoint.url} runs: its logs have changed during the collection. "
                "Stop it, or omit stopped=True (--stopped); nothing of this store was removed."
            )

    def _scan(self) -> dict[str, str]:
        for _ in range(_TRIES):
            # Metadata may be removed or replaced between the listing and the read.
            with contextlib.suppress(FileNotFoundError):
                store = self._read()
                break
        else:
            raise CheckpointIOError(
                f"the files of {self._store} at {self._files.url(self._directory)} change while they are "
                "read: the query's own cleanup runs. Try again; nothing of this store was removed."
            )
        stopped = self._before is None
        find = partial(orphans, store, self._decided, stopped=stopped, purge=self._purge)
        reasons = find(self._is_old)
        self.young = len(find(lambda path: True)) - len(reasons)
        return reasons

    def _read(self) -> StoreFiles:
        self._listing = {status.path: status for status in _list(self._files, self._directory)}
        with failing_to("list", self._files, self._directory):
            damage = self._merged.damage_in(self._decided.needed, self._decided.held_versions)
        if damage is not None:
            raise damage
        listing = parse_listing(self._directory, self._listing.values())
        store = StoreFiles(self._store.operator, self._directory, listing, self._newest)
        for name, files in listing.checkpoints.items():
            for file in files:
                if file == METADATA_FILE_NAME or _OF_AN_ATTEMPT.fullmatch(file):
                    path = join(self._directory, name.directory, file)
                    store.metadata[name, file] = self._metadata(self._listing[path], name)
        if self._newest is not None and (self._newest, METADATA_FILE_NAME) not in store.metadata:
            # Its streams are needed once the metadata is restored.
            raise CheckpointNotFoundError(
                f"{self._store} at {self._files.url(self._directory)} has no metadata of {self._newest}, the "
                "version of the newest batch. Restore it from a backup, or roll the query back; nothing of "
                "this store was removed."
            )
        store.staging += [
            path for path in self._listing if path.rpartition("/")[2].startswith(STAGING_PREFIX)
        ]
        return store

    def _metadata(self, status: FileStatus, name: CheckpointName) -> CheckpointMetadata:
        # Another attempt may replace it.
        key = (status.path, status.size, status.modified) if status.modified is not None else None
        if key is not None and key in self._decoded_metadata:
            return self._decoded_metadata[key]
        data = read_file(self._files, status.path, read_object)
        metadata = decode_metadata(data, self._context, self._files.url(status.path))
        attempt_id = (
            name.id or status.path.rpartition(f"/{METADATA_FILE_NAME}")[2].lstrip(".") or metadata.attempt_id
        )
        if (metadata.store, metadata.version, metadata.attempt_id) != (self._store, name.version, attempt_id):
            raise CorruptCheckpointError(
                f"{self._files.url(status.path)} holds the metadata of {metadata.store}, version "
                f"{metadata.version} (attempt {metadata.attempt_id}): files were moved or mixed up. Restore "
                "the right ones from a backup; nothing of this store was removed."
            )
        if key is not None:
            self._decoded_metadata[key] = metadata
        return metadata

    def _is_old(self, path: str) -> bool:
        modified = self._listing[path].modified
        return self._before is None or (modified is not None and modified < self._before)

    def _remove_empty(self, directories: Iterable[str]) -> None:
        for directory in directories:
            if not directory.endswith("/shared"):
                # Fails for a directory that is not empty, as intended.
                try:
                    self._files.delete_directory(directory)
                except OSError:
                    continue

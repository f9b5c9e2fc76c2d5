"""Merging of the metadata objects that many stores publish at once into one file, as in FLIP-306.

A *logical file* has the path that it would have in its store's directory. Its bytes are in a *physical file*,
``_merged/<oldest version>-<newest version>-<number>``, followed by ``-copy`` if it was written to replace
sparse ones, beside the operators' directories.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from spark_statestore.files.base import FileSystem, join
from spark_statestore.files.request_context import check_cancelled
from spark_statestore.formats.merged_files import MergedObject, PhysicalName
from spark_statestore.formats.metadata import EncodedObject
from spark_statestore.storage.checkpoint_storage import CheckpointName
from spark_statestore.storage.merged_index import UNRANKED, LogicalFile, MergedIndex, PhysicalFile
from spark_statestore.storage.merged_lookup import MergedLookup, may_be_in

LARGEST_MERGED: Final = 1 << 20
"""Bytes up to which a metadata object is worth merging: a larger one is written while other tasks go on."""

LARGEST_HANDED_OVER: Final = 64 << 10
"""Bytes up to which an executor hands a metadata object over.

The driver holds those of all stores until the batch ends.
"""

# Bytes from which on a physical file is published before its batch ends.
_LARGE: Final = 4 << 20

# Seconds after a publication in which no other run can have taken a query over.
_OWNED_SECONDS: Final = 10.0

# Seconds between the checks whether a request that waits for a publication was cancelled.
_POLL_SECONDS: Final = 1.0

CommitGuard = Callable[[LogicalFile, bool], None]
"""Called before a logical file without a checkpoint id is published.

It raises an error if Spark has committed the file's version. The flag tells that another attempt at the
version is known.
"""


class MergedFiles(MergedLookup):
    """The merged files of one query, as one run of the query in this process sees them and adds to them.

    On a cluster the driver's process publishes for all: those of executors hand their files over, and report
    what they discard. What publishes raises the error of its guard, or `OSError` if the storage fails.

    Attributes
    ----------
    reports_discards
        Whether another process deletes what is discarded here, see `take_discarded`.
    """

    def __init__(self, files: FileSystem, state_directory: str) -> None:
        super().__init__(files, state_directory)
        self.reports_discards = False
        # Guarded by the lock.
        self._discarded: list[str] = []
        self._published: set[str] = set()
        # Files that are being published: no longer pending, and not known to exist.
        self._publishing: set[PhysicalFile] = set()
        self._publication_ended = threading.Condition(self._lock)
        self._owned_until = 0.0
        # The newest version that this run has published.
        self._newest = 0
        self._sweeping = threading.Lock()

    def add(self, path: str, attempt_id: str, encoded: EncodedObject | bytes, guard: CommitGuard) -> None:
        """Add a version's metadata to the next physical file, which is published early once it is large."""
        store, checkpoint = self._place_to_add(path)
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
                full = self._take_pending(index)
        if full is not None:
            self._publish(index, full, guard)

    def hand_over(self, path: str, attempt_id: str, size: int) -> None:
        """Add a version's metadata that another process publishes.

        It is read from the storage once that is done.
        """
        store, checkpoint = self._place_to_add(path)
        with self._lock:
            index = self._index
            # A repeated request, whose answer was lost: its metadata is published.
            if (old := index.find(store, checkpoint, attempt_id)) is not None:
                index.remove(old)
            index.insert(LogicalFile(store, checkpoint, attempt_id, UNRANKED, size, index.elsewhere))

    def publish(self, attempts: Collection[str], guard: CommitGuard) -> tuple[list[str], int]:
        """Publish what was added and is not published yet.

        If it raises an error, all of it may exist if the storage lost its answer, and none otherwise; `find`
        tells.

        Returns
        -------
        missing : list of str
            The attempts of the batch that were not added since the last call: another backend had them.
        size : int
            Bytes written by this call.
        """
        with self._lock:
            index = self._index
            pending = self._take_pending(index)
        self._files.release_memory()
        if pending is not None:
            self._publish(index, pending, guard)
        with self._lock:
            missing = [attempt for attempt in attempts if attempt not in self._published]
            self._published.clear()
        return missing, 0 if pending is None else pending.size

    def settle(self, path: str, guard: CommitGuard) -> None:
        """Publish what was added at a path, or await its publication, before a file is written there.

        Afterwards `find` returns only what is published there. What was handed over and is not published is
        withdrawn.
        """
        store, checkpoint = self._place_to_add(path)
        while True:
            full = None
            with self._lock:
                index = self._index
                unpublished = index.unpublished(store, checkpoint)
                if any(logical.physical is index.pending for logical in unpublished):
                    full = self._take_pending(index)
                elif any(
                    (logical.store, logical.checkpoint) == (store, checkpoint)
                    for physical in self._publishing
                    for logical in physical.live
                ):
                    self._publication_ended.wait(_POLL_SECONDS)
                else:
                    for logical in unpublished:
                        index.remove(logical)
                    return
            if full is not None:
                self._publish(index, full, guard)
            # The supervisor cancels a request that waits too long.
            check_cancelled()

    def has_unpublished(self) -> bool:
        """Return True if something was added that is not published: it is lost with this object."""
        with self._lock:
            return bool(self._index.pending.live or self._publishing)

    def supersede(self, path: str, attempt_id: str, data: bytes) -> None:
        """Publish metadata that supersedes a logical file, in a physical file of its own."""
        if self.find(path) is None:
            raise FileNotFoundError(path)
        self.publish_alone(path, attempt_id, data, lambda *_: None)

    def publish_alone(self, path: str, attempt_id: str, data: bytes, guard: CommitGuard) -> None:
        """Publish metadata that counts from now on at a path, in a physical file of its own.

        Unlike a file of the store's own it counts beside a damaged file of the same version, too.
        """
        self._publish_now([(path, attempt_id, data)], guard)

    def write(self, objects: Iterable[tuple[str, str, bytes]], guard: CommitGuard) -> None:
        """Publish metadata that counts from now on at each path, all of it in one physical file.

        Parameters
        ----------
        objects
            Path, attempt and metadata of each version, which has no checkpoint id.
        guard
            Called before each try to create the file.
        """
        self._publish_now(objects, guard, is_written=True)

    def _publish_now(
        self, objects: Iterable[tuple[str, str, bytes]], guard: CommitGuard, *, is_written: bool = False
    ) -> None:
        pending = PhysicalFile()
        with self._lock:
            index = self._index
            for path, attempt_id, data in objects:
                place = self._place_to_add(path)
                index.insert(LogicalFile(*place, attempt_id, UNRANKED, len(data), pending, data=data))
            self._publishing.add(pending)
        self._publish(index, pending, guard, is_written=is_written)

    def discard(self, path: str) -> bool:
        """Discard a logical file; return False if there is none.

        `sweep` deletes its physical file once all in it are discarded.

        It is not recorded: a later run finds what was discarded again in the physical files that remain.
        """
        if (place := self._place_of(path)) is None:
            return False
        index = self._with_indexes(place[1].version)
        with self._lock:
            if (logical := index.find(*place)) is None:
                return False
            index.remove(logical)
            if self.reports_discards:
                self._discarded.append(logical.path)
        return True

    def discard_reported(self, paths: Iterable[str]) -> None:
        """Discard the logical files that another process has discarded.

        Their paths are relative to the state directory.
        """
        for path in paths:
            self.discard(join(self._state, path))

    def take_discarded(self) -> list[str]:
        """Return the paths, below the state directory, of what was discarded here since the last call."""
        with self._lock:
            paths, self._discarded = self._discarded, []
        return paths

    def has_garbage(self) -> bool:
        """Return True if there is something to `sweep`."""
        with self._lock:
            return bool(self._index.empty() or self._index.sparse(self._newest))

    def sweep(self) -> None:
        """Delete physical files whose logical files are discarded, and rewrite those with few others.

        To be called after a publication: a run that has ended must delete nothing, since its query may have
        been rolled back to a version that it discarded. If the storage fails, no logical file that is not
        discarded is lost.
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

    def purge(self, paths: Iterable[str]) -> None:
        """Discard logical files, and write the physical files that have them anew without their bytes.

        The query must be stopped. If the storage fails, no other logical file is lost.
        """
        chosen: dict[PhysicalFile, None] = {}
        for path in paths:
            if (place := self._place_of(path)) is None:
                continue
            index = self._with_indexes(place[1].version)
            with self._lock:
                if (logical := index.find(*place)) is not None:
                    chosen[logical.physical] = None
                    index.remove(logical)
        with self._sweeping:
            self._rewrite(self._index, list(chosen))

    def release_memory(self) -> None:
        """Drop physical files from memory that were not read for a while."""
        self._files.release_memory()

    def forget(self) -> None:
        super().forget()
        with self._lock:
            self._owned_until = 0.0

    def _place_to_add(self, path: str) -> tuple[str, CheckpointName]:
        place = self._place_of(path)
        if place is None or place[2] is not None:
            raise ValueError(f"{path!r} is not the path of a version's metadata below {self._state!r}")
        return place[0], place[1]

    def _take_pending(self, index: MergedIndex) -> PhysicalFile | None:
        """Take what is to be published now, None if there is nothing; to be called under the lock."""
        pending = index.take_pending()
        if not pending.live:
            return None
        self._publishing.add(pending)
        return pending

    def _publish(
        self, index: MergedIndex, pending: PhysicalFile, guard: CommitGuard, *, is_written: bool = False
    ) -> None:
        try:
            self._publish_taken(index, pending, guard, is_written=is_written)
        finally:
            with self._lock:
                self._publishing.discard(pending)
                self._publication_ended.notify_all()

    def _publish_taken(
        self, index: MergedIndex, pending: PhysicalFile, guard: CommitGuard, *, is_written: bool
    ) -> None:
        try:
            is_known = False
            while True:
                with self._lock:
                    objects = list(pending.live)
                    is_owned = time.monotonic() < self._owned_until
                versions = {logical.checkpoint.version for logical in objects}
                for version in versions:
                    self._read_indexes(index, version)
                with self._lock:
                    is_known = index.rank(objects) or bool(index.damaged) or is_known
                    name = index.next_name(versions, is_written=is_written)
                    newest = max(self._newest, *versions)
                for logical in _first_of_each_version(objects):
                    # That of an earlier version is late: Spark may have committed another one.
                    if is_known or not is_owned or logical.checkpoint.version < newest:
                        guard(logical, is_known)
                self._require_to_count(index, objects, name)
                check_cancelled()
                if (size := self._create(name, objects)) is not None:
                    break
                # By another run, or by this one: the storage's answer was lost.
                is_known = True
                with self._lock:
                    for logical in objects:
                        logical.rank = UNRANKED
                self._read_directory(index)
        except BaseException:
            with self._lock:
                for logical in list(pending.live):
                    index.remove(logical)
            # The storage may have written it all the same: list it again.
            self.forget()
            raise
        with self._lock:
            index.place(pending, name, size, objects)
            self._published.update(logical.attempt_id for logical in objects)
            self._owned_until = time.monotonic() + _OWNED_SECONDS
            self._newest = max(self._newest, *versions)
            is_current = index is self._index
        if not is_current:
            # The index that replaced it may be of a listing without this file.
            self.forget()

    def _require_to_count(
        self, index: MergedIndex, objects: Iterable[LogicalFile], name: PhysicalName
    ) -> None:
        """Raise `CorruptCheckpointError` if a file would not count beside a damaged one of other versions."""
        with self._lock:
            for logical in objects if index.damaged else ():
                checkpoint = logical.checkpoint
                error = index.damage_beside(checkpoint.version, name) if checkpoint.id is None else None
                if error is not None:
                    raise may_be_in((logical.store, checkpoint, None), error) from error

    def _rewrite(self, index: MergedIndex, sparse: Sequence[PhysicalFile]) -> None:
        """Copy the logical files that are left in physical files into a new one, then delete those."""
        with self._lock:
            objects = [logical for physical in sparse for logical in physical.live]
            versions = {logical.checkpoint.version for logical in objects}
            name = index.next_name(versions, is_copy=True) if objects else None
        if name is not None:
            if (size := self._create(name, objects)) is None:
                # Another run does the same.
                self.forget()
                return
            with self._lock:
                index.place(PhysicalFile(), name, size, objects)
        with self._lock:
            empty = [physical for physical in index.empty() if physical in sparse]
        self._delete(index, empty)

    def _create(self, name: PhysicalName, objects: Sequence[LogicalFile]) -> int | None:
        """Write a physical file and return its size; None if the name is taken."""
        merged = []
        for logical in objects:
            data = self.read(logical)
            merged.append(
                MergedObject(logical.path, logical.attempt_id, logical.rank, data, zlib.crc32(data))
            )
        return self._files.create(name, merged)

    def _delete(self, index: MergedIndex, files: Sequence[PhysicalFile]) -> None:
        names = [physical.name for physical in files if physical.name is not None]
        if names:
            self._files.delete(names)
            with self._lock:
                for name in names:
                    index.physical.pop(name, None)


def _first_of_each_version(objects: Sequence[LogicalFile]) -> Iterable[LogicalFile]:
    """Return the first logical file of each version that has no checkpoint id."""
    unnamed = (logical for logical in reversed(objects) if logical.checkpoint.id is None)
    return {logical.checkpoint.version: logical for logical in unnamed}.values()

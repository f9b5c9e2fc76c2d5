"""The retention index tracks a store's checkpoints and their streams, and discards the expired ones."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from spark_statestore.files.base import FileStatus, FileSystem, join
from spark_statestore.files.request_context import heartbeat
from spark_statestore.storage.checkpoint_storage import CHECKPOINT_SHARED_STATE_DIR, CheckpointName
from spark_statestore.storage.completed_locations import METADATA_FILE_NAME
from spark_statestore.storage.file_handles import FileStateHandle, SegmentFileStateHandle, discard_file
from spark_statestore.storage.incremental_handle import IncrementalStateHandle
from spark_statestore.storage.shared_state_registry import SharedStateRegistry
from spark_statestore.storage.stream_handles import StreamStateHandle

_logger = logging.getLogger(__name__)

_SHARED_NAME = re.compile(r"(\d+)-[0-9a-f-]{36}")


@dataclass(slots=True)
class StoreListing:
    """The objects of a store's directory, as a listing shows them.

    Attributes
    ----------
    checkpoints
        Names of the files in each checkpoint's directory.
    shared
        Version of each shared file, by path.
    """

    checkpoints: dict[CheckpointName, set[str]] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)


def parse_listing(directory: str, listing: Iterable[FileStatus]) -> StoreListing:
    """Sort a listing by checkpoint and shared file, omitting files that are not this package's."""
    parsed = StoreListing()
    start = directory.rstrip("/") + "/"
    for status in listing:
        if not status.path.startswith(start):
            continue
        top, _, name = status.path[len(start) :].partition("/")
        checkpoint = CheckpointName.parse(top)
        if checkpoint is not None and name:
            parsed.checkpoints.setdefault(checkpoint, set()).add(name)
        elif top == CHECKPOINT_SHARED_STATE_DIR and (match := _SHARED_NAME.fullmatch(name)):
            parsed.shared[status.path] = int(match[1])
    return parsed


class RetentionIndex:
    """The checkpoints that one instance of a store has tracked, and the streams that they use.

    An instance tracks what it commits, so that a cleanup usually lists nothing; the first cleanup finds the
    objects of other instances with one listing. Thread-safe: a task commits while maintenance discards.

    Attributes
    ----------
    is_complete
        False makes the next cleanup scan the directory for files that are not tracked.
    """

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._files = files
        self._directory = directory
        # An object of its own, as a method of this one would be a reference cycle: the memory of closed
        # stores is freed at once.
        self._streams_removed = _StreamCount()
        self._registry = SharedStateRegistry(on_discarded=self._streams_removed.add)
        self._checkpoints: dict[CheckpointName, set[str]] = {}
        self._unverified: dict[CheckpointName, str] = {}
        self._held_versions: set[int] = set()
        self._lock = threading.RLock()
        self.is_complete = False

    def track(
        self, name: CheckpointName, handle: IncrementalStateHandle, *, attempt_id: str | None = None
    ) -> None:
        """Track a checkpoint and its streams.

        `attempt_id` is given if this instance has just published it.
        """
        with self._lock:
            self._checkpoints.setdefault(name, {METADATA_FILE_NAME})
            if attempt_id is not None and name.id is None:
                self._unverified[name] = attempt_id
            handle.register_shared_states(self._registry)

    def unverified(self, version: int) -> list[tuple[CheckpointName, str]]:
        """Return the checkpoints up to a version that this instance published and others may have replaced.

        In checkpoint format v1 a task that is retried elsewhere replaces the metadata, but only until Spark
        commits the version, so one check after that is enough.
        """
        with self._lock:
            return [
                (name, attempt_id) for name, attempt_id in self._unverified.items() if name.version <= version
            ]

    def verify(self, name: CheckpointName) -> None:
        """Mark a checkpoint as verified."""
        with self._lock:
            self._unverified.pop(name, None)

    def track_directory(self, name: CheckpointName, files: Iterable[str]) -> None:
        """Track a checkpoint's directory without the streams it uses."""
        with self._lock:
            self._checkpoints.setdefault(name, set()).update(files)

    def track_orphan(self, path: str, version: int) -> None:
        """Track a shared file that no tracked checkpoint uses.

        It is deleted with the checkpoints below a version.
        """
        orphan = FileStateHandle(self._files, path, -1)
        with self._lock:
            self._registry.register_orphan(orphan, version - 1)

    def is_tracked(self, path: str) -> bool:
        """Return True if a tracked checkpoint uses the file, or its deletion is pending."""
        url = self._files.url(path)
        return url in self._registry or self._registry.is_discarding(url)

    def set_held(self, versions: Iterable[int]) -> None:
        """Set the held versions; a new one requires a scan of the directory.

        Otherwise streams of it that this instance does not track, such as another attempt's, were discarded
        as orphans.
        """
        held_versions = set(versions)
        if not held_versions <= self._held_versions:
            self.is_complete = False
        self._held_versions = held_versions

    def discard_before(self, version: int, most: int, held_versions: Collection[int] = ()) -> int:
        """Discard the checkpoints below a version, and the streams that no later one uses.

        Return the number of objects removed.

        Metadata is deleted first, so that a partly discarded checkpoint is not found.

        Parameters
        ----------
        most
            The most checkpoints to discard, oldest first; 0 or less means all.
        held_versions
            Versions to keep with their streams, whatever their age.
        """
        with self._lock:
            versions_in_use = self._registry.checkpoints_in_use(version, held_versions).union(held_versions)
            expired = sorted(
                (
                    name
                    for name in self._checkpoints
                    if name.version < version and name.version not in versions_in_use
                ),
                key=lambda name: name.version,
            )
            if 0 < most < len(expired):
                version = min(version, expired[most].version)
                del expired[most:]
            checkpoints = [(name, self._checkpoints.pop(name)) for name in expired]
        # Outside of the lock: deleting takes time, and a commit must not wait for it.
        removed = 0
        for name, files in checkpoints:
            discarded = self._discard_checkpoint(name, files)
            if not discarded:
                # Its metadata may still exist, so its streams must.
                version = min(version, name.version)
            removed += discarded
        self._registry.unregister_unused_state(version, held_versions)
        return removed + self._streams_removed.take()

    def _discard_checkpoint(self, name: CheckpointName, files: set[str]) -> int:
        directory = join(self._directory, name.directory)
        heartbeat()
        try:
            for file in sorted(files, key=lambda file: file != METADATA_FILE_NAME):
                discard_file(self._files, join(directory, file))
            try:
                self._files.delete_directory(directory)
            except OSError:
                # The directory also has files of an untracked attempt.
                self._files.delete_directory(directory, recursive=True)
        except OSError as error:
            _logger.warning(
                "could not discard %s of %s, the next cleanup retries it: %s", name, self._directory, error
            )
            self.track_directory(name, files)
            return 0
        return len(files)


class _StreamCount:
    """The number of streams that were discarded since it was asked for."""

    def __init__(self) -> None:
        self._number = 0
        self._lock = threading.Lock()

    def add(self, stream: StreamStateHandle) -> None:
        heartbeat()
        # A segment is part of an object that is counted already.
        if not isinstance(stream, SegmentFileStateHandle):
            with self._lock:
                self._number += 1

    def take(self) -> int:
        with self._lock:
            number, self._number = self._number, 0
        return number

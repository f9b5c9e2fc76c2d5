"""What one instance of a store knows of the objects in its directory, for retention."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from spark_statestore.checkpoint.files.base import FileStatus, FileSystem, join
from spark_statestore.checkpoint.files.work import got_on
from spark_statestore.checkpoint.registry import SharedStateRegistry
from spark_statestore.checkpoint.storage.base import (
    CHECKPOINT_SHARED_STATE_DIR,
    METADATA_FILE_NAME,
    CheckpointName,
)
from spark_statestore.state.handles.base import StreamStateHandle
from spark_statestore.state.handles.file import FileStateHandle, SegmentFileStateHandle, discard_file
from spark_statestore.state.handles.incremental import IncrementalStateHandle

__all__ = ["Inventory", "Ledger", "take_inventory"]

_logger = logging.getLogger(__name__)

_SHARED_NAME = re.compile(r"(\d+)-[0-9a-f-]{36}")


@dataclass(slots=True)
class Inventory:
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


def take_inventory(directory: str, listing: Iterable[FileStatus]) -> Inventory:
    """Sort a listing; what is not this package's is left out."""
    inventory = Inventory()
    start = directory.rstrip("/") + "/"
    for status in listing:
        if not status.path.startswith(start):
            continue
        top, _, name = status.path[len(start) :].partition("/")
        checkpoint = CheckpointName.parse(top)
        if checkpoint is not None and name:
            inventory.checkpoints.setdefault(checkpoint, set()).add(name)
        elif top == CHECKPOINT_SHARED_STATE_DIR and (match := _SHARED_NAME.fullmatch(name)):
            inventory.shared[status.path] = int(match[1])
    return inventory


class Ledger:
    """The checkpoints that one instance of a store knows, and the streams that they use.

    An instance notes what it commits, so that in the usual course nothing is listed. What others
    left behind is found by one listing when an instance discards for the first time. Safe to use
    from several threads: a task commits while maintenance discards.
    """

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._registry = SharedStateRegistry(on_discarded=self._count)
        self._streams_removed = 0
        self._checkpoints: dict[CheckpointName, set[str]] = {}
        self._unconfirmed: dict[CheckpointName, str] = {}
        self._pinned: set[int] = set()
        self._lock = threading.RLock()
        self.is_complete = False

    def note(
        self,
        name: CheckpointName,
        handle: IncrementalStateHandle,
        *,
        attempt: str | None = None,
    ) -> None:
        """Note a checkpoint and the streams it uses.

        Parameters
        ----------
        attempt
            The attempt of this instance that was just published.
        """
        with self._lock:
            self._checkpoints.setdefault(name, {METADATA_FILE_NAME})
            if attempt is not None and name.id is None:
                self._unconfirmed[name] = attempt
            if not handle.is_registered_with(self._registry):
                handle.register_shared_states(self._registry, handle.version)

    def unconfirmed(self, version: int) -> list[tuple[CheckpointName, str]]:
        """Own checkpoints up to a version, and attempts, that others may have replaced since.

        In checkpoint format v1 a task that runs again elsewhere takes the name over. It does so
        before Spark accepts the version, so once that has happened a look is enough.
        """
        with self._lock:
            return [(name, attempt) for name, attempt in self._unconfirmed.items() if name.version <= version]

    def confirm(self, name: CheckpointName) -> None:
        """Note that a checkpoint was looked at."""
        with self._lock:
            self._unconfirmed.pop(name, None)

    def note_directory(self, name: CheckpointName, files: Iterable[str]) -> None:
        """Note a checkpoint's directory without knowing what it uses."""
        with self._lock:
            self._checkpoints.setdefault(name, set()).update(files)

    def note_stray(self, path: str, version: int) -> None:
        """Note a shared file that no known checkpoint uses; it goes once all before a version are gone."""
        stray = FileStateHandle(self._files, path, -1)
        with self._lock:
            self._registry.register_stray(stray, version - 1)

    def knows(self, path: str) -> bool:
        """Whether a file is a stream that a noted checkpoint uses, or one that waits to be discarded."""
        url = self._files.url(path)
        return url in self._registry or self._registry.is_discarding(url)

    def expect_pinned(self, versions: Iterable[int]) -> None:
        """Note which versions are pinned; if one is new, the directory must be looked at for what it uses.

        What this instance does not know of it, such as another attempt's streams, would else be nobody's.
        """
        pinned = set(versions)
        if not pinned <= self._pinned:
            self.is_complete = False
        self._pinned = pinned

    def discard_before(self, version: int, most: int, pinned: Collection[int] = ()) -> int:
        """Discard the checkpoints below a version, and the streams that none from it on uses.

        Metadata goes first, so that a half discarded checkpoint is no longer found.

        Parameters
        ----------
        most
            Checkpoints to discard at most, oldest first; the rest is left for the next time. 0 or
            less means all.
        pinned
            Versions that stay with all that they use, however old they are.

        Returns
        -------
        int
            Objects removed.
        """
        with self._lock:
            kept = self._registry.checkpoints_in_use(version, pinned).union(pinned)
            expired = sorted(
                (name for name in self._checkpoints if name.version < version and name.version not in kept),
                key=lambda name: name.version,
            )
            if 0 < most < len(expired):
                version = min(version, expired[most].version)
                del expired[most:]
            checkpoints = [(name, self._checkpoints.pop(name)) for name in expired]
        # Outside of the lock: deleting takes time, and a commit must not wait for it.
        removed = 0
        for name, files in checkpoints:
            gone = self._discard_checkpoint(name, files)
            if not gone:
                # It may still be found, so it must still be whole.
                version = min(version, name.version)
            removed += gone
        self._registry.unregister_unused_state(version, pinned)
        with self._lock:
            streams, self._streams_removed = self._streams_removed, 0
        return removed + streams

    def _discard_checkpoint(self, name: CheckpointName, files: set[str]) -> int:
        directory = join(self._directory, name.directory)
        got_on()
        try:
            for file in sorted(files, key=lambda file: file != METADATA_FILE_NAME):
                discard_file(self._files, join(directory, file))
            try:
                self._files.delete_directory(directory)
            except OSError:
                # Something of an attempt that nobody knows of lies there too.
                self._files.delete_directory(directory, recursive=True)
        except OSError as error:
            _logger.warning("could not discard %s of %s, will try again: %s", name, self._directory, error)
            self.note_directory(name, files)
            return 0
        return len(files)

    def _count(self, stream: StreamStateHandle) -> None:
        got_on()
        # A segment is a part of an object that was counted.
        if not isinstance(stream, SegmentFileStateHandle):
            with self._lock:
                self._streams_removed += 1

"""`CommitLog` reads Spark's commit log to tell which versions are committed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from spark_statestore.errors import CheckpointExistsError, StorageError
from spark_statestore.files import FileSystem, join, open_file_system, parent_of
from spark_statestore.formats.metadata import parse_json

if TYPE_CHECKING:
    from spark_statestore.storage import CheckpointName
    from spark_statestore.store.metadata import StoreId

_logger = logging.getLogger(__name__)


class CommitLog:
    """The ``commits`` directory of a query's checkpoint location.

    Spark adds an entry for batch n once every store has committed version n + 1, and never runs a batch with
    an entry again. An attempt at a version whose batch has an entry is therefore of an abandoned task, or of
    another query. A commit reads the log only if it finds another attempt; a cleanup reads one entry.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._opened: tuple[FileSystem, str] | None = None
        self._can_be_opened = True

    def has_committed(self, version: int) -> bool:
        """Return True if the batch that made a version, or a later one, has an entry."""
        batches = self._range()
        return batches is not None and batches[1] >= version - 1

    def has_entry(self, version: int) -> bool:
        """Return True if the batch that made a version has an entry; one request."""
        return self._entry(version - 1) is not None

    def has_lost(self, store: StoreId, name: CheckpointName) -> bool:
        """Return True if a committed version is no longer part of the query's history.

        This is the case after a rollback to an earlier version, or once the batch's entry is no longer in the
        log.
        """
        entry = self._entry(name.version - 1)
        if entry is None:
            # The log may omit batches, so a gap within its range proves nothing.
            batches = self._range()
            return batches is not None and not batches[0] < name.version - 1 < batches[1]
        if name.id is None:
            return False
        try:
            ids = parse_json(entry.split(b"\n")[1]).get("stateUniqueIds")
            return bool(ids) and name.id not in ids[str(store.operator)][store.partition]
        except (ValueError, LookupError, TypeError, AttributeError):
            # Spark reports the damage when it reads the entry.
            _logger.warning("the entry of batch %d in %s cannot be read", name.version - 1, self.url)
            return True

    def already_committed(
        self, where: str, version: int, present_id: str | None, attempt_id: str
    ) -> CheckpointExistsError:
        """Build the error for an attempt at a version of which Spark has committed another one.

        `present_id` is the other one, if it is known.
        """
        return CheckpointExistsError(
            f"{where} is not committed again: Spark's commit log {self.url} contains batch {version - 1}, "
            f"with the state of {f'attempt {present_id}' if present_id else 'another attempt'}. This "
            f"attempt, {attempt_id}, has changed nothing. If its task was cancelled and retried elsewhere, "
            "nothing is to be done. If two queries run with one checkpointLocation, stop one of them and "
            "restart it with another checkpointLocation."
        )

    def _entry(self, batch: int) -> bytes | None:
        """Return the entry of a batch; None if there is none."""
        if (opened := self._open()) is None:
            return None
        files, directory = opened
        try:
            return files.read(join(directory, str(batch)))
        except FileNotFoundError:
            return None

    def _range(self) -> tuple[int, int] | None:
        """Return the oldest and the newest batch with an entry.

        Return None if there is none or the log cannot be read.
        """
        if (opened := self._open()) is None:
            return None
        files, directory = opened
        paths = (status.path for status in files.list_files(directory))
        names = (path.rpartition("/")[2] for path in paths if parent_of(path) == directory.rstrip("/"))
        batches = [int(name) for name in names if name.isascii() and name.isdigit()]
        return (min(batches), max(batches)) if batches else None

    def _open(self) -> tuple[FileSystem, str] | None:
        if self._opened is None and self._can_be_opened:
            try:
                self._opened = open_file_system(self.url)
            except StorageError as error:
                # With checkpointsDir, the backend may have no access to the query's checkpoint location.
                self._can_be_opened = False
                _logger.warning(
                    "Spark's commit log cannot be read, so a commit of an abandoned task is not detected: %s",
                    error,
                )
        return self._opened

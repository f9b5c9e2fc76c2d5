"""Which versions Spark has accepted: its log of the batches that are done, as far as a store asks it."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from spark_statestore.checkpoint.files import FileSystem, join, open_file_system, parent_of
from spark_statestore.errors import CheckpointExistsError, StorageError

if TYPE_CHECKING:
    from spark_statestore.checkpoint.metadata.store import StoreId
    from spark_statestore.checkpoint.storage import CheckpointName

__all__ = ["CommitLog"]

_logger = logging.getLogger(__name__)


class CommitLog:
    """The ``commits`` directory of a query's checkpoint location.

    Spark notes batch n there once every store has committed version n + 1, and never runs a batch again that is
    noted. So whoever still writes a version whose batch is noted belongs to a task that was given up, or to another
    query. A commit asks only where it finds another attempt, a clean-up reads one entry.

    Parameters
    ----------
    url
        The directory.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._opened: tuple[FileSystem, str] | None = None
        self._can_be_opened = True

    def has_accepted(self, version: int) -> bool:
        """Whether the batch that made a version, or a later one, is noted.

        Raises
        ------
        OSError
            If the log cannot be listed.
        """
        noted = self._noted()
        return noted is not None and noted[1] >= version - 1

    def has_lost(self, store: StoreId, name: CheckpointName) -> bool:
        """Whether a version of a store that was accepted once does not count any more.

        So it is where the query was set back behind it, or has gone so far since that the batch is not noted any more.

        Raises
        ------
        OSError
            If the log cannot be read.
        """
        entry = self._entry(name.version - 1)
        if entry is None:
            # Spark can be told to note some batches only.
            noted = self._noted()
            return noted is not None and not noted[0] < name.version - 1 < noted[1]
        if name.id is None:
            return False
        try:
            ids = json.loads(entry.split(b"\n")[1]).get("stateUniqueIds")
            return bool(ids) and name.id not in ids[str(store.operator)][store.partition]
        except (ValueError, LookupError, TypeError, AttributeError):
            # Whoever reads it for good says what is wrong with it.
            _logger.warning("the entry %d of %s cannot be read", name.version - 1, self.url)
            return True

    def already_accepted(
        self, where: str, version: int, owner: str | None, attempt: str
    ) -> CheckpointExistsError:
        """The error for an attempt that comes too late.

        Parameters
        ----------
        where
            The version and its place.
        owner, attempt
            The attempt that is there, and the one that comes too late.
        """
        return CheckpointExistsError(
            f"{where} was committed by attempt {owner}, and Spark has accepted that: batch {version - 1} is done, says "
            f"{self.url}. So this attempt, {attempt}, is not committed; nothing was changed. Either its task was given "
            "up, and another one took its place: then nothing is to be done. Or two queries run with one "
            "checkpointLocation: stop one of them, and start it with a location of its own."
        )

    def _entry(self, batch: int) -> bytes | None:
        """What is noted of a batch, None if nothing is."""
        if (opened := self._open()) is None:
            return None
        files, directory = opened
        try:
            return files.read(join(directory, str(batch)))
        except FileNotFoundError:
            return None

    def _noted(self) -> tuple[int, int] | None:
        """The oldest and the newest batch that are noted; None if there is none, or nobody can tell."""
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
                # With checkpointsDir state lies elsewhere, maybe since the backend cannot reach this place.
                self._can_be_opened = False
                _logger.warning(
                    "Spark's commit log cannot be read, so an attempt that was given up is not told from others: %s",
                    error,
                )
        return self._opened

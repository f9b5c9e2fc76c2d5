"""Change of several of Spark's files in a checkpoint at once.

A journal takes the place of the next entry of the offset log, with the new content of all files. As long as
it is there, Spark does not start the query, and this package reads no batch. The next start of the query in
a session with the package's extension completes the change, and so does the next rescale in place.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spark_statestore.errors import (
    CorruptCheckpointError,
    IllegalStateError,
    QueryRunningError,
    restore_from_backup,
)
from spark_statestore.files import join, parent_of
from spark_statestore.files.failures import failing_to
from spark_statestore.formats.metadata import parse_json
from spark_statestore.query.layout import new_rolled_back_directory, replace_file
from spark_statestore.query.lease import Lease
from spark_statestore.query.query_checkpoint import JOURNAL, OFFSETS, QueryCheckpoint

KEPT: Final = "rescale"
"""Directory in ``rolled-back/<time>/`` of Spark's files before a rescale in place."""

_VERSION: Final = 1

# The message of Spark's error shows the first line.
_FIRST_LINE: Final = (
    JOURNAL + " of a change of this checkpoint that is not complete. A session made by "
    "spark_statestore.configure completes it when the query is started, and so does "
    "'spark-statestore rescale CHECKPOINT PARTITIONS --in-place'."
)


@dataclass(frozen=True, slots=True)
class Journal:
    """A change of files in a checkpoint that is complete once each of them has its new content.

    Attributes
    ----------
    entry
        Number in the offset log that the journal takes.
    files
        New content by path in the checkpoint location.
    id
        Random id of the change.
    """

    entry: int
    files: Mapping[str, bytes]
    id: str

    def encode(self) -> bytes:
        """Return the content of the journal's file."""
        texts = {name: data.decode() for name, data in self.files.items()}
        node = {"version": _VERSION, "id": self.id, "files": texts}
        return f"{_FIRST_LINE}\n{json.dumps(node)}".encode()

    @classmethod
    def decode(cls, entry: int, data: bytes, where: str) -> Journal:
        """Counterpart of `encode`."""
        try:
            node = parse_json(data.decode().split("\n", 1)[1])
            if node["version"] != _VERSION:
                raise ValueError(f"its version is {node['version']!r:.40}, but this release reads {_VERSION}")
            return cls(entry, {name: text.encode() for name, text in node["files"].items()}, node["id"])
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise CorruptCheckpointError(
                f"{where} is not the journal of a change: {error!r}. {restore_from_backup(otherwise=None)}"
            ) from error


def find_journal(checkpoint: QueryCheckpoint) -> Journal | None:
    """Return the journal of a change that was interrupted; None if there is none."""
    if (entry := max(checkpoint.logged(OFFSETS), default=None)) is None:
        return None
    path = checkpoint.path(OFFSETS, str(entry))
    data = checkpoint.read_if_present(OFFSETS, str(entry))
    # A missing one was moved by a rollback, or completed, since it was listed.
    if data is None or not data.startswith(JOURNAL.encode()):
        return None
    return Journal.decode(entry, data, checkpoint.files.url(path))


def complete_change(checkpoint: QueryCheckpoint) -> bool:
    """Complete a change that was interrupted; return False if there is none."""
    journal = find_journal(checkpoint)
    if journal is not None:
        _complete(checkpoint, journal)
    return journal is not None


class Change:
    """A change of several files of a checkpoint, all or none of them.

    Parameters
    ----------
    checkpoint
        A checkpoint that writes with fsync, of a query that does not run.
    entry
        Number of the journal in the offset log, where the query would write its next entry.
    """

    def __init__(self, checkpoint: QueryCheckpoint, entry: int) -> None:
        self._checkpoint = checkpoint
        self._entry = entry
        self._id = secrets.token_hex(8)
        self._before: dict[str, bytes | None] = {}
        self._files: dict[str, bytes] = {}

    def watch(self, name: str) -> None:
        """Read a file that may not change until `make`."""
        self._before[name] = self._checkpoint.read_if_present(name)

    def replace(self, name: str, data: bytes) -> None:
        """Write or replace a file; its present content may not change until `make`."""
        if name not in self._before:
            self.watch(name)
        self._files[name] = data

    @property
    def is_empty(self) -> bool:
        """True if no file changes."""
        return not self._files

    def make(self) -> None:
        """Make the change; copies of the present files are kept in ``rolled-back/<time>/``.

        Hadoop's checksums of the files are removed.

        Raises
        ------
        QueryRunningError
            If another process has changed one of the files, or has written the entry. Nothing was changed.
        StorageError
            If a file cannot be read or written. The change is complete or not begun for all readers.
        """
        storage, checkpoint = self._checkpoint.files, self._checkpoint
        directory = new_rolled_back_directory(checkpoint)
        for name in self._files:
            if (data := self._before[name]) is not None:
                copy = join(directory, KEPT, name)
                with failing_to("write", storage, copy):
                    storage.make_directory(parent_of(copy))
                    storage.create(copy, data)
        journal = Journal(self._entry, self._files, self._id)
        path = checkpoint.path(OFFSETS, str(journal.entry))
        with Lease(checkpoint) as lease:
            self._require_unchanged()
            lease.renew()
            with failing_to("write", storage, path):
                try:
                    storage.create(path, journal.encode())
                except FileExistsError as error:
                    raise self._running(f"{OFFSETS}/{journal.entry}") from error
        _complete(checkpoint, journal)

    def undo(self) -> None:
        """Give the files that were replaced their content of before, all or none of them."""
        back = Change(self._checkpoint, self._entry)
        for name in self._files:
            if (data := self._before[name]) is not None:
                back.replace(name, data)
        back.make()

    def complete_own(self) -> bool:
        """Complete the change if its journal is there; return False if not."""
        journal = find_journal(self._checkpoint)
        if journal is None or journal.id != self._id:
            return False
        _complete(self._checkpoint, journal)
        return True

    def _require_unchanged(self) -> None:
        for name, data in self._before.items():
            if self._checkpoint.read_if_present(name) != data:
                raise self._running(name)

    def _running(self, name: str) -> QueryRunningError:
        return QueryRunningError(
            f"the query of {self._checkpoint.url} runs, or another process changes it, which has just "
            f"written {name}. Stop it, then try again; nothing was changed."
        )


def _complete(checkpoint: QueryCheckpoint, journal: Journal) -> None:
    for name, data in journal.files.items():
        _require_current(checkpoint, journal)
        replace_file(checkpoint, name, data)
    _require_current(checkpoint, journal)
    storage, path = checkpoint.files, checkpoint.path(OFFSETS, str(journal.entry))
    with failing_to("delete", storage, path), contextlib.suppress(FileNotFoundError):
        storage.delete(path)
        storage.sync_directory(parent_of(path))


def _require_current(checkpoint: QueryCheckpoint, journal: Journal) -> None:
    """Raise unless the journal is there: another process may have completed it, and the query gone on."""
    if (present := find_journal(checkpoint)) is None or present != journal:
        raise IllegalStateError(
            f"the change of {checkpoint.url} that this process was completing is complete: another process, "
            "such as the query's next start, was faster. See which partitions the query has, and try again "
            "if need be."
        )

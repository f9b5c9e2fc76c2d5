"""Change of several of Spark's files in a checkpoint at once.

A journal takes the place of the next entry of the offset log, with the new content of all files. As long as
it is there, Spark does not start the query, and this package reads no batch. The next start of the query in
a session with the package's extension completes the change, and so does the next rescale in place.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spark_statestore.errors import CorruptCheckpointError, QueryRunningError, restore_from_backup
from spark_statestore.files import join, parent_of
from spark_statestore.files.failures import failing_to, read_file
from spark_statestore.formats.metadata import parse_json
from spark_statestore.query.layout import new_rolled_back_directory, with_checksum
from spark_statestore.query.query_checkpoint import JOURNAL, OFFSETS, QueryCheckpoint

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
    """

    entry: int
    files: Mapping[str, bytes]

    def encode(self) -> bytes:
        """Return the content of the journal's file."""
        written = {name: data.decode() for name, data in self.files.items()}
        return f"{_FIRST_LINE}\n{json.dumps({'version': _VERSION, 'files': written})}".encode()

    @classmethod
    def decode(cls, entry: int, data: bytes, where: str) -> Journal:
        """Counterpart of `encode`."""
        try:
            node = parse_json(data.decode().split("\n", 1)[1])
            if node["version"] != _VERSION:
                raise ValueError(f"its version is {node['version']!r:.40}, but this release reads {_VERSION}")
            return cls(entry, {name: text.encode() for name, text in node["files"].items()})
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise CorruptCheckpointError(
                f"{where} is not the journal of a change: {error!r}. {restore_from_backup(otherwise=None)}"
            ) from error


def find_journal(checkpoint: QueryCheckpoint) -> Journal | None:
    """Return the journal of a change that was interrupted; None if there is none."""
    if (entry := max(checkpoint.logged(OFFSETS), default=None)) is None:
        return None
    path = checkpoint.path(OFFSETS, str(entry))
    try:
        data = read_file(checkpoint.files, path)
    except FileNotFoundError:
        # Moved by a rollback, or completed, since it was listed.
        return None
    if not data.startswith(JOURNAL.encode()):
        return None
    return Journal.decode(entry, data, checkpoint.files.url(path))


def complete_change(checkpoint: QueryCheckpoint) -> bool:
    """Complete a change that was interrupted; return False if there is none."""
    journal = find_journal(checkpoint)
    if journal is not None:
        _complete(checkpoint, journal)
    return journal is not None


def change_files(checkpoint: QueryCheckpoint, files: Mapping[str, bytes], kept_as: str) -> int:
    """Write or replace files of a checkpoint, all or none of them.

    Parameters
    ----------
    checkpoint
        A checkpoint that writes with fsync, of a query that does not run.
    files
        New content by path in the checkpoint location. Hadoop's checksums of the present files are removed.
    kept_as
        Name in ``rolled-back/<time>/`` of the directory with copies of the present files.

    Returns
    -------
    int
        The number that the journal had in the offset log, where a running query would have written.

    Raises
    ------
    QueryRunningError
        If the query runs and writes its next entry. Nothing was changed.
    StorageError
        If a file cannot be read or written. The change is complete or not begun for all readers.
    """
    storage = checkpoint.files
    directory = new_rolled_back_directory(checkpoint)
    for name in files:
        with contextlib.suppress(FileNotFoundError):
            data = read_file(storage, checkpoint.path(name))
            kept = join(directory, kept_as, name)
            with failing_to("write", storage, kept):
                storage.make_directory(parent_of(kept))
                storage.create(kept, data)
    journal = Journal(max(checkpoint.logged(OFFSETS), default=-1) + 1, files)
    path = checkpoint.path(OFFSETS, str(journal.entry))
    with failing_to("write", storage, path):
        try:
            storage.create(path, journal.encode())
        except FileExistsError as error:
            raise QueryRunningError(
                f"the query of {checkpoint.url} runs: it has just written {OFFSETS}/{journal.entry}. Stop "
                "it, then try again; nothing was changed."
            ) from error
    _complete(checkpoint, journal)
    return journal.entry


def _complete(checkpoint: QueryCheckpoint, journal: Journal) -> None:
    storage = checkpoint.files
    for name, data in journal.files.items():
        path = checkpoint.path(name)
        # Hadoop's checksum is of the file as it was. Without one, Hadoop does not check.
        for beside in with_checksum(checkpoint, name)[:-1]:
            with failing_to("delete", storage, checkpoint.path(beside)):
                storage.delete(checkpoint.path(beside))
                storage.sync_directory(parent_of(path))
        with failing_to("write", storage, path):
            storage.make_directory(parent_of(path))
            storage.replace(path, data)
    path = checkpoint.path(OFFSETS, str(journal.entry))
    with failing_to("delete", storage, path), contextlib.suppress(FileNotFoundError):
        storage.delete(path)
        storage.sync_directory(parent_of(path))

"""The checkpoint location of a streaming query, read without Spark."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from spark_statestore.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    ForeignCheckpointError,
    IllegalStateError,
    restore_from_backup,
)
from spark_statestore.files import FileSystem, join, open_file_system
from spark_statestore.files.failures import failing_to, read_file
from spark_statestore.formats.metadata import parse_json
from spark_statestore.options import StorageOptions
from spark_statestore.query.logs import CommitEntry, OffsetEntry
from spark_statestore.query.operators import StatefulOperator
from spark_statestore.query.sources import directories
from spark_statestore.storage import CheckpointName
from spark_statestore.storage.merged_file_system import MergedFileSystem
from spark_statestore.storage.merged_files import MergedFiles
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.metadata import StoreId

# The id becomes a part of paths.
_ID: Final = re.compile(r"[0-9A-Za-z-]{1,64}")

METADATA: Final = "metadata"
RESERVED: Final = b'{"incomplete":"spark-statestore writes a checkpoint here, or was killed while it did"}'
"""Content of the file `METADATA` of a location that is being written.

Spark refuses to start a query there.
"""

OFFSETS: Final = "offsets"
COMMITS: Final = "commits"
SOURCES: Final = "sources"
STATE: Final = "state"

ROLLED_BACK: Final = "rolled-back"
"""Directory of the files that rollbacks moved."""

JOURNAL: Final = "spark-statestore: the journal"
"""Beginning of the file that takes the place of an offset log's entry while several files change."""

_DEFAULT_STATE: Final = "default"


@dataclass(frozen=True, slots=True)
class StoreVersion:
    """A store's version committed by a batch.

    Attributes
    ----------
    name
        The version: the batch number plus one, and in checkpoint format v2 the committed checkpoint id.
    attempt_id
        The attempt, for `StoreDirectory.metadata`, where a later one may have replaced it; None for the
        current one.
    """

    store: StoreId
    name: CheckpointName
    attempt_id: str | None = None


class QueryCheckpoint:
    """A query's checkpoint location: batches, operators, and the stores' versions.

    Files are read on access; none is changed.

    Parameters
    ----------
    url
        The query's ``checkpointLocation``.
    checkpoints_dir
        The option ``checkpointsDir`` of the query, if it was set.
    state_url
        The stores' directory, for a pointer savepoint.
    attempts
        The attempts of a pointer savepoint, see `StoreVersion`.
    fsync
        Fsync local files on write.
    """

    def __init__(
        self,
        url: str,
        *,
        checkpoints_dir: str | None = None,
        state_url: str | None = None,
        attempts: Mapping[StoreId, str] | None = None,
        fsync: bool = False,
    ) -> None:
        self.files: FileSystem
        self.files, root = open_file_system(url, fsync=fsync)
        self.root = root.rstrip("/")
        self._checkpoints_dir = checkpoints_dir
        self._state_url = state_url
        self._fsync = fsync
        self._attempts = attempts or {}
        self._merged: dict[str, MergedFiles] = {}

    @property
    def url(self) -> str:
        """URL of the checkpoint location."""
        return self.files.url(self.root)

    @cached_property
    def query_id(self) -> str:
        """Id of the query, from Spark's metadata."""
        path = self.path(METADATA)
        try:
            data = read_file(self.files, path)
            if data == RESERVED:
                raise CheckpointNotFoundError(
                    f"{self.url} is not a checkpoint location of a streaming query yet: a checkpoint is "
                    "being written to it, or a process was killed while it did. Then delete the directory, "
                    "and write it again."
                )
            query_id = str(parse_json(data)["id"])
            if not _ID.fullmatch(query_id):
                raise ValueError(f"{query_id!r:.80} is not an id")
            return query_id
        except CheckpointNotFoundError:
            raise
        except FileNotFoundError as error:
            raise CheckpointNotFoundError(
                f"{self.url} is not a checkpoint location of a streaming query: it has no file {METADATA!r}. "
                "Check the path; it is the query's option checkpointLocation."
            ) from error
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptCheckpointError(
                f"{self.files.url(path)} has no id of a query: {error!r}. "
                f"{restore_from_backup(otherwise=None)}"
            ) from error

    @property
    def state_url(self) -> str:
        """URL of the stores' directory, with a subdirectory for each operator."""
        if self._state_url is not None:
            return self._state_url
        if self._checkpoints_dir is None:
            return self.files.url(self.path(STATE))
        return join(self._checkpoints_dir, self.query_id.replace("-", ""))

    def path(self, *names: str) -> str:
        """Return the path of a file or directory in the checkpoint location.

        Names that lead out of it are refused. Some names are read from files of the checkpoint.
        """
        self._require_inside(names)
        return join(self.root, *names)

    def _require_inside(self, names: Sequence[str]) -> None:
        if any("\0" in name or ".." in name.split("/") for name in names):
            raise CorruptCheckpointError(
                f"a file of the checkpoint {self.url} names {'/'.join(names)!r:.200}, a path outside of it. "
                "The "
                "checkpoint is damaged or was tampered with. " + restore_from_backup(otherwise=None)
            )

    def files_below(self, *names: str) -> list[str]:
        """Return the files below a directory, by relative path, sorted, without hidden ones."""
        directory = self.path(*names)
        with failing_to("list", self.files, directory):
            paths = [status.path[len(directory) + 1 :] for status in self.files.list_files(directory)]
        # Hadoop's checksums, and temporary files.
        return sorted(path for path in paths if not path.rpartition("/")[2].startswith("."))

    def read(self, *names: str) -> bytes:
        """Return the content of a file."""
        path = self.path(*names)
        with failing_to("read", self.files, path):
            return self.files.read(path)

    def read_if_present(self, *names: str) -> bytes | None:
        """Return the content of a file; None if it does not exist."""
        try:
            return read_file(self.files, self.path(*names))
        except FileNotFoundError:
            return None

    def batches(self) -> list[int]:
        """Return the committed batches whose log entries are retained, oldest first."""
        return self._committed_and_planned()[0]

    def _committed_and_planned(self) -> tuple[list[int], set[int]]:
        if not (committed := self.logged(COMMITS)):
            # Raises if this is not a checkpoint location.
            _ = self.query_id
        planned = self.logged(OFFSETS)
        return sorted(committed & planned), planned

    def logged_batches(self) -> list[int]:
        """Return all batches in Spark's logs, also uncommitted ones, oldest first."""
        return sorted(self.logged(OFFSETS) | self.logged(COMMITS))

    def logged(self, log: str) -> set[int]:
        """Return the batches that have an entry in one of Spark's two logs."""
        directory = self.path(log)
        with failing_to("list", self.files, directory):
            names = [status.path.rpartition("/")[2] for status in self.files.list_files(directory)]
        return {int(name) for name in names if name.isascii() and name.isdigit()}

    def newest_batch(self) -> int:
        """Return the newest committed batch."""
        return self.require_batch(None)

    def require_batch(self, batch: int | None) -> int:
        """Return a batch, by default the newest one, if it is committed and retained."""
        batches, planned = self._committed_and_planned()
        self._require_no_journal(max(planned - {*batches}, default=None))
        if batches and batch is None:
            return batches[-1]
        if batch not in batches:
            remedy = (
                f"it has the batches {ranges(batches)}. Use one of those; "
                "spark.sql.streaming.minBatchesToRetain sets the number of retained batches."
                if batches
                else "no batch is committed yet. Let the query commit its first batch, or check the path."
            )
            raise CheckpointNotFoundError(
                f"the checkpoint {self.url} has no {'batch' if batch is None else f'batch {batch}'}: {remedy}"
            )
        return batch

    def _require_no_journal(self, newest: int | None) -> None:
        """Raise if the newest batch without a commit is the journal of a change."""
        if newest is None:
            return
        path = self.path(OFFSETS, str(newest))
        with contextlib.suppress(FileNotFoundError):
            if read_file(self.files, path).startswith(JOURNAL.encode()):
                raise IllegalStateError(
                    f"a change of the partitions of {self.url} has begun and is not complete, as the journal "
                    f"{self.files.url(path)} shows. If no process works on it, run 'spark-statestore rescale "
                    f"{self.url} PARTITIONS --in-place', or start the query in a session made by "
                    "spark_statestore.configure; both complete it. Nothing was changed."
                )

    def source_offsets(self, entry: OffsetEntry) -> dict[str, str]:
        """Return each source's offset in a log entry, by the name of the source's directory."""
        with failing_to("look for", self.files, self.path(SOURCES)):
            return directories(entry, lambda name: self.files.is_directory(self.path(SOURCES, name)))

    def offsets(self, batch: int) -> OffsetEntry:
        """Return a batch's entry of the offset log."""
        data, where = self._entry(OFFSETS, batch)
        return OffsetEntry.decode(data, where)

    def commit(self, batch: int) -> CommitEntry:
        """Return a batch's entry of the commit log."""
        data, where = self._entry(COMMITS, batch)
        return CommitEntry.decode(data, where)

    def operators(self, batch: int | None = None) -> list[StatefulOperator]:
        """Return the stateful operators of the query at a batch, by default the newest one.

        There are none if it has no state.
        """
        return [operator for _, operator in self.operator_files(batch)]

    def operator_files(
        self, batch: int | None = None, *, as_written: bool = False
    ) -> Iterator[tuple[str, StatefulOperator]]:
        """Yield the stateful operators, each with the path of its metadata file.

        Version 1 of the metadata has no history: it describes the newest batch. Unless the operators are
        wanted as they are written, the number of partitions at a batch before a rescale is that of the offset
        log.
        """
        count = None if as_written or batch is None else self._shuffle_partitions(batch)
        # Operators are numbered without gaps.
        for number in itertools.count():
            path = self._operator_file(number, batch)
            if path is None:
                self._require_no_state_of(number, batch)
                return
            try:
                data = read_file(self.files, path)
            except FileNotFoundError as error:
                raise CheckpointNotFoundError(
                    f"{self.files.url(path)} was deleted after it was listed: by the query's purge, or with "
                    "the checkpoint. "
                    "Try again if the checkpoint still exists."
                ) from error
            operator = StatefulOperator.decode(data, self.files.url(path))
            if path.rpartition("/")[2] == METADATA and count not in (None, operator.partitions):
                is_described = operator.partitions == self.newest_partitions()
                operator = operator.with_partitions(count) if is_described else operator
            yield path, operator

    def newest_partitions(self) -> int | None:
        """Return the number of partitions in the newest entry of the offset log that can be read."""
        for batch in sorted(self.logged(OFFSETS), reverse=True):
            with contextlib.suppress(CorruptCheckpointError):
                return self._shuffle_partitions(batch)
        return None

    def _shuffle_partitions(self, batch: int) -> int | None:
        # The batch may be retained no longer.
        with contextlib.suppress(CheckpointNotFoundError):
            return self.offsets(batch).shuffle_partitions
        return None

    def operator(self, number: int, batch: int | None = None) -> StatefulOperator:
        """Return one of the stateful operators."""
        operators = self.operators(batch)
        if not 0 <= number < len(operators):
            choices = ", ".join(f"{operator.id} ({operator.name})" for operator in operators)
            raise CheckpointNotFoundError(
                f"the checkpoint {self.url} has no stateful operator {number}, it has {choices or 'none'}. "
                "Use one of those."
            )
        return operators[number]

    def stores(self, batch: int | None = None, operator: int | None = None) -> list[StoreVersion]:
        """Return the stores' versions committed by a batch, by default the newest one.

        The stores are those of all operators, or of one.
        """
        batch = self.require_batch(batch)
        ids = self.commit(batch).state_ids
        chosen = self.operators(batch) if operator is None else [self.operator(operator, batch)]
        try:
            return [
                StoreVersion(
                    StoreId(described.id, partition, store.name),
                    CheckpointName(
                        batch + 1,
                        ids[described.id][partition][number] if ids and described.id in ids else None,
                    ),
                    self._attempts.get(StoreId(described.id, partition, store.name)),
                )
                for described in chosen
                for partition in range(self._partitions(described, batch, ids))
                for number, store in enumerate(described.stores)
            ]
        except ValueError as error:
            raise ForeignCheckpointError(
                f"the state of {self.url} was written by another state store provider: the versions in its "
                f"commit log have another form ({error}). A query keeps the provider of its first batch."
            ) from error
        except (IndexError, TypeError) as error:
            raise CorruptCheckpointError(
                f"the commit log of {self.url} does not have a version of every store for batch {batch}: the "
                "operators have another number of stores. "
                + restore_from_backup("the entry or the operators' metadata")
            ) from error

    def partitions(self, operator: StatefulOperator, batch: int | None = None) -> int:
        """Return the number of partitions in which an operator has state.

        It may differ from Spark's metadata, see `StatefulOperator.is_single`.
        """
        batch = self.require_batch(batch)
        return self._partitions(operator, batch, self.commit(batch).state_ids)

    def _partitions(
        self, operator: StatefulOperator, batch: int, ids: Mapping[int, Sequence[Sequence[str]]] | None
    ) -> int:
        if ids and operator.id in ids:
            return len(ids[operator.id])
        if not operator.may_be_single:
            return operator.partitions
        first = StoreId(operator.id, 0, operator.stores[0].name)
        try:
            name = CheckpointName(batch + 1)
            column_families = self.open(first).metadata(name, self._attempts.get(first)).column_families
        except CheckpointError:
            # Unreadable metadata fails the load of that store, with its own error.
            return operator.partitions
        single = any(
            family.name == _DEFAULT_STATE and operator.is_single(family.key_schema)
            for family in column_families
        )
        return 1 if single else operator.partitions

    def open(self, store: StoreId, options: StorageOptions | None = None) -> StoreDirectory:
        """Open a store's versions; `options` are for what is written to it."""
        self._require_inside(store.directories)
        directory = join(self.state_url, *store.directories)
        options = replace(options or StorageOptions(), fsync=self._fsync)
        return StoreDirectory(store, directory, options, merged_of=self._merged_of)

    def open_state(self, *, fsync: bool = False) -> tuple[FileSystem, str]:
        """Return the file system of the stores, and the stores' directory.

        The file system has merged files at their stores' paths.
        """
        files, directory = open_file_system(self.state_url, fsync=fsync or self._fsync)
        state = directory.rstrip("/")
        return MergedFileSystem(files, self._merged_of(files, state)), state

    def merged_files(self) -> MergedFiles:
        """Return the merged files of all stores."""
        files, directory = open_file_system(self.state_url, fsync=self._fsync)
        return self._merged_of(files, directory.rstrip("/"))

    def _merged_of(self, files: FileSystem, state_directory: str) -> MergedFiles:
        return self._merged.setdefault(state_directory, MergedFiles(files, state_directory))

    def _require_no_state_of(self, operator: int, batch: int | None) -> None:
        # An operator without metadata would silently be left out, and its state lost.
        directory = self.path(STATE, str(operator))
        with failing_to("look for", self.files, directory):
            if not self.files.is_directory(directory):
                return
        at_batch = "" if batch is None else f" for batch {batch}"
        raise CorruptCheckpointError(
            f"the stateful operator {operator} of {self.url} has the directory {self.files.url(directory)}, "
            f"but no metadata file in _metadata there{at_batch}. "
            f"{restore_from_backup(otherwise='use a later batch')}"
        )

    def operator_runs(self, operator: int, batches: range) -> Iterator[tuple[int, StatefulOperator]]:
        """Yield an operator as each run of the query described it, with the run's first batch, oldest first.

        The runs are those that begin with one of the batches. Version 1 of the metadata has no runs.
        """
        directory = self.path(STATE, str(operator), "_metadata", "v2")
        with failing_to("list", self.files, directory):
            names = [status.path.rpartition("/")[2] for status in self.files.list_files(directory)]
        for number in sorted(int(name) for name in names if name.isdigit() and int(name) in batches):
            path = join(directory, str(number))
            yield number, StatefulOperator.decode(read_file(self.files, path), self.files.url(path))

    def _operator_file(self, operator: int, batch: int | None) -> str | None:
        directory = self.path(STATE, str(operator), "_metadata")
        with failing_to("list", self.files, directory):
            paths = {
                status.path[len(directory) + 1 :]: status.path for status in self.files.list_files(directory)
            }
        if METADATA in paths:
            return paths[METADATA]
        # Version 2 has a file for the first batch of each run of the query.
        numbered = sorted(
            int(name.removeprefix("v2/")) for name in paths if name.startswith("v2/") and name[3:].isdigit()
        )
        earlier = [number for number in numbered if batch is None or number <= batch]
        return paths[f"v2/{earlier[-1]}"] if earlier else None

    def _entry(self, log: str, batch: int) -> tuple[bytes, str]:
        path = self.path(log, str(batch))
        try:
            return read_file(self.files, path), self.files.url(path)
        except FileNotFoundError as error:
            raise CheckpointNotFoundError(
                f"the checkpoint {self.url} has no entry of batch {batch} in {log!r}: the batch is not "
                "committed, or no longer retained. "
                f"It has the batches {ranges(self.batches())}."
            ) from error

    def __repr__(self) -> str:
        return f"QueryCheckpoint({self.url!r})"


def ranges(numbers: Sequence[int]) -> str:
    """Format numbers as ranges: 3 to 7, 9."""
    parts = []
    for _, group in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        parts.append(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}")
    return ", ".join(parts)

"""The checkpoint location of a streaming query, read without Spark."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from spark_statestore.checkpoint.files import FileSystem, join, open_file_system
from spark_statestore.checkpoint.files.failures import failing_to, read_file
from spark_statestore.checkpoint.metadata import StoreId
from spark_statestore.checkpoint.query.logs import CommitEntry, OffsetEntry
from spark_statestore.checkpoint.query.operators import StatefulOperator
from spark_statestore.checkpoint.query.sources import directories
from spark_statestore.checkpoint.storage import CheckpointName
from spark_statestore.checkpoint.versions import VersionStore
from spark_statestore.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    ForeignCheckpointError,
)
from spark_statestore.options import StorageOptions

__all__ = [
    "COMMITS",
    "METADATA",
    "OFFSETS",
    "ROLLED_BACK",
    "SOURCES",
    "STATE",
    "QueryCheckpoint",
    "StoreVersion",
]

# It becomes a part of paths.
_ID: Final = re.compile(r"[0-9A-Za-z-]{1,64}")

METADATA: Final = "metadata"
OFFSETS: Final = "offsets"
COMMITS: Final = "commits"
SOURCES: Final = "sources"
STATE: Final = "state"

ROLLED_BACK: Final = "rolled-back"
"""Directory for what roll-backs took out of a checkpoint location."""

_DEFAULT_STATE: Final = "default"


@dataclass(frozen=True, slots=True)
class StoreVersion:
    """One store as a batch left it.

    Attributes
    ----------
    store
        The store.
    name
        The version: a batch's number plus one, and in checkpoint format v2 the attempt that counts.
    attempt
        The attempt at it that is meant where a later one may have taken the name, for `VersionStore.metadata`;
        None for the one that counts now.
    """

    store: StoreId
    name: CheckpointName
    attempt: str | None = None


class QueryCheckpoint:
    """What lies in a query's checkpoint location: batches, operators, and the stores' versions.

    It is read when it is asked for, and nothing of it is changed here.

    Parameters
    ----------
    url
        The query's ``checkpointLocation``.
    checkpoints_dir
        The option ``checkpointsDir`` of the query, if it was set.
    state_url
        The directory that the stores lie in, where neither tells: a savepoint that points at state.
    attempts
        The attempts at the stores' versions that are meant, see `StoreVersion`.
    fsync
        Whether local files that are written there are synced.

    Raises
    ------
    StorageError
        If the location's file system cannot be used.
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

    @property
    def url(self) -> str:
        """The checkpoint location."""
        return self.files.url(self.root)

    @cached_property
    def query_id(self) -> str:
        """The query's id, as Spark writes it.

        Raises
        ------
        CheckpointNotFoundError
            If no query ever ran there.
        CorruptCheckpointError
            If it cannot be read.
        """
        path = self.path(METADATA)
        try:
            found = str(json.loads(read_file(self.files, path))["id"])
            if not _ID.fullmatch(found):
                raise ValueError(f"{found!r:.80} is no id")
            return found
        except FileNotFoundError as error:
            raise CheckpointNotFoundError(
                f"{self.url} is no checkpoint location of a streaming query: it has no file {METADATA!r}. Check the path; it "
                "is what the query has as checkpointLocation."
            ) from error
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptCheckpointError(
                f"{self.files.url(path)} has no id of a query: {error!r}. Copy it back from a backup; nothing was changed."
            ) from error

    @property
    def state_url(self) -> str:
        """URL of the directory that the stores lie in, by operator."""
        if self._state_url is not None:
            return self._state_url
        if self._checkpoints_dir is None:
            return self.files.url(self.path(STATE))
        return join(self._checkpoints_dir, self.query_id.replace("-", ""))

    def path(self, *names: str) -> str:
        """Path of something in the checkpoint location.

        Raises
        ------
        CorruptCheckpointError
            If it would lie outside of that. Some names are taken from files of the checkpoint.
        """
        self._require_inside(names)
        return join(self.root, *names)

    def _require_inside(self, names: Sequence[str]) -> None:
        if any("\0" in name or ".." in name.split("/") for name in names):
            raise CorruptCheckpointError(
                f"a file of the checkpoint {self.url} names {'/'.join(names)!r:.200}, which leads out of it. The "
                "checkpoint is damaged or was tampered with; go on from a backup. Nothing was changed."
            )

    def batches(self) -> list[int]:
        """Batches that are done and whose logs are kept, oldest first.

        Raises
        ------
        CheckpointNotFoundError
            If no query ever ran there.
        """
        if not (found := self._numbers(COMMITS)):
            # Says so if there is no checkpoint at all.
            _ = self.query_id
        return sorted(found & self._numbers(OFFSETS))

    def noted_batches(self) -> list[int]:
        """Batches of which Spark keeps anything, oldest first: also those that were begun and not done."""
        return sorted(self._numbers(OFFSETS) | self._numbers(COMMITS))

    def newest_batch(self) -> int:
        """The newest batch that is done.

        Raises
        ------
        CheckpointNotFoundError
            If there is none.
        """
        return self.require_batch(None)

    def require_batch(self, batch: int | None) -> int:
        """A batch, by default the newest one, after a look whether it is there.

        Raises
        ------
        CheckpointNotFoundError
            If it is not done, or its logs are not kept any more.
        """
        batches = self.batches()
        if batches and batch is None:
            return batches[-1]
        if batch not in batches:
            kept = f"it has the batches {_ranges(batches)}" if batches else "no batch is done there"
            raise CheckpointNotFoundError(
                f"the checkpoint {self.url} has no {'batch' if batch is None else f'batch {batch}'}: {kept}. Name one of "
                "those; spark.sql.streaming.minBatchesToRetain says how many are kept."
            )
        return batch

    def source_offsets(self, entry: OffsetEntry) -> dict[str, str]:
        """What an entry of the offset log says of each source, by the name of the source's directory.

        Raises
        ------
        CorruptCheckpointError
            See `sources.directories`.
        """
        return directories(entry, lambda name: self.files.is_directory(self.path(SOURCES, name)))

    def offsets(self, batch: int) -> OffsetEntry:
        """What a batch read.

        Raises
        ------
        CheckpointNotFoundError, CorruptCheckpointError
            If it is not kept, or cannot be read.
        """
        data, where = self._entry(OFFSETS, batch)
        return OffsetEntry.decode(data, where)

    def commit(self, batch: int) -> CommitEntry:
        """What Spark noted when a batch was done.

        Raises
        ------
        CheckpointNotFoundError, CorruptCheckpointError
            If it is not kept, or cannot be read.
        """
        data, where = self._entry(COMMITS, batch)
        return CommitEntry.decode(data, where)

    def operators(self, batch: int | None = None) -> list[StatefulOperator]:
        """The stateful operators of the query, as Spark noted them for a batch; none if it has no state.

        Parameters
        ----------
        batch
            By default the newest one.

        Raises
        ------
        CorruptCheckpointError
            If one cannot be read.
        """
        return [operator for _, operator in self.operator_files(batch)]

    def operator_files(self, batch: int | None = None) -> Iterator[tuple[str, StatefulOperator]]:
        """The stateful operators, each with the path of the file that describes it.

        Raises
        ------
        CorruptCheckpointError
            If one of those files cannot be read, or is missing.
        """
        # Operators are numbered without a gap.
        for number in itertools.count():
            path = self._operator_file(number, batch)
            if path is None:
                self._require_no_state_of(number, batch)
                return
            try:
                data = read_file(self.files, path)
            except FileNotFoundError as error:
                raise CheckpointNotFoundError(
                    f"{self.files.url(path)} was there and is gone: somebody removes the checkpoint, or the query has just "
                    "purged it. Try again if it should be there."
                ) from error
            yield path, StatefulOperator.decode(data, self.files.url(path))

    def operator(self, number: int, batch: int | None = None) -> StatefulOperator:
        """One of the stateful operators.

        Raises
        ------
        CheckpointNotFoundError
            If there is no such operator.
        """
        operators = self.operators(batch)
        if not 0 <= number < len(operators):
            known = ", ".join(f"{operator.id} ({operator.name})" for operator in operators)
            raise CheckpointNotFoundError(
                f"the checkpoint {self.url} has no stateful operator {number}, it has {known or 'none'}. Name one of those."
            )
        return operators[number]

    def stores(self, batch: int | None = None, operator: int | None = None) -> list[StoreVersion]:
        """The stores of all operators, or of one, as a batch left them.

        Parameters
        ----------
        batch
            By default the newest one.

        Raises
        ------
        CheckpointNotFoundError
            If there is no such batch or operator.
        CorruptCheckpointError
            If the commit log names other stores than the operators have.
        ForeignCheckpointError
            If another provider keeps the query's state.
        """
        batch = self.require_batch(batch)
        ids = self.commit(batch).state_ids
        chosen = self.operators(batch) if operator is None else [self.operator(operator, batch)]
        try:
            return [
                StoreVersion(
                    StoreId(one.id, partition, store.name),
                    CheckpointName(
                        batch + 1, ids[one.id][partition][number] if ids and one.id in ids else None
                    ),
                    self._attempts.get(StoreId(one.id, partition, store.name)),
                )
                for one in chosen
                for partition in range(self._partitions(one, batch, ids))
                for number, store in enumerate(one.stores)
            ]
        except ValueError as error:
            raise ForeignCheckpointError(
                f"the state of {self.url} was written by another state store provider: its commit log names versions "
                f"in another way ({error}). A query keeps the provider of its first batch."
            ) from error
        except (IndexError, TypeError) as error:
            raise CorruptCheckpointError(
                f"the commit log of {self.url} does not name a version of every store for batch {batch}: it fits "
                "another number of stores than the operators have. Copy the entry or the operators' metadata back from a "
                "backup, or go on from an earlier batch; nothing was changed."
            ) from error

    def partitions(self, operator: StatefulOperator, batch: int | None = None) -> int:
        """The partitions that an operator has state in.

        They are not always as many as Spark notes, see `StatefulOperator.is_single`.

        Raises
        ------
        CheckpointNotFoundError
            If there is no such batch.
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
            states = self.open(first).metadata(name, self._attempts.get(first)).states
        except CheckpointError:
            # Whoever needs it hears of it.
            return operator.partitions
        single = any(one.name == _DEFAULT_STATE and operator.is_single(one.key_schema) for one in states)
        return 1 if single else operator.partitions

    def open(self, store: StoreId) -> VersionStore:
        """The versions of a store."""
        self._require_inside(store.directories)
        directory = join(self.state_url, *store.directories)
        return VersionStore(store, directory, StorageOptions(fsync=self._fsync))

    def _require_no_state_of(self, operator: int, batch: int | None) -> None:
        # An operator that is not noticed would be one whose state is left behind.
        directory = self.path(STATE, str(operator))
        with failing_to("look for", self.files, directory):
            if not self.files.is_directory(directory):
                return
        of = "" if batch is None else f" for batch {batch}"
        raise CorruptCheckpointError(
            f"the stateful operator {operator} of {self.url} has a directory, {self.files.url(directory)}, and no file in "
            f"_metadata there that describes it{of}. Copy it back from a backup, or take a later batch; nothing was changed."
        )

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
        known = [number for number in numbered if batch is None or number <= batch]
        return paths[f"v2/{known[-1]}"] if known else None

    def _numbers(self, log: str) -> set[int]:
        directory = self.path(log)
        with failing_to("list", self.files, directory):
            names = [status.path.rpartition("/")[2] for status in self.files.list_files(directory)]
        return {int(name) for name in names if name.isascii() and name.isdigit()}

    def _entry(self, log: str, batch: int) -> tuple[bytes, str]:
        path = self.path(log, str(batch))
        try:
            return read_file(self.files, path), self.files.url(path)
        except FileNotFoundError as error:
            raise CheckpointNotFoundError(
                f"the checkpoint {self.url} has nothing of batch {batch} in {log!r}: it is not done, or not kept any more. "
                f"It has the batches {_ranges(self.batches())}."
            ) from error

    def __repr__(self) -> str:
        return f"QueryCheckpoint({self.url!r})"


def _ranges(numbers: list[int]) -> str:
    """Numbers for people: 3 to 7, 9."""
    parts = []
    for _, group in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        parts.append(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}")
    return ", ".join(parts)

"""Search for keys in all that a query's stores have in storage, to show that they are erased."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_statestore.files import join, open_file_system
from spark_statestore.formats.merged_files import PhysicalName
from spark_statestore.query import QueryCheckpoint, StatefulOperator, StoreVersion
from spark_statestore.query.layout import files_of_stores
from spark_statestore.query.parallel import Progress
from spark_statestore.query.savepoint_lookup import open_checkpoint
from spark_statestore.rescaling.partitioning import DEFAULT, PartitionKey, partition_key
from spark_statestore.rows import decode_rows
from spark_statestore.rows.types import parse_schema
from spark_statestore.storage.file_handles import FileStateHandle, SegmentFileStateHandle
from spark_statestore.storage.incremental_handle import ChainEntry
from spark_statestore.storage.merged_lookup import MERGED_DIRECTORY
from spark_statestore.store.changelog import read_changes
from spark_statestore.store.metadata import ColumnFamily, StoreId
from spark_statestore.writing.predicate import Predicate, predicate_of

# Rows per decoded batch, which bounds temporary memory.
_BATCH_ROWS: Final = 65_536

KeyColumns = Callable[[pa.Array], pa.RecordBatch]
"""Returns the column ``key`` of rows by their keys."""


@dataclass(frozen=True, slots=True)
class KeysInStream:
    """Records of a stream whose keys match a condition.

    Attributes
    ----------
    stream
        Id of the stream, such as the URL of its file.
    batch
        A retained batch that needs it.
    state
        Operator, partition, store and column family.
    records
        Number of records: values that were put, and deletions.
    """

    stream: str
    batch: int
    state: str
    records: int


@dataclass(frozen=True, slots=True)
class Absence:
    """The result of `verify_absent`.

    Attributes
    ----------
    batches
        The retained batches.
    streams
        Number of streams of all batches, which were read to their end.
    found
        Streams with records of the keys.
    unknown
        URLs of files that no retained batch needs. What is in them was not read.
    """

    batches: tuple[int, ...]
    streams: int
    found: tuple[KeysInStream, ...]
    unknown: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """True if the keys are in no stream, and no other file could have them."""
        return not self.found and not self.unknown


def verify_absent(
    path: str,
    condition: str | pc.Expression,
    *,
    operator: int = 0,
    checkpoints_dir: str | None = None,
    progress: Progress | None = None,
) -> Absence:
    """Search for keys in all that the stores of an operator have in storage.

    Every stream of each retained batch is read, with values that were replaced later, deletions, and all that
    Spark derives. A file that no retained batch needs, such as one of an attempt that was not committed, is
    not read, and reported.

    Parameters
    ----------
    path
        The query's ``checkpointLocation``, or a savepoint.
    condition
        A condition on the column ``key``, as in `write_state`. Its fields are the grouping columns, those of
        ``dropDuplicates``, or those of a join, ``field0`` and so on.
    operator
        Number of the stateful operator; 0 is the last one of the query.
    checkpoints_dir
        The option ``checkpointsDir`` of the query, if it was set.
    progress
        Called with the number of stores done and their total.

    Raises
    ------
    OptionError
        If the condition cannot be evaluated on the keys.
    MissingPackageError
        If it is SQL and DuckDB is not installed.
    RescaleError
        If the operator has state whose keys this release does not know.
    CheckpointNotFoundError
        If there is no such checkpoint or operator.
    CorruptCheckpointError, CheckpointIOError
        If a stream cannot be read.
    """
    checkpoint = open_checkpoint(path, checkpoints_dir=checkpoints_dir)
    batches = checkpoint.batches()
    search = _Search(checkpoint, operator, predicate_of(condition))
    versions = [(batch, version) for batch in batches for version in checkpoint.stores(batch, operator)]
    report: Progress = progress or (lambda done, total: None)
    for done, (batch, version) in enumerate(versions):
        report(done, len(versions))
        search.read(batch, version)
    report(len(versions), len(versions))
    unknown = [*search.unknown(), *_older_merged_files(checkpoint, batches[0] + 1)]
    return Absence(tuple(batches), search.streams, tuple(search.found), tuple(unknown))


class _Search:
    """Streams that were read, and their records that match."""

    def __init__(self, checkpoint: QueryCheckpoint, operator: int, predicate: Predicate) -> None:
        self._checkpoint = checkpoint
        self._operator = operator
        self._predicate = predicate
        self._streams: set[str] = set()
        # Paths with the attempts whose bytes are there.
        self._needed: dict[str, set[str | None]] = {}
        self._undescribed: list[str] = []
        self.found: list[KeysInStream] = []

    @property
    def streams(self) -> int:
        """Number of streams that were read."""
        return len(self._streams)

    def read(self, batch: int, version: StoreVersion) -> None:
        """Search the streams of a store's version that were not read for another one."""
        operator = self._checkpoint.operator(self._operator, batch)
        store = self._checkpoint.open(version.store)
        metadata = store.metadata(version.name, version.attempt_id)
        self._need(store.metadata_path(version.name), metadata.attempt_id)
        keys = _keys_of_families(operator, version.store, metadata.column_families)
        for columns in keys.values():
            # Raises for a condition on other columns, also if there is no row.
            self._predicate.matching(columns(pa.array([], pa.binary())))
        for entry in metadata.handle:
            stream = entry.state.delegate_state_handle
            if isinstance(stream, FileStateHandle):
                self._need(stream.path, None)
            elif isinstance(stream, SegmentFileStateHandle):
                self._need(stream.path, stream.attempt_id)
            identity = stream.stream_state_handle_id
            if identity not in self._streams:
                self._streams.add(identity)
                self._search(batch, str(version.store), entry, store.where(version.name), keys)

    def unknown(self) -> Iterator[str]:
        """Yield URLs of files of the operator's stores that no version needs, or that cannot be decoded."""
        yield from self._undescribed
        files, _ = self._checkpoint.open_state()
        listed = {
            status.path
            for store, _, _, status in files_of_stores(self._checkpoint)
            if store.operator == self._operator
        }
        needed = set()
        for path, attempts in self._needed.items():
            # An attempt that another one has replaced has its id as the suffix.
            replaced = {f"{path}.{attempt}" for attempt in attempts} & listed
            needed |= replaced
            if len(replaced) < len(attempts):
                needed.add(path)
        yield from map(files.url, sorted(listed - needed))

    def _need(self, path: str, attempt_id: str | None) -> None:
        self._needed.setdefault(path, set()).add(attempt_id)

    def _search(
        self, batch: int, store: str, entry: ChainEntry, where: str, keys: Mapping[str, KeyColumns]
    ) -> None:
        stream = entry.state.delegate_state_handle.stream_state_handle_id
        records: Counter[str] = Counter()
        for name, changes in read_changes(entry.state, where):
            if name not in keys:
                # The column family was removed, and its schema with it.
                self._undescribed.append(stream)
                continue
            for first in range(0, changes.num_rows, _BATCH_ROWS):
                columns = keys[name](changes["key"].slice(first, _BATCH_ROWS))
                records[name] += len(self._predicate.matching(columns))
        for name, number in records.items():
            if number:
                self.found.append(KeysInStream(stream, batch, f"{store}, {name}", number))


def _keys_of_families(
    operator: StatefulOperator, store: StoreId, families: Sequence[ColumnFamily]
) -> dict[str, KeyColumns]:
    """Return for each column family how the column ``key`` comes from its keys."""
    by_name = {family.name: family for family in families}
    named = [family for family in families if family.name != DEFAULT or len(families) == 1]
    return {
        family.name: partial(_keys, family, partition_key(operator, store.name, family, by_name))
        for family in named
    }


def _keys(family: ColumnFamily, where: PartitionKey, keys: pa.Array) -> pa.RecordBatch:
    column = decode_rows(keys, family.key_schema)
    for position in where.inside:
        column = column.flatten()[position]
    number = len(where.columns(parse_schema(family.key_schema)))
    key = pa.StructArray.from_arrays(column.flatten()[:number], fields=list(column.type)[:number])
    return pa.RecordBatch.from_arrays([key], ["key"])


def _older_merged_files(checkpoint: QueryCheckpoint, oldest: int) -> Iterator[str]:
    """Yield URLs of merged files that may have metadata of versions before the oldest retained one."""
    files, directory = open_file_system(checkpoint.state_url)
    for status in files.list_files(join(directory.rstrip("/"), MERGED_DIRECTORY)):
        name = PhysicalName.parse(posixpath.basename(status.path))
        if name is None or name.oldest < oldest:
            yield files.url(status.path)

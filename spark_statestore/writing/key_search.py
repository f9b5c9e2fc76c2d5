"""Search of streams for keys, by the columns by which an operator groups its rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_statestore.errors import (
    CheckpointError,
    CheckpointIOError,
    CorruptCheckpointError,
    restore_from_backup,
)
from spark_statestore.files.failures import failing_to
from spark_statestore.query import QueryCheckpoint, StatefulOperator, StoreVersion
from spark_statestore.rescaling.partitioning import DEFAULT, PartitionKey, partition_key
from spark_statestore.rows import decode_rows
from spark_statestore.rows.types import parse_schema
from spark_statestore.storage.file_handles import FileStateHandle, SegmentFileStateHandle
from spark_statestore.storage.incremental_handle import ChainEntry
from spark_statestore.store.changelog import read_changes
from spark_statestore.store.changelog_apply import ROW_SCHEMA
from spark_statestore.store.metadata import ColumnFamily, StoreId
from spark_statestore.writing.predicate import Predicate, is_match

_OF_A_PARTITION: Final = re.compile(r"\d+/\d+/(?!.*_metadata/)")

KeyColumns = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Returns the column ``key`` of rows whose keys are encoded."""


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


class KeySearch:
    """A search of streams for records whose keys match a condition.

    Parameters
    ----------
    operator
        Number of the operator of whose stores streams are read.
    """

    def __init__(self, checkpoint: QueryCheckpoint, operator: int, predicate: Predicate) -> None:
        self._checkpoint = checkpoint
        self._operator = operator
        self._predicate = predicate
        # By stream id, True if it has such records.
        self._streams: dict[str, bool] = {}
        # Paths with the attempts whose bytes are there.
        self._needed: dict[str, set[str | None]] = {}
        self._undescribed: list[str] = []
        self.matches: list[KeysInStream] = []
        """Streams with such records."""

    @property
    def streams(self) -> int:
        """Number of streams that were read."""
        return len(self._streams)

    def read(self, batch: int, version: StoreVersion) -> bool:
        """Search the streams of a store's version, each once; return whether one may have the keys."""
        operator = self._checkpoint.operator(self._operator, batch)
        store = self._checkpoint.open(version.store)
        metadata = store.metadata(version.name, version.attempt_id)
        self._need(store.metadata_path(version.name), metadata.attempt_id)
        keys = keys_of_families(operator, version.store, metadata.column_families)
        for columns in keys.values():
            # Raises for a condition on other columns, also if there is no row.
            self._predicate.matching(columns(pa.RecordBatch.from_pylist([], ROW_SCHEMA)))
        for entry in metadata.handle:
            stream = entry.state.delegate_state_handle
            if isinstance(stream, FileStateHandle):
                self._need(stream.path, None)
            elif isinstance(stream, SegmentFileStateHandle):
                self._need(stream.path, stream.attempt_id)
            identity = stream.stream_state_handle_id
            if identity not in self._streams:
                # A column family that was created anew may have had other keys before.
                keys_at_version = {
                    family.name: keys[family.name]
                    for family in metadata.column_families
                    if family.name in keys and family.created_at_version <= entry.version
                }
                has_matches = self._search(
                    batch, str(version.store), entry, store.where(version.name), keys_at_version
                )
                self._streams[identity] = has_matches
        entries = (entry.state.delegate_state_handle.stream_state_handle_id for entry in metadata.handle)
        return any(self._streams[identity] for identity in entries)

    def unknown(self) -> Iterator[str]:
        """Yield URLs of files of the operator's stores that no version needs, or that cannot be decoded."""
        yield from self._undescribed
        files, directory = self._checkpoint.open_state()
        start = len(directory) + 1
        # Spark's description of the operator and its schemas have no keys, and files without bytes have none.
        below = f"{directory}/{self._operator}"
        with failing_to("list", files, below):
            listed = {
                status.path
                for status in files.list_files(below)
                if status.size and _OF_A_PARTITION.match(status.path[start:])
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
    ) -> bool:
        stream = entry.state.delegate_state_handle.stream_state_handle_id
        records: Counter[str] = Counter()
        is_known = True
        with _reading(stream, where):
            for name, changes in read_changes(entry.state, where):
                if name not in keys:
                    # The column family was removed, or another one had its name: its schema is gone.
                    self._undescribed.append(stream)
                    is_known = False
                    continue
                matches = is_match(self._predicate, pa.Table.from_batches([changes]), keys[name])
                records[name] += pc.sum(matches).as_py() or 0
        for name, number in records.items():
            if number:
                self.matches.append(KeysInStream(stream, batch, f"{store}, {name}", number))
        return any(records.values()) or not is_known


@contextmanager
def _reading(stream: str, where: str) -> Iterator[None]:
    """Convert errors of reading a stream into errors that name the version."""
    try:
        yield
    except CheckpointError:
        raise
    except FileNotFoundError as error:
        raise CorruptCheckpointError(
            f"{where} needs the state stream {stream}, which is missing. {restore_from_backup()}"
        ) from error
    except OSError as error:
        raise CheckpointIOError(
            f"{where}: {stream} cannot be read: {error}. Check that the storage is reachable; then try again."
        ) from error


def keys_of_families(
    operator: StatefulOperator, store: StoreId, families: Sequence[ColumnFamily]
) -> dict[str, KeyColumns]:
    """Return for each column family how the column ``key`` comes from its keys."""
    by_name = {family.name: family for family in families}
    named = [family for family in families if family.name != DEFAULT or len(families) == 1]
    return {
        family.name: partial(_keys, family, partition_key(operator, store.name, family, by_name))
        for family in named
    }


def _keys(family: ColumnFamily, where: PartitionKey, rows: pa.RecordBatch) -> pa.RecordBatch:
    column = decode_rows(rows["key"], family.key_schema)
    for position in where.inside:
        column = column.flatten()[position]
    number = len(where.columns(parse_schema(family.key_schema)))
    key = pa.StructArray.from_arrays(column.flatten()[:number], fields=list(column.type)[:number])
    return pa.RecordBatch.from_arrays([key], ["key"])

"""The rows of a state as typed tables, read from a checkpoint without Spark."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from spark_statestore.query import StoreVersion
from spark_statestore.query.parallel import parallel_map
from spark_statestore.rows.columns import StateColumns
from spark_statestore.rows.source import StateSource, find_state

# Rows per decoded batch, which bounds temporary memory.
_BATCH_ROWS: Final = 1 << 18


def read_state(
    path: str,
    operator: int = 0,
    store: str = "default",
    column_family: str | None = None,
    batch: int | None = None,
    partition: int | None = None,
    columns: Sequence[str] | None = None,
    *,
    checkpoints_dir: str | None = None,
) -> pa.Table:
    """Read the state of a streaming query at a batch.

    Neither Spark nor Java is needed, and the query may be running.

    Parameters
    ----------
    path
        The query's ``checkpointLocation``, or a savepoint of either kind.
    operator
        Number of the stateful operator; 0 is the last one of the query.
    store
        The operator's store. A stream-stream join has several, such as ``left-keyToNumValues``; where these
        are column families of one store, they can be named here too.
    column_family
        A column family of the store: of transformWithState, the name of a state variable.
    batch
        The batch, by default the newest committed one.
    partition
        The only partition to read.
    columns
        The columns to read, by default all. ``value.count`` is a field of one.
    checkpoints_dir
        The option ``checkpointsDir`` of the query, if it was set.

    Returns
    -------
    pyarrow.Table
        The columns ``key``, ``value`` (structs) and ``partition_id``. A map variable of transformWithState
        has ``user_map_key`` and ``user_map_value`` in place of ``value``, and a list variable
        ``list_element``; a key has a row for each of its values. Rows are in no particular order. Fields of
        one name in a struct get unique names, ``count`` and ``count_2``: docs/reading.md has the rule.

    Raises
    ------
    CheckpointNotFoundError
        If there is no such query, batch, operator, store, column family or partition.
    OptionError
        If there is no such column.
    CorruptCheckpointError, CheckpointIOError, UnsupportedFormatError
        If the state cannot be read.
    """
    source = find_state(
        path, operator, store, column_family, batch, partition, checkpoints_dir=checkpoints_dir
    )
    typed = source.columns(columns)

    def read(version: StoreVersion) -> list[pa.RecordBatch]:
        return list(_batches(source, version, typed, _BATCH_ROWS, memory=None))

    return pa.Table.from_batches(itertools.chain(*parallel_map(read, source.versions)), typed.schema)


def iter_state(
    path: str,
    operator: int = 0,
    store: str = "default",
    column_family: str | None = None,
    batch: int | None = None,
    partition: int | None = None,
    columns: Sequence[str] | None = None,
    *,
    batch_rows: int = 65_536,
    memory: int = 1 << 29,
    checkpoints_dir: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read state larger than memory: as `read_state`, in batches.

    The state of a partition that exceeds `memory` is read in several passes over its files, each of which
    keeps the keys of another part.

    Parameters
    ----------
    path, operator, store, column_family, batch, partition, columns, checkpoints_dir
        See `read_state`.
    batch_rows
        Maximum number of rows of a record batch.
    memory
        Approximate limit of the bytes of rows held; decoding them takes as much again. All values of one key
        are held in any case.

    Yields
    ------
    pyarrow.RecordBatch
        At least one, so that the columns are known even if there are no rows.

    Raises
    ------
    CheckpointNotFoundError, OptionError, CorruptCheckpointError, CheckpointIOError, UnsupportedFormatError
        See `read_state`. An error found during the iteration is raised then; rows yielded before are right.
    """
    source = find_state(
        path, operator, store, column_family, batch, partition, checkpoints_dir=checkpoints_dir
    )
    typed = source.columns(columns)
    # Validate the arguments now, not at the first iteration.
    batches = (_batches(source, version, typed, batch_rows, memory) for version in source.versions)
    return _at_least_one(itertools.chain.from_iterable(batches), typed)


def _batches(
    source: StateSource, version: StoreVersion, typed: StateColumns, batch_rows: int, memory: int | None
) -> Iterator[pa.RecordBatch]:
    for rows in source.rows(version, memory):
        for batch in rows.to_batches(batch_rows):
            yield typed.decode(batch, version.store.partition)


def _at_least_one(batches: Iterator[pa.RecordBatch], typed: StateColumns) -> Iterator[pa.RecordBatch]:
    first = next(batches, None)
    yield typed.empty() if first is None else first
    yield from batches

"""The state of an operator spread over another number of partitions, as Spark would have spread it."""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
import weakref
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from spark_statestore.checkpoint.metadata import NamedState, StoreId
from spark_statestore.checkpoint.query import QueryCheckpoint, StatefulOperator, StoreVersion
from spark_statestore.errors import RescaleError
from spark_statestore.rows import decode_rows
from spark_statestore.rows.types import parse_schema
from spark_statestore.savepoint.at_once import at_once
from spark_statestore.savepoint.content import StoreContent, read_store
from spark_statestore.savepoint.rescale.keys import PartitionKey, partition_key
from spark_statestore.savepoint.rescale.murmur3 import hash_columns, partitions_of
from spark_statestore.state.fold import ROW_SCHEMA

if TYPE_CHECKING:
    from spark_statestore.savepoint.rescale.murmur3 import Hashes, Partitions

__all__ = ["rescaled"]

# As many rows as are spread at once.
_BATCH_ROWS: Final = 65_536

_DEFAULT: Final = "default"

_STRICT: Final = "spark.sql.streaming.statefulOperator.useStrictDistribution"


def rescaled(
    checkpoint: QueryCheckpoint, batch: int, operator: StatefulOperator, partitions: int
) -> Iterator[StoreContent]:
    """What every store of an operator has with another number of partitions.

    One store of the operator is read at a time, and lies in a temporary file from then on. It must be
    where Spark's partitioning puts it at present, or nothing of it is spread.

    Parameters
    ----------
    checkpoint
        The checkpoint of the query.
    batch
        The batch whose state it is.
    operator
        The operator.
    partitions
        The new number.

    Yields
    ------
    StoreContent
        Store by store all partitions, also those without rows; of an operator that has no key to spread
        its rows by, such as an aggregation of everything, the one partition that it ever has. As long as
        one of a store's is there, so is the temporary file.

    Raises
    ------
    RescaleError
        If a row is not where its key belongs, or where that is is not known.
    CheckpointNotFoundError, CorruptCheckpointError
        If the state is not there, or cannot be read.
    """
    if checkpoint.offsets(batch).conf.get(_STRICT) == "false":
        raise RescaleError(
            f"the query of {checkpoint.url} was started with {_STRICT}=false: then Spark may have spread rows by other columns "
            "than those of their keys, and nothing says by which. Keep the number of partitions. No copy was made."
        )
    by_name: dict[str, list[StoreVersion]] = {}
    for version in checkpoint.stores(batch, operator.id):
        by_name.setdefault(version.store.name, []).append(version)
    for name, versions in by_name.items():
        first = read_store(checkpoint, versions[0])
        if any(state.name == _DEFAULT and operator.is_single(state.key_schema) for state in first.states):
            yield first
        else:
            yield from _spread(checkpoint, operator, name, versions, partitions)


def _spread(
    checkpoint: QueryCheckpoint,
    operator: StatefulOperator,
    store: str,
    versions: Sequence[StoreVersion],
    partitions: int,
) -> Iterator[StoreContent]:
    spool = _Spool()

    def read(version: StoreVersion) -> dict[str, NamedState]:
        content = read_store(checkpoint, version)
        here = {state.name: state for state in content.states}
        for name, rows in content.rows():
            if not rows.num_rows:
                continue
            state = here[name]
            hashes = _hashes(rows["key"], state, partition_key(operator, store, state, here))
            _check(hashes, version, len(versions), operator, state)
            _distribute(spool, name, rows, partitions_of(hashes, partitions), partitions)
        return here

    states: dict[str, NamedState] = {}
    for here in at_once(read, versions, checkpoint.files):
        states = here | states
    for partition in range(partitions):
        yield StoreContent(
            StoreId(operator.id, partition, store),
            tuple(states.values()),
            partial(spool.rows, partition),
        )


def _hashes(keys: pa.ChunkedArray, state: NamedState, where: PartitionKey) -> Hashes:
    """What Spark's shuffle takes of each key."""
    import numpy as np

    key = parse_schema(state.key_schema)
    types = where.columns(key)
    needed = [key.arrow[where.inside[0]].name] if where.inside else None
    parts = []
    for chunk in keys.chunks:
        column = decode_rows(chunk, state.key_schema, needed)
        # The needed column is the only one that was decoded.
        for position in where.inside and (0, *where.inside[1:]):
            column = column.flatten()[position]
        parts.append(hash_columns(column.flatten()[: len(types)], types, len(chunk)))
    return np.concatenate(parts)


def _check(
    hashes: Hashes, version: StoreVersion, partitions: int, operator: StatefulOperator, state: NamedState
) -> None:
    """Refuse rows that lie elsewhere than in the partition of their key: where they would have to go is not known."""
    wrong = int((partitions_of(hashes, partitions) != version.store.partition).sum())
    if wrong:
        raise RescaleError(
            f"{version.store}: {wrong} of the {len(hashes)} rows of the state {state.name!r} of operator {operator.name} are "
            f"not in the partition that Spark gives their keys among {partitions}, so it is not known where they belong "
            "among another number. Files of another partition or query may have been copied there. Keep the number of "
            "partitions. No copy was made."
        )


def _distribute(spool: _Spool, state: str, rows: pa.Table, new: Partitions, partitions: int) -> None:
    import numpy as np

    table = spool.new_table()
    begin = 0
    for batch in rows.to_batches(max_chunksize=_BATCH_ROWS):
        chosen = new[begin : begin + len(batch)]
        begin += len(batch)
        # Rows of one partition stay in their order, and so do the values of a key.
        order = np.argsort(chosen, kind="stable")
        ordered = batch.take(pa.array(order))
        bounds = np.searchsorted(chosen[order], np.arange(partitions + 1))
        for partition in np.flatnonzero(np.diff(bounds)).tolist():
            start, end = int(bounds[partition]), int(bounds[partition + 1])
            spool.add(partition, table, state, ordered.slice(start, end - start))


class _Spool:
    """Rows by new partition, in a temporary file that is gone with the last one who may read it."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="spark-statestore-")  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._lock = threading.Lock()
        self._tables = itertools.count()
        self._places: defaultdict[int, list[_Place]] = defaultdict(list)

    def new_table(self) -> int:
        """Number a table whose parts are added: what is in one table stays in one."""
        return next(self._tables)

    def add(self, partition: int, table: int, state: str, rows: pa.RecordBatch) -> None:
        message = rows.serialize()
        with self._lock:
            start = self._file.seek(0, os.SEEK_END)
            self._file.write(message)
            self._places[partition].append(_Place(table, state, start, message.size))

    def rows(self, partition: int) -> Iterator[tuple[str, pa.Table]]:
        # The parts of a table are in their order, those of several may be mixed.
        places = sorted(self._places[partition], key=attrgetter("table"))
        for (_, state), parts in itertools.groupby(places, attrgetter("table", "state")):
            yield state, pa.Table.from_batches([self._read(place) for place in parts])

    def _read(self, place: _Place) -> pa.RecordBatch:
        with self._lock:
            self._file.seek(place.start)
            message = self._file.read(place.size)
        return pa.ipc.read_record_batch(pa.py_buffer(message), ROW_SCHEMA)


class _Place(NamedTuple):
    """Where a batch of rows lies in the file, and of which table it is a part."""

    table: int
    state: str
    start: int
    size: int

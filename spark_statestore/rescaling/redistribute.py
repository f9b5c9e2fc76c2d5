"""Redistribution of an operator's state to another number of partitions, by Spark's own partitioning."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa

from spark_statestore.errors import RescaleError
from spark_statestore.files import FileSystem
from spark_statestore.query import QueryCheckpoint, StatefulOperator, StoreVersion
from spark_statestore.query.parallel import parallel_iter
from spark_statestore.query.store_snapshot import StoreSnapshot, read_store
from spark_statestore.rescaling.murmur3 import hash_columns, partitions_of
from spark_statestore.rescaling.partitioning import DEFAULT, PartitionKey, partition_key
from spark_statestore.rescaling.spool import Spool
from spark_statestore.rows import decode_rows
from spark_statestore.rows.types import parse_schema, with_binary_strings
from spark_statestore.store.changelog_apply import ROW_SCHEMA
from spark_statestore.store.metadata import ColumnFamily, StoreId

if TYPE_CHECKING:
    from spark_statestore.rescaling.murmur3 import Hashes

Result = TypeVar("Result")

STRICT_DISTRIBUTION: Final = "spark.sql.streaming.statefulOperator.useStrictDistribution"


def rescaled(
    checkpoint: QueryCheckpoint, batch: int, operator: StatefulOperator, partitions: int
) -> Iterator[StoreSnapshot]:
    """Yield the content of an operator's stores with another number of partitions.

    Stores without rows are yielded, too.

    One store of the operator is read at a time and spooled to a temporary file, which exists as long as a
    snapshot of the store does. Its rows must be in the partitions that Spark's partitioning gives them at
    present. An operator without grouping columns keeps its one partition.
    """
    require_strict_distribution(checkpoint, batch, "Keep the number of partitions.")
    by_name: dict[str, list[StoreVersion]] = {}
    for version in checkpoint.stores(batch, operator.id):
        by_name.setdefault(version.store.name, []).append(version)
    for name, versions in by_name.items():
        first = read_store(checkpoint, versions[0])
        if _is_single(operator, first):
            yield first
        else:
            yield from _redistribute(checkpoint, operator, name, versions, partitions)


def write_rescaled(
    write: Callable[[StoreSnapshot], Result], contents: Iterable[StoreSnapshot], *storages: FileSystem
) -> Iterator[Result]:
    """Call a function for each store that `rescaled` yields, and yield the results in order.

    Redistribution of one store overlaps with the writes of its previous partitions.
    """
    for _, group in itertools.groupby(contents, lambda content: content.store.name):
        yield from parallel_iter(write, group, *storages)


def rescaled_count(
    checkpoint: QueryCheckpoint, batch: int, operator: StatefulOperator, partitions: int
) -> int:
    """Return the number of stores that `rescaled` yields."""
    return (1 if keeps_one_partition(checkpoint, batch, operator) else partitions) * len(operator.stores)


def keeps_one_partition(checkpoint: QueryCheckpoint, batch: int, operator: StatefulOperator) -> bool:
    """Return True for an operator that has one partition, whatever the number of the query's is."""
    return operator.may_be_single and _is_single(
        operator, read_store(checkpoint, checkpoint.stores(batch, operator.id)[0])
    )


def _is_single(operator: StatefulOperator, content: StoreSnapshot) -> bool:
    return any(
        state.name == DEFAULT and operator.is_single(state.key_schema) for state in content.column_families
    )


def require_strict_distribution(checkpoint: QueryCheckpoint, batch: int, remedy: str) -> None:
    """Raise if the columns of a key may not decide its partition in a query."""
    if checkpoint.offsets(batch).conf.get(STRICT_DISTRIBUTION) == "false":
        raise RescaleError(
            f"the query of {checkpoint.url} was started with {STRICT_DISTRIBUTION}=false: then Spark may "
            "have partitioned rows by other columns than those of their keys, and does not record by which. "
            f"{remedy} No copy was made."
        )


def _redistribute(
    checkpoint: QueryCheckpoint,
    operator: StatefulOperator,
    store: str,
    versions: Sequence[StoreVersion],
    partitions: int,
) -> Iterator[StoreSnapshot]:
    spool = Spool(ROW_SCHEMA)

    def read(version: StoreVersion) -> dict[str, ColumnFamily]:
        content = read_store(checkpoint, version)
        here = {state.name: state for state in content.column_families}
        for name, rows in content.rows():
            if not rows.num_rows:
                continue
            state = here[name]
            hashes = key_hashes(rows["key"], state, partition_key(operator, store, state, here))
            _check(hashes, version, len(versions), operator, state)
            spool.add(name, rows, partitions_of(hashes, partitions), partitions)
        return here

    column_families: dict[str, ColumnFamily] = {}
    for here in parallel_iter(read, versions, checkpoint.files):
        column_families = here | column_families
    for partition in range(partitions):
        yield StoreSnapshot(
            StoreId(operator.id, partition, store),
            tuple(column_families.values()),
            partial(spool.tables, partition),
        )


def key_hashes(keys: pa.ChunkedArray, state: ColumnFamily, where: PartitionKey) -> Hashes:
    """Return the hash of each key, of the columns that Spark's shuffle hashes."""
    import numpy as np

    # A string that is not UTF-8 has the hash of its bytes.
    schema = with_binary_strings(state.key_schema)
    key = parse_schema(schema)
    types = where.columns(key)
    needed = [key.arrow[where.inside[0]].name] if where.inside else None
    parts = []
    for chunk in keys.chunks:
        column = decode_rows(chunk, schema, needed)
        # Only the needed column was decoded.
        for position in where.inside and (0, *where.inside[1:]):
            column = column.flatten()[position]
        parts.append(hash_columns(column.flatten()[: len(types)], types, len(chunk)))
    return np.concatenate(parts)


def _check(
    hashes: Hashes, version: StoreVersion, partitions: int, operator: StatefulOperator, state: ColumnFamily
) -> None:
    """Raise if a row is not in the partition of its key, as its new partition would be unknown."""
    wrong = int((partitions_of(hashes, partitions) != version.store.partition).sum())
    if wrong:
        raise RescaleError(
            f"{version.store}: {wrong} of the {len(hashes)} rows of the state {state.name!r} of operator "
            f"{operator.name} are not in the partition that Spark gives their keys among {partitions}, so "
            "their new partition is unknown. Files of another partition or query may have been copied there. "
            "Keep the number of partitions. No copy was made."
        )

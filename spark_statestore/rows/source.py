"""The rows of a state, from an operator's stores at a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_statestore.errors import CheckpointNotFoundError
from spark_statestore.formats.metadata import parse_json
from spark_statestore.query import QueryCheckpoint, StatefulOperator, StoreVersion
from spark_statestore.query.savepoint_lookup import open_checkpoint
from spark_statestore.rows.columns import StateColumns
from spark_statestore.store.changelog_apply import ROW_SCHEMA, apply_changelog
from spark_statestore.store.metadata import ColumnFamily
from spark_statestore.store.reader import read_version

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_DEFAULT: Final = "default"

# A key's values are never split, even beyond the memory bound.
_MOST_PARTS: Final = 1 << 16


def find_state(
    path: str,
    operator: int,
    store: str,
    column_family: str | None,
    batch: int | None,
    partition: int | None,
    *,
    checkpoints_dir: str | None,
) -> StateSource:
    """Find a state, see `read_state`."""
    checkpoint = open_checkpoint(path, checkpoints_dir=checkpoints_dir)
    batch = checkpoint.require_batch(batch)
    described = checkpoint.operator(operator, batch)
    stores = [operator_store.name for operator_store in described.stores]
    family = column_family or _DEFAULT
    if store not in stores and column_family is None and stores == [_DEFAULT]:
        # Spark's data source uses the name of a column family of a join's only store as a store name.
        store, family = _DEFAULT, store
    if store not in stores:
        raise CheckpointNotFoundError(
            f"operator {operator} ({described.name}) of {checkpoint.url} has no store {store!r}, it has "
            f"{', '.join(stores)}. Use one of those."
        )
    if partition is not None and not 0 <= partition < described.partitions:
        raise CheckpointNotFoundError(
            f"operator {operator} ({described.name}) of {checkpoint.url} has no partition {partition}, it "
            f"has {described.partitions}, from 0 on. Use one of those, or none to read all."
        )
    versions = [
        version
        for version in checkpoint.stores(batch, operator)
        if version.store.name == store and partition in (None, version.store.partition)
    ]
    return StateSource(checkpoint, described, family, versions)


class StateSource:
    """A column family of an operator in all of its stores, of which there is at least one."""

    def __init__(
        self,
        checkpoint: QueryCheckpoint,
        operator: StatefulOperator,
        family: str,
        versions: Sequence[StoreVersion],
    ) -> None:
        self.versions = tuple(versions)
        self.family = family
        self._checkpoint = checkpoint
        self._operator = operator
        self.state: ColumnFamily = self._described()
        """Description of the column family in the metadata of a store."""

    def columns(self, columns: Sequence[str] | None) -> StateColumns:
        """Return the decoder of its rows, see `StateColumns`."""
        return StateColumns(self.state, variable_kinds(self._operator).get(self.family), columns)

    def rows(self, version: StoreVersion, memory: int | None = None) -> Iterator[pa.Table]:
        """Yield its rows in one of the stores, as tables of `ROW_SCHEMA`.

        All rows of a key are in one table, in order. `memory` limits the bytes of rows held, approximately.
        """
        store = self._checkpoint.open(version.store)
        metadata = store.metadata(version.name, version.attempt_id)
        number = {state.name: state.stored_rows for state in metadata.column_families}.get(self.family)
        parts = [(0, 1)]
        while parts:
            part, parts_total = parts.pop()
            changes = (
                batch for name, batch in read_version(store, version.name, metadata) if name == self.family
            )
            held = _held(changes, part, parts_total, memory if parts_total < _MOST_PARTS else None)
            if held is None:
                parts += [(part, 2 * parts_total), (part + parts_total, 2 * parts_total)]
            elif held:
                yield _apply(held, number if parts_total == 1 else None)

    def table(self, version: StoreVersion) -> pa.Table:
        """Return all of its rows in one of the stores, see `rows`."""
        return pa.concat_tables([ROW_SCHEMA.empty_table(), *self.rows(version)])

    def _described(self) -> ColumnFamily:
        columns: dict[str, None] = {}
        for version in self.versions:
            column_families = (
                self._checkpoint.open(version.store)
                .metadata(version.name, version.attempt_id)
                .column_families
            )
            for state in column_families:
                if state.name == self.family:
                    return state
                columns[state.name] = None
        raise CheckpointNotFoundError(
            f"operator {self._operator.id} ({self._operator.name}) of {self._checkpoint.url} has no column "
            f"family {self.family!r} in the store {self.versions[0].store.name!r}; it has "
            f"{', '.join(columns)}. Use one of those."
        )


def variable_kinds(operator: StatefulOperator) -> dict[str, str]:
    """Return the state variables of transformWithState with their kinds; none for another operator."""
    variables = operator.properties.get("stateVariables", [])
    nodes = [parse_json(node) if isinstance(node, str) else node for node in variables]
    return {node["stateName"]: node["stateVariableType"] for node in nodes}


def _apply(held: list[pa.RecordBatch], rows: int | None) -> pa.Table:
    """Return the rows that result from changes; their number, if known, allows a shortcut."""
    changes = pa.Table.from_batches(held)
    if changes.num_rows == rows:
        # Then no change deletes or replaces another.
        return changes.select(ROW_SCHEMA.names).cast(ROW_SCHEMA)
    return apply_changelog(held)


def _held(
    changes: Iterable[pa.RecordBatch], part: int, parts: int, memory: int | None
) -> list[pa.RecordBatch] | None:
    """Return the changes of the keys in one part of `of`; None if they exceed the memory bound."""
    held = []
    size = 0
    for batch in changes:
        if parts > 1:
            batch = batch.filter(pa.array(_parts(batch["key"], parts) == part))
        size += batch.nbytes
        if memory is not None and size > memory:
            return None
        held.append(batch)
    return held


def _parts(keys: pa.BinaryArray, parts: int) -> NDArray[np.uint64]:
    """Return the part of each key, out of a power of two, by a hash of its words."""
    import numpy as np

    _, offsets_buffer, data = keys.buffers()
    offsets = np.frombuffer(offsets_buffer, "<i4", len(keys) + 1, 4 * keys.offset).astype(np.int64) // 8
    words = np.frombuffer(data if data is not None else b"", "<u8", int(offsets[-1]))
    hashes = np.zeros(len(keys), np.uint64)
    sizes = np.diff(offsets)
    for word in range(int(sizes.max(initial=0))):
        longer = np.flatnonzero(sizes > word)
        mixed = (hashes[longer] ^ words[offsets[longer] + word]) * np.uint64(0x9E3779B97F4A7C15)
        hashes[longer] = mixed ^ (mixed >> np.uint64(32))
    return hashes & np.uint64(parts - 1)

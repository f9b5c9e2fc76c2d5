"""The rows of a state, from an operator's stores at a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from spark_statestore.errors import CheckpointNotFoundError
from spark_statestore.formats.metadata import parse_json
from spark_statestore.query import QueryCheckpoint, StatefulOperator, StoreVersion
from spark_statestore.query.savepoint_lookup import open_checkpoint
from spark_statestore.rows.columns import StateColumns
from spark_statestore.store.bounded_read import changes_in_parts
from spark_statestore.store.changelog_apply import ROW_SCHEMA, apply_changelog
from spark_statestore.store.healing import readable_metadata
from spark_statestore.store.metadata import ColumnFamily

_DEFAULT: Final = "default"


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
    return state_of(checkpoint, operator, store, column_family, checkpoint.require_batch(batch), partition)


def state_of(
    checkpoint: QueryCheckpoint,
    operator: int,
    store: str,
    column_family: str | None,
    batch: int,
    partition: int | None = None,
) -> StateSource:
    """Find a state of a checkpoint that is open, see `read_state`."""
    described = checkpoint.operator(operator, batch)
    stores = [operator_store.name for operator_store in described.stores]
    family = column_family or _DEFAULT
    if store not in stores and column_family is None and stores == [_DEFAULT]:
        # Spark's data source uses the name of a column family of a join's only store as a store name.
        store, family = _DEFAULT, store
    elif store == _DEFAULT and family in stores:
        store, family = family, _DEFAULT
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

    @property
    def store(self) -> str:
        """Name of its stores, which may be another one than was asked for, see `find_state`."""
        return self.versions[0].store.name

    def partitions(self, batch: int) -> int:
        """Return the number of partitions of its operator at a batch."""
        return self._checkpoint.partitions(self._operator, batch)

    def beside(self, family: str) -> ColumnFamily | None:
        """Return a column family of its stores; None if there is none of that name."""
        return next((state for state in self._families() if state.name == family), None)

    def stored_rows(self, family: str) -> int:
        """Return the number of rows that a column family has in all of its stores."""
        return sum(state.stored_rows for state in self._families() if state.name == family)

    def columns(self, columns: Sequence[str] | None) -> StateColumns:
        """Return the decoder of its rows, see `StateColumns`."""
        return StateColumns(self.state, variable_kinds(self._operator).get(self.family), columns)

    def rows(self, version: StoreVersion, memory: int | None = None) -> Iterator[pa.Table]:
        """Yield its rows in one of the stores, as tables of `ROW_SCHEMA`.

        All rows of a key are in one table, in order. `memory` limits the bytes of rows held, approximately.
        """
        store = self._checkpoint.open(version.store)
        metadata = readable_metadata(store, version.name, version.attempt_id)
        number = {state.name: state.stored_rows for state in metadata.column_families}.get(self.family)
        for part, is_whole in changes_in_parts(store, version.name, metadata, (self.family,), memory):
            if changes := part[self.family]:
                yield _apply(changes, number if is_whole else None)

    def table(self, version: StoreVersion) -> pa.Table:
        """Return all of its rows in one of the stores, see `rows`."""
        return pa.concat_tables([ROW_SCHEMA.empty_table(), *self.rows(version)])

    def _described(self) -> ColumnFamily:
        state = self.beside(self.family)
        if state is None:
            names = dict.fromkeys(state.name for state in self._families())
            raise CheckpointNotFoundError(
                f"operator {self._operator.id} ({self._operator.name}) of {self._checkpoint.url} has no "
                f"column family {self.family!r} in the store {self.store!r}; it has {', '.join(names)}. Use "
                "one of those."
            )
        return state

    def _families(self) -> Iterator[ColumnFamily]:
        for version in self.versions:
            store = self._checkpoint.open(version.store)
            yield from readable_metadata(store, version.name, version.attempt_id).column_families


def variable_kinds(operator: StatefulOperator) -> dict[str, str]:
    """Return the state variables of transformWithState with their kinds; none for another operator."""
    return {name: node["stateVariableType"] for name, node in state_variables(operator).items()}


def state_variables(operator: StatefulOperator) -> dict[str, dict[str, Any]]:
    """Return the descriptions of transformWithState's variables by name; none for another operator."""
    variables = operator.properties.get("stateVariables", [])
    nodes = [parse_json(node) if isinstance(node, str) else node for node in variables]
    return {node["stateName"]: node for node in nodes}


def _apply(batches: list[pa.RecordBatch], rows: int | None) -> pa.Table:
    """Return the rows that result from changes; their number, if known, allows a shortcut."""
    changes = pa.Table.from_batches(batches)
    if changes.num_rows == rows:
        # Then no change deletes or replaces another.
        return changes.select(ROW_SCHEMA.names).cast(ROW_SCHEMA)
    return apply_changelog(batches)

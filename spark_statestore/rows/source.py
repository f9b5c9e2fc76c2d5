"""Where the rows of a state come from: the stores of an operator, as a batch left them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_statestore.checkpoint.metadata import NamedState
from spark_statestore.checkpoint.query import QueryCheckpoint, StatefulOperator, StoreVersion
from spark_statestore.errors import CheckpointNotFoundError
from spark_statestore.rows.columns import StateColumns
from spark_statestore.savepoint.savepoint import open_checkpoint
from spark_statestore.state.fold import ROW_SCHEMA, fold

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["StateSource", "find_state"]

_DEFAULT: Final = "default"

# A key that has more values than may be held at once is held all the same.
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
    """Find a state, see `read_state`.

    Raises
    ------
    CheckpointNotFoundError
        If it is not there.
    """
    checkpoint = open_checkpoint(path, checkpoints_dir=checkpoints_dir)
    batch = checkpoint.require_batch(batch)
    described = checkpoint.operator(operator, batch)
    stores = [one.name for one in described.stores]
    family = column_family or _DEFAULT
    if store not in stores and column_family is None and stores == [_DEFAULT]:
        # Spark calls a column family of a join's only store a store as well.
        store, family = _DEFAULT, store
    if store not in stores:
        raise CheckpointNotFoundError(
            f"operator {operator} ({described.name}) of {checkpoint.url} has no store {store!r}, it has "
            f"{', '.join(stores)}. Name one of those."
        )
    if partition is not None and not 0 <= partition < described.partitions:
        raise CheckpointNotFoundError(
            f"operator {operator} ({described.name}) of {checkpoint.url} has no partition {partition}, it has "
            f"{described.partitions}, from 0 on. Name one of those, or none to read all."
        )
    versions = [
        version
        for version in checkpoint.stores(batch, operator)
        if version.store.name == store and partition in (None, version.store.partition)
    ]
    return StateSource(checkpoint, described, family, versions)


class StateSource:
    """One state of an operator: what it has in each of the stores.

    Parameters
    ----------
    checkpoint
        The query's checkpoint.
    operator
        The operator.
    family
        The state's name in the stores.
    versions
        The stores, at least one.

    Raises
    ------
    CheckpointNotFoundError
        If no store has such a state.
    """

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
        self.state: NamedState = self._described()
        """What the stores say of it."""

    def columns(self, columns: Sequence[str] | None) -> StateColumns:
        """Decodes its rows, see `StateColumns`."""
        return StateColumns(self.state, variable_kinds(self._operator).get(self.family), columns)

    def rows(self, version: StoreVersion, memory: int | None = None) -> Iterator[pa.Table]:
        """Its rows in one of the stores, as bytes.

        Parameters
        ----------
        memory
            Bytes of rows to hold at once, about; None to read all at once.

        Yields
        ------
        pyarrow.Table
            Of the schema `ROW_SCHEMA`. All rows of a key are in the same one, in their order.

        Raises
        ------
        CheckpointNotFoundError, CorruptCheckpointError, CheckpointIOError, UnsupportedFormatError
            If it cannot be read.
        """
        store = self._checkpoint.open(version.store)
        metadata = store.metadata(version.name, version.attempt)
        number = {state.name: state.stored_rows for state in metadata.states}.get(self.family)
        parts = [(0, 1)]
        while parts:
            part, of = parts.pop()
            changes = (batch for name, batch in store.read(version.name, metadata) if name == self.family)
            held = _held(changes, part, of, memory if of < _MOST_PARTS else None)
            if held is None:
                parts += [(part, 2 * of), (part + of, 2 * of)]
            elif held:
                yield _left(held, number if of == 1 else None)

    def table(self, version: StoreVersion) -> pa.Table:
        """All of its rows in one of the stores, see `rows`."""
        return pa.concat_tables([ROW_SCHEMA.empty_table(), *self.rows(version)])

    def _described(self) -> NamedState:
        known: dict[str, None] = {}
        for version in self.versions:
            states = self._checkpoint.open(version.store).metadata(version.name, version.attempt).states
            for state in states:
                if state.name == self.family:
                    return state
                known[state.name] = None
        raise CheckpointNotFoundError(
            f"operator {self._operator.id} ({self._operator.name}) of {self._checkpoint.url} has no column family "
            f"{self.family!r} in the store {self.versions[0].store.name!r}; it has {', '.join(known)}. Name one of those."
        )


def variable_kinds(operator: StatefulOperator) -> dict[str, str]:
    """The state variables of a transformWithState with what kinds they are; none of another operator."""
    variables = operator.properties.get("stateVariables", [])
    nodes = [json.loads(node) if isinstance(node, str) else node for node in variables]
    return {node["stateName"]: node["stateVariableType"] for node in nodes}


def _left(held: list[pa.RecordBatch], rows: int | None) -> pa.Table:
    """The rows that changes leave, of which there are so many if that is known."""
    changes = pa.Table.from_batches(held)
    if changes.num_rows == rows:
        # So none of them removes anything or makes another void.
        return changes.select(ROW_SCHEMA.names).cast(ROW_SCHEMA)
    return fold(held)


def _held(
    changes: Iterable[pa.RecordBatch], part: int, of: int, memory: int | None
) -> list[pa.RecordBatch] | None:
    """The changes of the keys in one part of `of`, None if they need more memory."""
    held = []
    size = 0
    for batch in changes:
        if of > 1:
            batch = batch.filter(pa.array(_parts(batch["key"], of) == part))
        size += batch.nbytes
        if memory is not None and size > memory:
            return None
        held.append(batch)
    return held


def _parts(keys: pa.BinaryArray, of: int) -> NDArray[np.uint64]:
    """The part, out of a power of two, that each key belongs to: a hash of its words."""
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
    return hashes & np.uint64(of - 1)

"""Changes of a state's keys, assigned to partitions and applied to snapshots of its stores."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_statestore.errors import RescaleError, RowEncodingError
from spark_statestore.query import StatefulOperator
from spark_statestore.query.store_snapshot import StoreSnapshot
from spark_statestore.rescaling.murmur3 import partitions_of
from spark_statestore.rescaling.partitioning import PartitionKey, partition_key
from spark_statestore.rescaling.redistribute import key_hashes
from spark_statestore.store.changelog_apply import ROW_SCHEMA, numbered
from spark_statestore.store.metadata import ColumnFamily, StoreId
from spark_statestore.writing.rows import Mode, encoded_rows

if TYPE_CHECKING:
    from spark_statestore.rescaling.murmur3 import Partitions


@dataclass
class KeyCounts:
    """Numbers of keys that changes have affected, counted by several threads."""

    added: int = 0
    changed: int = 0
    removed: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, *, added: int = 0, changed: int = 0, removed: int = 0) -> None:
        """Count more keys."""
        with self._lock:
            self.added += added
            self.changed += changed
            self.removed += removed


class StateChanges:
    """Changes of the keys of a column family.

    Parameters
    ----------
    table
        Rows with the columns of `read_state`. ``partition_id`` is ignored, as the key decides. Without
        values, the mode is ``delete``. The values of a list are in their order.
    partitions
        Number of the operator's partitions in the checkpoint.
    """

    def __init__(
        self,
        table: pa.Table,
        mode: Mode,
        operator: StatefulOperator,
        store: str,
        state: ColumnFamily,
        partitions: int,
    ) -> None:
        self.counts = KeyCounts()
        self.replaces = mode == "replace"
        """True if all rows are removed that are not among the changes."""
        self._mode: Mode = mode
        self._operator = operator
        self._store = store
        self._state = state
        self._count = partitions
        self._where: PartitionKey = partition_key(operator, store, state, {state.name: state})
        self._is_single = operator.is_single(state.key_schema)
        columns = encoded_rows(table, mode, operator, state)
        rows = pa.table(columns, ROW_SCHEMA.names[: len(columns)])
        if not state.has_multiple_values:
            _require_distinct(columns[0])
        self._schema = rows.schema
        self._by_partition = _by_partition(rows, self._partitions_of(columns[0]))

    def apply(self, content: StoreSnapshot) -> StoreSnapshot:
        """Return a store with its changes; a store of another state is returned unchanged."""
        if not is_store_of(content, self._operator, self._store):
            return content
        return replace(with_states(content, self._state), rows=lambda: self._changed(content))

    def put(self, partition: int) -> pa.Table:
        """Return the rows that a partition has afterwards, a table of `ROW_SCHEMA`."""
        return ROW_SCHEMA.empty_table() if self._mode == "delete" else self._rows(partition).cast(ROW_SCHEMA)

    def keys(self, partition: int) -> pa.ChunkedArray:
        """Return the keys of a partition that are put or deleted."""
        return self._rows(partition)["key"]

    def is_changed(self, rows: pa.Table, store: StoreId) -> pa.ChunkedArray:
        """Return for each row of a store whether it is replaced or deleted."""
        import pyarrow.compute as pc

        self._require_partition(rows["key"], store)
        return pc.is_in(rows["key"], value_set=self.keys(store.partition))

    def _changed(self, content: StoreSnapshot) -> Iterator[tuple[str, pa.Table]]:
        import pyarrow.compute as pc

        rows = self.put(content.store.partition)
        changed = total = 0
        for name, table in content.rows():
            if name != self._state.name:
                yield name, table
                continue
            is_changed = self.is_changed(table, content.store)
            changed += pc.sum(is_changed).as_py() or 0
            total += table.num_rows
            if not self.replaces:
                yield name, table.filter(pc.invert(is_changed))
        if self._mode == "delete":
            self.counts.add(removed=changed)
            return
        removed = total - changed if self.replaces else 0
        self.counts.add(added=rows.num_rows - changed, changed=changed, removed=removed)
        if rows.num_rows:
            yield self._state.name, rows

    def _rows(self, partition: int) -> pa.Table:
        return pa.Table.from_batches(self._by_partition.get(partition, ()), self._schema)

    def _partitions_of(self, keys: pa.ChunkedArray) -> Partitions:
        import numpy as np

        if self._is_single or not len(keys):
            return np.zeros(len(keys), np.int64)
        return partitions_of(key_hashes(keys, self._state, self._where), self._count)

    def _require_partition(self, keys: pa.ChunkedArray, store: StoreId) -> None:
        """Raise if a key is in another partition than Spark's, as it could be there twice after the write."""
        wrong = int((self._partitions_of(keys) != store.partition).sum())
        if wrong:
            raise RescaleError(
                f"{store}: {wrong} of its {len(keys)} keys are not in the partition that Spark gives them "
                f"among {self._count}, so the partition of the changes is unknown. Files of another "
                "partition or query may have been copied there. Use another batch. No copy was made."
            )


def is_store_of(content: StoreSnapshot, operator: StatefulOperator, store: str) -> bool:
    """Return True for one of an operator's stores of a name."""
    return (content.store.operator, content.store.name) == (operator.id, store)


def with_states(content: StoreSnapshot, *states: ColumnFamily) -> StoreSnapshot:
    """Return a store that has some states, which an operator may create with its first rows."""
    there = {family.name for family in content.column_families}
    families = (*content.column_families, *(state for state in states if state.name not in there))
    return replace(content, column_families=families)


def _by_partition(rows: pa.Table, partitions: Partitions) -> dict[int, list[pa.RecordBatch]]:
    """Return rows by the partition of each."""
    import numpy as np

    slices: dict[int, list[pa.RecordBatch]] = {}
    first = 0
    # By batches, as all rows may have more bytes than one array holds.
    for batch in rows.to_batches():
        here = partitions[first : first + batch.num_rows]
        first += batch.num_rows
        order = np.argsort(here, kind="stable")
        ordered = batch.take(pa.array(order))
        starts = np.flatnonzero(np.diff(here[order], prepend=-1))
        for start, end in itertools.pairwise([*starts.tolist(), batch.num_rows]):
            slices.setdefault(int(here[order[start]]), []).append(ordered.slice(start, end - start))
    return slices


def _require_distinct(keys: pa.ChunkedArray) -> None:
    import numpy as np

    numbers, distinct = numbered(keys)
    if len(distinct) == len(numbers):
        return
    _, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    again = int(np.flatnonzero(first[inverse] != np.arange(len(numbers)))[0])
    raise RowEncodingError(
        f"rows {first[inverse[again]]} and {again} of the changes have the same key, so it is not clear "
        "which one applies. Keep one row of each key. No copy was made."
    )

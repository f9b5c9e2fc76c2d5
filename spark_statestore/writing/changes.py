"""Changes of a state's keys, assigned to partitions and applied to snapshots of its stores."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from spark_statestore.errors import RescaleError, RowEncodingError
from spark_statestore.query import StatefulOperator
from spark_statestore.query.store_snapshot import StoreSnapshot
from spark_statestore.rescaling.murmur3 import partitions_of
from spark_statestore.rescaling.partitioning import PartitionKey, partition_key
from spark_statestore.rescaling.redistribute import key_hashes
from spark_statestore.rescaling.spool import Spool
from spark_statestore.store.changelog_apply import ROW_SCHEMA, numbered
from spark_statestore.store.metadata import ColumnFamily, StoreId
from spark_statestore.writing.rows import Mode, encoded_rows

if TYPE_CHECKING:
    from spark_statestore.rescaling.murmur3 import Partitions

# Number of a row in the changes.
_ROW: Final = pa.field("row", pa.int64(), nullable=False)


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


class ChangesOfStore(NamedTuple):
    """Changes of the rows of one store.

    Attributes
    ----------
    put
        Rows that it has afterwards, a table of `ROW_SCHEMA`.
    keys
        Keys that are put or deleted; None if only the rows of the state show which ones.
    is_changed
        Returns for each row of a table of the state whether it is replaced or deleted.
    """

    put: pa.Table
    keys: pa.ChunkedArray | None
    is_changed: Callable[[pa.Table], pa.ChunkedArray]


class StateChanges:
    """Changes of the keys of a column family.

    Parameters
    ----------
    tables
        Rows with the columns of `read_state`, of one schema. ``partition_id`` is ignored, as the key decides.
        Without values, the mode is ``delete``. The values of a list are in their order. There is at least
        one table.
    partitions
        Number of the operator's partitions in the checkpoint.
    """

    def __init__(
        self,
        tables: Iterable[pa.Table],
        mode: Mode,
        operator: StatefulOperator,
        store: str,
        state: ColumnFamily,
        partitions: int,
    ) -> None:
        import numpy as np

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
        self._columns = ROW_SCHEMA.names[: 1 if mode == "delete" else 2]
        self._spool = Spool(pa.schema([*map(ROW_SCHEMA.field, self._columns), _ROW]))
        first = 0
        for table in tables:
            columns = encoded_rows(table, mode, operator, state, first)
            rows = pa.array(np.arange(first, first + table.num_rows), _ROW.type)
            self._add(pa.table([*columns, rows], [*self._columns, _ROW.name]))
            first += table.num_rows
        if not state.has_multiple_values:
            for partition in range(partitions):
                _require_distinct(self._spooled(partition))

    def apply(self, content: StoreSnapshot) -> StoreSnapshot:
        """Return a store with its changes; a store of another state is returned unchanged."""
        if not is_store_of(content, self._operator, self._store):
            return content
        return replace(with_states(content, self._state), rows=lambda: self._changed(content))

    def for_store(self, store: StoreId) -> ChangesOfStore:
        """Return the changes of one of the state's stores."""
        import pyarrow.compute as pc

        rows = self._spooled(store.partition)
        keys = rows["key"]

        def is_changed(table: pa.Table) -> pa.ChunkedArray:
            self._require_partition(table["key"], store)
            return pc.is_in(table["key"], value_set=keys)

        is_delete = self._mode == "delete"
        put = ROW_SCHEMA.empty_table() if is_delete else rows.select(self._columns).cast(ROW_SCHEMA)
        return ChangesOfStore(put, keys, is_changed)

    def _changed(self, content: StoreSnapshot) -> Iterator[tuple[str, pa.Table]]:
        import pyarrow.compute as pc

        put, _, is_changed_of = self.for_store(content.store)
        changed = total = 0
        for name, table in content.rows():
            if name != self._state.name:
                yield name, table
                continue
            is_changed = is_changed_of(table)
            changed += pc.sum(is_changed).as_py() or 0
            total += table.num_rows
            if not self.replaces:
                yield name, table.filter(pc.invert(is_changed))
        if self._mode == "delete":
            self.counts.add(removed=changed)
            return
        removed = total - changed if self.replaces else 0
        self.counts.add(added=put.num_rows - changed, changed=changed, removed=removed)
        if put.num_rows:
            yield self._state.name, put

    def _add(self, rows: pa.Table) -> None:
        # An operator without grouping columns has one partition.
        partitions = 1 if self._is_single else self._count
        self._spool.add(self._state.name, rows, self._partitions_of(rows["key"]), partitions)

    def _spooled(self, partition: int) -> pa.Table:
        """Return the rows of a partition, in their order, with the number of each in the changes."""
        tables = [table for _, table in self._spool.tables(partition)]
        return pa.concat_tables(tables) if tables else self._spool.schema.empty_table()

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


def _require_distinct(rows: pa.Table) -> None:
    import numpy as np

    numbers, distinct = numbered(rows["key"])
    if len(distinct) == len(numbers):
        return
    _, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    again = int(np.flatnonzero(first[inverse] != np.arange(len(numbers)))[0])
    row, duplicate = (rows[_ROW.name][int(position)].as_py() for position in (first[inverse[again]], again))
    raise RowEncodingError(
        f"rows {row} and {duplicate} of the changes have the same key, so it is not clear which one applies. "
        "Keep one row of each key. No copy was made."
    )

"""Changes of a state together with those of the states that Spark derives from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

import pyarrow as pa

from spark_statestore.errors import RowEncodingError
from spark_statestore.query import StatefulOperator
from spark_statestore.query.store_snapshot import StoreSnapshot
from spark_statestore.store.changelog_apply import ROW_SCHEMA, numbered
from spark_statestore.store.metadata import StoreId
from spark_statestore.writing.changes import KeyCounts, is_store_of, with_states
from spark_statestore.writing.state_layouts import DerivedState, GroupedRows, StateLayout


class RowChanges(Protocol):
    """Changes of the rows of a state: `StateChanges` or `MatchingDelete`."""

    counts: KeyCounts
    replaces: bool

    def put(self, partition: int) -> pa.Table: ...

    def keys(self, partition: int) -> pa.ChunkedArray | None: ...

    def is_changed(self, rows: pa.Table, store: StoreId) -> pa.ChunkedArray: ...


class LayoutChanges:
    """Changes of a state and of what Spark derives from it.

    The rows of a group of which a row changes are collected, and what follows from them is computed anew.
    All other rows keep their bytes.

    Parameters
    ----------
    store
        Name of the state's stores.
    read
        Returns the tables of the state in a partition, for states that are derived in other stores.
    """

    def __init__(
        self,
        changes: RowChanges,
        operator: StatefulOperator,
        store: str,
        layout: StateLayout,
        read: Callable[[int], Iterator[pa.Table]],
    ) -> None:
        self.counts = changes.counts
        self._changes = changes
        self._operator = operator
        self._store = store
        self._layout = layout
        self._read = read

    def apply(self, content: StoreSnapshot) -> StoreSnapshot:
        """Return a store with its changes; a store of other states is returned unchanged."""
        has_state = is_store_of(content, self._operator, self._store)
        derived = [one for one in self._layout.derived if is_store_of(content, self._operator, one.store)]
        states = [self._layout.state] if has_state else []
        states += [one.state for one in derived]
        if not states:
            return content
        changed = self._changed(content, derived, has_state=has_state)
        return replace(with_states(content, *states), rows=changed)

    def _changed(
        self, content: StoreSnapshot, derived: list[DerivedState], *, has_state: bool
    ) -> Callable[[], Iterator[tuple[str, pa.Table]]]:
        groups_of = {one.state.name: one.groups for one in derived}
        name = self._layout.state.name
        if has_state:
            groups_of[name] = self._layout.groups

        def state() -> Iterator[pa.Table]:
            if not has_state:
                return self._read(content.store.partition)
            return (table for family, table in content.rows() if family == name)

        def rows() -> Iterator[tuple[str, pa.Table]]:
            import pyarrow.compute as pc

            partition = content.store.partition
            if self._changes.replaces:
                groups, after = None, self._layout.grouped(self._changes.put(partition))
            else:
                groups, after = self._edited(state, content.store, counts=has_state)
            removed = _Replaced(self._changes, content.store)
            for family, table in content.rows():
                if family not in groups_of:
                    yield family, table
                elif groups is not None:
                    is_edited = pc.is_in(groups_of[family](table["key"]), value_set=groups)
                    yield family, table.filter(pc.invert(is_edited))
                elif family == name:
                    removed.add(table)
            if has_state:
                if self._changes.replaces:
                    removed.count(self.counts)
                yield name, after.rows
            for one in derived:
                yield one.state.name, one.rows(after)

        return rows

    def _edited(
        self, state: Callable[[], Iterator[pa.Table]], store: StoreId, *, counts: bool
    ) -> tuple[pa.Array, GroupedRows]:
        """Return the groups of which a row changes, and all rows that they have then."""
        import pyarrow.compute as pc

        put = self._changes.put(store.partition)
        groups = self._groups_of_changes(state, store)
        before, kept, affected = [], [], [*put["key"].chunks]
        for table in state():
            is_changed = self._changes.is_changed(table, store)
            found = self._layout.groups(table["key"])
            self._require_exact(table["key"].filter(pc.and_(is_changed, pc.is_null(found))), store)
            within = found.filter(is_changed).unique() if groups is None else groups
            is_edited = pc.is_in(found, value_set=within)
            before.append(table.filter(is_edited))
            kept.append(table.filter(pc.and_(is_edited, pc.invert(is_changed))))
            affected += table["key"].filter(is_changed).chunks
        edited = pa.concat_tables([ROW_SCHEMA.empty_table(), *before])
        after = pa.concat_tables([ROW_SCHEMA.empty_table(), *kept, put])
        if counts:
            self._count(edited, after, pa.chunked_array(affected, pa.binary()))
        if groups is None:
            groups = self._layout.groups(edited["key"]).unique()
        return groups, self._layout.grouped(after)

    def _groups_of_changes(self, state: Callable[[], Iterator[pa.Table]], store: StoreId) -> pa.Array | None:
        """Return the groups that change; None if the rows of each are in one table, which shows it."""
        keys = self._changes.keys(store.partition)
        if keys is not None:
            return self._layout.groups(keys).unique()
        if not self._layout.is_indexed:
            return None
        found = [
            self._layout.groups(table["key"].filter(self._changes.is_changed(table, store)))
            for table in state()
        ]
        return pa.chunked_array([chunk for groups in found for chunk in groups.chunks], pa.binary()).unique()

    def _require_exact(self, keys: pa.ChunkedArray, store: StoreId) -> None:
        if len(keys):
            raise RowEncodingError(
                f"{store}: {len(keys)} keys of the state {self._layout.state.name!r} that change are not "
                "exact in Arrow, such as a string that is not UTF-8, so that what Spark derives from them "
                "cannot be told. Leave them out of the changes. No copy was made."
            )

    def _count(self, before: pa.Table, after: pa.Table, affected: pa.ChunkedArray) -> None:
        """Count the keys of edited rows; `affected` are those of rows that are put, replaced or removed."""
        import pyarrow.compute as pc

        old, new, affected = (numbered(keys)[1] for keys in (before["key"], after["key"], affected))
        is_old = pc.is_in(new, value_set=old)
        both = new.filter(is_old)
        changed = pc.sum(pc.is_in(both, value_set=affected)).as_py() or 0
        self.counts.add(added=len(new) - len(both), changed=changed, removed=len(old) - len(both))


class _Replaced:
    """Counts the keys of a store that is replaced, by those that it has afterwards."""

    def __init__(self, changes: RowChanges, store: StoreId) -> None:
        self._changes = changes
        self._store = store
        self._total = self._stay = 0

    def add(self, table: pa.Table) -> None:
        """Count the keys of a table, which are in no other one."""
        is_changed = self._changes.is_changed(table, self._store)
        self._total += len(numbered(table["key"])[1])
        self._stay += len(numbered(table["key"].filter(is_changed))[1])

    def count(self, counts: KeyCounts) -> None:
        """Add what was counted."""
        keys = len(numbered(self._changes.put(self._store.partition)["key"])[1])
        counts.add(added=keys - self._stay, changed=self._stay, removed=self._total - self._stay)

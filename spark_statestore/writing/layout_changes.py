"""Changes of a state together with those of the states that Spark derives from it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple, Protocol

import pyarrow as pa

from spark_statestore.errors import RowEncodingError
from spark_statestore.query import StatefulOperator
from spark_statestore.query.store_snapshot import StoreSnapshot
from spark_statestore.store.changelog_apply import ROW_SCHEMA, numbered
from spark_statestore.store.metadata import StoreId
from spark_statestore.writing.changes import ChangesOfStore, KeyCounts, is_store_of, with_states
from spark_statestore.writing.state_layouts import DerivedState, GroupedRows, StateLayout


class RowChanges(Protocol):
    """Changes of the rows of a state: `StateChanges` or `MatchingDelete`."""

    counts: KeyCounts
    replaces: bool

    def for_store(self, store: StoreId) -> ChangesOfStore: ...


class _Edit(NamedTuple):
    """The differences of a partition.

    Attributes
    ----------
    groups
        Groups of which a row changes.
    after
        All rows that they have then.
    remaining
        Groups that the state has, if derived rows of others are removed; else None.
    """

    groups: pa.Array
    after: GroupedRows
    remaining: pa.Array | None = None


class LayoutChanges:
    """Changes of a state and of what Spark derives from it.

    The rows of a group of which a row changes are collected, and what follows from them is computed anew.
    All other rows keep their bytes.

    Parameters
    ----------
    store
        Name of the state's stores.
    rows_of_partition
        Returns the tables of the state in a partition, for states that are derived in other stores.
    """

    def __init__(
        self,
        changes: RowChanges,
        operator: StatefulOperator,
        store: str,
        layout: StateLayout,
        rows_of_partition: Callable[[int], Iterator[pa.Table]],
    ) -> None:
        self.counts = changes.counts
        self._changes = changes
        self._operator = operator
        self._store = store
        self._layout = layout
        self._rows_of_partition = rows_of_partition
        self._stores = len({store, *(derived.store for derived in layout.derived)})
        # A predicate may have another result the next time, so that the stores of a partition share one.
        self._edits: dict[int, tuple[_Edit, int]] = {}
        self._locks: dict[int, threading.Lock] = {}

    def apply(self, content: StoreSnapshot) -> StoreSnapshot:
        """Return a store with its changes; a store of other states is returned unchanged."""
        has_state = is_store_of(content, self._operator, self._store)
        here = [part for part in self._layout.derived if is_store_of(content, self._operator, part.store)]
        states = [self._layout.state] if has_state else []
        states += [part.state for part in here]
        if not states:
            return content
        rows = self._replaced if self._changes.replaces else self._edited
        return replace(with_states(content, *states), rows=lambda: rows(content, here, has_state=has_state))

    def _replaced(
        self, content: StoreSnapshot, derived: list[DerivedState], *, has_state: bool
    ) -> Iterator[tuple[str, pa.Table]]:
        """Yield the rows of a store whose state has no row of before."""
        changes = self._changes.for_store(content.store)
        name = self._layout.state.name if has_state else None
        dropped = {part.state.name for part in derived}
        total = stay = 0
        for family, table in content.rows():
            if family == name:
                # All values of a key are in one table.
                total += len(numbered(table["key"])[1])
                stay += len(numbered(table["key"].filter(changes.is_changed(table)))[1])
            elif family not in dropped:
                yield family, table
        if has_state:
            keys = len(numbered(changes.put["key"])[1])
            self.counts.add(added=keys - stay, changed=stay, removed=total - stay)
        yield from self._rows(self._layout.grouped(changes.put), derived, has_state=has_state)

    def _edited(
        self, content: StoreSnapshot, derived: list[DerivedState], *, has_state: bool
    ) -> Iterator[tuple[str, pa.Table]]:
        """Yield the rows of a store some of whose rows change."""
        import pyarrow.compute as pc

        name = self._layout.state.name

        def state() -> Iterator[pa.Table]:
            # A state that others are derived from in other stores is read once for all of them.
            if self._stores > 1:
                return self._rows_of_partition(content.store.partition)
            return (table for family, table in content.rows() if family == name)

        edit = self._edit(state, content.store)
        groups_of = {part.state.name: part.groups for part in derived}
        if has_state:
            groups_of[name] = self._layout.groups
        for family, table in content.rows():
            removes_stale = edit.remaining is not None and family != name
            # Keys are not decoded in vain.
            if family not in groups_of or not (len(edit.groups) or removes_stale):
                yield family, table
                continue
            groups = groups_of[family](table["key"])
            stays = pc.invert(pc.is_in(groups, value_set=edit.groups))
            if removes_stale:
                stays = pc.and_(stays, pc.or_(pc.is_null(groups), pc.is_in(groups, value_set=edit.remaining)))
            yield family, table.filter(stays)
        yield from self._rows(edit.after, derived, has_state=has_state)

    def _rows(
        self, after: GroupedRows, derived: list[DerivedState], *, has_state: bool
    ) -> Iterator[tuple[str, pa.Table]]:
        if not after.rows.num_rows:
            return
        if has_state:
            yield self._layout.state.name, after.rows
        for part in derived:
            yield part.state.name, part.rows(after)

    def _edit(self, state: Callable[[], Iterator[pa.Table]], store: StoreId) -> _Edit:
        """Return what is different in a store's partition, which is computed once for all of its stores."""
        if self._stores == 1:
            return self._computed(state, store)
        with self._locks.setdefault(store.partition, threading.Lock()):
            edit, uses = self._edits.pop(store.partition, (None, 0))
            edit = self._computed(state, store) if edit is None else edit
            if uses + 1 < self._stores:
                self._edits[store.partition] = (edit, uses + 1)
            return edit

    def _computed(self, state: Callable[[], Iterator[pa.Table]], store: StoreId) -> _Edit:
        import pyarrow.compute as pc

        changes = self._changes.for_store(store)
        if changes.keys is not None and not len(changes.keys):
            return _Edit(pa.array([], pa.binary()), self._layout.grouped(ROW_SCHEMA.empty_table()))
        groups = self._groups_of_changes(state, changes)
        removes_stale = changes.keys is None and self._layout.has_stale_rows
        before, unchanged, affected, present = [], [], [*changes.put["key"].chunks], []
        for table in state():
            is_changed = changes.is_changed(table)
            groups_of_rows = self._layout.groups(table["key"])
            self._require_exact(table["key"].filter(pc.and_(is_changed, pc.is_null(groups_of_rows))), store)
            within = groups_of_rows.filter(is_changed).unique() if groups is None else groups
            is_edited = pc.is_in(groups_of_rows, value_set=within)
            before.append(table["key"].filter(is_edited))
            unchanged.append(table.filter(pc.and_(is_edited, pc.invert(is_changed))))
            affected += table["key"].filter(is_changed).chunks
            if removes_stale:
                stay = table["key"].filter(pc.invert(is_changed))
                present.append(self._layout.groups(stay, is_exact=False).unique())
        after = pa.concat_tables([ROW_SCHEMA.empty_table(), *unchanged, changes.put])
        edited = _joined(keys.chunks for keys in before)
        self._count(edited, after["key"], pa.chunked_array(affected, pa.binary()))
        if groups is None:
            groups = self._layout.groups(edited).unique()
        stays = _joined([part] for part in present).unique() if removes_stale else None
        return _Edit(groups, self._layout.grouped(after), stays)

    def _groups_of_changes(
        self, state: Callable[[], Iterator[pa.Table]], changes: ChangesOfStore
    ) -> pa.Array | None:
        """Return the groups that change; None if the rows of each are in one table, which shows it."""
        if changes.keys is not None:
            return self._layout.groups(changes.keys).unique()
        if not self._layout.is_indexed:
            return None
        groups_of_tables = (
            self._layout.groups(table["key"].filter(changes.is_changed(table))) for table in state()
        )
        return _joined(groups.chunks for groups in groups_of_tables).unique()

    def _require_exact(self, keys: pa.ChunkedArray, store: StoreId) -> None:
        if len(keys):
            raise RowEncodingError(
                f"operator {store.operator}, partition {store.partition}, store {self._store}: {len(keys)} "
                f"keys that change of the state {self._layout.state.name!r} are not exact in Arrow, so that "
                "what Spark derives from them cannot be told. Leave them out of the changes. No copy was "
                "made."
            )

    def _count(self, before: pa.ChunkedArray, after: pa.ChunkedArray, affected: pa.ChunkedArray) -> None:
        """Count the keys of edited rows; `affected` are those of rows that are put, replaced or removed."""
        import pyarrow.compute as pc

        old, new, touched = (numbered(keys)[1] for keys in (before, after, affected))
        is_old = pc.is_in(new, value_set=old)
        both = new.filter(is_old)
        changed = pc.sum(pc.is_in(both, value_set=touched)).as_py() or 0
        self.counts.add(added=len(new) - len(both), changed=changed, removed=len(old) - len(both))


def _joined(columns: Iterable[Iterable[pa.Array]]) -> pa.ChunkedArray:
    return pa.chunked_array([chunk for chunks in columns for chunk in chunks], pa.binary())

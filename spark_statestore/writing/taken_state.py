"""State of a changed query's operator, taken from an old one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from spark_statestore.errors import RowEncodingError
from spark_statestore.formats.metadata import parse_json
from spark_statestore.query.store_snapshot import StoreSnapshot, read_store
from spark_statestore.rescaling.partitioning import DEFAULT
from spark_statestore.rows import decode_rows, encode_rows
from spark_statestore.rows.source import StateSource
from spark_statestore.store.changelog_apply import numbered
from spark_statestore.store.metadata import ColumnFamily, StoreId
from spark_statestore.writing.changes import StateChanges
from spark_statestore.writing.columns import NewColumns
from spark_statestore.writing.layout_changes import LayoutChanges
from spark_statestore.writing.operator_matches import KeyedState
from spark_statestore.writing.rows import SESSIONS, session_position
from spark_statestore.writing.state_layouts import StateLayout

# Operators whose keys have no values, so that several keys may become one.
_OF_KEYS: Final = "dedupe"

# Rows per decoded batch, which bounds temporary memory.
_BATCH_ROWS: Final = 65_536


@dataclass(frozen=True, slots=True)
class ComputedState:
    """Rows of a new state that are computed from those of an old one."""

    source: StateSource
    columns: NewColumns
    layout: StateLayout | None = None
    """The new state with what Spark derives from it; None if its rows stand alone."""


@dataclass(frozen=True, slots=True)
class StatePlan:
    """A state of the new query and what it takes.

    Attributes
    ----------
    store
        Name of its stores.
    new, old
        The new column family, and the old one; None if it starts empty.
    computed
        Its rows from those of the old state; None if they are taken as they are.
    is_derived
        True if its rows follow from those of another state that is computed.
    """

    store: str
    new: ColumnFamily
    old: ColumnFamily | None = None
    computed: ComputedState | None = None
    is_derived: bool = False

    @property
    def label(self) -> str:
        """Name that tells it apart from the operator's other states."""
        return self.new.name if self.store == DEFAULT else f"{self.store}.{self.new.name}"


class OperatorPlan:
    """The states of a new operator and what they take of an old one's."""

    def __init__(
        self,
        old: KeyedState | None,
        new: KeyedState,
        states: tuple[StatePlan, ...],
        dropped: tuple[tuple[str, int], ...],
    ) -> None:
        self.old = old
        self.new = new
        self.states = states
        self.dropped = dropped
        """Names of what is dropped of the old operator, with their numbers of keys."""
        self._changes: list[StateChanges | LayoutChanges] = []

    def read(self) -> None:
        """Compute the rows of all states that are not taken as they are."""
        for state in self.states:
            if state.computed is not None:
                self._changes.append(self._computed(state, state.computed))

    def content(self, started: StoreSnapshot, memory: int) -> StoreSnapshot:
        """Return the content of a store of the new query, after `read`; of its own run it has no row."""
        whole = {
            s.old.name: s for s in self._of_store(started) if s.old and not s.computed and not s.is_derived
        }
        there = {family.name for family in started.column_families}
        families = [*started.column_families]
        families += [state.new for state in whole.values() if state.new.name not in there]

        def rows() -> Iterator[tuple[str, pa.Table]]:
            version = None
            if self.old is not None and whole:
                store = replace(started.store, operator=self.old.operator.id)
                version = self.old.versions.get(store)
            if self.old is None or version is None:
                return
            for name, table in read_store(self.old.checkpoint, version, memory).rows():
                if name in whole:
                    yield whole[name].new.name, table

        content = StoreSnapshot(
            started.store, tuple(replace(family, created_at_version=0) for family in families), rows
        )
        for changes in self._changes:
            content = changes.apply(content)
        return content

    def _of_store(self, started: StoreSnapshot) -> list[StatePlan]:
        return [state for state in self.states if state.store == started.store.name]

    def _computed(self, state: StatePlan, computed: ComputedState) -> StateChanges | LayoutChanges:
        columns, family = computed.columns, computed.source.state
        decoder = computed.source.columns(None)
        batches = []
        keys = 0
        for version in computed.source.versions:
            for table in computed.source.rows(version):
                keys += len(numbered(table["key"])[1])
                for batch in table.to_batches(_BATCH_ROWS):
                    _require_exact(batch, family, version.store)
                    batches.append(columns.evaluate(decoder.decode(batch, version.store.partition)))
        rows = pa.Table.from_batches([columns.empty(), *batches])
        lost = [path for path in columns.not_taken if path.startswith("key.")]
        # Rows of a join stay rows of their own if keys become one.
        if not self.new.operator.is_join and (lost or columns.has_given("key.")):
            rows = self._distinct(rows, state, lost, keys)
            if self.new.operator.name == SESSIONS:
                self._require_apart(rows, state)
        operator = self.new.operator
        try:
            changes = StateChanges([rows], "replace", operator, state.store, state.new, self.new.partitions)
        except RowEncodingError as error:
            raise RowEncodingError(f"operator {self.new} of the new query, {state.label}: {error}") from error
        if computed.layout is None:
            return changes
        # A state that is replaced is not read.
        return LayoutChanges(changes, operator, state.store, computed.layout, lambda partition: iter(()))

    def _distinct(self, rows: pa.Table, state: StatePlan, lost: list[str], keys: int) -> pa.Table:
        """Return rows of which each key is there once, though columns of the old key are not taken.

        `keys` is the number of the old keys, of which each may have several values.
        """
        import numpy as np

        if rows.column_names[1] not in ("value", "list_element"):
            # The column is a part of the key only, so that keys that become one are refused later.
            return rows
        numbers, distinct = numbered(encode_rows(rows["key"], state.new.key_schema))
        if len(distinct) == keys:
            return rows
        if self.new.operator.name != _OF_KEYS:
            without = f"without {', '.join(lost)}, " if lost else ""
            raise RowEncodingError(
                f"operator {self.new} of the new query, {state.label}: {without}the {keys:,} keys of "
                f"the old state are {len(distinct):,} new ones, and what several values are together does "
                "not follow from them. Start it without state, or compute its state with `bootstrap`. No "
                "checkpoint was written."
            )
        return rows.take(pa.array(np.unique(numbers, return_index=True)[1]))

    def _require_apart(self, rows: pa.Table, state: StatePlan) -> None:
        """Raise for sessions of one key that overlap: the query would have one of them."""
        import numpy as np

        schema = parse_json(state.new.key_schema)
        # The start of the session is the last column.
        grouping = json.dumps(schema | {"fields": schema["fields"][:-1]})
        keys = rows["key"].combine_chunks()
        columns = [keys.field(position) for position in range(keys.type.num_fields - 1)]
        groups = pa.StructArray.from_arrays(columns, fields=list(keys.type)[:-1])
        numbers, _ = numbered(pa.chunked_array([encode_rows(groups, grouping)]))
        start, end = (_times(rows, session_position(state.new), name) for name in ("start", "end"))
        order = np.lexsort((start, numbers))
        follows = numbers[order][1:] == numbers[order][:-1]
        # Sessions that touch may be one, too.
        overlaps = int((follows & (start[order][1:] <= end[order][:-1])).sum())
        if overlaps:
            raise RowEncodingError(
                f"operator {self.new} of the new query, {state.label}: {overlaps} sessions of the old state "
                "would overlap another one of their new key, and what they are together does not follow from "
                "them. Start it without state, or compute its state with `bootstrap`. No checkpoint was "
                "written."
            )


def _times(rows: pa.Table, position: int, name: str) -> Any:
    """Return the start or the end of each session, a struct in the value."""
    times = rows["value"].combine_chunks().field(position).field(name)
    return times.cast(pa.int64()).to_numpy(zero_copy_only=False)


def _require_exact(batch: pa.RecordBatch, family: ColumnFamily, store: StoreId) -> None:
    """Raise for rows that decoding changes, such as strings that are not UTF-8."""
    import pyarrow.compute as pc

    for column, schema in (("key", family.key_schema), ("value", family.value_schema)):
        again = encode_rows(decode_rows(batch[column], schema), schema)
        changed = pc.sum(pc.not_equal(again, batch[column])).as_py()
        if changed:
            raise RowEncodingError(
                f"{store}, {family.name}: {changed} of {batch.num_rows} rows have a {column} that Arrow does "
                "not represent exactly, such as a string that is not UTF-8, so that they cannot be taken to "
                "another schema. Delete or correct them with `write_state`, or keep the schema of this "
                "state. No checkpoint was written."
            )

"""What an operator of a changed query takes of an old one's state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from spark_statestore.errors import OptionError, RowEncodingError
from spark_statestore.query.store_snapshot import StoreSnapshot, read_store
from spark_statestore.rows import decode_rows, encode_rows
from spark_statestore.rows.source import StateSource
from spark_statestore.rows.types import parse_schema
from spark_statestore.store.changelog_apply import numbered
from spark_statestore.store.metadata import ColumnFamily, StoreId
from spark_statestore.writing.changes import StateChanges
from spark_statestore.writing.columns import ColumnValues, NewColumns
from spark_statestore.writing.operator_matches import KeyedState, is_same_state
from spark_statestore.writing.rows import AGGREGATION, SESSIONS
from spark_statestore.writing.write import find_writable

_DEFAULT: Final = "default"

# What Spark keeps beside a variable of transformWithState has the variable's name behind these.
_BESIDE: Final = ("$ttl_", "$rowCounter_", "$min_", "$count_")

# Operators whose keys have no values, so that several keys may become one.
_OF_KEYS: Final = "dedupe"

_STRICT: Final = "spark.sql.streaming.statefulOperator.useStrictDistribution"

# Rows per decoded batch, which bounds temporary memory.
_BATCH_ROWS: Final = 65_536


@dataclass(frozen=True, slots=True)
class ComputedState:
    """Rows of a new state that are computed from those of an old one."""

    source: StateSource
    columns: NewColumns


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
    """

    store: str
    new: ColumnFamily
    old: ColumnFamily | None = None
    computed: ComputedState | None = None

    @property
    def label(self) -> str:
        """Name that tells it apart from the operator's other states."""
        return self.new.name if self.store == _DEFAULT else f"{self.store}.{self.new.name}"


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
        self._changes: list[StateChanges] = []

    def read(self) -> None:
        """Compute the rows of all states that are not taken as they are."""
        for state in self.states:
            if state.computed is not None:
                self._changes.append(self._computed(state, state.computed))

    def content(self, started: StoreSnapshot, memory: int) -> StoreSnapshot:
        """Return the content of a store of the new query, after `read`; of its own run it has no row."""
        whole = {s.old.name: s for s in self._of_store(started) if s.old and not s.computed}
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

        # The copy has one version, in which all column families begin.
        content = StoreSnapshot(
            started.store, tuple(replace(family, created_at_version=0) for family in families), rows
        )
        for changes in self._changes:
            content = changes.apply(content)
        return content

    def _of_store(self, started: StoreSnapshot) -> list[StatePlan]:
        return [state for state in self.states if state.store == started.store.name]

    def _computed(self, state: StatePlan, computed: ComputedState) -> StateChanges:
        columns, family = computed.columns, computed.source.state
        decoder = computed.source.columns(None)
        batches = []
        for version in computed.source.versions:
            for table in computed.source.rows(version):
                for batch in table.to_batches(_BATCH_ROWS):
                    _require_exact(batch, family, version.store)
                    batches.append(columns.evaluate(decoder.decode(batch, version.store.partition)))
        rows = pa.Table.from_batches([columns.empty(), *batches])
        lost = [path for path in columns.not_taken if path.startswith(("key.", "user_map_key."))]
        if lost:
            rows = self._distinct(rows, state, lost)
        return StateChanges(rows, "replace", self.new.operator, state.store, state.new, self.new.partitions)

    def _distinct(self, rows: pa.Table, state: StatePlan, lost: list[str]) -> pa.Table:
        """Return rows of which each key is there once, though columns of the old key are not in it."""
        import numpy as np

        if "user_map_key" in rows.column_names:
            return rows
        numbers, distinct = numbered(encode_rows(rows["key"], state.new.key_schema))
        if len(distinct) == len(numbers):
            return rows
        if self.new.operator.name != _OF_KEYS:
            raise RowEncodingError(
                f"operator {self.new} of the new query, {state.label}: without {', '.join(lost)}, the "
                f"{len(numbers):,} keys of the old state are {len(distinct):,}, and what several values are "
                "together does not follow from them. Start it without state, or compute its state with "
                "`bootstrap`. No checkpoint was written."
            )
        return rows.take(pa.array(np.unique(numbers, return_index=True)[1]))


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


def plan_operator(
    old: KeyedState | None,
    new: KeyedState,
    renamed: Mapping[str, str | None],
    given: Mapping[str | None, Mapping[str, ColumnValues]],
    dropped: AbstractSet[str | None],
) -> OperatorPlan:
    """Return what an operator takes of an old one.

    Parameters
    ----------
    renamed
        Old names of states by new ones; None for one that starts empty.
    given
        Values of columns by column family; the key None is for an operator with one.
    dropped
        Names of the old states that are not taken; None stands for all.

    Raises
    ------
    OptionError
        If state would be lost, if columns cannot be told, or if an argument does not fit the operator.
    """
    _require_names(old, new, renamed, given, dropped)
    values = {_only_state(new) if name is None else name: found for name, found in given.items()}
    states = []
    for (store, name), family in new.families.items():
        origin = _old_name(name, renamed)
        before = None if old is None or origin is None else old.families.get((store, origin))
        if before is None or old is None or before.name in dropped:
            states.append(StatePlan(store, family))
            continue
        is_same = name not in values and is_same_state(before, family) and _are_partitioned_alike(old, new)
        if is_same:
            states.append(StatePlan(store, family, before))
        elif not before.rows and name not in values:
            states.append(StatePlan(store, family))
        else:
            computed = _computed(old, new, store, before, family, values.get(name, {}))
            states.append(StatePlan(store, family, before, computed))
    return OperatorPlan(old, new, tuple(states), tuple(_dropped(old, new, states, dropped)))


def _dropped(
    old: KeyedState | None, new: KeyedState, states: list[StatePlan], dropped: AbstractSet[str | None]
) -> Iterator[tuple[str, int]]:
    """Yield the old states that nobody takes, which the caller must have named."""
    if old is None:
        return
    taken = {(state.store, state.old.name) for state in states if state.old is not None}
    for (store, name), family in old.families.items():
        if (store, name) in taken or not family.rows:
            continue
        if _variable(name) not in dropped and name not in dropped:
            raise OptionError(
                f"the state {name!r} of operator {old} of the old query has {family.rows:,} keys, and "
                f"operator {new} of the new one has no such state; it has "
                f"{', '.join(sorted({state for _, state in new.families}))}. A variable exists after the run "
                "of the new query has set it once. Say in `states` which one takes it, or drop it: drop="
                f"[({old.operator.id}, {_variable(name)!r})]. No checkpoint was written."
            )
        yield f"operator {old}, {name}", family.rows


def _computed(
    old: KeyedState,
    new: KeyedState,
    store: str,
    before: ColumnFamily,
    family: ColumnFamily,
    values: Mapping[str, ColumnValues],
) -> ComputedState:
    where = f"operator {new} of the new query, {family.name}"
    sources = []
    for state, name in ((old, before.name), (new, family.name)):
        try:
            sources.append(find_writable(state.checkpoint, state.batch, state.operator.id, store, name)[1])
        except OptionError as error:
            raise OptionError(
                f"{where}: its schema or its number of partitions, {new.partitions}, differs from the old "
                f"one's, {old.partitions}, so that rows cannot be taken as they are; and {error}"
            ) from error
    aggregates = None
    if new.operator.name in (AGGREGATION, SESSIONS):
        # The value of a session begins with the grouping columns.
        begins = [
            len(parse_schema(state.key_schema).children) if new.operator.name == SESSIONS else 0
            for state in (before, family)
        ]
        aggregates = (before.value_schema, family.value_schema, begins[0], begins[1])
        if new.operator.name == SESSIONS:
            keys = {path: found for path, found in values.items() if path.startswith("key.")}
            values = {f"value.{path[4:]}": found for path, found in keys.items()} | dict(values)
    schemas = [source.columns(None).schema for source in sources]
    columns = NewColumns(schemas[0], schemas[1], values, aggregates)
    if columns.problems:
        first = columns.problems[0].partition(" ")[0]
        raise OptionError(
            f"{where}: {'; '.join(columns.problems)}. Give their values, such as columns="
            f"{{{new.operator.id}: {{{first!r}: ...}}}}. No checkpoint was written."
        )
    # Raises for unknown columns and wrong types before anything is read.
    columns.empty()
    return ComputedState(sources[0], columns)


def _require_names(
    old: KeyedState | None,
    new: KeyedState,
    renamed: Mapping[str, str | None],
    given: Mapping[str | None, Mapping[str, ColumnValues]],
    dropped: AbstractSet[str | None],
) -> None:
    """Raise if names of states do not exist."""
    of_new = {name for _, name in new.families}
    of_old = set() if old is None else {name for _, name in old.families}
    for name in (*renamed, *(name for name in given if name is not None)):
        if name not in of_new:
            raise OptionError(
                f"operator {new} of the new query has no state {name!r}, it has "
                f"{', '.join(sorted(of_new))}. A variable exists after the run has set it once. Use one of "
                "those. No checkpoint was written."
            )
    for origin in renamed.values():
        if origin is not None and origin not in of_old:
            raise OptionError(
                f"the old query has no state {origin!r} for operator {new} of the new one; it has "
                f"{', '.join(sorted(of_old)) or 'none'}. Use one of those. No checkpoint was written."
            )
    if old is None and given:
        raise OptionError(
            f"operator {new} of the new query starts without state, so that its columns have no values. "
            "Give the old operator in `operators`, or leave its columns. No checkpoint was written."
        )
    if None in dropped:
        raise OptionError(
            f"operator {old} of the old query is dropped, but operator {new} of the new one takes its state. "
            f"Give operators={{{new.operator.id}: None}}, too, or do not drop it. No checkpoint was written."
        )


def _only_state(new: KeyedState) -> str:
    """Return the state that is meant where none is named."""
    names = [name for _, name in new.families if not name.startswith("$")]
    variables = [name for name in names if name != _DEFAULT]
    chosen = variables or names
    if len(chosen) != 1:
        raise OptionError(
            f"operator {new} of the new query has the states {', '.join(chosen)}. Name one of them in "
            f"`columns`, such as ({new.operator.id}, {chosen[0]!r}). No checkpoint was written."
        )
    return chosen[0]


def _old_name(name: str, renamed: Mapping[str, str | None]) -> str | None:
    variable = _variable(name)
    origin = renamed.get(variable, variable)
    return None if origin is None else name.removesuffix(variable) + origin


def _variable(name: str) -> str:
    """Return the variable that a column family is of."""
    for prefix in _BESIDE:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def _are_partitioned_alike(old: KeyedState, new: KeyedState) -> bool:
    settings = [state.checkpoint.offsets(state.batch).conf.get(_STRICT, "true") for state in (old, new)]
    return old.partitions == new.partitions and settings[0] == settings[1]

"""Plans of the state that an operator of a changed query takes from an old one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, Final

from spark_statestore.errors import OptionError, RescaleError
from spark_statestore.rescaling.partitioning import BESIDE, DEFAULT, EXPIRIES, TIMERS, state_name
from spark_statestore.rescaling.redistribute import STRICT_DISTRIBUTION
from spark_statestore.rows.types import parse_schema
from spark_statestore.store.metadata import ColumnFamily
from spark_statestore.writing.bootstrap import StateKey, require_mapping
from spark_statestore.writing.columns import ColumnValues, NewColumns, shortened
from spark_statestore.writing.operator_matches import KeyedState, StateName, is_same_state
from spark_statestore.writing.rows import AGGREGATION, SESSIONS
from spark_statestore.writing.state_layouts import TIMED, StateLayout, event_times
from spark_statestore.writing.taken_state import ComputedState, OperatorPlan, StatePlan
from spark_statestore.writing.write import find_writable, layout_with_derived

_JOINS: Final = "spark.sql.streaming.join.stateFormatVersion"

# Spark's value of a time that is not set. It would take null for a time that has passed.
_NO_TIME: Final = {"value.timeoutTimestamp": -1}
_BEGINNINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "applyInPandasWithState": _NO_TIME,
    "flatMapGroupsWithState": _NO_TIME,
}


def plan_operator(
    old: KeyedState | None,
    new: KeyedState,
    renamed: Mapping[str, str | None],
    values_by_family: Mapping[str | None, Mapping[str, ColumnValues]],
    dropped: AbstractSet[str | None],
    *,
    is_given: bool,
) -> OperatorPlan:
    """Return what an operator takes of an old one.

    Parameters
    ----------
    renamed
        Old names of states by new ones; None for one that starts empty.
    values_by_family
        Values of columns by column family; the key None is for an operator with one.
    dropped
        Names of the old states that are not taken; None stands for all.
    is_given
        True if the caller has chosen the old operator.

    Raises
    ------
    OptionError
        If state would be lost, if columns cannot be told, or if an argument does not fit the operator.
    """
    _require_names(old, new, renamed, values_by_family, dropped)
    if old is not None:
        _require_taken_once(old, new, renamed)
        _require_same_join(old, new, is_given)
    values = _by_state(new, values_by_family)
    layouts = _layouts(new)
    origins = _origins(layouts)
    plans: dict[StateName, StatePlan] = {}
    # A state after the one that it follows from.
    for state in sorted(new.families, key=origins.__contains__):
        store, name = state
        origin = _old_name(name, renamed)
        before = None if old is None or origin is None else old.families.get((store, origin))
        if before is not None and variable_of(before.name) in dropped:
            before = None
        here = values.pop(state_name(*state), {})
        if not here and state in origins and plans[origins[state]].computed is not None:
            family = replace(new.families[state], created_at_version=0)
            plans[state] = StatePlan(store, family, before, is_derived=True)
        else:
            plans[state] = _planned(old, new, state, before, here, layouts.get(state))
    states = [plans[state] for state in new.families]
    return OperatorPlan(old, new, tuple(states), tuple(_dropped(old, new, states, dropped)))


def _layouts(state: KeyedState) -> dict[StateName, StateLayout]:
    """Return the states from which Spark derives others."""
    layouts = {}
    for store, name in state.families:
        try:
            operator, source = find_writable(state.checkpoint, state.batch, state.operator.id, store, name)
        except (OptionError, RescaleError):
            continue
        if layout := layout_with_derived(state.checkpoint, state.batch, operator, source):
            layouts[store, name] = layout
    return layouts


def _origins(layouts: Mapping[StateName, StateLayout]) -> dict[StateName, StateName]:
    """Return for each state that follows from another one which one that is."""
    return {
        (derived.store, derived.state.name): state
        for state, layout in layouts.items()
        for derived in layout.derived
    }


def _planned(
    old: KeyedState | None,
    new: KeyedState,
    state: StateName,
    before: ColumnFamily | None,
    values: Mapping[str, ColumnValues],
    layout: StateLayout | None,
) -> StatePlan:
    store, family = state[0], new.families[state]
    # The copy has one version, in which all column families begin.
    family = replace(family, created_at_version=0)
    if old is None or before is None or not (before.rows or values):
        if values:
            raise OptionError(
                f"operator {new} of the new query, {family.name}, starts without state, so that its columns "
                "have no values. Say in `operators` or `states` what it takes, or leave its columns. No "
                "checkpoint was written."
            )
        return StatePlan(store, family)
    differences = _differences(old, new, before, family)
    if state_name(*state).endswith(TIMED) and "key.__event_time" not in values:
        _require_same_times(new, state_name(*state), before, family)
    if not values and not differences:
        return StatePlan(store, family, before)
    computed = _computed(old, new, store, before, family, values, differences)
    return StatePlan(store, family, before, replace(computed, layout=layout))


def _differences(
    old: KeyedState, new: KeyedState, before: ColumnFamily, family: ColumnFamily
) -> tuple[str, ...]:
    """Return why rows cannot be taken as they are."""
    differences = []
    if not is_same_state(before, family):
        differences.append("its schema differs from the old one's")
    if old.partitions != new.partitions:
        differences.append(
            f"it has {new.partitions} partitions and the old one {old.partitions}: run the changed query "
            f"with spark.sql.shuffle.partitions={old.partitions}, or `rescale` the old checkpoint before"
        )
    strict = [state.settings.get(STRICT_DISTRIBUTION, "true") for state in (old, new)]
    if strict[0] != strict[1]:
        differences.append(f"it has {STRICT_DISTRIBUTION}={strict[1]} and the old one {strict[0]}")
    return tuple(differences)


def _require_same_times(new: KeyedState, state: str, before: ColumnFamily, family: ColumnFamily) -> None:
    """Raise for rows of a join whose times in the key are of another column, or of none."""
    marked = [event_times(schema) for schema in (before.value_schema, family.value_schema)]
    if marked[0] != marked[1] and marked[1]:
        raise OptionError(
            f"operator {new} of the new query, {state}: the event time of the rows is "
            f"{' and '.join(marked[1])}, and in the old query {' and '.join(marked[0]) or 'there was none'}, "
            "so that the times in the keys are others. Give them in microseconds since 1970, such as columns="
            f"{{({new.operator.id}, {state!r}): {{'key.__event_time': ...}}}}. No checkpoint was written."
        )


def _require_taken_once(old: KeyedState, new: KeyedState, renamed: Mapping[str, str | None]) -> None:
    variables = {variable_of(name) for _, name in new.families}
    origins = [renamed.get(variable, variable) for variable in variables]
    for origin in {variable_of(name) for _, name in old.families}:
        if origins.count(origin) > 1:
            raise OptionError(
                f"two states of operator {new} of the new query take {origin!r} of operator {old} of the "
                "old one. Say in `states` which one takes it, and None for the other one. No checkpoint was "
                "written."
            )


def _require_same_join(old: KeyedState, new: KeyedState, is_given: bool) -> None:
    """Raise for a join of format 4 unless the caller has said that it is the same one."""
    if old.operator.is_join and not is_given and old.settings.get(_JOINS) == "4":
        raise OptionError(
            f"the join {old} of the old query has {_JOINS}=4, in which an inner join does not keep whether a "
            "row has joined, so that an outer one would return such rows once more, without a match. If the "
            "join is of the same type in both queries, say operators="
            f"{{{new.operator.id}: {old.operator.id}}}; otherwise start it without state: operators="
            f"{{{new.operator.id}: None}}, drop=[{old.operator.id}]. No checkpoint was written."
        )


def _by_state(
    new: KeyedState, values_by_family: Mapping[str | None, Mapping[str, ColumnValues]]
) -> dict[str, Mapping[str, ColumnValues]]:
    """Return the values of columns by state."""
    values_by_state: dict[str, Mapping[str, ColumnValues]] = {}
    for family, values in values_by_family.items():
        name = _only_state(new) if family is None else family
        if name in values_by_state:
            raise OptionError(
                f"there are columns of operator {new.operator.id}, column family {name!r}, twice. Give them "
                "once. No checkpoint was written."
            )
        require_mapping("columns", values)
        values_by_state[name] = values
    return values_by_state


def _dropped(
    old: KeyedState | None, new: KeyedState, states: list[StatePlan], dropped: AbstractSet[str | None]
) -> Iterator[tuple[str, int]]:
    """Yield the old states that no new one takes; raise for one that the caller has not named."""
    if old is None:
        return
    taken_states = {(state.store, state.old.name) for state in states if state.old is not None}
    computed = {(state.store, state.old.name) for state in states if state.old and state.computed}
    # Rows derived from computed ones are derived anew.
    taken_states |= {state for state, origin in _origins(_layouts(old)).items() if origin in computed}
    for (store, name), family in old.families.items():
        if (store, name) in taken_states or not family.rows:
            continue
        if old.operator.is_join:
            raise OptionError(
                f"the join {old} of the old query keeps {name!r} in the store {store!r}, and {new} of the "
                "new one does not: their state has other formats or schemas. Run the changed query with "
                f"{_JOINS}={old.settings.get(_JOINS, '2')}, or start it without "
                f"state: operators={{{new.operator.id}: None}}, drop=[{old.operator.id}]. No checkpoint was "
                "written."
            )
        if variable_of(name) not in dropped:
            raise OptionError(
                f"the state {name!r} of operator {old} of the old query has {family.rows:,} keys, and "
                f"operator {new} of the new one has no such state; it has "
                f"{', '.join(sorted({state for _, state in new.families}))}. A variable exists after the run "
                "of the new query has set it once. Say in `states` which one takes it, or drop it: drop="
                f"[({old.operator.id}, {variable_of(name)!r})]. No checkpoint was written."
            )
        yield f"operator {old}, {name}", family.rows


def _computed(
    old: KeyedState,
    new: KeyedState,
    store: str,
    before: ColumnFamily,
    family: ColumnFamily,
    values: Mapping[str, ColumnValues],
    differences: Sequence[str],
) -> ComputedState:
    where = f"operator {new} of the new query, {family.name}"
    if before.has_multiple_values != family.has_multiple_values:
        raise OptionError(
            f"{where}: a key has {'several values' if family.has_multiple_values else 'one value'}, and in "
            "the old state it has not. Take another state, or start this one empty. No checkpoint was "
            "written."
        )
    sources = []
    for state, name in ((old, before.name), (new, family.name)):
        try:
            sources.append(find_writable(state.checkpoint, state.batch, state.operator.id, store, name)[1])
        except OptionError as error:
            raise OptionError(
                f"{where}: rows cannot be taken as they are, as "
                f"{'; '.join(differences) or 'values of columns are given'}; and {error}"
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
            keys = {path: value for path, value in values.items() if path.startswith("key.")}
            values = {f"value.{path[4:]}": value for path, value in keys.items()} | dict(values)
    schemas = [source.columns(None).schema for source in sources]
    columns = NewColumns(schemas[0], schemas[1], values, aggregates, _BEGINNINGS.get(new.operator.name))
    if columns.problems:
        first = columns.problems[0].partition(" ")[0]
        key: StateKey = new.operator.id if family.name == DEFAULT else (new.operator.id, family.name)
        usual = ", as an average with 0 and 0, a sum with None and a count with 0" if aggregates else ""
        raise OptionError(
            f"{where}: {'; '.join(shortened(columns.problems))}. Give their values, such as columns="
            f"{{{key!r}: {{{first!r}: ...}}}}: what they are in the old state, or what they begin "
            f"with{usual}. No checkpoint was written."
        )
    # Raises for unknown columns and wrong types before anything is read.
    columns.empty()
    return ComputedState(sources[0], columns)


def _require_names(
    old: KeyedState | None,
    new: KeyedState,
    renamed: Mapping[str, str | None],
    values_by_family: Mapping[str | None, Mapping[str, ColumnValues]],
    dropped: AbstractSet[str | None],
) -> None:
    """Raise if names of states do not exist."""
    of_old = set() if old is None else {variable_of(name) for _, name in old.families}
    families = {state_name(*state) for state in new.families}
    for names, of_new in ((renamed, {variable_of(name) for name in families}), (values_by_family, families)):
        for name in names:
            if name is not None and name not in of_new:
                raise OptionError(
                    f"operator {new} of the new query has no state {name!r}, it has "
                    f"{', '.join(sorted(of_new))}. A variable exists after the run has set it once. Use one "
                    "of those. No checkpoint was written."
                )
    for origin in renamed.values():
        if origin is not None and origin not in of_old:
            raise OptionError(
                f"the old query has no state {origin!r} for operator {new} of the new one; it has "
                f"{', '.join(sorted(of_old)) or 'none'}. Use one of those. No checkpoint was written."
            )
    if old is not None and old.operator.is_join and dropped - {None}:
        raise OptionError(
            f"the parts of the state of the join {old} belong together: drop it whole, with drop="
            f"[{old.operator.id}] and operators={{{new.operator.id}: None}}. No checkpoint was written."
        )
    if None in dropped:
        raise OptionError(
            f"operator {old} of the old query is dropped, but operator {new} of the new one takes its state. "
            f"Give operators={{{new.operator.id}: None}}, too, or do not drop it. No checkpoint was written."
        )


def _only_state(new: KeyedState) -> str:
    """Return the state that is meant where none is named."""
    names = [state_name(*state) for state in new.families if not state[1].startswith("$")]
    variables = [name for name in names if name != DEFAULT]
    chosen = variables or names
    if len(chosen) != 1:
        raise OptionError(
            f"operator {new} of the new query has the states {', '.join(chosen)}. Name one of them in "
            f"`columns`, such as ({new.operator.id}, {chosen[0]!r}). No checkpoint was written."
        )
    return chosen[0]


def _old_name(name: str, renamed: Mapping[str, str | None]) -> str | None:
    before, variable, after = _parts(name)
    origin = renamed.get(variable, variable)
    return None if origin is None else before + origin + after


def variable_of(name: str) -> str:
    """Return the variable that a column family is of; the name of both for the two families of timers."""
    return _parts(name)[1]


def _parts(name: str) -> tuple[str, str, str]:
    """Return a name with what is before and behind the variable's."""
    for prefix in (EXPIRIES, *BESIDE):
        if name.startswith(prefix):
            return prefix, name.removeprefix(prefix), ""
    for prefix in TIMERS:
        if name.startswith(prefix):
            # Timers are in two column families, which belong together.
            timers = prefix.removesuffix("_")
            return "", timers, name.removeprefix(timers)
    return "", name, ""

"""Operators of a changed query, and those of the old query whose state they take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from spark_statestore.errors import OptionError
from spark_statestore.query import QueryCheckpoint, StatefulOperator, StoreVersion
from spark_statestore.rows.types import SparkType, parse_schema
from spark_statestore.store.healing import readable_metadata
from spark_statestore.store.metadata import ColumnFamily, StoreId

# Processors of rows and of pandas frames keep the same state.
_KINDS: Final = {"transformWithStateInPySparkExec": "transformWithStateInPandasExec"}

StateName = tuple[str, str]
"""Names of a store and of a column family in it."""


@dataclass(frozen=True)
class KeyedState:
    """The state of an operator at a batch, without its rows."""

    checkpoint: QueryCheckpoint
    batch: int
    operator: StatefulOperator

    @cached_property
    def versions(self) -> Mapping[StoreId, StoreVersion]:
        """Versions of all of its stores."""
        versions = self.checkpoint.stores(self.batch, self.operator.id)
        return {version.store: version for version in versions}

    @property
    def partitions(self) -> int:
        """Number of its partitions that have state."""
        return 1 + max(store.partition for store in self.versions)

    @cached_property
    def families(self) -> Mapping[StateName, ColumnFamily]:
        """Column families of any of its stores, with the numbers of their rows in all of them."""
        families: dict[StateName, ColumnFamily] = {}
        for version in self.versions.values():
            directory = self.checkpoint.open(version.store)
            for family in readable_metadata(directory, version.name, version.attempt_id).column_families:
                name = (version.store.name, family.name)
                rows = families[name].rows if name in families else 0
                families[name] = replace(family, rows=rows + family.rows)
        return families

    @cached_property
    def key_columns(self) -> tuple[str, ...]:
        """Names of the columns of the key, of the first state that is Spark's main one."""
        family = next(iter(self.families.values()))
        return tuple(field.name for field in parse_schema(family.key_schema).arrow)

    @cached_property
    def settings(self) -> Mapping[str, str]:
        """Settings that Spark has fixed for the query."""
        return self.checkpoint.offsets(self.batch).conf

    @property
    def kind(self) -> str:
        """Name of the operator, the same for those whose state is the same."""
        return _KINDS.get(self.operator.name, self.operator.name)

    def __str__(self) -> str:
        return f"{self.operator.id} ({self.operator.name})"


def keyed_states(checkpoint: QueryCheckpoint, batch: int) -> list[KeyedState]:
    """Return the states of all operators."""
    return [KeyedState(checkpoint, batch, operator) for operator in checkpoint.operators(batch)]


def matched_operators(
    old: Sequence[KeyedState], new: Sequence[KeyedState], operators: Mapping[int, int | None]
) -> dict[int, KeyedState | None]:
    """Return the old operator of each new one, by its number; None if it starts without state.

    Parameters
    ----------
    operators
        Old operators by new ones, which the caller has given. The others are matched by their kind, and, if
        there are several, by their schemas, and then by the names of their key's columns.

    Raises
    ------
    OptionError
        If an operator could be matched with several, or if the given ones do not exist or differ in kind.
    """
    matches = _matches_of_caller(old, new, operators)
    old_ids = {state.operator.id for state in matches.values() if state is not None}
    kinds: dict[str, tuple[list[KeyedState], list[KeyedState]]] = defaultdict(lambda: ([], []))
    for side, states in enumerate((old, new)):
        for state in states:
            if state.operator.id not in (matches if side else old_ids):
                kinds[state.kind][side].append(state)
    for before, after in kinds.values():
        matches |= _of_kind(before, after)
    return {state.operator.id: matches[state.operator.id] for state in new}


def _matches_of_caller(
    old: Sequence[KeyedState], new: Sequence[KeyedState], operators: Mapping[int, int | None]
) -> dict[int, KeyedState | None]:
    matches: dict[int, KeyedState | None] = {}
    for number, before in operators.items():
        after = _operator(new, number, "new")
        if before is None:
            matches[number] = None
            continue
        state = _operator(old, before, "old")
        if state.kind != after.kind:
            raise OptionError(
                f"operator {after} of the new query cannot take the state of {state} of the old one, which "
                "is of another kind. Use one of its kind, or None to start it without state. No checkpoint "
                "was written."
            )
        if state in matches.values():
            raise OptionError(
                f"two operators of the new query take the state of operator {state} of the old one. Give it "
                "to one of them. No checkpoint was written."
            )
        matches[number] = state
    return matches


def _operator(states: Sequence[KeyedState], number: int, query: str) -> KeyedState:
    for state in states:
        if state.operator.id == number:
            return state
    raise OptionError(
        f"the {query} query has no stateful operator {number!r}, it has "
        f"{', '.join(map(str, states)) or 'none'}. Use one of those. No checkpoint was written."
    )


def _of_kind(old: Sequence[KeyedState], new: Sequence[KeyedState]) -> dict[int, KeyedState | None]:
    """Match operators of one kind."""
    if len(old) == len(new) and all(map(_are_alike, old, new)):
        return {after.operator.id: before for before, after in zip(old, new, strict=True)}
    matches: dict[int, KeyedState | None] = {}
    for is_match in (_are_alike, _have_the_same_keys, _are_there):
        unmatched = [state for state in old if state not in matches.values()]
        waiting = [state for state in new if state.operator.id not in matches]
        for after in waiting:
            origins = [before for before in unmatched if is_match(before, after)]
            if len(origins) == 1 and sum(is_match(origins[0], state) for state in waiting) == 1:
                matches[after.operator.id] = origins[0]
    unmatched = [state for state in old if state not in matches.values()]
    waiting = [state for state in new if state.operator.id not in matches]
    if unmatched and waiting:
        raise OptionError(
            f"it is not clear which operators of the old query, {', '.join(map(str, unmatched))}, the "
            f"operators {', '.join(map(str, waiting))} of the new one take their state from. Give "
            f"`operators`, such as {{{waiting[0].operator.id}: {unmatched[0].operator.id}}}. No checkpoint "
            "was written."
        )
    return matches | dict.fromkeys((state.operator.id for state in waiting), None)


def _are_alike(old: KeyedState, new: KeyedState) -> bool:
    return old.families.keys() == new.families.keys() and all(
        is_same_state(family, new.families[name]) for name, family in old.families.items()
    )


def _have_the_same_keys(old: KeyedState, new: KeyedState) -> bool:
    return old.key_columns == new.key_columns


def _are_there(old: KeyedState, new: KeyedState) -> bool:
    return True


def is_same_state(old: ColumnFamily, new: ColumnFamily) -> bool:
    """Return True if rows of an old state are ones of a new state, byte for byte."""
    layouts = [
        (family.key_encoder, family.prefix_columns, family.ordering_columns, family.has_multiple_values)
        for family in (old, new)
    ]
    return (
        layouts[0] == layouts[1]
        and _is_same(old.key_schema, new.key_schema)
        and _is_same(old.value_schema, new.value_schema)
    )


def _is_same(old: str, new: str) -> bool:
    return old == new or _holds(parse_schema(old), parse_schema(new))


def _holds(old: SparkType, new: SparkType) -> bool:
    """Return True if types are alike, and the new one permits each null of the old one."""
    return old == new and all(
        (may_be_null or not was_null) and _holds(before, after)
        for was_null, may_be_null, before, after in zip(
            old.nullable, new.nullable, old.children, new.children, strict=True
        )
    )

"""Which part of a state's key decides the partition that a row lies in: a pure decision.

Spark shuffles the rows of an operator by columns, and puts what it keeps of them into the partition where they
arrive. The key of a state has these columns, in places that depend on the operator and the state.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spark_statestore.checkpoint.metadata import NamedState
from spark_statestore.checkpoint.query import StatefulOperator
from spark_statestore.errors import RescaleError
from spark_statestore.rows.types import SparkType

__all__ = ["PartitionKey", "partition_key"]

# Operators with the columns of the shuffle as their key, and nothing else.
_PLAIN: Final = {
    "stateStoreSave",
    "StatefulStreamlineAggregate",
    "dedupe",
    "dedupeWithinWatermark",
    "flatMapGroupsWithState",
    "applyInPandasWithState",
}

_SESSIONS: Final = "sessionWindowStateStoreSaveExec"
_JOIN: Final = "symmetricHashJoin"
_TRANSFORM: Final = {
    "transformWithStateExec",
    "transformWithStateInPandasExec",
    "transformWithStateInPySparkExec",
}

# Names of Spark's own states of a transformWithState.
_EXPIRIES: Final = "$ttl_"
_BESIDE: Final = ("$rowCounter_", "$min_", "$count_")
_TIMERS: Final = ("$procTimers_", "$eventTimers_")
_BY_TIME: Final = "_timestampToKey"

_DEFAULT: Final = "default"


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """Where in the key of a state the columns of the shuffle are.

    Attributes
    ----------
    inside
        Positions of the structs to go into, from the outside in; none if the columns are the key's own.
    dropped
        Columns at the end that are not among them.
    """

    inside: tuple[int, ...] = ()
    dropped: int = 0

    def columns(self, key: SparkType) -> tuple[SparkType, ...]:
        """The types of the columns."""
        for position in self.inside:
            key = key.children[position]
        return key.children[: len(key.children) - self.dropped]


# What a join keeps of each side. Behind the columns that it joins by is an index, or a time.
_JOINS: Final = {
    "keyToNumValues": PartitionKey(),
    "keyWithIndexToValue": PartitionKey(dropped=1),
    "keyWithTsToValues": PartitionKey(dropped=1),
    "tsWithKey": PartitionKey(dropped=1),
}


def partition_key(
    operator: StatefulOperator, store: str, state: NamedState, states: Mapping[str, NamedState]
) -> PartitionKey:
    """What decides the partition of a state's rows.

    Parameters
    ----------
    operator
        The operator.
    store
        The name of the store.
    state
        The state.
    states
        All states of the store, by name.

    Raises
    ------
    RescaleError
        If this release does not know it.
    """
    found = None
    if operator.name in _PLAIN and state.name == _DEFAULT:
        found = PartitionKey()
    elif operator.name == _SESSIONS and state.name == _DEFAULT:
        # The start of the session comes last.
        found = PartitionKey(dropped=1)
    elif operator.name == _JOIN:
        # Four stores, or four states of one.
        found = _JOINS.get((store if state.name == _DEFAULT else state.name).partition("-")[2])
    elif operator.name in _TRANSFORM:
        found = _of_variable(state, states)
    if found is None:
        raise RescaleError(
            f"operator {operator.id} ({operator.name}), store {store}: this release does not know which partition the rows "
            f"of its state {state.name!r} belong to, so it cannot spread them over another number of partitions. Upgrade "
            "spark-statestore, or keep the number. No copy was made."
        )
    return found


def _of_variable(state: NamedState, states: Mapping[str, NamedState]) -> PartitionKey | None:
    """Of a variable of transformWithState, of the indexes that Spark keeps of it, and of timers."""
    name = state.name
    if not name.startswith("$"):
        # Only keys of maps have a prefix: what is grouped by. It comes before the key in the map.
        return PartitionKey((0,)) if state.key_encoder == "prefix" else PartitionKey()
    if name.startswith(_EXPIRIES):
        # Behind the time is the key that the variable has.
        of_map = _is_map(state, states.get(name.removeprefix(_EXPIRIES)))
        return PartitionKey((1, 0)) if of_map else PartitionKey((1,))
    if name.startswith(_TIMERS):
        return PartitionKey((1,)) if name.endswith(_BY_TIME) else PartitionKey((0,))
    return PartitionKey() if name.startswith(_BESIDE) else None


def _is_map(expiries: NamedState, variable: NamedState | None) -> bool:
    if variable is not None:
        return variable.key_encoder == "prefix"
    # The variable was deleted. Its expiries are still there, and are never read.
    element = json.loads(expiries.key_schema)["fields"][1]["type"]
    return [field["name"] for field in element["fields"]] == ["key", "userKey"]

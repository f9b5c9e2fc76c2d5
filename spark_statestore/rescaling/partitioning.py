"""The columns of a state's key by which Spark partitions its rows.

Spark shuffles the input of an operator by columns, and keeps state in the partition where rows arrive. The
key of a state has these columns, at positions that depend on the operator and the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spark_statestore.errors import RescaleError
from spark_statestore.formats.metadata import parse_json
from spark_statestore.query import StatefulOperator
from spark_statestore.rows.types import SparkType
from spark_statestore.store.metadata import ColumnFamily

# Operators whose key has exactly the columns of the shuffle.
_PLAIN: Final = {
    "stateStoreSave",
    "StatefulStreamlineAggregate",
    "dedupe",
    "dedupeWithinWatermark",
    "flatMapGroupsWithState",
    "applyInPandasWithState",
}

_SESSIONS: Final = "sessionWindowStateStoreSaveExec"
_TRANSFORM: Final = {
    "transformWithStateExec",
    "transformWithStateInPandasExec",
    "transformWithStateInPySparkExec",
}

EXPIRIES: Final = "$ttl_"
"""Prefix of the index of a variable's expiries; the variable's name follows."""

LENGTHS: Final = "$rowCounter_"
"""Prefix of the numbers of values of a list without TTL."""

COUNTS: Final = "$count_"
"""Prefix of the numbers of values of a list with TTL."""

MINIMA: Final = "$min_"
"""Prefix of the times when the first value of a list with TTL expires."""

BESIDE: Final = (LENGTHS, MINIMA, COUNTS)
"""Prefixes of all that has the key of the variable whose name follows."""

TIMERS: Final = ("$procTimers_", "$eventTimers_")
"""Prefixes of timers, which have an index by key and one by time."""

_BY_TIME: Final = "_timestampToKey"

DEFAULT: Final = "default"
"""Name of the store of an operator with one, and of the column family of a store with one."""


def state_name(store: str, family: str) -> str:
    """Return the name of a state: of its store if it is the only one there, as of joins with four stores."""
    return store if family == DEFAULT else family


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """Position of the shuffle's columns in the key of a state.

    Attributes
    ----------
    inside
        Path of struct positions to the columns, from the outside in; empty if they are the key's own columns.
    dropped
        Number of columns at the end that are not among them.
    """

    inside: tuple[int, ...] = ()
    dropped: int = 0

    def columns(self, key: SparkType) -> tuple[SparkType, ...]:
        """Return the types of the columns."""
        for position in self.inside:
            key = key.children[position]
        return key.children[: len(key.children) - self.dropped]


# States of each side of a join. Their keys are the join's columns, then an index or a time.
_JOINS: Final = {
    "keyToNumValues": PartitionKey(),
    "keyWithIndexToValue": PartitionKey(dropped=1),
    "keyWithTsToValues": PartitionKey(dropped=1),
    "tsWithKey": PartitionKey(dropped=1),
}


def partition_key(
    operator: StatefulOperator, store: str, state: ColumnFamily, column_families: Mapping[str, ColumnFamily]
) -> PartitionKey:
    """Return the columns that determine the partition of a state's rows.

    `column_families` are all of the store, by name.
    """
    key = None
    if operator.name in _PLAIN and state.name == DEFAULT:
        key = PartitionKey()
    elif operator.name == _SESSIONS and state.name == DEFAULT:
        # The session's start is the last column.
        key = PartitionKey(dropped=1)
    elif operator.is_join:
        # Four stores, or four column families of one.
        key = _JOINS.get(state_name(store, state.name).partition("-")[2])
    elif operator.name in _TRANSFORM:
        key = _of_variable(state, column_families)
    if key is None:
        raise RescaleError(
            f"operator {operator.id} ({operator.name}), store {store}: this release does not know the "
            f"partitioning of the rows of its state {state.name!r}, so it cannot redistribute them. Upgrade "
            "spark-statestore, or keep the number of partitions. No copy was made."
        )
    return key


def _of_variable(state: ColumnFamily, column_families: Mapping[str, ColumnFamily]) -> PartitionKey | None:
    """Return the columns for a variable of transformWithState, an index of it, or timers."""
    name = state.name
    if not name.startswith("$"):
        # Only keys of map state have a prefix: the grouping key, before the key in the map.
        return PartitionKey((0,)) if state.key_encoder == "prefix" else PartitionKey()
    if name.startswith(EXPIRIES):
        # The time comes first, then the variable's key.
        of_map = _is_map(state, column_families.get(name.removeprefix(EXPIRIES)))
        return PartitionKey((1, 0)) if of_map else PartitionKey((1,))
    if name.startswith(TIMERS):
        return PartitionKey((1,)) if name.endswith(_BY_TIME) else PartitionKey((0,))
    return PartitionKey() if name.startswith(BESIDE) else None


def _is_map(expiries: ColumnFamily, variable: ColumnFamily | None) -> bool:
    if variable is not None:
        return variable.key_encoder == "prefix"
    # The variable was deleted; its expiries remain and are never read.
    element = parse_json(expiries.key_schema)["fields"][1]["type"]
    return [field["name"] for field in element["fields"]] == ["key", "userKey"]

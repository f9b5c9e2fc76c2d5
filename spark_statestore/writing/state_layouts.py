"""States that Spark derives from others, such as the number of a list's values, and their rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from spark_statestore.errors import OptionError
from spark_statestore.formats.metadata import parse_json
from spark_statestore.query import StatefulOperator
from spark_statestore.rescaling.partitioning import COUNTS, EXPIRIES, LENGTHS, MINIMA, state_name
from spark_statestore.rows import decode_rows, encode_rows
from spark_statestore.rows.source import StateSource, state_variables
from spark_statestore.rows.types import with_binary_strings
from spark_statestore.store.changelog_apply import ROW_SCHEMA, byte_sizes, numbered, slices
from spark_statestore.store.metadata import ColumnFamily

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Ends of the names of both states of timers.
_BY_KEY: Final = "_keyToTimestamp"
_BY_TIME: Final = "_timestampToKey"

# Spark's mark of a column of event time, in the metadata of its field.
_WATERMARK: Final = "spark.watermarkDelayMs"

TTL: Final = "ttlExpirationMs"
"""Field of the time when a value expires, in the value of a variable with TTL."""

INDEXED: Final = "keyWithIndexToValue"
"""State of a join's side in formats 1 to 3; its key ends with the number of the row among those of a key."""

_NUMBERS: Final = "keyToNumValues"

TIMED: Final = "keyWithTsToValues"
"""State of a join's side in format 4; its key ends with the time of the row."""

_TIMES: Final = "tsWithKey"

# Bytes of rows in a chunk. An Arrow array of bytes has 32-bit offsets.
_CHUNK_BYTES: Final = 1 << 26
_CHUNK_ROWS: Final = 1 << 20


class GroupedRows(NamedTuple):
    """Rows of a state with the group of each, from which derived rows follow.

    Attributes
    ----------
    rows
        Table of `ROW_SCHEMA`.
    numbers
        The number of each row's group.
    groups
        Rows of the groups' keys, by number.
    """

    rows: pa.Table
    numbers: NDArray[Any]
    groups: pa.ChunkedArray


@dataclass(frozen=True, slots=True)
class DerivedState:
    """A state whose rows follow from those of another one.

    Attributes
    ----------
    store
        Name of its stores.
    state
        Column family.
    groups
        Returns the group of each of its rows from their keys; null for a key that belongs to none.
    rows
        Returns its rows for those of the other state.
    is_encoded
        True if its keys are computed from decoded ones of the other state.
    is_left_behind
        True if Spark leaves some of its rows when it removes those that they follow from.
    """

    store: str
    state: ColumnFamily
    groups: Callable[[pa.ChunkedArray], pa.ChunkedArray]
    rows: Callable[[GroupedRows], pa.Table]
    is_encoded: bool = False
    is_left_behind: bool = False


class StateLayout:
    """A state with all that Spark derives from it.

    Rows of the state are of one *group* if derived rows follow from them together: those of a list, or those
    of one key of a join. The key of a group is that of its rows, for a join without their index.

    Attributes
    ----------
    state
        The column family that users write.
    derived
        What follows from it.
    is_indexed
        True if its key ends with the number of the row in its group.
    has_stale_rows
        True if there may be derived rows that follow from nothing.
    """

    def __init__(self, state: ColumnFamily, derived: Sequence[DerivedState], *, is_indexed: bool) -> None:
        self.state = state
        self.derived = tuple(derived)
        self.is_indexed = is_indexed
        self.has_stale_rows = any(part.is_left_behind for part in derived)
        self._is_encoded = any(part.is_encoded for part in derived)
        self._group_schema = _without_last(state.key_schema) if is_indexed else state.key_schema

    def groups(self, keys: pa.ChunkedArray, *, is_exact: bool = True) -> pa.ChunkedArray:
        """Return the group of each row by its key.

        It is null if the key must be decoded and is not exact in Arrow, unless `is_exact` is false.
        """
        if not self.is_indexed and not self._is_encoded:
            return keys
        end = -1 if self.is_indexed else None
        before, after = self.state.key_schema, self._group_schema
        return _reencoded(keys, before, after, lambda key: key.flatten()[:end], is_exact=is_exact)

    def grouped(self, rows: pa.Table) -> GroupedRows:
        """Return rows by group, those of an index in its order and numbered from 0 on."""
        numbers, distinct = numbered(self.groups(rows["key"]))
        groups = _in_chunks(pa.table([distinct], ["group"]))["group"]
        if not self.is_indexed or not rows.num_rows:
            return GroupedRows(rows, numbers, groups)
        return self._numbered_anew(GroupedRows(rows, numbers, groups))

    def _numbered_anew(self, grouped: GroupedRows) -> GroupedRows:
        import numpy as np

        schema = with_binary_strings(self.state.key_schema)
        chunks = decode_rows(grouped.rows["key"], schema).chunks
        before = np.concatenate([chunk.flatten()[-1].to_numpy() for chunk in chunks])
        order = np.lexsort((before, grouped.numbers))
        numbers = grouped.numbers[order]
        starts = np.flatnonzero(np.diff(numbers, prepend=-1))
        index = np.arange(len(numbers)) - np.repeat(starts, np.diff(starts, append=len(numbers)))
        rows = _reordered(grouped.rows, order)
        keys, first = [], 0
        for chunk in decode_rows(rows["key"], schema).chunks:
            columns = [*chunk.flatten()[:-1], pa.array(index[first : first + len(chunk)])]
            keys.append(_encoded(columns, schema))
            first += len(chunk)
        rows = rows.set_column(0, ROW_SCHEMA.field("key"), pa.chunked_array(keys))
        return GroupedRows(rows, numbers, grouped.groups)


def layout_of(
    operator: StatefulOperator, source: StateSource, source_of_store: Callable[[str], StateSource]
) -> StateLayout | None:
    """Return the layout of a state that users write; None if its rows stand alone.

    `source_of_store` returns the state of another store of the operator.

    Raises
    ------
    OptionError
        If a state that Spark derives from it is missing.
    """
    state = source.state
    variable = state_variables(operator).get(state.name)
    if operator.is_join:
        return _layout_of_join(operator, source, source_of_store)
    if variable is None:
        return None
    kind, has_ttl = variable["stateVariableType"], variable.get("ttlEnabled")
    if kind == "TimerState":
        name = state.name.removesuffix(_BY_KEY) + _BY_TIME
        return StateLayout(state, [_timers(source, _beside(source, name))], is_indexed=False)
    derived = []
    if has_ttl:
        derived.append(_expiries(source, _beside(source, EXPIRIES + state.name)))
    if has_ttl and state.has_multiple_values:
        derived.append(_minima(source, _beside(source, MINIMA + state.name)))
        derived.append(_counts(source.store, _beside(source, COUNTS + state.name)))
    elif state.has_multiple_values and (lengths := source.beside(LENGTHS + state.name)) is not None:
        derived.append(_counts(source.store, lengths))
    if not derived and not state.has_multiple_values:
        return None
    return StateLayout(state, derived, is_indexed=False)


def _layout_of_join(
    operator: StatefulOperator, source: StateSource, source_of_store: Callable[[str], StateSource]
) -> StateLayout:
    has_one_store = len(operator.stores) == 1
    side, _, kind = state_name(source.store, source.family).partition("-")
    name = f"{side}-{_NUMBERS if kind == INDEXED else _TIMES}"
    store = source.store if has_one_store else name
    state = _beside(source, name) if has_one_store else source_of_store(name).state
    if kind == INDEXED:
        return StateLayout(source.state, [_counts(store, state)], is_indexed=True)
    # Spark has no index of a side without event time.
    derived = [_marks(store, state)] if _has_event_time(source, name) else []
    return StateLayout(source.state, derived, is_indexed=False)


def _has_event_time(source: StateSource, index: str) -> bool:
    if source.stored_rows(source.family):
        return source.stored_rows(index) > 0
    return bool(event_times(source.state.value_schema))


def event_times(schema: str) -> list[str]:
    """Return the names of the columns of event time in a value."""
    fields = parse_json(schema)["fields"]
    return [column["name"] for column in fields if _WATERMARK in column.get("metadata", {})]


def _beside(source: StateSource, name: str) -> ColumnFamily:
    state = source.beside(name)
    if state is None:
        raise OptionError(
            f"the state {source.family!r} of the store {source.store!r} has no {name!r} beside it, which "
            "Spark derives from it, so that it cannot be written. Run the query once more on rows that set "
            "it, or upgrade spark-statestore. No copy was made."
        )
    return state


def _counts(store: str, state: ColumnFamily) -> DerivedState:
    """Return the numbers of values of each key."""

    def rows(grouped: GroupedRows) -> pa.Table:
        import numpy as np

        counts = np.bincount(grouped.numbers, minlength=len(grouped.groups))
        return _table(grouped.groups, _encoded([pa.array(counts)], state.value_schema))

    return DerivedState(store, state, lambda keys: keys, rows)


def _minima(source: StateSource, state: ColumnFamily) -> DerivedState:
    """Return the time when the first value of each key expires."""

    def rows(grouped: GroupedRows) -> pa.Table:
        times = _first_times(grouped, source.state)
        return _table(grouped.groups, _encoded([pa.array(times)], state.value_schema))

    return DerivedState(source.store, state, lambda keys: keys, rows)


def _expiries(source: StateSource, state: ColumnFamily) -> DerivedState:
    """Return the index of keys by the time when their first value expires."""
    key_schema, schema = map(with_binary_strings, (source.state.key_schema, state.key_schema))

    def groups(keys: pa.ChunkedArray) -> pa.ChunkedArray:
        return _reencoded(keys, state.key_schema, source.state.key_schema, lambda key: key.field(1).flatten())

    def rows(grouped: GroupedRows) -> pa.Table:
        times = _first_times(grouped, source.state)
        keys, first = [], 0
        for chunk in decode_rows(grouped.groups, key_schema).chunks:
            time = pa.array(times[first : first + len(chunk)])
            keys.append(_encoded([time, chunk], schema))
            first += len(chunk)
        return _with_empty_values(pa.chunked_array(keys, pa.binary()), state)

    return DerivedState(source.store, state, groups, rows, is_encoded=True, is_left_behind=True)


def _timers(source: StateSource, state: ColumnFamily) -> DerivedState:
    """Return the index of timers by their time: their key and time, exchanged."""
    key_schema = source.state.key_schema

    def exchanged(keys: pa.ChunkedArray, before: str, after: str) -> pa.ChunkedArray:
        return _reencoded(keys, before, after, lambda key: key.flatten()[::-1])

    def groups(keys: pa.ChunkedArray) -> pa.ChunkedArray:
        return exchanged(keys, state.key_schema, key_schema)

    def rows(grouped: GroupedRows) -> pa.Table:
        return _with_empty_values(exchanged(grouped.groups, key_schema, state.key_schema), state)

    return DerivedState(source.store, state, groups, rows, is_encoded=True)


def _marks(store: str, state: ColumnFamily) -> DerivedState:
    """Return the index of keys by time: once for each of their values."""

    def rows(grouped: GroupedRows) -> pa.Table:
        return _with_empty_values(grouped.rows["key"], state)

    return DerivedState(store, state, lambda keys: keys, rows)


def _first_times(grouped: GroupedRows, state: ColumnFamily) -> NDArray[Any]:
    """Return the time when the first value of each group expires, in milliseconds."""
    import numpy as np

    times = decode_rows(grouped.rows["value"], state.value_schema, [TTL])
    first = np.full(len(grouped.groups), np.iinfo(np.int64).max)
    if times.num_chunks:
        values = np.concatenate([chunk.field(0).to_numpy() for chunk in times.chunks])
        np.minimum.at(first, grouped.numbers, values)
    return first


def _with_empty_values(keys: pa.ChunkedArray, state: ColumnFamily) -> pa.Table:
    """Return rows whose value has one field that is always null."""
    (value,) = _encoded([pa.nulls(1)], state.value_schema)
    values = [pa.repeat(value, len(chunk)) for chunk in keys.chunks]
    return _table(keys, pa.chunked_array(values, pa.binary()))


def _table(keys: pa.ChunkedArray, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    return pa.table([keys, values], schema=ROW_SCHEMA)


def _encoded(columns: Sequence[pa.Array], schema: str) -> pa.BinaryArray:
    """Return rows of columns in the order of a schema."""
    names = decode_rows(pa.array([], pa.binary()), schema).type.names
    return encode_rows(pa.StructArray.from_arrays(list(columns), names), schema)


def _reencoded(
    keys: pa.ChunkedArray,
    before: str,
    after: str,
    columns: Callable[[pa.StructArray], list[pa.Array]],
    *,
    is_exact: bool = True,
) -> pa.ChunkedArray:
    """Return keys of other columns; null for those that Arrow does not represent, if they must be exact."""
    import pyarrow.compute as pc

    before, after = map(with_binary_strings, (before, after))
    chunks = []
    for chunk in keys.chunks:
        key = decode_rows(chunk, before)
        encoded = _encoded(columns(key), after)
        is_same = pc.equal(encode_rows(key, before), chunk)
        is_kept = not is_exact or pc.all(is_same).as_py()
        chunks.append(encoded if is_kept else pc.if_else(is_same, encoded, None))
    return pa.chunked_array(chunks, pa.binary())


def _reordered(rows: pa.Table, order: NDArray[Any]) -> pa.Table:
    """Return rows in an order."""
    large = pa.table([column.cast(pa.large_binary()) for column in rows.columns], ROW_SCHEMA.names)
    return _in_chunks(large, order).cast(ROW_SCHEMA)


def _in_chunks(large: pa.Table, order: NDArray[Any] | None = None) -> pa.Table:
    """Return rows of large binary as chunks of binary, in an order."""
    import numpy as np

    order = np.arange(large.num_rows) if order is None else order
    sizes = np.sum([byte_sizes(column) for column in large.columns], axis=0)[order]
    kind = pa.schema([(name, pa.binary()) for name in large.column_names])
    # Arrow takes copies, whose offsets begin with 0.
    parts = [
        large.take(pa.array(order[start:end])).cast(kind)
        for start, end in slices(sizes, _CHUNK_ROWS, _CHUNK_BYTES)
    ]
    return pa.concat_tables([kind.empty_table(), *parts])


def _without_last(schema: str) -> str:
    node = parse_json(schema)
    return json.dumps(node | {"fields": node["fields"][:-1]})

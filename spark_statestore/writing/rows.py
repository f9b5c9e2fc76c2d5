"""Rows of `write_state`, encoded as Spark keeps them, with what each operator requires of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import pyarrow as pa

from spark_statestore.errors import OptionError, RowEncodingError
from spark_statestore.formats.metadata import parse_json
from spark_statestore.query import StatefulOperator
from spark_statestore.rescaling.partitioning import state_name
from spark_statestore.rows import decode_rows, encode_rows
from spark_statestore.rows.columns import PARTITION
from spark_statestore.rows.encode import encode_array
from spark_statestore.rows.source import state_variables
from spark_statestore.rows.types import SparkType, parse_schema
from spark_statestore.store.metadata import ColumnFamily
from spark_statestore.writing.state_layouts import INDEXED, TIMED, TTL, event_times

Mode = Literal["upsert", "replace", "delete"]

AGGREGATION: Final = "stateStoreSave"
SESSIONS: Final = "sessionWindowStateStoreSaveExec"

# Operators with one value for each key, and one state.
_PLAIN: Final = (
    AGGREGATION,
    "dedupe",
    "dedupeWithinWatermark",
    "flatMapGroupsWithState",
    "applyInPandasWithState",
    SESSIONS,
)

# Kinds of the variables of transformWithState.
_VARIABLES: Final = ("ValueState", "ListState", "MapState", "TimerState")

# States of a join's sides that have its rows; the others follow from them.
_JOINED: Final = tuple(f"{side}-{kind}" for side in ("left", "right") for kind in (INDEXED, TIMED))

# Columns of variables, where they are not key and value.
_COLUMNS: Final = {
    "ListState": ("key", "list_element"),
    "MapState": ("key", "user_map_key", "user_map_value"),
    "TimerState": ("key", "expiration_timestamp_ms"),
}

VALUES: Final = ("value", "list_element", "user_map_value")
"""Columns of values; all others are of the key."""

# Columns that are parts of the key, by the names that Spark gives them in it.
_PARTS: Final = {
    "MapState": {"key": "key", "user_map_key": "userKey"},
    "TimerState": {"key": "key", "expiration_timestamp_ms": "expiryTimestampMs"},
}

# Spark's mark of a session's column, in the metadata of its field.
_IS_SESSION: Final = "spark.sessionWindow"

# Buffers of Spark's aggregates that are never null: of count, avg, sum of decimals, first and last.
_FILLED: Final = ("count", "isEmpty", "valueSet")

# Fields of a join's rows: whether one has joined, and its number among those of its key.
_MATCHED: Final = "matched"
_INDEX: Final = "index"

# Field of a timer's value, which is always null.
_EMPTY: Final = "__dummy__"

# Bits of the only NaN in Spark's keys.
_NAN: Final = {"float": ("<u4", 0x7FC00000), "double": ("<u8", 0x7FF8 << 48)}


def require_writable(operator: StatefulOperator, store: str, state: ColumnFamily | None) -> None:
    """Raise `OptionError` for a state that this release cannot write; without one, for an operator."""
    variables = state_variables(operator)
    is_known = operator.name in _PLAIN or operator.is_join or bool(variables)
    may_be_list = False
    if state is not None and operator.is_join:
        name = state_name(store, state.name)
        is_known, may_be_list = name in _JOINED, name.endswith(TIMED)
    elif state is not None and state.name in variables:
        variable = variables[state.name]
        kind = variable["stateVariableType"]
        is_known = kind in _VARIABLES and isinstance(variable.get("ttlEnabled"), bool)
        may_be_list = kind == "ListState"
    elif state is not None:
        is_known = operator.name in _PLAIN
    if not is_known or (state is not None and state.has_multiple_values != may_be_list):
        name = "" if state is None else f"{state.name!r} "
        raise OptionError(
            f"the state {name}of operator {operator.id} ({operator.name}), store {store!r}, cannot be "
            f"written: this release writes the state of {', '.join(_PLAIN)}; of joins {', '.join(_JOINED)}; "
            f"of transformWithState {', '.join(variables) or 'variables and timers'}. What Spark derives "
            "from these is written with them. Choose another operator or state. No copy was made."
        )


def encoded_rows(
    table: pa.Table, mode: Mode, operator: StatefulOperator, state: ColumnFamily, first: int = 0
) -> list[pa.ChunkedArray]:
    """Return the rows of keys and, unless the mode is ``delete``, of values, as Spark encodes them.

    Errors count rows from `first`.

    Raises
    ------
    RowEncodingError
        If a row is not one of the schema, or one that the operator would not have written.
    OptionError
        If the key is of a type that cannot be written.
    """
    variable = state_variables(operator).get(state.name, {})
    table = _keys_and_values(table, mode, variable, first)
    rows = [_encoded(table, "key", state.key_schema, first)]
    if mode != "delete":
        rows.append(_encoded(table, "value", state.value_schema, first))
    key = parse_schema(state.key_schema)
    _require_no_map(key)
    if operator.name in (AGGREGATION, SESSIONS) or operator.is_join:
        for chunk in rows[0].chunks:
            _require_normalized(decode_rows(chunk, state.key_schema), key)
    if mode != "delete":
        if operator.name in (AGGREGATION, SESSIONS):
            _require_filled_buffers(
                rows[1], state, len(key.children) if operator.name == SESSIONS else 0, first
            )
        if operator.name == SESSIONS:
            _require_own_sessions(rows[0], rows[1], state, first)
        if operator.is_join or variable.get("ttlEnabled"):
            _require_filled_end(rows[1], "value", state.value_schema, (_MATCHED, TTL), first)
        if operator.is_join and state.has_multiple_values:
            _require_own_times(rows[0], rows[1], state, first)
    if operator.is_join:
        _require_filled_end(rows[0], "key", state.key_schema, (_INDEX,), first)
    return rows


def _keys_and_values(table: pa.Table, mode: Mode, variable: dict[str, Any], first: int) -> pa.Table:
    kind = variable.get("stateVariableType", "")
    columns = _COLUMNS.get(kind, ("key", "value"))
    parts = _PARTS.get(kind, {})
    needed = [name for name in columns if mode != "delete" or name not in VALUES]
    _require_columns(table.column_names, columns, needed, mode)
    if not parts:
        *_, value = columns
        return table.rename_columns(["value" if name == value else name for name in table.column_names])
    for name in parts:
        table = table.set_column(table.column_names.index(name), name, _decoded(table[name]))
        _require_filled(table[name], name, first)
    batches = table.to_batches()
    names = list(parts.values())
    keys = [pa.StructArray.from_arrays([batch[name] for name in parts], names) for batch in batches]
    types = pa.struct([(inside, table[name].type) for name, inside in parts.items()])
    arrays = {"key": pa.chunked_array(keys, types)}
    if mode == "delete":
        return pa.table(arrays)
    if columns[-1] in VALUES:
        return pa.table(arrays | {"value": table[columns[-1]]})
    # A timer has no value.
    return pa.table(arrays | {"value": pa.StructArray.from_arrays([pa.nulls(table.num_rows)], [_EMPTY])})


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column without a dictionary, which may have nulls that its indices have not."""
    if not pa.types.is_dictionary(column.type):
        return column
    return pa.chunked_array([chunk.dictionary_decode() for chunk in column.chunks], column.type.value_type)


def _require_columns(names: Sequence[str], columns: Sequence[str], needed: Sequence[str], mode: Mode) -> None:
    wrong = [name for name in names if name not in (*columns, PARTITION)]
    if wrong or any(names.count(name) != 1 for name in needed):
        raise RowEncodingError(
            f"the changes have the columns {', '.join(map(repr, names)) or 'none'}, but the mode {mode!r} "
            f"needs {' and '.join(map(repr, needed))}, once each, as `read_state` returns them. Rename, "
            "add or drop columns. No copy was made."
        )


def _encoded(table: pa.Table, column: str, schema: str, first: int) -> pa.ChunkedArray:
    kind = parse_schema(schema)
    chunks = table[column].chunks or [pa.array([], table[column].type)]
    rows, begin = [], first
    try:
        for chunk in chunks:
            rows.append(encode_array(chunk, kind, begin))
            begin += len(chunk)
    except RowEncodingError as error:
        raise RowEncodingError(f"the column {column!r} of the changes: {error} No copy was made.") from error
    encoded = pa.chunked_array(rows, pa.binary())
    _require_filled(encoded, column, first)
    return encoded


def _require_filled(rows: pa.ChunkedArray, column: str, first: int) -> None:
    if rows.null_count:
        row = first + rows.is_null().to_pylist().index(True)
        raise RowEncodingError(
            f"row {row} of the changes has no {column}. Fill it in, or leave the row out. No copy was made."
        )


def _require_filled_end(
    rows: pa.ChunkedArray, column: str, schema: str, names: Sequence[str], first: int
) -> None:
    """Raise for a null in the last field, if it has one of the names of fields that Spark adds."""
    import pyarrow.compute as pc

    name = parse_json(schema)["fields"][-1]["name"]
    if name not in names:
        return
    # A column of the user may have this name, too.
    last = parse_schema(schema).arrow.names[-1]
    for chunk in rows.chunks:
        row = pc.index(decode_rows(chunk, schema, [last]).field(0).is_null(), True).as_py()
        if row >= 0:
            raise RowEncodingError(
                f"row {first + row} of the changes has no {last!r} in its {column}, which Spark always has. "
                "Fill it in. No copy was made."
            )
        first += len(chunk)


def _require_own_times(
    keys: pa.ChunkedArray, values: pa.ChunkedArray, state: ColumnFamily, first: int
) -> None:
    """Raise for a join's row whose key has another time than its value: Spark would not find it."""
    import pyarrow.compute as pc

    names = [column["name"] for column in parse_json(state.value_schema)["fields"]]
    times = event_times(state.value_schema)
    if len(times) != 1 or names.count(times[0]) != 1:
        return
    position = names.index(times[0])
    for key, value in zip(keys.chunks, values.chunks, strict=True):
        column = decode_rows(value, state.value_schema).field(position)
        if not pa.types.is_timestamp(column.type):
            return
        time = decode_rows(key, state.key_schema).flatten()[-1]
        row = pc.index(pc.fill_null(pc.not_equal(column.cast(pa.int64()), time), False), True).as_py()
        if row >= 0:
            raise RowEncodingError(
                f"row {first + row} of the changes has another time in its key than in {times[0]!r}, its "
                "event time, so that the query would not find it. Give both the same time, in the key in "
                "microseconds since 1970. No copy was made."
            )
        first += len(key)


def _require_filled_buffers(values: pa.ChunkedArray, state: ColumnFamily, grouping: int, first: int) -> None:
    """Raise for nulls in buffers that aggregates fill with their first row; Spark would read any number."""
    import pyarrow.compute as pc

    for chunk in values.chunks:
        for name, is_missing in _missing_buffers(decode_rows(chunk, state.value_schema), state, grouping):
            row = pc.index(is_missing, True).as_py()
            if row >= 0:
                raise RowEncodingError(
                    f"row {first + row} of the changes has no {name!r} in its value, which Spark's "
                    "aggregates always have. Fill it in, with 0 or false for no rows. No copy was made."
                )
        first += len(chunk)


def _missing_buffers(
    values: pa.StructArray, state: ColumnFamily, grouping: int
) -> Iterator[tuple[str, pa.BooleanArray]]:
    """Yield the names of buffers that are always filled, and for each row whether it is not.

    A sum of decimals is null after an overflow alone; one of no rows is 0.
    """
    import pyarrow.compute as pc

    names = [field["name"] for field in parse_json(state.value_schema)["fields"]]
    for position in range(grouping, len(names)):
        column = values.field(position)
        if names[position] in _FILLED:
            yield names[position], column.is_null()
        if names[position] == "isEmpty":
            # The field before is the sum.
            yield names[position - 1], pc.and_(column, values.field(position - 1).is_null())


def _require_own_sessions(
    keys: pa.ChunkedArray, values: pa.ChunkedArray, state: ColumnFamily, first: int
) -> None:
    """Raise for a value of another session than its key has.

    A key has the grouping columns but the session, then the session's start; a value begins with all grouping
    columns.
    """
    import pyarrow.compute as pc

    for batch in pa.table([keys, values], ["key", "value"]).to_batches():
        session_keys, is_session = _keys_of_sessions(batch, state)
        row = pc.index(pc.or_(pc.invert(is_session), pc.not_equal(session_keys, batch["key"])), True).as_py()
        if row >= 0:
            raise RowEncodingError(
                f"row {first + row} of the changes has other grouping columns or another session start in "
                "its value than in its key, or a session that does not end after its start, so the query "
                "would lose it or show another one. Correct them. No copy was made."
            )
        first += batch.num_rows


def _keys_of_sessions(batch: pa.RecordBatch, state: ColumnFamily) -> tuple[pa.Array, pa.Array]:
    """Return the keys that the values of a batch belong to, and which have a start and a later end."""
    import pyarrow.compute as pc

    columns = list(decode_rows(batch["key"].slice(0, 0), state.key_schema).type)
    session = session_position(state)
    values = decode_rows(batch["value"], state.value_schema)
    grouping = [values.field(i) for i in range(len(columns)) if i != session]
    # With the nulls of the structs, which the fields of a struct lack.
    start, end = values.field(session).flatten()
    keys = encode_rows(pa.StructArray.from_arrays([*grouping, start], fields=columns), state.key_schema)
    return keys, pc.fill_null(pc.less(start, end), False)


def session_position(state: ColumnFamily) -> int:
    """Return the position of the session in the value of a state of sessions."""
    fields = parse_json(state.value_schema)["fields"]
    return next(i for i, column in enumerate(fields) if _IS_SESSION in column["metadata"])


def _require_normalized(keys: pa.Array, kind: SparkType) -> None:
    """Raise for floating-point numbers that grouping columns do not have: no query finds such a key."""
    if kind.name in _NAN:
        import numpy as np

        values = keys.drop_null().to_numpy()
        dtype, nan = _NAN[kind.name]
        bits: Any = values.view(dtype)
        if (np.isnan(values) & (bits != nan)).any() or ((values == 0) & (bits != 0)).any():
            raise RowEncodingError(
                "a key of the changes has -0.0, or a NaN with other bits than Spark's; keys have 0.0 and "
                "one NaN alone, and the query would not find this one. Replace these numbers. "
                "No copy was made."
            )
    elif kind.name == "struct":
        for child, child_kind in zip(keys.flatten(), kind.children, strict=True):
            _require_normalized(child, child_kind)
    elif kind.name == "array":
        _require_normalized(keys.flatten(), kind.children[0])


def _require_no_map(kind: SparkType) -> None:
    if kind.name == "map":
        raise OptionError(
            "the key of the state has a map, whose entries Spark sorts in a way that this release does not "
            "know; such state cannot be written. Group by something else. No copy was made."
        )
    for child in kind.children:
        _require_no_map(child)

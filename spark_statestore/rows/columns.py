"""The typed columns of a state's rows, equal to those of Spark's state data source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from spark_statestore.errors import OptionError
from spark_statestore.rows.decode import decode_array
from spark_statestore.rows.types import parse_schema
from spark_statestore.store.changelog_apply import ROW_SCHEMA
from spark_statestore.store.metadata import ColumnFamily

PARTITION: Final = "partition_id"


class _Column(NamedTuple):
    """A column: the key or value row, or one field of it."""

    name: str
    row: str
    field: str | None = None


_PLAIN: Final = (_Column("key", "key"), _Column("value", "value"))
_OF_VARIABLES: Final = {
    "ListState": (_Column("key", "key"), _Column("list_element", "value")),
    "MapState": (
        _Column("key", "key", "key"),
        _Column("user_map_key", "key", "userKey"),
        _Column("user_map_value", "value"),
    ),
    "TimerState": (
        _Column("key", "key", "key"),
        _Column("expiration_timestamp_ms", "key", "expiryTimestampMs"),
    ),
}


class StateColumns:
    """Decoder of a state's rows.

    `variable` is Spark's kind of the transformWithState variable, None for another state. In `columns`, by
    default all, ``a.b`` is the field b of column a.
    """

    def __init__(
        self, state: ColumnFamily, variable: str | None = None, columns: Sequence[str] | None = None
    ) -> None:
        shown = {column.name: column for column in _OF_VARIABLES.get(variable or "", _PLAIN)}
        fields_by_column: dict[str, list[str] | None] = (
            dict.fromkeys([*shown, PARTITION])
            if columns is None
            else _by_column([*shown, PARTITION], columns)
        )
        self._names = list(fields_by_column)
        self._columns = [shown[name] for name in fields_by_column if name != PARTITION]
        self._types = {
            row: parse_schema(
                schema, _fields([column for column in self._columns if column.row == row], fields_by_column)
            )
            for row, schema in (("key", state.key_schema), ("value", state.value_schema))
            if any(column.row == row for column in self._columns)
        }
        self.schema: pa.Schema = self.empty().schema
        """Schema of decoded batches."""

    def decode(self, rows: pa.RecordBatch, partition: int) -> pa.RecordBatch:
        """Decode rows with the schema `ROW_SCHEMA` to typed columns."""
        decoded = {row: decode_array(rows[row], kind) for row, kind in self._types.items()}
        arrays = {
            column.name: decoded[column.row]
            if column.field is None
            else decoded[column.row].field(column.field)
            for column in self._columns
        }
        if PARTITION in self._names:
            arrays[PARTITION] = pa.repeat(pa.scalar(partition, pa.int32()), rows.num_rows)
        return pa.RecordBatch.from_arrays([arrays[name] for name in self._names], self._names)

    def empty(self) -> pa.RecordBatch:
        """Return a batch without rows."""
        return self.decode(pa.RecordBatch.from_pylist([], ROW_SCHEMA), 0)


def _by_column(names: list[str], columns: Sequence[str]) -> dict[str, list[str] | None]:
    """Return the selected fields of each column, None for all."""
    fields_by_column: dict[str, list[str] | None] = {}
    for column in columns:
        name, dot, field = column.partition(".")
        if name not in names or (dot and name == PARTITION):
            raise OptionError(
                f"there is no column {column!r}; there are {', '.join(names)}. Use one of those, or a field "
                "of one, such as value.count."
            )
        if not dot:
            fields_by_column[name] = None
        elif (fields := fields_by_column.setdefault(name, [])) is not None:
            fields.append(field)
    return fields_by_column


def _fields(columns: Sequence[_Column], fields_by_column: Mapping[str, list[str] | None]) -> list[str] | None:
    """Return the fields of a row that some columns need, None for all."""
    if columns[0].field is None:
        return fields_by_column[columns[0].name]
    needed: list[str] = []
    for column in columns:
        inside = fields_by_column[column.name]
        needed += [f"{column.field}.{name}" for name in inside] if inside else [str(column.field)]
    return needed

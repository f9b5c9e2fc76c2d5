"""Columns of a new state, computed from those of an old one."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as arrow_types

from spark_statestore.errors import OptionError, RowEncodingError
from spark_statestore.formats.metadata import parse_json
from spark_statestore.rows.coercion import cast_column
from spark_statestore.rows.columns import PARTITION
from spark_statestore.writing.buffers import Buffer, buffers_of, matched_buffers
from spark_statestore.writing.sql import Sql, failed

ColumnValues: TypeAlias = Any
"""Values of a column: an expression, SQL, a function of the old rows, or one value of all rows."""

_LITERALS: Final = (pa.Scalar, bool, int, float, decimal.Decimal, bytes, datetime.date, datetime.timedelta)

# Types that hold all values of a smaller one.
_WIDER: Final[Mapping[pa.DataType, Sequence[pa.DataType]]] = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    pa.int16(): (pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    pa.int32(): (pa.int64(), pa.float64()),
    pa.float32(): (pa.float64(),),
}


@dataclass(frozen=True, slots=True)
class NewField:
    """A field of a column of the new state, with where its values come from.

    Attributes
    ----------
    path
        Its column and name, such as ``value.count``.
    origin
        Path of the old field that it is taken from; None if it is not.
    beginning
        Value of all rows, if it is not taken from the old state.
    values
        Values that the caller has given, which replace all else.
    problem
        Why its values cannot be told; None if they can.
    """

    path: str
    origin: str | None = None
    beginning: Any = None
    values: ColumnValues = None
    is_given: bool = False
    problem: str | None = None

    def __str__(self) -> str:
        if self.is_given:
            name = getattr(self.values, "__name__", None)
            return f"{name}(...)" if name else str(self.values)
        if self.origin is None:
            return "null" if self.beginning is None else str(self.beginning).lower()
        return self.origin


class NewColumns:
    """The columns of a new state, from the rows of an old one.

    Parameters
    ----------
    old, new
        Schemas of both, as `read_state` returns them.
    aggregates
        For states of aggregations, the value schemas of both as Spark has them, and the number of grouping
        columns at the beginning of each value.
    values_by_path
        Values by path, such as ``value.count``.
    beginnings
        Values by path of fields that the old state lacks, and that do not begin with null.
    """

    def __init__(
        self,
        old: pa.Schema,
        new: pa.Schema,
        values_by_path: Mapping[str, ColumnValues],
        aggregates: tuple[str, str, int, int] | None = None,
        beginnings: Mapping[str, Any] | None = None,
    ) -> None:
        self._beginnings = beginnings or {}
        self._old = old
        self._new = new
        self._columns = [name for name in new.names if name != PARTITION]
        fields = {
            path: self._by_name(path, field.type)
            for column in self._columns
            for path, field in _fields(new.field(column))
        }
        if aggregates is not None:
            fields |= self._of_buffers(*aggregates)
        else:
            fields |= self._unnamed(fields)
        for path, values in values_by_path.items():
            if path not in fields:
                raise OptionError(
                    f"the new state has no column {path!r}, it has {', '.join(fields)}. Use one of those. "
                    "No checkpoint was written."
                )
            fields[path] = NewField(path, values=_checked(path, values), is_given=True)
        self.fields: tuple[NewField, ...] = tuple(fields.values())
        """All fields, in their order."""
        self._sql = {
            field.path: Sql(field.values, f"the value {field.values!r} of the new column {field.path!r}")
            for field in self.fields
            if field.is_given and isinstance(field.values, str)
        }

    @property
    def problems(self) -> list[str]:
        """Reasons why the values of columns are unknown, each after the column's path."""
        return [f"{field.path} {field.problem}" for field in self.fields if field.problem]

    @property
    def not_taken(self) -> list[str]:
        """Paths of old fields that no new field takes as they are."""
        origins = {field.origin for field in self.fields}
        return [path for path, _ in _all_fields(self._old) if path not in origins]

    def has_given(self, prefix: str) -> bool:
        """Return True if the caller has given values of a column whose path begins so."""
        return any(field.is_given and field.path.startswith(prefix) for field in self.fields)

    def evaluate(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the new rows of old ones.

        Raises
        ------
        OptionError
            If given values cannot be computed.
        RowEncodingError
            If they are not of the column's type.
        """
        values = {field.path: self._values(field, rows) for field in self.fields}
        arrays = []
        for column in self._columns:
            kind = self._new.field(column).type
            if not arrow_types.is_struct(kind):
                arrays.append(values[column])
                continue
            children = [values[path] for path, _ in _fields(self._new.field(column))]
            # A struct of no fields has no length of its own.
            arrays.append(
                pa.StructArray.from_arrays(children, fields=list(kind))
                if children
                else pa.array([{}] * rows.num_rows, kind)
            )
        return pa.RecordBatch.from_arrays(arrays, self._columns)

    def empty(self) -> pa.RecordBatch:
        """Return a batch without rows."""
        return self.evaluate(pa.RecordBatch.from_pylist([], self._old))

    def _by_name(self, path: str, kind: pa.DataType) -> NewField:
        before = dict(_all_fields(self._old)).get(path)
        if before is not None:
            return _new_field(path, path, before.type, kind)
        if path.startswith(("key.", "user_map_key.")):
            return NewField(path, problem="is not in the old key")
        return NewField(path, beginning=self._beginnings.get(path))

    def _unnamed(self, fields: Mapping[str, NewField]) -> dict[str, NewField]:
        """Return the new fields of values that could be old ones of another name."""
        origins = {field.origin for field in fields.values()}
        candidates = [
            path for path, _ in _all_fields(self._old) if path not in origins and not path.startswith("key.")
        ]
        problem = f"is not in the old state, and could be {' or '.join(candidates)}"
        return {
            path: NewField(path, problem=problem)
            for path, field in fields.items()
            if candidates and field.origin is None and field.problem is None and path not in self._beginnings
        }

    def _of_buffers(
        self, old_schema: str, new_schema: str, old_begin: int, new_begin: int
    ) -> dict[str, NewField]:
        old_fields, new_fields = list(self._old.field("value").type), list(self._new.field("value").type)
        pairs, added, unclear = matched_buffers(
            _buffers(old_schema, old_fields, old_begin), _buffers(new_schema, new_fields, new_begin)
        )
        fields: list[NewField] = []
        for before, after in pairs:
            for origin, position in zip(before.positions, after.positions, strict=True):
                old, new = old_fields[origin], new_fields[position]
                fields.append(_new_field(f"value.{new.name}", f"value.{old.name}", old.type, new.type))
        for buffer in added:
            for position, value in zip(buffer.positions, buffer.beginning or (), strict=True):
                fields.append(NewField(f"value.{new_fields[position].name}", beginning=value))
        for buffer in unclear:
            fields += [
                NewField(
                    f"value.{new_fields[position].name}",
                    problem=f"is of {buffer.kind}, which the old state does not show",
                )
                for position in buffer.positions
            ]
        return {field.path: field for field in fields}

    def _values(self, field: NewField, rows: pa.RecordBatch) -> pa.Array:
        kind = dict(_all_fields(self._new))[field.path].type
        if not field.is_given:
            if field.origin is None:
                return pa.repeat(pa.scalar(field.beginning, kind), rows.num_rows)
            column, _, name = field.origin.partition(".")
            return cast_column(_flat(rows[column], name) if name else rows[column], kind)
        values = self._called(field, rows) if callable(field.values) else field.values
        try:
            values = _cast(self._column_values(field, values, rows, kind), kind)
        except OptionError:
            raise
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise RowEncodingError(
                f"the values of the new column {field.path!r}, {field}, are not of its type {kind}: "
                f"{str(error).rstrip('.')}. Give a value of that type, or for a function an array of them. "
                "No checkpoint was written."
            ) from error
        if len(values) != rows.num_rows:
            raise RowEncodingError(
                f"{field} has returned {len(values)} values of the new column {field.path!r} for "
                f"{rows.num_rows} rows. Return one for each row. No checkpoint was written."
            )
        return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values

    def _called(self, field: NewField, rows: pa.RecordBatch) -> Any:
        try:
            return field.values(rows)
        except Exception as error:
            error.add_note(f"in {field}, which computes the new column {field.path!r}")
            raise

    def _column_values(
        self, field: NewField, values: Any, rows: pa.RecordBatch, kind: pa.DataType
    ) -> pa.Array | pa.ChunkedArray:
        if isinstance(values, pa.Array | pa.ChunkedArray):
            return values
        if isinstance(values, str):
            return self._sql[field.path].column(rows)
        if isinstance(values, pc.Expression):
            return _projected(rows, field.path, values)
        if isinstance(values, pa.Scalar):
            return pa.array([values.as_py()] * rows.num_rows, values.type)
        if callable(field.values):
            return pa.array(values, kind)
        return pa.array([values] * rows.num_rows)


def shortened(texts: Sequence[str]) -> list[str]:
    """Return the first texts of a list, with the number of the others."""
    most = 10
    return [*texts[:most], *([f"{len(texts) - most} more"] if len(texts) > most else [])]


def _checked(path: str, values: Any) -> ColumnValues:
    if values is None or callable(values) or isinstance(values, (pc.Expression, str, *_LITERALS)):
        return values
    raise OptionError(
        f"the values of the column {path!r} are a {type(values).__name__}, but they must be an expression of "
        "pyarrow, SQL as a string, a function of a record batch, or one value, such as 0. No checkpoint was "
        "written."
    )


def _cast(values: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    if arrow_types.is_decimal(kind) and arrow_types.is_integer(values.type):
        # Arrow asks for the digits that any number of the type may have.
        values = values.cast(pa.decimal128(38, kind.scale))
    return cast_column(values, kind)


def _projected(rows: pa.RecordBatch, path: str, expression: pc.Expression) -> pa.ChunkedArray:
    from pyarrow.acero import Declaration, ProjectNodeOptions, TableSourceNodeOptions

    try:
        source = Declaration("table_source", TableSourceNodeOptions(pa.table(rows)))
        project = Declaration("project", ProjectNodeOptions([expression], ["values"]), [source])
        return project.to_table(use_threads=False)["values"]
    except (pa.ArrowException, TypeError) as error:
        raise failed(f"the value {str(expression)!r} of the new column {path!r}", error) from error


def _flat(column: pa.StructArray, name: str) -> pa.Array:
    """Return a field of a struct, null where the struct is."""
    return column.flatten()[column.type.get_field_index(name)]


def _new_field(path: str, before: str, old: pa.DataType, new: pa.DataType) -> NewField:
    if _holds_all(old, new):
        return NewField(path, origin=before)
    return NewField(path, problem=f"is {new} and was {old}")


def _holds_all(old: pa.DataType, new: pa.DataType) -> bool:
    """Return True if a type has all values of another one, by which they are not changed."""
    if arrow_types.is_struct(old) and arrow_types.is_struct(new):
        return [field.name for field in old] == [field.name for field in new] and all(
            _holds_all(before.type, after.type) for before, after in zip(old, new, strict=True)
        )
    return bool(old == new or new in _WIDER.get(old, ()) or _is_wider_decimal(old, new))


def _is_wider_decimal(old: pa.DataType, new: pa.DataType) -> bool:
    if not (arrow_types.is_decimal(old) and arrow_types.is_decimal(new)):
        return False
    return bool(new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale)


def _buffers(schema: str, fields: Sequence[pa.Field], begin: int) -> list[Buffer]:
    # With the names that Spark gave, as unique ones hide what a field is of.
    names = [node["name"] for node in parse_json(schema)["fields"]]
    named = [field.with_name(name) for field, name in zip(fields, names, strict=True)]
    return buffers_of(named, begin)


def _fields(column: pa.Field) -> list[tuple[str, pa.Field]]:
    """Return the fields of a column with their paths; a column that is no struct is its own field."""
    if not arrow_types.is_struct(column.type):
        return [(column.name, column)]
    return [(f"{column.name}.{field.name}", field) for field in column.type]


def _all_fields(schema: pa.Schema) -> list[tuple[str, pa.Field]]:
    return [field for column in schema if column.name != PARTITION for field in _fields(column)]

"""Lossless casts of Arrow arrays to the types of a row's schema.

A cast that would change a value raises `InvalidValueError`, which has the position of the value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import types as arrow_types

from spark_statestore.errors import RowEncodingError
from spark_statestore.rows.types import LONG_DIGITS, SparkType

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_DAY_NANOS: Final = 86_400_000_000_000

INTERVAL_DTYPE: Final = [("months", "<i4"), ("days", "<i4"), ("nanos", "<i8")]
"""numpy type of Arrow's `month_day_nano_interval`."""


class InvalidValueError(Exception):
    """Raised for a value that has no encoding; callers prepend the path of the column and map its row."""

    def __init__(self, problem: str, remedy: str, row: int | None = None) -> None:
        super().__init__(problem)
        self.remedy = remedy
        self.row = row
        self.path: list[str] = []

    def error(self, first_row: int = 0) -> RowEncodingError:
        """Return the error for users, of rows that are counted from a number."""
        subject = f"the column {'.'.join(reversed(self.path))!r}" if self.path else "the table of rows"
        if self.row is not None:
            subject = f"row {first_row + self.row}: {subject}" if self.path else f"row {first_row + self.row}"
        return RowEncodingError(f"{subject} {self.args[0]}. {self.remedy} Nothing was encoded.")


def _any_of(*kinds: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    return lambda kind: any(is_one(kind) for is_one in kinds)


# Arrow types that may hold values of Spark's types. Others are refused, even where a cast exists.
_ACCEPTED: Final[dict[str, Callable[[pa.DataType], bool]]] = {
    "void": arrow_types.is_null,
    "boolean": arrow_types.is_boolean,
    **dict.fromkeys(("byte", "short", "integer", "long"), arrow_types.is_integer),
    "float": _any_of(arrow_types.is_float16, arrow_types.is_float32),
    "double": arrow_types.is_floating,
    "decimal": arrow_types.is_decimal,
    "string": _any_of(arrow_types.is_string, arrow_types.is_large_string, arrow_types.is_string_view),
    "binary": _any_of(
        arrow_types.is_binary,
        arrow_types.is_large_binary,
        arrow_types.is_binary_view,
        arrow_types.is_fixed_size_binary,
    ),
    "date": arrow_types.is_date,
    "time": arrow_types.is_time,
    "timestamp": lambda kind: arrow_types.is_timestamp(kind) and kind.tz is not None,
    "timestamp_ntz": lambda kind: arrow_types.is_timestamp(kind) and kind.tz is None,
    "day-time interval": arrow_types.is_duration,
    "year-month interval": arrow_types.is_interval,
    "interval": arrow_types.is_interval,
    "array": _any_of(
        arrow_types.is_list,
        arrow_types.is_large_list,
        arrow_types.is_fixed_size_list,
        arrow_types.is_list_view,
        arrow_types.is_large_list_view,
    ),
    "map": arrow_types.is_map,
    **dict.fromkeys(("struct", "variant", "geometry", "geography"), arrow_types.is_struct),
}

# Their children are cast one by one.
_NESTED: Final = ("array", "map", "struct", "variant", "geometry", "geography")


def coerce(array: pa.Array, kind: SparkType) -> pa.Array:
    """Cast an array to the Arrow type of a column; of a nested one, only its outer type.

    Raises
    ------
    InvalidValueError
        If the array has another type, or a value that Spark's type does not have.
    """
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    if arrow_types.is_null(array.type):
        return pa.nulls(len(array), kind.arrow)
    if not _ACCEPTED[kind.name](array.type):
        raise InvalidValueError(
            f"has the Arrow type {array.type}, but Spark's type is {_spark_name(kind)}",
            f"Convert it to the Arrow type {kind.arrow}.",
        )
    if kind.name in _NESTED:
        if kind.name == "array" and not arrow_types.is_list(array.type):
            return _as_list(array)
        return array
    if array.type != kind.arrow:
        array = _cast(array, kind)
    if kind.name in _CHECKS and len(array) > array.null_count:
        _CHECKS[kind.name](array, kind)
    return array


def cast_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast a table to a schema with the same names, see `cast_column`."""
    columns = [cast_column(column, field.type) for column, field in zip(table.columns, schema, strict=True)]
    return pa.table(columns, schema=schema)


def cast_column(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Cast a column to a type, and its children one by one.

    Arrow's own cast of a nested type with a field or elements of the type null returns an invalid array, also
    if the type stays the same.
    """
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([cast_column(chunk, kind) for chunk in column.chunks], kind)
    before = column.type
    if before == kind:
        return column
    if arrow_types.is_null(kind) and column.null_count == len(column):
        return pa.nulls(len(column))
    if _are(arrow_types.is_struct, before, kind) and [f.name for f in before] == [f.name for f in kind]:
        fields = [cast_column(column.field(i), field.type) for i, field in enumerate(kind)]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=column.is_null())
    if _have_same_layout(before, kind):
        # Positions stay the same, also those of a slice.
        count = 1 if arrow_types.is_fixed_size_list(kind) else 2
        elements = [cast_column(column.values, _elements_type(kind))]
        buffers = column.buffers()[:count]
        return pa.Array.from_buffers(kind, len(column), buffers, column.null_count, column.offset, elements)
    return column.cast(kind)


def _are(is_kind: Callable[[pa.DataType], bool], *kinds: pa.DataType) -> bool:
    return all(map(is_kind, kinds))


def _have_same_layout(before: pa.DataType, after: pa.DataType) -> bool:
    """Return True for maps, or lists, that differ in their elements alone."""
    if _are(arrow_types.is_fixed_size_list, before, after):
        return bool(before.list_size == after.list_size)
    kinds = (arrow_types.is_list, arrow_types.is_large_list, arrow_types.is_map)
    return any(_are(is_kind, before, after) for is_kind in kinds)


def _elements_type(kind: pa.DataType) -> pa.DataType:
    return pa.struct([kind.key_field, kind.item_field]) if arrow_types.is_map(kind) else kind.value_type


def _as_list(array: pa.Array) -> pa.ListArray:
    """Convert any type of list."""
    import numpy as np
    import pyarrow.compute as pc

    counts = pc.fill_null(pc.list_value_length(array), 0)
    offsets = np.zeros(len(array) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), array.flatten(), mask=array.is_null())


def _spark_name(kind: SparkType) -> str:
    if kind.name == "decimal":
        return f"decimal({kind.arrow.precision},{kind.arrow.scale})"
    return kind.name


def _cast(array: pa.Array, kind: SparkType) -> pa.Array:
    try:
        return array.cast(kind.arrow)
    except pa.ArrowInvalid as error:
        row = _first_invalid(array, lambda part: part.cast(kind.arrow))
        raise _unfit(array, row, kind) from error


def _first_invalid(array: pa.Array, check: Callable[[pa.Array], Any]) -> int:
    """Return the position of the first value for which a check of a whole array fails."""
    start, end = 0, len(array)
    while end - start > 1:
        middle = (start + end) // 2
        try:
            check(array.slice(start, middle - start))
        except pa.ArrowInvalid:
            end = middle
        else:
            start = middle
    return start


def _unfit(array: pa.Array, row: int, kind: SparkType) -> InvalidValueError:
    value = array.slice(row, 1).to_string(indent=0).strip("[]\n ")[:100]
    return InvalidValueError(
        f"has the value {value} ({array.type}), which Spark's type {_spark_name(kind)} cannot hold exactly",
        "Correct or round the value.",
        row,
    )


def _require(valid: NDArray[np.bool_], array: pa.Array, kind: SparkType) -> None:
    """Raise the error for the first value that is neither null nor valid."""
    import numpy as np

    wrong = ~valid
    if not wrong.any():
        return
    if array.null_count:
        wrong &= array.is_valid().to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(wrong)
    if len(rows):
        raise _unfit(array, int(rows[0]), kind)


def _check_decimals(array: pa.Array, kind: SparkType) -> None:
    if kind.arrow.precision <= LONG_DIGITS:
        parts = fixed_values(array, "<i8,<i8")
        low, high = parts["f0"], parts["f1"]
        most = 10**kind.arrow.precision - 1
        _require((high == low >> 63) & (low >= -most) & (low <= most), array, kind)
        return
    _check_array(array, kind)


def _check_array(array: pa.Array, kind: SparkType) -> None:
    """Check what Arrow requires of values, such as UTF-8 of strings, and does not check by itself."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        row = _first_invalid(array, lambda part: part.validate(full=True))
        raise _unfit(array, row, kind) from error


def _check_times(array: pa.Array, kind: SparkType) -> None:
    nanos = fixed_values(array, "<i8")
    _require((nanos >= 0) & (nanos < _DAY_NANOS), array, kind)


def _check_intervals(array: pa.Array, kind: SparkType) -> None:
    parts = fixed_values(array, INTERVAL_DTYPE)
    if kind.name == "interval":
        _require(parts["nanos"] % 1000 == 0, array, kind)
    else:
        _require((parts["days"] == 0) & (parts["nanos"] == 0), array, kind)


# Checks of values that the Arrow type has and Spark's type has not.
_CHECKS: Final[dict[str, Callable[[pa.Array, SparkType], None]]] = {
    "string": _check_array,
    "decimal": _check_decimals,
    "time": _check_times,
    "interval": _check_intervals,
    "year-month interval": _check_intervals,
}


def fixed_values(array: pa.Array, dtype: Any) -> NDArray[Any]:
    """Return the values of a fixed-width array without a copy; those of nulls are arbitrary."""
    import numpy as np

    items = np.dtype(dtype)
    data = array.buffers()[1]
    if not len(array) or data is None:
        return np.zeros(len(array), items)
    return np.frombuffer(data, items, len(array), array.offset * items.itemsize)

"""Conversion of the changes that callers pass, such as data frames, to Arrow tables."""

from __future__ import annotations

import datetime
import numbers
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
from pyarrow import types as arrow_types

from spark_statestore.errors import OptionError, RowEncodingError
from spark_statestore.rows.coercion import cast_table

# Rows of a table whose bytes are made at a time.
_TABLE_ROWS: Final = 1 << 18

_PANDAS_NULLS: Final = ("NaTType", "NAType")


def as_tables(changes: Any) -> Iterator[pa.Table]:
    """Return changes as tables of one schema, at least one, see `write_state`.

    The batches of a reader are tables of their own, read as they are asked for.

    Raises
    ------
    OptionError
        If the object is none that has rows, or a reader that has none.
    RowEncodingError
        If its rows have no Arrow types.
    """
    with _converting(changes):
        tables = _tables(changes)
    if tables is None:
        raise OptionError(
            f"the changes are a {_type_name(changes)}, but they must be a pyarrow.Table, RecordBatch or "
            "RecordBatchReader, a data frame of pandas, Polars or Spark, or another object with the Arrow C "
            "stream interface. Convert them to one of these. No copy was made."
        )
    return _at_least_one(tables, changes)


def _at_least_one(tables: Iterator[pa.Table], changes: Any) -> Iterator[pa.Table]:
    rows = 0
    while True:
        with _converting(changes):
            table = next(tables, None)
            if table is None:
                break
            # Arrow has no functions for views within structs; Polars exports its strings as views.
            fields = [field.with_type(_without_views(field.type)) for field in table.schema]
            table = cast_table(table, pa.schema(fields))
        rows += table.num_rows
        yield table
    if isinstance(changes, pa.RecordBatchReader) and not rows:
        raise OptionError(
            "the reader of the changes has no rows; it may have been read before. Pass a new one, or a "
            "pyarrow.Table without rows if that is what is meant. No copy was made."
        )


@contextmanager
def _converting(changes: Any) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise RowEncodingError(
            f"the changes ({_type_name(changes)}) have no rows of Arrow types: {str(error).rstrip('.')}. "
            "Pass a pyarrow.Table with the columns and types that `read_state` returns. No copy was made."
        ) from error


def _tables(changes: Any) -> Iterator[pa.Table] | None:
    table = _table(changes)
    if table is None:
        is_stream = isinstance(changes, pa.RecordBatchReader) or hasattr(changes, "__arrow_c_stream__")
        return _of_stream(changes) if is_stream else None
    # Its rows are there: only what is made of them is bounded.
    starts = range(0, max(table.num_rows, 1), _TABLE_ROWS)
    return (table.slice(start, _TABLE_ROWS) for start in starts)


def _table(changes: Any) -> pa.Table | None:
    match changes:
        case pa.Table():
            return changes
        case pa.RecordBatch():
            return pa.Table.from_batches([changes])
    if _is_pandas(changes):
        return _from_pandas(changes)
    if callable(getattr(changes, "toArrow", None)):
        # A DataFrame of Spark.
        return changes.toArrow()
    return None


def _of_stream(changes: Any) -> Iterator[pa.Table]:
    reader = (
        changes if isinstance(changes, pa.RecordBatchReader) else pa.RecordBatchReader.from_stream(changes)
    )
    # Its columns are checked without rows, too.
    batch = next(reader, None)
    yield pa.Table.from_batches([] if batch is None else [batch], reader.schema)
    for batch in reader:
        yield pa.Table.from_batches([batch])


def _without_views(kind: pa.DataType) -> pa.DataType:
    """Return the type in which strings and binary are not views."""
    if arrow_types.is_string_view(kind):
        return pa.large_string()
    if arrow_types.is_binary_view(kind):
        return pa.large_binary()
    if arrow_types.is_struct(kind):
        return pa.struct([field.with_type(_without_views(field.type)) for field in kind])
    if arrow_types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _without_views(kind.value_type), kind.ordered)
    if arrow_types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_without_views(kind.value_type)))
    if arrow_types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_without_views(kind.value_type)), kind.list_size)
    if arrow_types.is_map(kind):
        return pa.map_(_without_views(kind.key_type), _without_views(kind.item_type))
    if arrow_types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_without_views(kind.value_type)))
    return kind


def _type_name(changes: Any) -> str:
    kind = type(changes)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _is_pandas(changes: Any) -> bool:
    # A frame exists only if pandas was imported.
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(changes, pandas.DataFrame)


def _from_pandas(frame: Any) -> pa.Table:
    """Convert a frame without its index.

    The interface of pandas for Arrow makes nulls of NaN, also inside dicts.
    """
    columns = []
    for position, name in enumerate(frame.columns):
        column = frame.iloc[:, position]
        if column.dtype == object:
            values = column.tolist()
            _require_uniform(values, str(name))
            columns.append(pa.array(values, from_pandas=False))
        else:
            columns.append(pa.array(column))
    return pa.table(columns, [str(name) for name in frame.columns])


def _require_uniform(values: Iterable[Any], column: str) -> None:
    """Raise for values that pyarrow would convert with a loss.

    The fields that a dict lacks would be null. Nanoseconds would be lost, as would times among dates.
    """
    first: dict[str, Any] = {}
    for row, value in enumerate(values):
        parts: list[tuple[str, Any]] = [(column, value)]
        while parts:
            path, part = parts.pop()
            if part is None:
                continue
            kind = _kind(part)
            if type(part).__name__ in _PANDAS_NULLS:
                wrong = f"has the null {part!r} of pandas"
            elif getattr(part, "nanosecond", 0) or getattr(part, "nanoseconds", 0):
                wrong = f"has {part!r}, whose nanoseconds pyarrow would drop"
            elif first.setdefault(path, kind) != kind:
                wrong = f"differs from rows before: {_difference(first[path], kind)}"
            else:
                if isinstance(part, Mapping):
                    parts += [(f"{path}.{name}", child) for name, child in part.items()]
                elif isinstance(part, list) or type(part).__name__ == "ndarray":
                    parts += [(f"{path}.element", child) for child in part]
                continue
            raise RowEncodingError(
                f"row {row} of the changes: the column {path!r} {wrong}. Give all rows values of one type "
                "with the same fields, and None for a null, or pass a pyarrow.Table. No copy was made."
            )


def _kind(value: Any) -> Any:
    """Return what values have in common that pyarrow converts to one type, or refuses."""
    match value:
        case Mapping():
            return frozenset(value)
        case datetime.datetime():
            return "a time without a zone" if value.tzinfo is None else "a time with a zone"
        case bool() | str() | bytes() | datetime.date():
            return type(value).__name__
        case numbers.Number():
            return "a number"
    return type(value).__name__


def _difference(before: Any, now: Any) -> str:
    if isinstance(before, frozenset) and isinstance(now, frozenset):
        return f"only one has the fields {', '.join(sorted(map(repr, before ^ now)))}"
    return " and ".join("dict" if isinstance(kind, frozenset) else kind for kind in (before, now))

"""Files of changes, read as Arrow tables: Parquet, Arrow IPC, and JSON lines."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from json import JSONDecoder
from typing import Final

import pyarrow as pa
from pyarrow import types as arrow_types

from spark_statestore.errors import OptionError, RowEncodingError
from spark_statestore.files import open_file_system
from spark_statestore.files.failures import failing_to, read_file
from spark_statestore.rows.coercion import cast_table
from spark_statestore.rows.columns import PARTITION
from spark_statestore.writing.rows import VALUES, Mode

_PARQUET: Final = b"PAR1"
_IPC_FILE: Final = b"ARROW1"
_IPC_STREAM: Final = b"\xff\xff\xff\xff"
_END_OF_STREAM: Final = b"\xff\xff\xff\xff\0\0\0\0"

_NOT_BLANK: Final = re.compile(r"\S")

# A row is never split between two blocks; offsets of Arrow's strings have 32 bits.
_LEAST_BLOCK: Final = 1 << 20
_LARGEST_BLOCK: Final = 1 << 30


def read_changes(url: str, schema: pa.Schema, mode: Mode) -> pa.Table:
    """Read a file of changes for `write_state`.

    Parameters
    ----------
    url
        Path or URL. The first bytes of the file tell its format.
    schema
        The columns that `read_state` returns; JSON lines are read with these types.

    Raises
    ------
    OptionError
        If there is no such file, or its format is none of these.
    RowEncodingError
        If a row cannot be read, or JSON cannot hold values of the schema.
    """
    files, path = open_file_system(url)
    try:
        with failing_to("look for", files, path):
            is_directory = files.is_directory(path)
        if is_directory:
            raise OptionError(
                f"{url} is a directory, and changes are read from one file. Use `write_state` with "
                "pyarrow.parquet.read_table, or write one file. No copy was made."
            )
        data = read_file(files, path)
    except FileNotFoundError as error:
        raise OptionError(
            f"there is no file {url} with changes. Check the path. No copy was made."
        ) from error
    reader = _reader(data)
    if not data.strip():
        raise OptionError(
            f"{url} is empty, as a file is that was not written to its end. To delete all keys, use the "
            "predicate true. No copy was made."
        )
    if reader is None and not data.lstrip().startswith(b"{"):
        raise OptionError(
            f"{url} is neither Parquet, nor Arrow IPC (file or stream), nor JSON lines: it begins with "
            f"{data[:8]!r}. Convert it to one of these. No copy was made."
        )
    try:
        return _from_json(data, schema, mode) if reader is None else reader(pa.py_buffer(data))
    except (pa.ArrowException, OSError) as error:
        raise RowEncodingError(
            f"the changes in {url} cannot be read: {' '.join(str(error).split()).rstrip('.')}. Correct the "
            "file, or write it again. No copy was made."
        ) from error


def _reader(data: bytes) -> Callable[[pa.Buffer], pa.Table] | None:
    if data.startswith(_PARQUET):
        return _from_parquet
    if data.startswith(_IPC_FILE):
        return _from_ipc_file
    return _from_ipc_stream if data.startswith(_IPC_STREAM) else None


def _from_parquet(data: pa.Buffer) -> pa.Table:
    from pyarrow import parquet

    return parquet.ParquetFile(pa.BufferReader(data), page_checksum_verification=True).read()


def _from_ipc_file(data: pa.Buffer) -> pa.Table:
    return _validated(pa.ipc.open_file(data).read_all())


def _from_ipc_stream(data: pa.Buffer) -> pa.Table:
    table = pa.ipc.open_stream(data).read_all()
    # pyarrow takes the end of a file for the end of its stream.
    if data[-len(_END_OF_STREAM) :].to_pybytes() != _END_OF_STREAM:
        raise pa.ArrowInvalid("the stream has no end, so that its last rows may be missing")
    return _validated(table)


def _validated(table: pa.Table) -> pa.Table:
    # Arrow IPC has no checksums, and offsets of a damaged file could lead anywhere.
    table.validate(full=True)
    return table


def _from_json(data: bytes, schema: pa.Schema, mode: Mode) -> pa.Table:
    from pyarrow import json

    names = [name for name in schema.names if name != PARTITION]
    needed = [name for name in names if mode != "delete" or name not in VALUES]
    fields = []
    for field in schema:
        kind = _in_json(field.type)
        if kind is not None:
            fields.append(field.with_type(kind))
        elif field.name in needed:
            raise RowEncodingError(
                f"JSON cannot hold the column {field.name!r} of the state, which has the type {field.type}: "
                "there is none for binary data, times of day, intervals, maps and Spark's variants. Use "
                "Parquet or Arrow IPC. No copy was made."
            )
    table = json.read_json(
        pa.BufferReader(data),
        json.ReadOptions(block_size=min(max(len(data), _LEAST_BLOCK), _LARGEST_BLOCK)),
        json.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="error"),
    )
    # Casts of strings are stricter than the reader, which ignores a zone where the type has none.
    table = cast_table(table, pa.schema([schema.field(field.name) for field in fields]))
    _require_whole_rows(data, pa.struct([field for field in fields if field.name in needed]))
    return table


def _require_whole_rows(data: bytes, row: pa.StructType) -> None:
    """Raise for what Arrow would change: missing fields to nulls, large numbers to others or infinity."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise pa.ArrowInvalid(f"it is not UTF-8: {error}") from error
    decoder = JSONDecoder()
    number = position = 0
    while start := _NOT_BLANK.search(text, position):
        try:
            value, position = decoder.raw_decode(text, start.start())
        except ValueError as error:
            raise pa.ArrowInvalid(f"row {number} is no JSON: {error}") from error
        for path, wrong in _faults(value, row, ""):
            raise RowEncodingError(f"row {number} of the changes {wrong}: {path!r}. No copy was made.")
        number += 1


def _faults(value: object, kind: pa.DataType, path: str) -> Iterator[tuple[str, str]]:
    """Yield paths in a value that Arrow would change, with what is wrong there."""
    if isinstance(value, dict) and arrow_types.is_struct(kind):
        for field in kind:
            inside = f"{path}.{field.name}" if path else field.name
            if field.name in value:
                yield from _faults(value[field.name], field.type, inside)
            else:
                yield inside, "lacks a field, which is null only if it says so"
    elif isinstance(value, list) and arrow_types.is_list(kind):
        for item in value:
            yield from _faults(item, kind.value_type, path)
    elif isinstance(value, int | float) and arrow_types.is_floating(kind) and not _is_held(value, kind):
        yield path, f"has the number {value}, which the type {kind} cannot hold"


def _is_held(number: float, kind: pa.DataType) -> bool:
    """Return whether a floating-point type has a number: whole ones exactly, others rounded."""
    import numpy as np

    try:
        with np.errstate(over="ignore"):
            value = float(kind.to_pandas_dtype()(number))
    except OverflowError:
        return False
    return math.isfinite(value) and (not isinstance(number, int) or value == number)


def _in_json(kind: pa.DataType) -> pa.DataType | None:
    """Return the type as which values are read from JSON, None if there is none."""
    if arrow_types.is_date(kind) or arrow_types.is_timestamp(kind):
        return pa.string()
    if arrow_types.is_struct(kind):
        fields = [(field.name, _in_json(field.type)) for field in kind]
        return None if any(child is None for _, child in fields) else pa.struct(fields)
    if arrow_types.is_list(kind):
        child = _in_json(kind.value_type)
        return None if child is None else pa.list_(kind.value_field.with_type(child))
    if arrow_types.is_null(kind):
        # Arrow's reader returns too few elements for a list of nulls.
        return pa.bool_()
    is_held = (
        arrow_types.is_boolean,
        arrow_types.is_integer,
        arrow_types.is_floating,
        arrow_types.is_decimal,
        arrow_types.is_string,
    )
    return kind if any(is_kind(kind) for is_kind in is_held) else None

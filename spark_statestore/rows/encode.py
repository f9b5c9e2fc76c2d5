"""Vectorised encoding of Arrow columns to the bytes of UnsafeRows, the inverse of `decode`.

The bytes equal those of Spark's `UnsafeProjection`, which the hash and the equality of keys in a state
depend on. One thing differs: in a row, Spark leaves bytes of earlier rows in the place of a calendar interval
that is null; here they are zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_statestore.errors import RowEncodingError, UnsupportedFormatError
from spark_statestore.rows.coercion import INTERVAL_DTYPE, InvalidValueError, coerce, fixed_values
from spark_statestore.rows.decode import IN_SLOT, NARROW, WORD, bitmap
from spark_statestore.rows.layout import (
    ArrayContent,
    Bytes,
    MapContent,
    Memory,
    Nested,
    Numbers,
    RowContent,
    Voids,
    sizes_of_all,
)
from spark_statestore.rows.types import LONG_DIGITS, SparkType, parse_schema

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from spark_statestore.rows.decode import Valid
    from spark_statestore.rows.layout import Column, Content, Integers

# Offsets of Arrow's binary type have 32 bits.
_LARGEST_ARRAY: Final = (1 << 31) - 1


def encode_rows(
    rows: pa.StructArray | pa.ChunkedArray | pa.RecordBatch | pa.Table, schema: str
) -> pa.BinaryArray | pa.ChunkedArray:
    """Encode rows as the bytes of Spark's UnsafeRows.

    Parameters
    ----------
    rows
        Structs, or a table of their fields, as `decode_rows` returns them: the fields of one name have unique
        names. Fields are found by name, in any order. A struct that is null gives null.
    schema
        Schema of the rows as Spark's JSON, such as `ColumnFamily.key_schema`.

    Returns
    -------
    pyarrow.BinaryArray or pyarrow.ChunkedArray
        The rows, in chunks if the input is a table or in chunks.

    Raises
    ------
    RowEncodingError
        If a column is missing, unknown or there twice, if it has another type, or if a value is null or
        beyond the range or precision of the schema. Only casts that change no value are made.
    UnsupportedFormatError
        If a field has a type that this release does not know.
    CorruptCheckpointError
        If the schema is not one that Spark writes.
    """
    try:
        row = parse_schema(schema)
    except UnsupportedFormatError as error:
        raise UnsupportedFormatError(
            f"rows cannot be encoded, since {str(error).partition('. ')[0]}. Upgrade spark-statestore. "
            "Nothing was encoded."
        ) from error
    match rows:
        case pa.RecordBatch():
            return encode_array(rows.to_struct_array(), row)
        case pa.Table():
            chunks = [batch.to_struct_array() for batch in rows.to_batches()]
            # Columns are checked without rows, too.
            chunks = chunks or [pa.RecordBatch.from_pylist([], rows.schema).to_struct_array()]
        case pa.ChunkedArray():
            chunks = rows.chunks or [pa.array([], rows.type)]
        case _:
            return encode_array(rows, row)
    first = 0
    encoded = []
    for chunk in chunks:
        encoded.append(encode_array(chunk, row, first))
        first += len(chunk)
    return pa.chunked_array(encoded, pa.binary())


def encode_array(rows: pa.StructArray, row: SparkType, first_row: int = 0) -> pa.BinaryArray:
    """Encode rows whose schema was parsed before, see `encode_rows`; errors count rows from `first_row`."""
    import numpy as np

    count = len(rows)
    try:
        struct = coerce(rows, row)
        # A dictionary may have nulls that its indices have not.
        valid = _valid(struct)
        content = _content(struct, valid, row)
    except InvalidValueError as problem:
        raise problem.error(first_row) from problem.__cause__
    sizes = sizes_of_all(content.sizes, valid, count)
    ends = np.zeros(count + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    total = int(ends[-1])
    if total > _LARGEST_ARRAY:
        raise RowEncodingError(
            f"{count} rows have {total} bytes, and one Arrow array of rows holds less than 2 GiB. Encode "
            "fewer rows at a time, such as the batches of pyarrow.Table.to_batches(max_chunksize=...). "
            "Nothing was encoded."
        )
    memory = Memory(total)
    if valid is None and isinstance(content.sizes, int) and content.sizes:
        content.write(memory, range(0, total, content.sizes))
    else:
        content.write(memory, ends[:-1] if valid is None else ends[:-1][valid])
    offsets = pa.py_buffer(ends.astype(np.int32))
    return pa.Array.from_buffers(pa.binary(), count, [bitmap(valid), offsets, pa.py_buffer(memory.bytes)])


def _valid(array: pa.Array) -> Valid:
    valid: Valid = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
    return valid


def _content(array: pa.Array, valid: Valid, kind: SparkType) -> Content:
    """Return the content of structs, arrays or maps that are not null."""
    import numpy as np

    present = array if valid is None else array.filter(pa.array(valid))
    try:
        if kind.name == "struct":
            return _row_content(present, kind)
        offsets = present.offsets.to_numpy().astype(np.int64)
        start, length = int(offsets[0]), int(offsets[-1] - offsets[0])
        parts = ("element",) if kind.name == "array" else ("key", "value")
        children = (present.values,) if kind.name == "array" else (present.keys, present.items)
        contents = [
            _array_content(values.slice(start, length), child, nullable, offsets - start, part)
            for values, child, nullable, part in zip(
                children, kind.children, kind.nullable, parts, strict=True
            )
        ]
        return contents[0] if kind.name == "array" else MapContent(*contents)
    except InvalidValueError as problem:
        if problem.row is not None and valid is not None:
            problem.row = int(np.flatnonzero(valid)[problem.row])
        raise


def _row_content(struct: pa.StructArray, kind: SparkType) -> RowContent:
    names = [field.name for field in kind.arrow]
    _require_fields([field.name for field in struct.type], names)
    columns = []
    for name, child, nullable in zip(names, kind.children, kind.nullable, strict=True):
        try:
            columns.append(_column(struct.field(name), child, nullable, in_row=True))
        except InvalidValueError as problem:
            problem.path.append(name)
            raise
    return RowContent(columns)


def _require_fields(field_names: Sequence[str], names: Sequence[str]) -> None:
    repeated = [name for name in dict.fromkeys(field_names) if field_names.count(name) > 1]
    missing = [name for name in names if name not in field_names]
    unknown = [name for name in field_names if name not in names]
    for problem, wrong, remedy in (
        ("several fields of one name", repeated, "Rename or drop all but one of each."),
        (
            "no fields of these names",
            missing,
            "Add them; a column of nulls will do where Spark permits nulls.",
        ),
        ("fields that the schema does not have", unknown, "Drop or rename them."),
    ):
        if wrong:
            raise InvalidValueError(
                f"has {problem}: {', '.join(map(repr, wrong))}; the schema has "
                f"{', '.join(map(repr, names)) or 'none'}",
                remedy,
            )


def _array_content(
    values: pa.Array, kind: SparkType, nullable: bool, offsets: Integers, part: str
) -> ArrayContent:
    import numpy as np

    try:
        elements = _column(values, kind, nullable, in_row=False)
    except InvalidValueError as problem:
        problem.path.append(part)
        if problem.row is not None:
            problem.row = int(np.searchsorted(offsets, problem.row, side="right")) - 1
        raise
    return ArrayContent(np.diff(offsets), elements, NARROW.get(kind.name, WORD))


def _column(array: pa.Array, kind: SparkType, nullable: bool, *, in_row: bool) -> Column:
    """Return the values of a field, or of elements of arrays."""
    import numpy as np

    array = coerce(array, kind)
    valid = _valid(array)
    if valid is not None and not nullable:
        raise InvalidValueError(
            "is null, which the schema of the state does not permit",
            "Fill in a value, or leave the row out.",
            int(valid.argmin()),
        )
    match kind.name:
        case "void":
            return Voids(len(array))
        case "boolean":
            filled = array if valid is None else array.fill_null(False)
            return Numbers(valid, filled.to_numpy(zero_copy_only=False).view(np.uint8))
        case "decimal" if kind.arrow.precision <= LONG_DIGITS:
            return Numbers(valid, fixed_values(array, "<i8,<i8")["f0"])
        case "decimal":
            return _large_decimals(array, valid, in_row=in_row)
        case "year-month interval":
            return Numbers(valid, fixed_values(array, INTERVAL_DTYPE)["months"])
        case "interval":
            return _intervals(array, valid, in_row=in_row)
        case "string" | "binary":
            return Bytes(valid, *_spans(array))
        case "variant":
            value, metadata = _parts(array, valid, [("value", _BINARY), ("metadata", _BINARY)])
            return _with_prefix(valid, np.diff(_offsets(value)), [value, metadata])
        case "geometry" | "geography":
            srid, wkb = _parts(array, valid, [("srid", _SRID), ("wkb", _BINARY)])
            return _with_prefix(valid, fixed_values(srid, "<i4"), [wkb])
        case "struct" | "array" | "map":
            return Nested(valid, _content(array, valid, kind), len(array))
    # As integers, the bits of floating-point numbers are kept.
    return Numbers(valid, fixed_values(array, IN_SLOT[kind.name].replace("f", "i")))


def _offsets(array: pa.Array) -> Integers:
    """Return the offsets of strings or binary."""
    import numpy as np

    if not len(array):
        return np.zeros(1, np.int64)
    return np.frombuffer(array.buffers()[1], "<i4", len(array) + 1, 4 * array.offset).astype(np.int64)


def _spans(array: pa.Array) -> tuple[NDArray[np.uint8], Integers, Integers]:
    """Return the data of strings or binary, and the position and size of each value."""
    import numpy as np

    offsets = _offsets(array)
    data = array.buffers()[2]
    return np.frombuffer(data if data is not None else b"", np.uint8), offsets[:-1], np.diff(offsets)


def _large_decimals(array: pa.Array, valid: Valid, *, in_row: bool) -> Bytes:
    """Return decimals of more than 18 digits: the fewest bytes of two's complement, big endian."""
    import numpy as np

    digits = np.ascontiguousarray(fixed_values(array, "(16,)u1")[:, ::-1])
    # A leading byte that only repeats the sign is left out.
    signed = digits.view(np.int8)
    repeats = signed[:, :-1] == signed[:, 1:] >> 7
    first = np.where(repeats.all(axis=1), 15, repeats.argmin(axis=1))
    start = np.arange(len(array)) * 16 + first
    return Bytes(valid, digits.reshape(-1), start, 16 - first, 0 if in_row else None)


def _intervals(array: pa.Array, valid: Valid, *, in_row: bool) -> Bytes:
    import numpy as np

    values = fixed_values(array, INTERVAL_DTYPE).copy()
    values["nanos"] //= 1000
    start = np.arange(len(array)) * 16
    return Bytes(valid, values.view(np.uint8), start, np.full_like(start, 16), 16 if in_row else None)


_BINARY: Final = SparkType("binary", pa.binary())
_SRID: Final = SparkType("integer", pa.int32())


def _parts(array: pa.Array, valid: Valid, fields: Sequence[tuple[str, SparkType]]) -> list[pa.Array]:
    """Return the fields of a value that Arrow represents as a struct; those of nulls are arbitrary."""
    _require_fields([field.name for field in array.type], [name for name, _ in fields])
    parts = []
    for name, kind in fields:
        try:
            part = coerce(array.field(name), kind)
            missing = part.is_null().to_numpy(zero_copy_only=False)
            if valid is not None:
                missing &= valid
            if missing.any():
                raise InvalidValueError(
                    "is null in a value that is not",
                    "Fill it in, or make all of it null.",
                    int(missing.argmax()),
                )
        except InvalidValueError as problem:
            problem.path.append(name)
            raise
        parts.append(part if valid is None or not part.null_count else part.fill_null(_ZERO[kind.name]))
    return parts


_ZERO: Final = {"binary": b"", "integer": 0}


def _with_prefix(valid: Valid, numbers: NDArray[Any], parts: Sequence[pa.Array]) -> Bytes:
    """Return values that are a number in 4 bytes and these parts."""
    import pyarrow.compute as pc

    prefix = pa.Array.from_buffers(pa.binary(4), len(numbers), [None, pa.py_buffer(numbers.astype("<i4"))])
    return Bytes(valid, *_spans(pc.binary_join_element_wise(prefix.cast(pa.binary()), *parts, b"")))

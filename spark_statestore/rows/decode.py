"""Vectorised decoding of UnsafeRow bytes to Arrow columns.

A row is a null bitmap in words of 8 bytes, then a slot of 8 bytes for each field. Variable-length values
follow the slots; their slot has the offset in the row in its upper 4 bytes and the size in its lower ones. An
array is its length in 8 bytes, a bitmap, and slots as wide as its elements, with offsets in the array. A map
is the size of the array of keys in 8 bytes, and two arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from spark_statestore.errors import CorruptCheckpointError, restore_from_backup
from spark_statestore.rows.types import LONG_DIGITS, SparkType, parse_schema

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    # Positions in many rows; a range if they are equidistant.
    Positions: TypeAlias = "range | NDArray[np.int64]"
    # None where all are valid.
    Valid: TypeAlias = "NDArray[np.bool_] | None"

WORD: Final = 8
"""Bytes of a slot of a row, to multiples of which everything is aligned."""

IN_SLOT: Final = {
    "byte": "i1",
    "short": "<i2",
    "integer": "<i4",
    "long": "<i8",
    "float": "<f4",
    "double": "<f8",
    "date": "<i4",
    "time": "<i8",
    "timestamp": "<i8",
    "timestamp_ntz": "<i8",
    "day-time interval": "<i8",
}
"""numpy types of values that fit the slot."""

NARROW: Final = {
    "boolean": 1,
    "byte": 1,
    "short": 2,
    "integer": 4,
    "float": 4,
    "date": 4,
    "year-month interval": 4,
}
"""Bytes of an element's slot if fewer than 8."""


def decode_rows(
    rows: pa.BinaryArray | pa.ChunkedArray, schema: str, columns: Sequence[str] | None = None
) -> pa.StructArray | pa.ChunkedArray:
    """Decode the bytes of Spark's UnsafeRows.

    Parameters
    ----------
    rows
        Rows; null gives null.
    schema
        Schema of the rows as Spark's JSON, such as `ColumnFamily.key_schema`.
    columns
        The fields to decode, by default all; ``a.b`` is the field b of the struct a.

    Returns
    -------
    pyarrow.StructArray or pyarrow.ChunkedArray
        Structs, in chunks if the rows are. All fields are nullable, and those of one name get
        unique names. docs/reading.md has that rule, and the type of each of Spark's types.

    Raises
    ------
    OptionError
        If there is no such field.
    UnsupportedFormatError
        If a field has a type that this release does not know.
    CorruptCheckpointError
        If bytes are not a row of this schema.
    """
    row = parse_schema(schema, columns)
    if isinstance(rows, pa.ChunkedArray):
        chunks = [decode_array(chunk, row) for chunk in rows.chunks]
        return pa.chunked_array(chunks, row.arrow)
    return decode_array(rows, row)


def decode_array(rows: pa.BinaryArray, row: SparkType) -> pa.StructArray:
    """Decode rows whose schema was parsed before, see `decode_rows`."""
    import numpy as np

    if rows.type != pa.binary():
        rows = rows.cast(pa.binary())
    _, offsets_buffer, data = rows.buffers()
    offsets = np.frombuffer(offsets_buffer, "<i4", len(rows) + 1, 4 * rows.offset).astype(np.int64)
    sizes = np.diff(offsets)
    memory = _Memory(data, int(offsets[0]), int(offsets[-1]))
    offsets -= offsets[0]
    valid = rows.is_valid().to_numpy(zero_copy_only=False) if rows.null_count else None
    try:
        if (sizes % WORD).any():
            raise _Malformed("is not a multiple of 8 bytes long")
        if not len(rows) or (valid is not None and not valid.any()):
            return pa.nulls(len(rows), row.arrow)
        base, end = _anchored(offsets[:-1], valid), _anchored(offsets[1:], valid)
        return _struct(memory, row, _evenly(base), _evenly(end), valid)
    except _Malformed as problem:
        raise problem.error(str(row.arrow)) from None


class _Malformed(Exception):
    """Raised for bytes that are not a row; callers prepend the path of the field."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.path: list[str] = []

    def error(self, schema: str) -> CorruptCheckpointError:
        subject = f"the field {'.'.join(reversed(self.path))} of a row" if self.path else "a row"
        return CorruptCheckpointError(
            f"{subject} {self.args[0]}: the bytes are not a row of the schema {schema[:500]}: they are "
            "damaged, or have another schema. " + restore_from_backup("the state", "read an earlier batch")
        )


class _Memory:
    """A buffer with many rows, with vectorised reads."""

    def __init__(self, data: pa.Buffer | None, start: int, end: int) -> None:
        import numpy as np

        self.bytes: NDArray[np.uint8] = np.frombuffer(data if data is not None else b"", np.uint8)[start:end]
        if self.bytes.ctypes.data % WORD:
            self.bytes = self.bytes.copy()
        self._views: dict[str, NDArray[Any]] = {}

    def read(self, kind: str, at: Positions) -> NDArray[Any]:
        """Return the numbers of one type at these positions, which are multiples of their size."""
        import numpy as np

        if isinstance(at, range):
            return np.ndarray((len(at),), kind, self.bytes, at.start, (at.step,))
        if kind not in self._views:
            size = np.dtype(kind).itemsize
            self._views[kind] = self.bytes[: len(self.bytes) // size * size].view(kind)
        view = self._views[kind]
        return view.take(at // view.itemsize)


def shift(at: Positions, by: int) -> Positions:
    """Move positions by a number of bytes."""
    return range(at.start + by, at.stop + by, at.step) if isinstance(at, range) else at + by


def positions_array(at: Positions) -> NDArray[np.int64]:
    """Return positions as an array."""
    import numpy as np

    return np.arange(at.start, at.stop, at.step) if isinstance(at, range) else at


def bitmap(valid: Valid) -> pa.Buffer | None:
    """Return Arrow's validity bitmap."""
    import numpy as np

    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _anchored(at: NDArray[np.int64], valid: Valid) -> NDArray[np.int64]:
    """Replace positions of nulls by a valid one, so that all can be read."""
    import numpy as np

    return at if valid is None else np.where(valid, at, at[valid.argmax()])


def _struct(memory: _Memory, row: SparkType, base: Positions, end: Positions, valid: Valid) -> pa.StructArray:
    count = len(base)
    words = (row.width + 63) // 64
    if isinstance(base, range) and isinstance(end, range) and base.step == end.step:
        smallest = end.start - base.start
    else:
        smallest = int((positions_array(end) - positions_array(base)).min())
    if smallest < WORD * (words + row.width):
        raise _Malformed(f"has {smallest} bytes, too few for {row.width} fields")
    bitmaps: dict[int, Any] = {}
    children = []
    for position, child, field in zip(row.positions, row.children, row.arrow, strict=True):
        word, bit = divmod(position, 64)
        if word not in bitmaps:
            nulls = memory.read("<u8", shift(base, WORD * word))
            bitmaps[word] = nulls if nulls.any() else None
        present = valid
        if bitmaps[word] is not None:
            not_null = bitmaps[word] >> bit & 1 == 0
            if not not_null.all():
                present = not_null if valid is None else not_null & valid
        slot = shift(base, WORD * (words + position))
        try:
            children.append(_column(memory, child, slot, base, end, present))
        except _Malformed as problem:
            problem.path.append(field.name)
            raise
    return pa.StructArray.from_buffers(row.arrow, count, [bitmap(valid)], children=children)


def _column(
    memory: _Memory, kind: SparkType, slot: Positions, base: Positions, end: Positions, valid: Valid
) -> pa.Array:
    """Decode the values of these slots, whose offsets are relative to `base` and end before `end`."""
    import numpy as np

    count = len(slot)
    if kind.name == "void" or (valid is not None and not valid.any()):
        return pa.nulls(count, kind.arrow)
    if kind.name in IN_SLOT:
        values = np.ascontiguousarray(memory.read(IN_SLOT[kind.name], slot))
        if kind.name == "time":
            outside = (values < 0) | (values >= _DAY)
            if (outside if valid is None else outside & valid).any():
                raise _Malformed("is a time outside of a day")
        return _fixed(kind, count, valid, values)
    if kind.name == "boolean":
        return _fixed(kind, count, valid, np.packbits(memory.read("u1", slot) != 0, bitorder="little"))
    if kind.name == "decimal" and kind.arrow.precision <= LONG_DIGITS:
        low = memory.read("<i8", slot)
        return _fixed(kind, count, valid, np.stack([low, low >> 63], axis=1))
    if kind.name == "year-month interval":
        months = memory.read("<i4", slot)
        return _intervals(kind, valid, months, np.zeros_like(months), np.zeros(count, np.int64))

    word = np.where(True if valid is None else valid, memory.read("<i8", slot), 0)
    offset, size = word >> 32, word & 0xFFFFFFFF
    start, end = positions_array(base) + offset, positions_array(end)
    outside = (offset < 0) | (start + size > end)
    if (outside if valid is None else outside & valid).any():
        raise _Malformed("reaches out of its row")
    if kind.name in ("string", "binary"):
        return _bytes(memory, kind, start, size, valid)
    start = _anchored(start, valid)
    size = _anchored(size, valid)
    if (start % WORD).any():
        raise _Malformed("does not start at a multiple of 8 bytes")
    if kind.name == "struct":
        return _struct(memory, kind, _evenly(start), _evenly(start + size), valid)
    if size.min() < _SMALLEST[kind.name]:
        raise _Malformed(f"has {size.min()} bytes, too few for a {kind.name}")
    if kind.name == "array":
        return _list(memory, kind, start, size, valid)
    if kind.name == "map":
        return _map(memory, kind, start, size, valid)
    if kind.name == "variant":
        return _variant(memory, kind, start, size, valid)
    if kind.name in ("geometry", "geography"):
        return _shape(memory, kind, start, size, valid)
    if kind.name == "interval":
        months, days, micros = (memory.read(k, start + at) for k, at in (("<i4", 0), ("<i4", 4), ("<i8", 8)))
        return _intervals(kind, valid, months, days, micros)
    return _large_decimal(memory, kind, start, size, valid)


_BINARY: Final = SparkType("binary", pa.binary())
_SRID: Final = SparkType("integer", pa.int32())

# Nanoseconds.
_DAY: Final = 86_400 * 10**9

# Minimum size in bytes of a value outside of its slot.
_SMALLEST: Final = {
    "array": 8,
    "map": 8,
    "variant": 4,
    "geometry": 4,
    "geography": 4,
    "interval": 16,
    "decimal": 1,
}


def _evenly(at: NDArray[np.int64]) -> Positions:
    """Return equidistant positions as a range."""
    if len(at) < 2:
        return at
    step = int(at[1] - at[0])
    if step > 0 and ((at[1:] - at[:-1]) == step).all():
        return range(int(at[0]), int(at[-1]) + 1, step)
    return at


def _fixed(kind: SparkType, count: int, valid: Valid, values: NDArray[Any]) -> pa.Array:
    return pa.Array.from_buffers(kind.arrow, count, [bitmap(valid), pa.py_buffer(values)])


def _intervals(kind: SparkType, valid: Valid, months: Any, days: Any, micros: Any) -> pa.Array:
    import numpy as np

    values = np.empty(len(months), [("months", "<i4"), ("days", "<i4"), ("nanos", "<i8")])
    most = np.iinfo(np.int64).max // 1000
    # The least integer has no absolute value.
    beyond = (micros > most) | (micros < -most)
    if (beyond if valid is None else beyond & valid).any():
        raise _Malformed("is an interval of more than 292 years of microseconds, which Arrow cannot hold")
    values["months"], values["days"], values["nanos"] = months, days, micros * 1000
    return _fixed(kind, len(values), valid, values)


def _large_decimal(
    memory: _Memory, kind: SparkType, start: Positions, size: NDArray[np.int64], valid: Valid
) -> pa.Array:
    """Decode decimals of more than 18 digits: up to 16 bytes of two's complement, big endian."""
    import numpy as np

    if size.max() > 2 * WORD:
        raise _Malformed(f"has {size.max()} bytes, too many for a decimal")
    high = memory.read(">i8", start).astype(np.int64)
    two = size > WORD
    low = memory.read(">u8", np.where(two, positions_array(start) + WORD, start)).astype(np.uint64)
    # The bytes are left-aligned in one or two words.
    padding = np.where(two, 16 - size, 8 - size) * 8
    # A shift by 64 bits is undefined.
    moved = np.where(padding == 0, 0, high << np.where(padding == 0, 0, 64 - padding)).view(np.uint64)
    values = np.empty((len(size), 2), np.int64)
    values[:, 0] = np.where(two, ((low >> padding.view(np.uint64)) | moved).view(np.int64), high >> padding)
    values[:, 1] = np.where(two, high >> padding, high >> 63)
    return _fixed(kind, len(size), valid, values)


def _bytes(
    memory: _Memory, kind: SparkType, start: NDArray[np.int64], size: NDArray[np.int64], valid: Valid
) -> pa.Array:
    """Decode strings or binary into one buffer."""
    import numpy as np

    count = len(start)
    end = start + size
    if valid is not None:
        # A null is empty, at the end of the one before it.
        end = np.maximum.accumulate(np.where(valid, end, 0))
        start = np.where(valid, start, end)
    indices = np.arange(0, 2 * count, 2)
    if count > 1 and (start[1:] < end[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
        if (start[1:] < end[:-1]).any():
            raise _Malformed("has bytes that belong to another value too")
        indices[order] = indices.copy()
    # Arrow copies the bytes: every second element of an array of values and gaps is taken.
    offsets = np.stack([start, end], axis=1).astype(np.int32).reshape(-1)
    both = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(offsets), pa.py_buffer(memory.bytes)]
    )
    _, offsets, data = both.take(pa.array(indices)).buffers()
    values = pa.Array.from_buffers(pa.binary(), count, [bitmap(valid), offsets, data])
    if kind.name == "binary":
        return values
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        # Spark strings may have any bytes; it shows invalid UTF-8 as the replacement character.
        texts = (None if value is None else value.decode(errors="replace") for value in values.to_pylist())
        return pa.array(texts, pa.string())


def _list(
    memory: _Memory, kind: SparkType, start: Positions, size: NDArray[np.int64], valid: Valid
) -> pa.Array:
    offsets, elements = _elements(memory, kind.children[0], start, size, valid)
    return pa.Array.from_buffers(kind.arrow, len(size), [bitmap(valid), offsets], children=[elements])


def _map(
    memory: _Memory, kind: SparkType, start: NDArray[np.int64], size: NDArray[np.int64], valid: Valid
) -> pa.Array:
    keys_size = memory.read("<i8", start)
    values_size = size - WORD - keys_size
    if keys_size.min() < WORD or values_size.min() < WORD or (keys_size % WORD).any():
        raise _Malformed("is a map whose keys or values do not fit into it")
    keys_start = start + WORD
    offsets, keys = _elements(memory, kind.children[0], keys_start, keys_size, valid)
    _, values = _elements(memory, kind.children[1], keys_start + keys_size, values_size, valid)
    if len(keys) != len(values):
        raise _Malformed(f"is a map of {len(keys)} keys and {len(values)} values")
    if keys.null_count:
        raise _Malformed("is a map with a null key")
    entries = pa.StructArray.from_buffers(
        pa.struct([kind.arrow.key_field, kind.arrow.item_field]), len(keys), [None], children=[keys, values]
    )
    return pa.Array.from_buffers(kind.arrow, len(size), [bitmap(valid), offsets], children=[entries])


def _elements(
    memory: _Memory, kind: SparkType, start: Positions, size: NDArray[np.int64], valid: Valid
) -> tuple[pa.Buffer, pa.Array]:
    """Decode offsets and elements of arrays; a null has none."""
    import numpy as np

    width = NARROW.get(kind.name, WORD)
    counts = np.where(True if valid is None else valid, memory.read("<i8", start), 0)
    if counts.min() < 0 or (counts > size).any():
        raise _Malformed("is an array with a wrong number of elements")
    header = WORD + (counts + 63) // 64 * WORD
    if (header + counts * width > size)[counts > 0].any():
        raise _Malformed("is an array that is shorter than its elements")
    if int((counts * width).sum()) > len(memory.bytes):
        # Otherwise damaged nested arrays could exhaust memory.
        raise _Malformed("has elements that belong to another value too")
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    total = int(offsets[-1])
    array = np.repeat(positions_array(start), counts)
    index = np.arange(total) - np.repeat(offsets[:-1], counts)
    null = memory.read("u1", array + WORD + (index >> 3)) >> (index & 7).astype(np.uint8) & 1
    present = null == 0 if null.any() else None
    slot = array + np.repeat(header, counts) + index * width
    elements = (
        _column(memory, kind, slot, array, array + np.repeat(size, counts), present)
        if total
        else pa.nulls(0, kind.arrow)
    )
    return pa.py_buffer(offsets.astype(np.int32)), elements


def _variant(
    memory: _Memory, kind: SparkType, start: NDArray[np.int64], size: NDArray[np.int64], valid: Valid
) -> pa.Array:
    """Decode variants: size of the value in 4 bytes, the value, the metadata."""
    value_size = memory.read("<i4", start).astype("int64")
    if value_size.min() < 0 or (value_size > size - 4).any():
        raise _Malformed("is a variant whose value does not fit into it")
    value = _bytes(memory, _BINARY, start + 4, value_size, valid)
    metadata = _bytes(memory, _BINARY, start + 4 + value_size, size - 4 - value_size, valid)
    return pa.StructArray.from_buffers(kind.arrow, len(size), [bitmap(valid)], children=[value, metadata])


def _shape(
    memory: _Memory, kind: SparkType, start: NDArray[np.int64], size: NDArray[np.int64], valid: Valid
) -> pa.Array:
    """Decode shapes: reference system number in 4 bytes, then well-known binary."""
    srid = _fixed(_SRID, len(size), valid, memory.read("<i4", start))
    wkb = _bytes(memory, _BINARY, start + 4, size - 4, valid)
    return pa.StructArray.from_buffers(kind.arrow, len(size), [bitmap(valid)], children=[srid, wkb])

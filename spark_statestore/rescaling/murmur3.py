"""Spark's Murmur3 hash of rows, vectorised over columns, from which its shuffle computes a row's partition.

The hash of a row starts with a seed, and the hash up to one column is the seed of the next. A null does not
change it, nor does a list or a struct that has only nulls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_statestore.rows.types import LONG_DIGITS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from spark_statestore.rows.types import SparkType

    Hashes = npt.NDArray[np.uint32]
    Partitions = npt.NDArray[np.int64]

SEED: Final = 42
"""Seed of the hash of a row."""

# The constants of Murmur3's 32-bit variant.
_C1: Final = 0xCC9E2D51
_C2: Final = 0x1B873593
_C3: Final = 0xE6546B64
_C4: Final = 0x85EBCA6B
_C5: Final = 0xC2B2AE35
_ALL: Final = 0xFFFFFFFF

# With fewer values than this, plain integers are faster than arrays.
_FEW: Final = 24


def partitions_of(hashes: Hashes, partitions: int) -> Partitions:
    """Return the partition of each row: the non-negative remainder of its signed hash."""
    import numpy as np

    return np.mod(hashes.view(np.int32).astype(np.int64), partitions)


def hash_columns(columns: Sequence[pa.Array], types: Sequence[SparkType], rows: int) -> Hashes:
    """Return the hash of each row."""
    import numpy as np

    hashes = np.full(rows, SEED, np.uint32)
    for column, kind in zip(columns, types, strict=True):
        hashes = _hash(column, kind, hashes)
    return hashes


def _hash(column: pa.Array, kind: SparkType, seeds: Hashes) -> Hashes:
    """Return the hash of each value, from its seed."""
    import numpy as np

    if not column.null_count:
        return _hash_values(column, kind, seeds)
    there = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
    hashes = seeds.copy()
    if len(there):
        hashes[there] = _hash_values(column.take(pa.array(there)), kind, seeds[there])
    return hashes


def _hash_values(column: pa.Array, kind: SparkType, seeds: Hashes) -> Hashes:
    """Hash values that are not null, see `_hash`."""
    match kind.name:
        case "boolean":
            return _hash_int(column.to_numpy(zero_copy_only=False), seeds)
        case "byte" | "short" | "integer" | "date":
            return _hash_int(_fixed(column, f"<i{column.type.bit_width // 8}"), seeds)
        case "long" | "timestamp" | "timestamp_ntz" | "time" | "day-time interval":
            return _hash_long(_fixed(column, "<i8"), seeds)
        case "float":
            return _hash_int(_bits(_fixed(column, "<f4"), "<i4"), seeds)
        case "double":
            return _hash_long(_bits(_fixed(column, "<f8"), "<i8"), seeds)
        case "decimal":
            return _hash_decimal(column, seeds)
        case "string" | "binary":
            return _hash_strings(column, seeds)
        case "year-month interval":
            return _hash_int(_intervals(column)["months"], seeds)
        case "interval":
            parts = _intervals(column)
            hashes = _hash_long(parts["nanos"] // 1000, seeds)
            return _hash_int(parts["months"], _hash_int(parts["days"], hashes))
        case "struct":
            for field, child in zip(column.flatten(), kind.children, strict=True):
                seeds = _hash(field, child, seeds)
            return seeds
        case "array":
            return _hash_elements(column, [(column.values, kind.children[0])], seeds)
        case "map":
            return _hash_elements(
                column, [(column.keys, kind.children[0]), (column.items, kind.children[1])], seeds
            )
        case "void":
            return seeds
    raise TypeError(f"Spark's shuffle has no hash of the type {kind.name!r}")


def _fixed(column: pa.Array, dtype: Any) -> Any:
    """Return the buffer of a fixed-width column as an array."""
    import numpy as np

    items = np.dtype(dtype)
    if not len(column):
        return np.empty(0, items)
    return np.frombuffer(column.buffers()[1], items, len(column), column.offset * items.itemsize)


def _intervals(column: pa.Array) -> Any:
    return _fixed(column, [("months", "<i4"), ("days", "<i4"), ("nanos", "<i8")])


def _bits(values: Any, dtype: str) -> Any:
    """Return the bits of floating-point numbers, with one zero and one NaN."""
    import numpy as np

    one_nan = np.where(np.isnan(values), values.dtype.type("nan"), values)
    return (one_nan + values.dtype.type(0)).view(dtype)


def _hash_decimal(column: pa.Array, seeds: Hashes) -> Hashes:
    """Hash decimals: up to 18 digits as a long, more as bytes.

    The bytes are the minimal big-endian ones of the unscaled value.
    """
    import numpy as np

    if column.type.precision <= LONG_DIGITS:
        return _hash_long(_fixed(column, "<i8,<i8")["f0"], seeds)
    digits = np.ascontiguousarray(_fixed(column, "(16,)u1")[:, ::-1])
    # A leading byte that only repeats the sign is dropped.
    signed = digits.view(np.int8)
    repeats = signed[:, :-1] == signed[:, 1:] >> 7
    first = np.where(repeats.all(axis=1), 15, repeats.argmin(axis=1))
    starts = np.arange(len(column)) * 16 + first
    return _hash_bytes(digits.reshape(-1), starts, 16 - first, seeds)


def _hash_strings(column: pa.Array, seeds: Hashes) -> Hashes:
    import numpy as np

    _, offsets, data = column.buffers()
    wide = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    items = np.dtype("<i8" if wide else "<i4")
    ends = np.frombuffer(offsets, items, len(column) + 1, column.offset * items.itemsize).astype(np.int64)
    content = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return _hash_bytes(content, ends[:-1], np.diff(ends), seeds)


def _hash_elements(column: pa.Array, parts: list[tuple[pa.Array, SparkType]], seeds: Hashes) -> Hashes:
    """Hash lists and maps element by element, of a map the key before the value."""
    import numpy as np

    offsets = column.offsets.to_numpy().astype(np.int64)
    starts, lengths = offsets[:-1], np.diff(offsets)
    hashes = seeds.copy()
    for number in range(int(lengths.max(initial=0))):
        rows = np.flatnonzero(lengths > number)
        elements = pa.array(starts[rows] + number)
        for values, kind in parts:
            hashes[rows] = _hash(values.take(elements), kind, hashes[rows])
    return hashes


def _hash_int(values: Any, seeds: Hashes) -> Hashes:
    import numpy as np

    return _finish(_mix(seeds, _mix_word(values.astype(np.uint32))), 4)


def _hash_long(values: Any, seeds: Hashes) -> Hashes:
    import numpy as np

    halves = values.astype(np.uint64)
    low, high = (halves & np.uint64(_ALL)).astype(np.uint32), (halves >> np.uint64(32)).astype(np.uint32)
    return _finish(_mix(_mix(seeds, _mix_word(low)), _mix_word(high)), 8)


def _hash_bytes(data: Any, starts: Any, lengths: Any, seeds: Hashes) -> Hashes:
    """Hash bytes in words of four, then the remaining ones singly."""
    import numpy as np

    # Longest first, so that the values with more words are a prefix.
    order = np.argsort(-lengths, kind="stable")
    starts, lengths, hashes = starts[order], lengths[order], seeds[order]
    words = lengths // 4
    descending = -words
    # Words are not aligned.
    overlapping = np.ndarray((max(len(data) - 3, 0),), "<u4", data, strides=(1,))
    step = 0
    while (longer := int(np.searchsorted(descending, -step))) >= _FEW:
        hashes[:longer] = _mix(hashes[:longer], _mix_word(overlapping[starts[:longer] + 4 * step]))
        step += 1
    for row in range(longer):
        rest = data[starts[row] + 4 * step : starts[row] + 4 * words[row]]
        hashes[row] = _mix_all(int(hashes[row]), _mix_word(rest.view("<u4")))
    for index in range(3):
        rows = np.flatnonzero(lengths % 4 > index)
        # Bytes are signed.
        signed = data[starts[rows] + 4 * words[rows] + index].view(np.int8).astype(np.uint32)
        hashes[rows] = _mix(hashes[rows], _mix_word(signed))
    mixed = np.empty_like(seeds)
    mixed[order] = _finish(hashes, lengths.astype(np.uint32))
    return mixed


def _rotated(values: Any, bits: int) -> Any:
    return values << bits | values >> (32 - bits)


def _mix_word(word: Any) -> Any:
    import numpy as np

    return _rotated(word * np.uint32(_C1), 15) * np.uint32(_C2)


def _mix(hashes: Hashes, word: Any) -> Hashes:
    import numpy as np

    mixed: Hashes = _rotated(hashes ^ word, 13) * np.uint32(5) + np.uint32(_C3)
    return mixed


def _mix_all(value: int, words: Any) -> int:
    """Mix all words of one value in sequence, see `_mix`."""
    for word in words.tolist():
        value ^= word
        value = (((value << 13 | value >> 19) & _ALL) * 5 + _C3) & _ALL
    return value


def _finish(hashes: Hashes, size: Any) -> Hashes:
    """Finalise hashes of values of a length in bytes."""
    import numpy as np

    hashes = hashes ^ size
    hashes ^= hashes >> 16
    hashes *= np.uint32(_C4)
    hashes ^= hashes >> 13
    hashes *= np.uint32(_C5)
    hashes ^= hashes >> 16
    return hashes

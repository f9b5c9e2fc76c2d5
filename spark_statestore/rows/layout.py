"""Positions and vectorised writes of the parts of UnsafeRows, arrays and maps.

A column is the values of one field, or of the elements of arrays; a content is the bytes of rows, arrays or
maps. Their sizes are known before anything is written, so that each value is written once, at its final
position. `decode` describes the format.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from spark_statestore.rows.decode import WORD, positions_array, shift

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from spark_statestore.rows.decode import Positions, Valid

    Integers: TypeAlias = NDArray[np.int64]
    # One number for each value, or the same for all.
    Sizes: TypeAlias = "int | Integers"

# Space of a value that Spark may replace without moving others.
_REPLACEABLE: Final = 16

# Values copied at a time: what is computed for them stays in the processor's cache.
_BLOCK: Final = 1 << 15


def sizes_of_all(sizes: Sizes, valid: Valid, count: int) -> Integers:
    """Return sizes of values, of which nulls have none, one by one."""
    import numpy as np

    all_sizes = np.zeros(count, np.int64)
    all_sizes[slice(None) if valid is None else valid] = sizes
    return all_sizes


def _aligned(sizes: Any) -> Any:
    return (sizes + (WORD - 1)) & -WORD


def _behind(at: Positions, sizes: Sizes) -> Positions:
    """Return the positions that so many bytes follow."""
    return shift(at, sizes) if isinstance(sizes, int) else positions_array(at) + sizes


class Memory:
    """The buffer of many rows, with vectorised writes; what is not written is zero."""

    def __init__(self, size: int) -> None:
        import numpy as np

        self.bytes: NDArray[np.uint8] = np.zeros(size, np.uint8)

    def write(self, at: Positions, values: NDArray[Any]) -> None:
        """Write numbers at these positions, which are multiples of their size."""
        import numpy as np

        if not len(at):
            return
        size = values.dtype.itemsize
        if isinstance(at, range):
            np.ndarray((len(at),), values.dtype, self.bytes, at.start, (at.step,))[:] = values
        else:
            self.bytes.view(values.dtype)[at // size] = values

    def copy(self, at: Integers, source: NDArray[np.uint8], start: Integers, size: Integers) -> None:
        """Copy bytes from ascending positions of a source to positions that are multiples of 8."""
        for first in range(0, len(at), _BLOCK):
            block = slice(first, first + _BLOCK)
            self._copy_words(at[block], source, start[block], size[block])

    def _copy_words(self, at: Integers, source: NDArray[np.uint8], start: Integers, size: Integers) -> None:
        import numpy as np

        words = _aligned(size) // WORD
        ends = np.cumsum(words)
        total = int(ends[-1])
        if not total:
            return
        begin = int(start[size > 0].min())
        # The last word of a value may exceed the source.
        source = np.concatenate([source[begin : int((start + size).max())], np.zeros(WORD, np.uint8)])
        overlapping = np.ndarray((len(source) - WORD + 1,), "<u8", source, strides=(1,))
        number = np.arange(total)
        copied = overlapping[np.repeat(start - begin - WORD * (ends - words), words) + WORD * number]
        rest = size % WORD
        partial = rest > 0
        copied[ends[partial] - 1] &= (np.uint64(1) << (8 * rest[partial]).astype(np.uint64)) - np.uint64(1)
        self.bytes.view("<u8")[np.repeat(at // WORD - (ends - words), words) + number] = copied


class Column(Protocol):
    """Values of one field or of the elements of arrays, whose slots are in a row or an array.

    Attributes
    ----------
    valid
        Which values are not null.
    room
        Bytes of each value behind the slots, a multiple of 8.
    """

    valid: Valid
    room: Sizes

    def write(self, memory: Memory, slot: Positions, base: Positions, start: Positions) -> None:
        """Write slots, and what is behind them from `start`; offsets are relative to `base`."""


class Content(Protocol):
    """The bytes of rows, arrays or maps.

    Attributes
    ----------
    sizes
        Bytes of each one, a multiple of 8.
    """

    sizes: Sizes

    def write(self, memory: Memory, base: Positions) -> None:
        """Write all at their positions."""


class Voids:
    """Nulls of the type that has no values."""

    room: Sizes = 0

    def __init__(self, count: int) -> None:
        import numpy as np

        self.valid: Valid = np.zeros(count, np.bool_)

    def write(self, memory: Memory, slot: Positions, base: Positions, start: Positions) -> None:
        """Leave the slots zero."""


class Numbers:
    """Values that fit the slot."""

    room: Sizes = 0

    def __init__(self, valid: Valid, values: NDArray[Any]) -> None:
        import numpy as np

        self.valid = valid
        self._values = values if valid is None else np.where(valid, values, values.dtype.type(0))

    def write(self, memory: Memory, slot: Positions, base: Positions, start: Positions) -> None:
        memory.write(slot, self._values)


class Bytes:
    """Values in bytes of a source.

    With `null_size`, each value has `_REPLACEABLE` bytes, and the slot of a null has their offset and this
    size, as Spark updates such values of rows in place.
    """

    def __init__(
        self,
        valid: Valid,
        source: NDArray[np.uint8],
        start: Integers,
        size: Integers,
        null_size: int | None = None,
    ) -> None:
        import numpy as np

        self.valid = valid
        self._source = source
        self._start = start
        self._size = size if valid is None else np.where(valid, size, 0)
        self._null_size = null_size
        self.room: Sizes = _aligned(self._size) if null_size is None else _REPLACEABLE

    def write(self, memory: Memory, slot: Positions, base: Positions, start: Positions) -> None:
        import numpy as np

        at = positions_array(start)
        offset = (at - positions_array(base)) << 32
        words = offset | self._size
        if self.valid is not None:
            null = 0 if self._null_size is None else offset | self._null_size
            words = np.where(self.valid, words, null)
        memory.write(slot, words)
        memory.copy(at, self._source, self._start, self._size)


class Nested:
    """Rows, arrays or maps within a row or an array; `content` has those that are not null."""

    def __init__(self, valid: Valid, content: Content, count: int) -> None:
        self.valid = valid
        self._content = content
        self.room: Sizes = content.sizes if valid is None else sizes_of_all(content.sizes, valid, count)

    def write(self, memory: Memory, slot: Positions, base: Positions, start: Positions) -> None:
        if self.valid is not None:
            slot, base, start = (positions_array(at)[self.valid] for at in (slot, base, start))
        offset = (positions_array(start) - positions_array(base)) << 32
        memory.write(slot, offset | self._content.sizes)
        self._content.write(memory, start)


class RowContent:
    """Rows: null bits, a slot for each field, and what is behind the slots."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._words = (len(columns) + 63) // 64
        self._fixed = WORD * (self._words + len(columns))
        self.sizes: Sizes = sum((column.room for column in columns), start=self._fixed)

    def write(self, memory: Memory, base: Positions) -> None:
        import numpy as np

        for word in range(self._words):
            nulls = [
                (~column.valid).astype(np.uint64) << np.uint64(bit)
                for bit, column in enumerate(self._columns[64 * word : 64 * (word + 1)])
                if column.valid is not None
            ]
            if nulls:
                memory.write(shift(base, WORD * word), np.bitwise_or.reduce(nulls))
        start = shift(base, self._fixed)
        for number, column in enumerate(self._columns):
            column.write(memory, shift(base, WORD * (self._words + number)), base, start)
            start = _behind(start, column.room)


class ArrayContent:
    """Arrays: the number of elements, null bits, a slot for each element, and what is behind the slots."""

    def __init__(self, counts: Integers, elements: Column, width: int) -> None:
        import numpy as np

        self._counts = counts
        self._elements = elements
        self._width = width
        self._header = WORD + (counts + 63) // 64 * WORD
        self._fixed = self._header + _aligned(counts * width)
        self._first = np.cumsum(counts) - counts
        # Bytes behind the slots of all arrays before each element, and at the end.
        total = int(counts.sum())
        self._room = np.zeros(total + 1, np.int64)
        np.cumsum(np.broadcast_to(elements.room, total), out=self._room[1:])
        self.sizes: Sizes = self._fixed + self._room[self._first + counts] - self._room[self._first]

    def write(self, memory: Memory, base: Positions) -> None:
        import numpy as np

        base = positions_array(base)
        memory.write(base, self._counts)
        array = np.repeat(base, self._counts)
        index = np.arange(len(array)) - np.repeat(self._first, self._counts)
        if self._elements.valid is not None:
            null = np.flatnonzero(~self._elements.valid)
            self._write_nulls(memory, array[null] + WORD, index[null])
        slot = array + np.repeat(self._header, self._counts) + self._width * index
        behind = base + self._fixed - self._room[self._first]
        self._elements.write(memory, slot, array, np.repeat(behind, self._counts) + self._room[:-1])

    @staticmethod
    def _write_nulls(memory: Memory, bits: Integers, index: Integers) -> None:
        import numpy as np

        if not len(index):
            return
        # Bits of one byte follow each other.
        at = bits + (index >> 3)
        first = np.flatnonzero(np.diff(at, prepend=-1))
        flags = np.left_shift(1, index & 7).astype(np.uint8)
        memory.write(at[first], np.bitwise_or.reduceat(flags, first))


class MapContent:
    """Maps: the size of the array of keys, and the arrays of keys and of values."""

    def __init__(self, keys: Content, values: Content) -> None:
        self._keys = keys
        self._values = values
        self.sizes: Sizes = WORD + keys.sizes + values.sizes

    def write(self, memory: Memory, base: Positions) -> None:
        import numpy as np

        memory.write(base, np.asarray(self._keys.sizes, np.int64))
        start = shift(base, WORD)
        self._keys.write(memory, start)
        self._values.write(memory, _behind(start, self._keys.sizes))

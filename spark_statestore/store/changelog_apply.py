"""Applying a column family's changes, oldest first, gives its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_statestore.formats.change_batches import CHANGE_SCHEMA
from spark_statestore.store.changelog import DELETE, MERGE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ROW_SCHEMA: Final = pa.schema(
    [pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)]
)
"""One row per value, as the bytes of Spark's UnsafeRows; a key with several values has several rows."""


def apply_changelog(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """Apply the changes of one column family and return its rows, a table of `ROW_SCHEMA`.

    The values of a key keep their order; keys are in the order of their last put.
    """
    import numpy as np

    # One chunk per batch: a concatenated column could exceed 32-bit offsets.
    changes = pa.Table.from_batches(list(batches), CHANGE_SCHEMA)
    rows = changes.select(ROW_SCHEMA.names)
    op = changes["op"].to_numpy()
    if not changes.num_rows:
        return rows.cast(ROW_SCHEMA)
    keys, distinct = numbered(changes["key"])
    # Changes before the last put or delete of a key are superseded. NumPy keeps the last value of a repeated
    # index.
    replacing = np.flatnonzero(op != MERGE)
    last = np.full(len(distinct), -1, np.int64)
    last[keys[replacing]] = replacing
    is_current = (np.arange(len(op)) >= last[keys]) & (op != DELETE)
    if not is_current.all():
        rows = rows.filter(pa.array(is_current))
    return rows.cast(ROW_SCHEMA)


def numbered(column: pa.ChunkedArray) -> tuple[NDArray[np.int32], pa.LargeBinaryArray]:
    """Return a number for each value, equal for equal values, and the distinct values by number."""
    import numpy as np

    # The distinct values are one array, which has more than 2 GiB of them with 64-bit offsets only.
    encoded = column.cast(pa.large_binary()).dictionary_encode()
    if not encoded.num_chunks:
        return np.empty(0, np.int32), pa.array([], pa.large_binary())
    dictionaries = {
        tuple(None if buffer is None else buffer.address for buffer in chunk.dictionary.buffers())
        for chunk in encoded.chunks
    }
    if len(dictionaries) > 1:
        # Usually all chunks share one dictionary; unifying is linear in the size of all dictionaries.
        encoded = encoded.unify_dictionaries()
    return np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks]), encoded.chunk(0).dictionary


def byte_sizes(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return the number of bytes of each value, 0 for null."""
    import numpy as np
    import pyarrow.compute as pc

    sizes = pc.fill_null(pc.binary_length(column), 0)
    return np.asarray(sizes.to_numpy(), np.int64)


def slices(sizes: NDArray[np.int64], rows: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of slices with at most `rows` rows and `most` bytes, or of one row that is larger.

    An Arrow array of bytes has 32-bit offsets, so that 2 GiB do not fit into one.
    """
    import numpy as np

    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        within = int(np.searchsorted(ends, before + most, side="right"))
        end = min(start + rows, max(within, start + 1))
        yield start, end
        start = end

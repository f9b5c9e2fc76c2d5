"""What is left of a chain of changes: the rows of one state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_statestore.state.changes import APPEND, CHANGE_SCHEMA, REMOVE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["ROW_SCHEMA", "fold", "numbered"]

ROW_SCHEMA: Final = pa.schema(
    [pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)]
)
"""One row a value, as the bytes of Spark's UnsafeRows; a key with several values has several rows."""


def fold(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """The rows that changes of one state leave.

    Parameters
    ----------
    batches
        The changes in the order in which they apply, see `spark_statestore.state.changes`.

    Returns
    -------
    pyarrow.Table
        Of the schema `ROW_SCHEMA`. The values of a key are in their order; keys are in the order in
        which they were last put.
    """
    import numpy as np

    # Chunks are kept, so that no column needs offsets beyond 32 bits.
    changes = pa.Table.from_batches(list(batches), CHANGE_SCHEMA)
    rows = changes.select(ROW_SCHEMA.names)
    op = changes["op"].to_numpy()
    if not changes.num_rows:
        return rows.cast(ROW_SCHEMA)
    keys, known = numbered(changes["key"])
    # All that comes before the last put or removal of a key is void. Where an index repeats, the last one counts.
    setting = np.flatnonzero(op != APPEND)
    last = np.full(len(known), -1, np.int64)
    last[keys[setting]] = setting
    living = (np.arange(len(op)) >= last[keys]) & (op != REMOVE)
    if not living.all():
        rows = rows.filter(pa.array(living))
    return rows.cast(ROW_SCHEMA)


def numbered(column: pa.ChunkedArray) -> tuple[NDArray[np.int32], pa.BinaryArray]:
    """A number for each value, equal for equal ones, and the values by their numbers."""
    import numpy as np

    encoded = column.dictionary_encode()
    if not encoded.num_chunks:
        return np.empty(0, np.int32), pa.array([], column.type)
    places = {
        tuple(None if buffer is None else buffer.address for buffer in chunk.dictionary.buffers())
        for chunk in encoded.chunks
    }
    if len(places) > 1:
        # Arrow gives all chunks the same dictionary. To unify those takes as long as all of them are together.
        encoded = encoded.unify_dictionaries()
    return np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks]), encoded.chunk(0).dictionary

"""What is left of a chain of changes: the rows of one state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from spark_statestore.state.changes import APPEND, CHANGE_SCHEMA, REMOVE

__all__ = ["ROW_SCHEMA", "fold"]

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
    # One dictionary for all chunks: equal keys get equal numbers.
    encoded = changes["key"].dictionary_encode().unify_dictionaries()
    keys = np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks])
    # All that comes before the last put or removal of a key is void. Where an index repeats, the last one counts.
    setting = np.flatnonzero(op != APPEND)
    last = np.full(len(encoded.chunk(0).dictionary), -1, np.int64)
    last[keys[setting]] = setting
    living = (np.arange(len(op)) >= last[keys]) & (op != REMOVE)
    if not living.all():
        rows = rows.filter(pa.array(living))
    return rows.cast(ROW_SCHEMA)

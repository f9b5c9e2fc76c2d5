"""Record batch messages of changes, in the two layouts that one may have; docs/format.md describes them."""

from __future__ import annotations

import functools
from typing import Final

import pyarrow as pa

from spark_statestore.state.batches import read_batch
from spark_statestore.state.messages import shape_of

__all__ = ["CHANGE_SCHEMA", "pack", "read_change_batch", "schema_bytes"]

CHANGE_SCHEMA: Final = pa.schema(
    [
        pa.field("op", pa.uint8(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("value", pa.binary()),
    ]
)
"""One row a change; keys and values are the bytes of Spark's UnsafeRow."""

# Of a message with offsets, and of one without.
_VARIABLE_BUFFERS: Final = 8
_FIXED_BUFFERS: Final = 6

# Offsets of a column with offsets are of 32 bits.
_LARGEST_COLUMN: Final = (1 << 31) - 1


def _fixed(key: int, value: int) -> pa.Schema:
    op, keys, values = CHANGE_SCHEMA
    return pa.schema([op, keys.with_type(pa.binary(key)), values.with_type(pa.binary(value))])


# Gives the buffers of a message without offsets; what a row takes follows from their lengths.
_BYTES: Final = _fixed(1, 1)


def read_change_batch(message: pa.Buffer, *, full: bool) -> pa.RecordBatch:
    """Read and check a message of either layout, as `read_batch`; the batch has the schema `CHANGE_SCHEMA`.

    Raises
    ------
    pyarrow.ArrowException
        If the message is no batch of changes.
    """
    shape = shape_of(message)
    if shape.buffers == _VARIABLE_BUFFERS:
        return read_batch(message, CHANGE_SCHEMA, full=full, shape=shape)
    if shape.buffers != _FIXED_BUFFERS:
        raise pa.ArrowInvalid(f"a batch of changes in {shape.buffers} buffers")
    batch = read_batch(message, _BYTES, full=full, shape=shape)
    columns = [batch.column(0), _with_offsets(batch.column(1)), _with_offsets(batch.column(2))]
    return pa.record_batch(columns, schema=CHANGE_SCHEMA)


def pack(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch without offsets if all its keys and all its values have one length each, else as it is."""
    import pyarrow.compute as pc

    widths = []
    for column in batch.columns[1:]:
        lengths = pc.min_max(pc.binary_length(column))
        width = lengths["min"].as_py()
        # Nulls alone have no length.
        if not width or width != lengths["max"].as_py():
            return batch
        widths.append(width)
    # A removal takes the place of a value; all of them together no more than offsets would.
    if batch.column(2).null_count * widths[1] > 8 * batch.num_rows:
        return batch
    schema = _fixed(*widths)
    return pa.record_batch(
        [c.cast(field.type) for c, field in zip(batch.columns, schema, strict=True)], schema
    )


@functools.lru_cache(maxsize=256)
def schema_bytes(schema: pa.Schema) -> int:
    """Bytes that pyarrow's stream writer puts before the first batch: the schema message."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        del writer
    return int(sink.getvalue().size) - 8


def _with_offsets(column: pa.FixedSizeBinaryArray) -> pa.BinaryArray:
    validity, data = column.buffers()
    rows = len(column)
    size = data.size if data is not None else 0
    if not rows or not size or size % rows or size > _LARGEST_COLUMN:
        raise pa.ArrowInvalid(f"{size} bytes of {rows} rows that have the same length each")
    kind = pa.binary(size // rows)
    return pa.FixedSizeBinaryArray.from_buffers(kind, rows, [validity, data], column.null_count).cast(
        pa.binary()
    )

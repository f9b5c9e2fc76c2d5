"""Record batch messages of changes in their two layouts, with and without offsets; see docs/format.md."""

from __future__ import annotations

import functools
from typing import Final

import pyarrow as pa

from spark_statestore.formats.messages import message_layout, read_batch

CHANGE_SCHEMA: Final = pa.schema(
    [
        pa.field("op", pa.uint8(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("value", pa.binary()),
    ]
)
"""One row per change; keys and values are the bytes of Spark's UnsafeRow."""

# Number of buffers of a message with offsets, and of one without.
_VARIABLE_BUFFERS: Final = 8
_FIXED_BUFFERS: Final = 6

# Offsets have 32 bits.
_LARGEST_COLUMN: Final = (1 << 31) - 1


def _fixed(key: int, value: int) -> pa.Schema:
    op, keys, values = CHANGE_SCHEMA
    return pa.schema([op, keys.with_type(pa.binary(key)), values.with_type(pa.binary(value))])


# Schema that gives the buffers of a message without offsets; row widths follow from buffer lengths.
_BYTES: Final = _fixed(1, 1)


def read_change_batch(message: pa.Buffer, *, full: bool) -> pa.RecordBatch:
    """Read and check a message of either layout, as `read_batch`.

    The batch has the schema `CHANGE_SCHEMA`.
    """
    layout = message_layout(message)
    if layout.buffers == _VARIABLE_BUFFERS:
        return read_batch(message, CHANGE_SCHEMA, full=full, layout=layout)
    if layout.buffers != _FIXED_BUFFERS:
        raise pa.ArrowInvalid(f"a batch of changes in {layout.buffers} buffers")
    batch = read_batch(message, _BYTES, full=full, layout=layout)
    columns = [batch.column(0), _with_offsets(batch.column(1)), _with_offsets(batch.column(2))]
    return pa.record_batch(columns, schema=CHANGE_SCHEMA)


def pack(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch without offsets if its keys and its values have one length each, else unchanged."""
    import pyarrow.compute as pc

    widths = []
    for column in batch.columns[1:]:
        lengths = pc.min_max(pc.binary_length(column))
        width = lengths["min"].as_py()
        # Nulls alone have no length.
        if not width or width != lengths["max"].as_py():
            return batch
        widths.append(width)
    # A delete takes the space of a value here; offsets are smaller if there are many.
    if batch.column(2).null_count * widths[1] > 8 * batch.num_rows:
        return batch
    schema = _fixed(*widths)
    return pa.record_batch(
        [c.cast(field.type) for c, field in zip(batch.columns, schema, strict=True)], schema
    )


@functools.lru_cache(maxsize=256)
def schema_bytes(schema: pa.Schema) -> int:
    """Return the size of the schema message that pyarrow's stream writer puts before the first batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        del writer
    return int(sink.getvalue().size) - 8


def _with_offsets(column: pa.FixedSizeBinaryArray) -> pa.BinaryArray:
    validity, data = column.buffers()
    rows = len(column)
    size = data.size if data is not None else 0
    if not rows or not size or size % rows or size > _LARGEST_COLUMN:
        raise pa.ArrowInvalid(f"{size} bytes of {rows} rows, which must have equal lengths")
    kind = pa.binary(size // rows)
    return pa.FixedSizeBinaryArray.from_buffers(kind, rows, [validity, data], column.null_count).cast(
        pa.binary()
    )

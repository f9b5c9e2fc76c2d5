"""Changelog messages with inconsistent lengths."""

from __future__ import annotations

import struct

import pyarrow as pa

from spark_statestore.formats.change_batches import schema_bytes

__all__ = ["encoded", "without_offsets"]

ROWS = 7


def without_offsets(key: int, value: int, rows: int, codec: str | None) -> pa.Buffer:
    """Return a message of seven rows with keys and values of these lengths.

    Its header declares another number of rows.
    """
    columns = [bytes(range(width)) for width in (key, value)]
    schema = pa.schema(
        [("op", pa.uint8()), ("key", pa.binary(key)), ("value", pa.binary(value))],
    )
    batch = pa.record_batch([[0] * ROWS, *([column] * ROWS for column in columns)], schema=schema)
    message = encoded(batch, codec)
    body = 8 + struct.unpack_from("<i", message, 4)[0]
    # Of the batch and of each column.
    changed = message[:body].replace(struct.pack("<q", ROWS), struct.pack("<q", rows))
    return pa.py_buffer(changed + message[body:])


def encoded(batch: pa.RecordBatch, codec: str | None) -> bytes:
    """The message of a batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue()[schema_bytes(batch.schema) : -8])

"""Record batch messages whose schema is known by version, so that it does not travel with them."""

from __future__ import annotations

import pyarrow as pa

from spark_statestore.state.messages import MessageShape, shape_of

__all__ = ["read_batch"]


def read_batch(
    message: pa.Buffer, schema: pa.Schema, *, full: bool, shape: MessageShape | None = None
) -> pa.RecordBatch:
    """Read a record batch message and check it.

    Parameters
    ----------
    full
        Whether the values are checked too, and not only the lengths of the buffers.
    shape
        The message's, if that was looked at. By default its buffers may not be compressed.

    Raises
    ------
    pyarrow.ArrowException
        If the message is no batch of this schema.
    """
    if shape is None and shape_of(message).plain_bytes:
        raise pa.ArrowInvalid("a message that is compressed, which such a message never is")
    try:
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=full)
    except (EOFError, OSError) as error:
        # Not all that pyarrow raises for bytes that it cannot read is an ArrowException.
        raise pa.ArrowInvalid(str(error)) from error
    return batch

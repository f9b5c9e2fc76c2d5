"""Streams that keep state in memory, inside the handle."""

from __future__ import annotations

import io
import uuid
import zlib

from spark_statestore.errors import CheckpointIOError, StateTooLargeError
from spark_statestore.files.base import Buffer
from spark_statestore.storage.stream_handles import ByteStreamStateHandle
from spark_statestore.storage.streams import (
    CheckpointedStateScope,
    CheckpointStateOutputStream,
    CheckpointStreamFactory,
)


class MemCheckpointStreamFactory(CheckpointStreamFactory):
    """A factory of `MemoryCheckpointOutputStream` objects, whatever the scope."""

    def __init__(self, max_state_size: int) -> None:
        self.max_state_size = max_state_size

    def create_checkpoint_state_output_stream(
        self, scope: CheckpointedStateScope
    ) -> MemoryCheckpointOutputStream:
        return MemoryCheckpointOutputStream(self.max_state_size)


class MemoryCheckpointOutputStream(CheckpointStateOutputStream):
    """A stream that collects state in memory, up to a bound.

    It differs from Flink's class of this name in two hazards: a write after `close` fails instead of being
    lost, and state beyond the bound is released at once. As in Flink, exceeding the bound is an error when
    the stream is finished.

    Parameters
    ----------
    max_state_size
        Largest size in bytes, inclusive.
    """

    def __init__(self, max_state_size: int) -> None:
        self._buffer = io.BytesIO()
        self._max_state_size = max_state_size
        self._size = 0
        self._empty = True
        self._closed = False

    def get_pos(self) -> int:
        return 0 if self._closed else self._size

    def write(self, data: Buffer) -> None:
        if self._closed:
            raise CheckpointIOError("the stream has already been closed; open a new one to write")
        self._empty = False
        self._size += memoryview(data).nbytes
        if self._size <= self._max_state_size:
            self._buffer.write(data)
        else:
            # Too large to be stored: only its size is still needed, for the error.
            self._buffer = io.BytesIO()

    def close(self) -> None:
        self._closed = True
        self._buffer = io.BytesIO()

    def close_and_get_handle(self) -> ByteStreamStateHandle | None:
        if self._empty:
            return None
        data = self.close_and_get_bytes()
        return ByteStreamStateHandle(str(uuid.uuid4()), data, zlib.crc32(data))

    def close_and_get_bytes(self) -> bytes:
        """Finish the stream and return its bytes, as `close_and_get_handle` does."""
        if self._closed:
            raise CheckpointIOError("the stream has already been closed; its state was returned or discarded")
        data = self._buffer.getvalue()
        self.close()
        if self._size > self._max_state_size:
            raise StateTooLargeError(
                f"a state of {self._size} bytes exceeds the limit of memory storage "
                f"(maxStateSize={self._max_state_size} bytes). Raise "
                "spark.sql.streaming.stateStore.backend.maxStateSize, use more shuffle partitions, or set "
                "spark.sql.streaming.stateStore.backend.storage=filesystem."
            )
        return data

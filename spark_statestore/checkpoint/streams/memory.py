"""Streams whose state stays in memory, with the handle."""

from __future__ import annotations

import io
import uuid
import zlib

from spark_statestore.checkpoint.files.base import Buffer
from spark_statestore.checkpoint.streams.base import (
    CheckpointedStateScope,
    CheckpointStateOutputStream,
    CheckpointStreamFactory,
)
from spark_statestore.errors import CheckpointIOError, StateTooLargeError
from spark_statestore.state.handles.memory import ByteStreamStateHandle

__all__ = ["MemCheckpointStreamFactory", "MemoryCheckpointOutputStream"]


class MemCheckpointStreamFactory(CheckpointStreamFactory):
    """Opens `MemoryCheckpointOutputStream` objects; the scope makes no difference.

    Parameters
    ----------
    max_state_size
        The most bytes of one state.
    """

    def __init__(self, max_state_size: int) -> None:
        self.max_state_size = max_state_size

    def create_checkpoint_state_output_stream(
        self, scope: CheckpointedStateScope
    ) -> MemoryCheckpointOutputStream:
        return MemoryCheckpointOutputStream(self.max_state_size)

    def __str__(self) -> str:
        return "In-Memory Stream Factory"


class MemoryCheckpointOutputStream(CheckpointStateOutputStream):
    """Collects state in memory, up to a bound.

    Differs from Flink's class of this name in what its specification calls hazards: a write after
    `close` fails instead of being lost, and state that is too large is let go at once. As there,
    the bound shows when the stream is finished.

    Parameters
    ----------
    max_state_size
        The most bytes; exactly that many are allowed.
    """

    def __init__(self, max_state_size: int) -> None:
        self._buffer = io.BytesIO()
        self._max_state_size = max_state_size
        self._size = 0
        self._empty = True
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether the stream was finished or abandoned."""
        return self._closed

    def get_pos(self) -> int:
        return 0 if self._closed else self._size

    def write(self, data: Buffer) -> None:
        if self._closed:
            raise CheckpointIOError("the stream has already been closed, nothing can be written to it")
        self._empty = False
        self._size += memoryview(data).nbytes
        if self._size <= self._max_state_size:
            self._buffer.write(data)
        else:
            # It will not be stored: only its size still matters.
            self._buffer = io.BytesIO()

    def flush(self) -> None:
        pass

    def sync(self) -> None:
        pass

    def close(self) -> None:
        self._closed = True
        self._buffer = io.BytesIO()

    def close_and_get_handle(self) -> ByteStreamStateHandle | None:
        if self._empty:
            return None
        data = self.close_and_get_bytes()
        return ByteStreamStateHandle(str(uuid.uuid4()), data, zlib.crc32(data))

    def close_and_get_bytes(self) -> bytes:
        """Finish the stream and give its bytes.

        Raises
        ------
        CheckpointIOError
            If the stream is closed.
        StateTooLargeError
            If more was written than the stream may hold.
        """
        if self._closed:
            raise CheckpointIOError("the stream has already been closed, its state was given or let go")
        data = self._buffer.getvalue()
        self.close()
        if self._size > self._max_state_size:
            raise StateTooLargeError(
                f"a state of {self._size} bytes is larger than memory storage may hold "
                f"(maxStateSize={self._max_state_size} bytes). Raise "
                "spark.sql.streaming.stateStore.backend.maxStateSize, use more shuffle partitions, or set "
                "spark.sql.streaming.stateStore.backend.storage=filesystem."
            )
        return data

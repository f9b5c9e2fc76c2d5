"""The interfaces of output streams of state and metadata, and of their factories."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from spark_statestore.files.base import Buffer
    from spark_statestore.storage.completed_locations import CompletedCheckpointStorageLocation
    from spark_statestore.storage.stream_handles import StreamStateHandle


class CheckpointedStateScope(enum.Enum):
    """The ownership of a stream."""

    EXCLUSIVE = "exclusive"
    """Owned by one checkpoint and removed with it."""

    SHARED = "shared"
    """Owned by all checkpoints that refer to it."""


class OutputStream(ABC):
    """An output stream; closing it without finishing it removes the written bytes."""

    @abstractmethod
    def get_pos(self) -> int:
        """Return the number of bytes written so far."""

    @abstractmethod
    def write(self, data: Buffer) -> None:
        """Append bytes.

        Raises
        ------
        CheckpointIOError
            If the stream is closed or the storage fails.
        """

    @abstractmethod
    def close(self) -> None:
        """Abandon the stream and remove the written bytes; do nothing for a finished stream."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class CheckpointStateOutputStream(OutputStream):
    """A stream of state.

    Used as ``with factory.create_checkpoint_state_output_stream(scope) as out: ...; handle =
    out.close_and_get_handle()``: leaving the block without the handle removes the state.
    """

    def write_with_checksum(self, data: memoryview, checksum: int) -> None:
        """Append immutable bytes whose CRC-32 is known.

        Raises
        ------
        CheckpointIOError
            If the stream is closed or the storage fails.
        """
        self.write(data)

    def close_if_in_memory(self) -> tuple[Sequence[Buffer], int] | None:
        """Finish the stream if its state needs no file.

        Returns
        -------
        tuple or None
            The written pieces, not copied, and their CRC-32. None if nothing was written, or if
            `close_and_get_handle` must finish the state.
        """
        return None

    @abstractmethod
    def close_and_get_handle(self) -> StreamStateHandle | None:
        """Finish the stream.

        Returns
        -------
        StreamStateHandle or None
            The handle to the state; None if nothing was written.

        Raises
        ------
        CheckpointIOError
            If the stream was closed, or cannot be finished; its bytes are removed then.
        """


class CheckpointMetadataOutputStream(OutputStream):
    """The stream of a checkpoint's metadata, which makes the checkpoint exist."""

    @abstractmethod
    def write_whole(self, parts: Sequence[Buffer], checksum: int) -> None:
        """Write all of the metadata from immutable bytes.

        Parameters
        ----------
        parts
            Consecutive pieces of the metadata.
        checksum
            CRC-32 of all pieces.

        Raises
        ------
        CheckpointIOError
            If the stream is closed.
        """

    @abstractmethod
    def close_and_finalize_checkpoint(self) -> CompletedCheckpointStorageLocation:
        """Publish the metadata and return the location of the checkpoint, which is complete.

        Raises
        ------
        CheckpointExistsError
            If the checkpoint has metadata already.
        CheckpointIOError
            If the stream was closed, or the metadata could not be published.
        """


class CheckpointStreamFactory(ABC):
    """A factory of state streams for one checkpoint."""

    @abstractmethod
    def create_checkpoint_state_output_stream(
        self, scope: CheckpointedStateScope
    ) -> CheckpointStateOutputStream:
        """Open a stream, which the caller finishes or closes."""

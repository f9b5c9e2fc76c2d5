"""Streams that state is written to, and the factories that open them."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from spark_statestore.checkpoint.completed.location import CompletedCheckpointStorageLocation
    from spark_statestore.checkpoint.files.base import Buffer
    from spark_statestore.state.handles.base import StreamStateHandle

__all__ = [
    "CheckpointMetadataOutputStream",
    "CheckpointStateOutputStream",
    "CheckpointStreamFactory",
    "CheckpointedStateScope",
]


class CheckpointedStateScope(enum.Enum):
    """To whom a stream belongs."""

    EXCLUSIVE = "exclusive"
    """To one checkpoint: dropped with it."""

    SHARED = "shared"
    """To every checkpoint that refers to it."""


class OutputStream(ABC):
    """Bytes out; closing it without finishing it abandons what was written."""

    @abstractmethod
    def get_pos(self) -> int:
        """Bytes written so far."""

    @abstractmethod
    def write(self, data: Buffer) -> None:
        """Append bytes.

        Raises
        ------
        CheckpointIOError
            If the stream is closed or the storage fails.
        """

    @abstractmethod
    def flush(self) -> None:
        """Hand buffered bytes on, where that does not change how the state is stored."""

    @abstractmethod
    def sync(self) -> None:
        """Make what was handed on durable; nothing to do while state is in memory."""

    @abstractmethod
    def close(self) -> None:
        """Abandon the stream and remove what was written; a finished stream stays as it is."""

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

    def write_summed(self, data: memoryview, checksum: int) -> None:
        """Append bytes that do not change any more, and whose CRC-32 is known.

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
            The bytes, as they were written and not copied, and their CRC-32. None if nothing was written, or
            if the state has to be finished by `close_and_get_handle`.
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
            If the stream was closed, or could not be finished; nothing is left of it then.
        """


class CheckpointMetadataOutputStream(OutputStream):
    """The stream of a checkpoint's metadata, which is what makes the checkpoint exist."""

    @abstractmethod
    def write_whole(self, parts: Sequence[Buffer], checksum: int) -> None:
        """Write all of the metadata, of bytes that do not change any more.

        Parameters
        ----------
        parts
            The bytes, in several places.
        checksum
            Their CRC-32.

        Raises
        ------
        CheckpointIOError
            If the stream is closed.
        """

    @abstractmethod
    def close_and_finalize_checkpoint(self) -> CompletedCheckpointStorageLocation:
        """Publish the metadata.

        Raises
        ------
        CheckpointExistsError
            If the checkpoint has metadata already.
        CheckpointIOError
            If the stream was closed, or the metadata could not be published.
        """


class CheckpointStreamFactory(ABC):
    """Opens streams of state for one checkpoint."""

    @abstractmethod
    def create_checkpoint_state_output_stream(
        self, scope: CheckpointedStateScope
    ) -> CheckpointStateOutputStream:
        """Open a stream; the caller finishes or closes it."""

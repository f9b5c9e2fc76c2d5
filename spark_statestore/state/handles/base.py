"""A handle to a stream of state."""

from __future__ import annotations

from abc import abstractmethod
from typing import BinaryIO

from spark_statestore.state.objects import StateObject

__all__ = ["StreamStateHandle"]


class StreamStateHandle(StateObject):
    """Where a stream of state lies, and how to read it.

    Attributes
    ----------
    checksum
        CRC-32 of the whole stream, None if it was not noted when the stream was written.
    """

    checksum: int | None = None

    @abstractmethod
    def open_input_stream(self) -> BinaryIO:
        """Open the state for reading, seekable, positioned at its start.

        Raises
        ------
        FileNotFoundError
            If the state is gone.
        """

    @abstractmethod
    def as_bytes_if_in_memory(self) -> bytes | None:
        """The state itself, if the handle holds it."""

    @property
    @abstractmethod
    def stream_state_handle_id(self) -> str:
        """Names the physical state: equal for handles to the same bytes in the same place."""

"""Handles to streams of state: the base classes, and state in memory."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import BinaryIO


class StateObject(ABC):
    """A piece of checkpointed state."""

    @property
    @abstractmethod
    def state_size(self) -> int:
        """Size in bytes, -1 if unknown."""


class StreamStateHandle(StateObject):
    """The location of a state stream, and access to it.

    It is equal to a handle of the same kind and physical state.

    Attributes
    ----------
    checksum
        CRC-32 of the whole stream, None if it was not computed when the stream was written.
    """

    checksum: int | None = None

    @abstractmethod
    def open_input_stream(self) -> BinaryIO:
        """Open the state for reading, positioned at its start.

        Raises
        ------
        FileNotFoundError
            If the state was removed.
        """

    def as_bytes_if_in_memory(self) -> bytes | None:
        """Return the state if the handle holds it, else None."""
        return None

    @property
    @abstractmethod
    def stream_state_handle_id(self) -> str:
        """Id of the physical state: equal for handles to the same bytes at the same location."""

    @abstractmethod
    def discard_state(self) -> None:
        """Remove the stored state; succeed if it is already removed.

        Raises
        ------
        OSError
            If it cannot be removed.
        """

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.stream_state_handle_id == other.stream_state_handle_id

    def __hash__(self) -> int:
        return hash(self.stream_state_handle_id)


@dataclass(eq=False)
class ByteStreamStateHandle(StreamStateHandle):
    """State in memory, which travels with the handle. The same name must mean the same bytes."""

    handle_name: str
    data: bytes = field(repr=False)
    checksum: int | None = None

    def __post_init__(self) -> None:
        if self.handle_name is None or self.data is None:
            raise TypeError("a ByteStreamStateHandle needs a name and data, got None")

    def open_input_stream(self) -> BinaryIO:
        return io.BytesIO(self.data)

    def as_bytes_if_in_memory(self) -> bytes:
        return self.data

    @property
    def stream_state_handle_id(self) -> str:
        return self.handle_name

    def discard_state(self) -> None:
        """Do nothing: the bytes are released with the handle."""

    @property
    def state_size(self) -> int:
        return len(self.data)

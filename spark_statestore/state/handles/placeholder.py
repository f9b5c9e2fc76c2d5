"""State that was sent before, and is not sent again."""

from __future__ import annotations

from typing import NoReturn

from spark_statestore.errors import IllegalStateError
from spark_statestore.state.handles.base import StreamStateHandle

__all__ = ["PlaceholderStreamStateHandle"]


class PlaceholderStreamStateHandle(StreamStateHandle):
    """Stands for a stream that an earlier checkpoint registered.

    Registering it with a `SharedStateRegistry` gives the real handle. Equal to any other
    placeholder for the same stream.

    Parameters
    ----------
    stream_state_handle_id
        Names the stream.
    size
        Its bytes, -1 if unknown.
    """

    def __init__(self, stream_state_handle_id: str, size: int = -1) -> None:
        if stream_state_handle_id is None:
            raise TypeError("a PlaceholderStreamStateHandle needs the id of a stream, got None")
        if size < -1:
            raise ValueError(f"the size of {stream_state_handle_id!r} is {size}, but it must be -1 or more")
        self._id = stream_state_handle_id
        self.size = size

    def open_input_stream(self) -> NoReturn:
        raise IllegalStateError(
            f"{self!r} cannot be read: it only names a stream that an earlier checkpoint holds. Register it with "
            "that checkpoint's SharedStateRegistry and read the handle that comes back."
        )

    def as_bytes_if_in_memory(self) -> None:
        return None

    @property
    def stream_state_handle_id(self) -> str:
        return self._id

    def discard_state(self) -> None:
        """Nothing to do: the stream is the registry's."""

    @property
    def state_size(self) -> int:
        return self.size

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PlaceholderStreamStateHandle):
            return NotImplemented
        return self._id == other._id

    def __hash__(self) -> int:
        return hash(self._id)

    def __repr__(self) -> str:
        return f"PlaceholderStreamStateHandle({self._id!r}, {self.size} bytes)"

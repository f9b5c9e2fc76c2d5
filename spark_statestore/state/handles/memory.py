"""State that the handle itself holds."""

from __future__ import annotations

import io
from typing import BinaryIO

from spark_statestore.state.handles.base import StreamStateHandle

__all__ = ["BoundedBytesIO", "ByteStreamStateHandle"]


class ByteStreamStateHandle(StreamStateHandle):
    """State in memory, which travels with the handle.

    As in Flink, handles are equal if their names are: the same name must mean the same bytes.

    Parameters
    ----------
    handle_name
        Names the state.
    data
        The state.
    checksum
        CRC-32 of `data`, if known.
    """

    def __init__(self, handle_name: str, data: bytes, checksum: int | None = None) -> None:
        if handle_name is None or data is None:
            raise TypeError("a ByteStreamStateHandle needs a name and data, got None")
        self.handle_name = handle_name
        self.data = data
        self.checksum = checksum

    def open_input_stream(self) -> BinaryIO:
        return BoundedBytesIO(self.data)

    def as_bytes_if_in_memory(self) -> bytes:
        return self.data

    @property
    def stream_state_handle_id(self) -> str:
        return self.handle_name

    def discard_state(self) -> None:
        """Nothing to do: the bytes go with the handle."""

    @property
    def state_size(self) -> int:
        return len(self.data)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ByteStreamStateHandle):
            return NotImplemented
        return self.handle_name == other.handle_name

    def __hash__(self) -> int:
        return hash(self.handle_name)

    def __repr__(self) -> str:
        return f"ByteStreamStateHandle(handle_name={self.handle_name!r}, data_bytes={len(self.data)})"


class BoundedBytesIO(io.BytesIO):
    """Refuses positions outside of the state, where BytesIO would allow them."""

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self.tell(), io.SEEK_END: self.getbuffer().nbytes}[whence]
        target = start + position
        if not 0 <= target <= self.getbuffer().nbytes:
            raise OSError(
                f"position {target} out of bounds: the state has {self.getbuffer().nbytes} bytes. Seek to a "
                "position from 0 to that."
            )
        return super().seek(target)

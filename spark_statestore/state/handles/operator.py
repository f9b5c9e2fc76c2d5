"""State of an operator: named states in one stream."""

from __future__ import annotations

import enum
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

from spark_statestore.state.handles.base import StreamStateHandle

__all__ = ["Mode", "OperatorStateHandle", "OperatorStreamStateHandle", "StateMetaInfo"]


class Mode(enum.IntEnum):
    """How a named state is spread over a new number of subtasks; stored by number."""

    SPLIT_DISTRIBUTE = 0
    UNION = 1
    BROADCAST = 2


@dataclass(frozen=True, slots=True)
class StateMetaInfo:
    """Where a named state lies in its stream.

    Attributes
    ----------
    offsets
        Where each of its parts starts: an element, or a record batch of changes.
    distribution_mode
        How it is spread when the number of subtasks changes.
    """

    offsets: tuple[int, ...]
    distribution_mode: Mode = Mode.SPLIT_DISTRIBUTE


class OperatorStateHandle(StreamStateHandle):
    """A handle to named states that share one stream."""

    @property
    @abstractmethod
    def state_name_to_partition_offsets(self) -> Mapping[str, StateMetaInfo]:
        """The named states, in the order in which they were written."""

    @property
    @abstractmethod
    def delegate_state_handle(self) -> StreamStateHandle:
        """The handle to the stream."""


class OperatorStreamStateHandle(OperatorStateHandle):
    """Named states and the handle to their stream.

    Parameters
    ----------
    state_name_to_partition_offsets
        The named states.
    delegate_state_handle
        The stream; opening, size and discarding are its.

    Notes
    -----
    The map is copied, where Flink shares it with whoever redistributes the state and changes it.
    """

    def __init__(
        self,
        *,
        state_name_to_partition_offsets: Mapping[str, StateMetaInfo],
        delegate_state_handle: StreamStateHandle,
    ) -> None:
        if delegate_state_handle is None:
            raise TypeError("an OperatorStreamStateHandle needs the handle to its stream, got None")
        self._states = dict(state_name_to_partition_offsets)
        self._delegate = delegate_state_handle
        self.checksum = delegate_state_handle.checksum

    @property
    def state_name_to_partition_offsets(self) -> Mapping[str, StateMetaInfo]:
        return self._states

    @property
    def delegate_state_handle(self) -> StreamStateHandle:
        return self._delegate

    def open_input_stream(self) -> BinaryIO:
        return self._delegate.open_input_stream()

    def as_bytes_if_in_memory(self) -> bytes | None:
        return self._delegate.as_bytes_if_in_memory()

    @property
    def stream_state_handle_id(self) -> str:
        return self._delegate.stream_state_handle_id

    def discard_state(self) -> None:
        self._delegate.discard_state()

    @property
    def state_size(self) -> int:
        return self._delegate.state_size

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OperatorStreamStateHandle):
            return NotImplemented
        return self._states == other._states and self._delegate == other._delegate

    def __hash__(self) -> int:
        return hash(self._delegate)

    def __repr__(self) -> str:
        return f"OperatorStreamStateHandle({list(self._states)}, {self._delegate!r})"

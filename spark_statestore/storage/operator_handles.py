"""Handles to operator state: named states in one stream."""

from __future__ import annotations

import enum
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

from spark_statestore.storage.stream_handles import StreamStateHandle


class Mode(enum.IntEnum):
    """The redistribution of a named state over a new number of subtasks; stored by number."""

    SPLIT_DISTRIBUTE = 0
    UNION = 1
    BROADCAST = 2


@dataclass(frozen=True, slots=True)
class StateMetaInfo:
    """The offsets of a named state in its stream, and its redistribution mode.

    Attributes
    ----------
    offsets
        Offset in bytes of each element or record batch of changes.
    distribution_mode
        The mode of redistribution when the number of subtasks changes.
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
        """The stream, to which opening, size and discarding are delegated."""


class OperatorStreamStateHandle(OperatorStateHandle):
    """A handle to named states in a stream.

    The map of states is copied, where Flink shares it with redistribution, which changes it.
    """

    def __init__(
        self,
        *,
        state_name_to_partition_offsets: Mapping[str, StateMetaInfo],
        delegate_state_handle: StreamStateHandle,
    ) -> None:
        if delegate_state_handle is None:
            raise TypeError("an OperatorStreamStateHandle needs the handle to its stream, got None")
        self._states: Mapping[str, StateMetaInfo] = dict(state_name_to_partition_offsets)
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
        fields = (self._states, self._delegate)
        return fields == (other._states, other._delegate)

    def __hash__(self) -> int:
        return hash(self._delegate)

    def __repr__(self) -> str:
        names = list(self._states)
        return f"OperatorStreamStateHandle({names}, {self._delegate!r})"

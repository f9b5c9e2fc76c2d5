"""Interfaces of operator state: the operator's view and its runtime's view."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, KeysView
from typing import TYPE_CHECKING, TypeVar

from spark_statestore.operator_state.snapshot_strategy import Snapshotable
from spark_statestore.storage.operator_handles import OperatorStateHandle

if TYPE_CHECKING:
    from spark_statestore.operator_state.broadcast_state import BroadcastState
    from spark_statestore.operator_state.descriptors import ListStateDescriptor, MapStateDescriptor
    from spark_statestore.operator_state.list_state import ListState

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class OperatorStateStore(ABC):
    """Provide an operator's states, by name.

    Asking for a state registers it; asking again gives the same object. A name identifies one
    state: one kind, one mode.
    """

    @abstractmethod
    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Return a list whose elements are split among the subtasks when their number changes.

        Raises
        ------
        IllegalStateError
            If the name belongs to another kind of state.
        StateMigrationError
            If the stored elements cannot be read with the descriptor's serializer.
        """

    @abstractmethod
    def get_union_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Return a list that each subtask gets whole on restore, the elements of all subtasks in one.

        Raises
        ------
        IllegalStateError
            If the name belongs to another kind of state.
        StateMigrationError
            If the stored elements cannot be read with the descriptor's serializer.
        """

    @abstractmethod
    def get_broadcast_state(self, descriptor: MapStateDescriptor[K, V]) -> BroadcastState[K, V]:
        """Return a map that is the same on every subtask; the operator must keep it so.

        Raises
        ------
        IllegalStateError
            If the name belongs to another kind of state.
        StateMigrationError
            If the stored entries cannot be read with the descriptor's serializers.
        """

    @property
    @abstractmethod
    def registered_state_names(self) -> KeysView[str]:
        """Names of the list states, restored ones too; a live view."""

    @property
    @abstractmethod
    def registered_broadcast_state_names(self) -> KeysView[str]:
        """Names of the broadcast states, restored ones too; a live view."""


class OperatorStateBackend(
    OperatorStateStore,
    Snapshotable[OperatorStateHandle, Collection[OperatorStateHandle | None] | None],
):
    """The state of one subtask of an operator: snapshot and restore."""

    @abstractmethod
    def dispose(self) -> None:
        """Release all state, and cancel the snapshots that are being written."""

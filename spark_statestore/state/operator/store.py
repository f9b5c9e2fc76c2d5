"""What an operator sees of its state, and what its runtime sees."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, KeysView
from typing import TYPE_CHECKING, TypeVar

from spark_statestore.state.handles.operator import OperatorStateHandle
from spark_statestore.state.snapshot.strategy import Snapshotable

if TYPE_CHECKING:
    from spark_statestore.state.operator.broadcast_state import BroadcastState
    from spark_statestore.state.operator.descriptors import ListStateDescriptor, MapStateDescriptor
    from spark_statestore.state.operator.list_state import ListState

__all__ = ["OperatorStateBackend", "OperatorStateStore"]

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class OperatorStateStore(ABC):
    """Gives an operator its states, by name.

    Asking for a state registers it; asking again gives the same object. A name stands for one
    state: one kind, one mode.
    """

    @abstractmethod
    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """A list whose elements are split among the subtasks when their number changes.

        Raises
        ------
        IllegalStateError
            If the name stands for another kind of state.
        StateMigrationError
            If the stored elements cannot be read with the descriptor's serializer.
        """

    @abstractmethod
    def get_union_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """A list that each subtask gets whole on restore, the elements of all subtasks in one.

        Raises
        ------
        IllegalStateError
            If the name stands for another kind of state.
        StateMigrationError
            If the stored elements cannot be read with the descriptor's serializer.
        """

    @abstractmethod
    def get_broadcast_state(self, descriptor: MapStateDescriptor[K, V]) -> BroadcastState[K, V]:
        """A map that is the same on every subtask, which the operator has to see to.

        Raises
        ------
        IllegalStateError
            If the name stands for another kind of state.
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
    OperatorStateStore, Snapshotable[OperatorStateHandle, Collection["OperatorStateHandle | None"]]
):
    """Keeps the state of one subtask of an operator, writes it and brings it back."""

    @abstractmethod
    def close(self) -> None:
        """Cancel running snapshots; state stays readable."""

    @abstractmethod
    def dispose(self) -> None:
        """Close, then let all state go."""

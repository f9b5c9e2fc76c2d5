"""Backend of operator state in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, KeysView
from typing import TYPE_CHECKING, Any, TypeVar

from spark_statestore.errors import IllegalStateError, StateMigrationError
from spark_statestore.operator_state.backend import OperatorStateBackend
from spark_statestore.operator_state.broadcast_state import BroadcastState, HeapBroadcastState
from spark_statestore.operator_state.content import RestoredBroadcast, RestoredList, StateInUse
from spark_statestore.operator_state.descriptors import ListStateDescriptor, MapStateDescriptor
from spark_statestore.operator_state.list_state import ListState, PartitionableListState
from spark_statestore.operator_state.restore import OperatorStateRestoreOperation
from spark_statestore.operator_state.serializers import Compatibility, SerializerSnapshot, StateSerializer
from spark_statestore.operator_state.snapshot import DefaultOperatorStateBackendSnapshotStrategy
from spark_statestore.operator_state.snapshot_strategy import CheckpointOptions, SnapshotFuture
from spark_statestore.storage.operator_handles import Mode, OperatorStateHandle

if TYPE_CHECKING:
    from spark_statestore.storage.streams import CheckpointStreamFactory

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class DefaultOperatorStateBackend(OperatorStateBackend):
    """Operator state in memory.

    For one thread at a time. Unlike in Flink, a name belongs to a list or to a broadcast state, never for
    both, and a state that was restored and never asked for is written to the next snapshot unchanged.

    Parameters
    ----------
    restored
        Handles to start from; None for a fresh start.
    """

    def __init__(self, restored: Collection[OperatorStateHandle | None] | None = None) -> None:
        self._lists: dict[str, PartitionableListState[Any] | RestoredList] = {}
        self._broadcasts: dict[str, HeapBroadcastState[Any, Any] | RestoredBroadcast] = {}
        self._strategy = DefaultOperatorStateBackendSnapshotStrategy(self._lists, self._broadcasts)
        self._pending: set[SnapshotFuture[OperatorStateHandle]] = set()
        self._is_frozen = False
        self._disposed = False
        self.restore(restored)

    # The operator's side

    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        return self._list(descriptor, Mode.SPLIT_DISTRIBUTE)

    def get_union_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        return self._list(descriptor, Mode.UNION)

    def get_broadcast_state(self, descriptor: MapStateDescriptor[K, V]) -> BroadcastState[K, V]:
        if not isinstance(descriptor, MapStateDescriptor):
            raise TypeError(f"a broadcast state needs a MapStateDescriptor, got {descriptor!r}")
        self._require_state()
        name = descriptor.name
        if name in self._lists:
            raise _conflict(name, self._lists[name].mode, Mode.BROADCAST)
        state = self._broadcasts.get(name)
        if isinstance(state, HeapBroadcastState):
            key, value = state.descriptor.serializer_snapshots
            _require_same(descriptor.key_serializer, key, f"each key of broadcast state {name!r}")
            _require_same(descriptor.value_serializer, value, f"each value of broadcast state {name!r}")
            return state
        key_serializer, value_serializer = descriptor.key_serializer, descriptor.value_serializer
        entries = state.decode(key_serializer, value_serializer) if state is not None else None
        accessed = HeapBroadcastState(descriptor, entries)
        if self._is_frozen:
            accessed.freeze()
        self._broadcasts[name] = accessed
        return accessed

    @property
    def registered_state_names(self) -> KeysView[str]:
        return self._lists.keys()

    @property
    def registered_broadcast_state_names(self) -> KeysView[str]:
        return self._broadcasts.keys()

    # The runtime's side

    def snapshot(
        self,
        checkpoint_id: int,
        timestamp: int,
        stream_factory: CheckpointStreamFactory,
        options: CheckpointOptions,
    ) -> SnapshotFuture[OperatorStateHandle]:
        self._require_state()
        future = self._strategy.snapshot(checkpoint_id, timestamp, stream_factory, options)
        self._pending.add(future)
        future.add_done_callback(lambda _: self._pending.discard(future))
        return future

    def freeze(self) -> None:
        """Refuse changes of all states from now on, those that are accessed later included."""
        self._require_state()
        self._is_frozen = True
        for state in self._states_in_use():
            state.freeze()

    def thaw(self) -> None:
        """Allow changes again."""
        self._is_frozen = False
        for state in self._states_in_use():
            state.thaw()

    def require_unchanged(self) -> None:
        """Raise `IllegalStateError` if a value was changed in place since the states were frozen."""
        for state in self._states_in_use():
            state.require_unchanged()

    def restore(self, state: Collection[OperatorStateHandle | None] | None) -> None:
        self._require_state()
        if state is None:
            return
        if self._lists or self._broadcasts:
            raise IllegalStateError(
                f"this backend has the states {[*self._lists, *self._broadcasts]} already, and restored "
                "state would mix with them. Restore into a new backend, before any state is asked for."
            )
        operation = OperatorStateRestoreOperation()
        operation.restore(state)
        self._lists.update(operation.lists)
        self._broadcasts.update(operation.broadcasts)

    def dispose(self) -> None:
        self._disposed = True
        for future in list(self._pending):
            future.cancel()
        self._lists.clear()
        self._broadcasts.clear()

    def __repr__(self) -> str:
        return f"DefaultOperatorStateBackend(lists={list(self._lists)}, broadcasts={list(self._broadcasts)})"

    def _list(self, descriptor: ListStateDescriptor[T], mode: Mode) -> PartitionableListState[T]:
        if not isinstance(descriptor, ListStateDescriptor):
            raise TypeError(f"a list state needs a ListStateDescriptor, got {descriptor!r}")
        self._require_state()
        name = descriptor.name
        if name in self._broadcasts:
            raise _conflict(name, Mode.BROADCAST, mode)
        state = self._lists.get(name)
        if state is not None and state.mode is not mode:
            raise _conflict(name, state.mode, mode)
        if isinstance(state, PartitionableListState):
            used = state.descriptor.serializer_snapshot
            _require_same(descriptor.serializer, used, f"each element of list state {name!r}")
            return state
        elements = state.decode(descriptor.serializer) if state is not None else ()
        accessed = PartitionableListState(descriptor, mode, elements)
        if self._is_frozen:
            accessed.freeze()
        self._lists[name] = accessed
        return accessed

    def _states_in_use(self) -> Iterator[StateInUse[Any]]:
        for state in (*self._lists.values(), *self._broadcasts.values()):
            if isinstance(state, StateInUse):
                yield state

    def _require_state(self) -> None:
        if self._disposed:
            raise IllegalStateError(
                "this backend was disposed of, so it has no state any more. Make a new one, and restore the "
                "last checkpoint into it."
            )


def _conflict(name: str, before: Mode, now: Mode) -> IllegalStateError:
    return IllegalStateError(
        f"state {name!r} is {before.name} and cannot be used as {now.name}: a name identifies one state. Ask "
        "for it as before, or choose another name for the new state."
    )


def _require_same(serializer: StateSerializer[Any], used: SerializerSnapshot, subject: str) -> None:
    if serializer.check_compatibility(used) is not Compatibility.COMPATIBLE_AS_IS:
        raise StateMigrationError(
            f"{subject} is stored by {dict(used)} since it was first asked for, and now by "
            f"{dict(serializer.snapshot)}. Use one descriptor throughout a run; to change it, start from a "
            "checkpoint with the new one."
        )

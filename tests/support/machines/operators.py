"""State machine of operator state against plain lists and dicts: change, snapshot, restore, rescale.

Snapshots are written later than they are taken, with changes between.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spark_statestore.operator_state import (
    DefaultOperatorStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
    RoundRobinOperatorStateRepartitioner,
)
from spark_statestore.operator_state.snapshot_strategy import CheckpointOptions, SnapshotFuture
from spark_statestore.storage import CheckpointStorageLocationReference
from spark_statestore.storage.memory_streams import MemCheckpointStreamFactory
from spark_statestore.storage.operator_handles import OperatorStateHandle
from spark_statestore.storage.streams import CheckpointStreamFactory

__all__ = ["OperatorStateMachine"]

Lists = dict[str, list[Any]]
Maps = dict[str, dict[str, list[int]]]

_SPLIT = ("a-split", "z-split")
_UNION = ("m-union",)
_MAPS = ("rules",)

_OPTIONS = CheckpointOptions(CheckpointStorageLocationReference.default())

_ELEMENT = pa.struct([("id", pa.int64()), ("tags", pa.list_(pa.utf8()))])

_splits = st.sampled_from(_SPLIT)
_lists = st.sampled_from(_SPLIT + _UNION)
_maps = st.sampled_from(_MAPS)
_keys = st.sampled_from(["", "k", "ü"])
_some = st.integers(0, 4)
_indexes = st.integers(0, 99)
_parallelism = st.integers(1, 5)
_via = st.none() | _parallelism
_same_or_other = st.none() | _parallelism


@dataclass
class _Subtask:
    """A subtask, and the expected elements of its lists; lists it has never accessed are absent."""

    backend: DefaultOperatorStateBackend
    lists: Lists = field(default_factory=dict)
    accessed: set[str] = field(default_factory=set)


@dataclass
class _Checkpoint:
    """A checkpoint: the model's state, and the snapshot of each subtask that reports."""

    lists: list[Lists]
    maps: Maps
    names: set[str]
    futures: list[SnapshotFuture[OperatorStateHandle] | None]

    @property
    def subtask_handles(self) -> list[OperatorStateHandle | None]:
        """Return the handle of each subtask that reported, once the snapshots are written."""
        return [None if f is None else f.result().job_manager_owned_snapshot for f in self.futures]


class OperatorStateMachine(RuleBasedStateMachine):
    """Several subtasks of an operator, and a model of them in plain lists and dicts.

    No element may be lost or duplicated, lists keep their order within a run, union lists have the
    order of the subtasks, broadcast maps are the same everywhere, and a name is never forgotten. Some
    states are restored and written again without being accessed, some with another type than before.
    """

    def __init__(self) -> None:
        super().__init__()
        self.subtasks: list[_Subtask] = []
        self.maps: Maps = {}
        self.completed: list[_Checkpoint] = []
        self.pending: list[_Checkpoint] = []
        self.wide = False
        self.created = 0

    def stream_factory(self) -> CheckpointStreamFactory:
        """Return the factory for snapshots; called for every checkpoint."""
        return MemCheckpointStreamFactory(1 << 20)

    def stored_streams(self) -> Iterable[str] | None:
        """Return the `stream_state_handle_id` of all stored streams, None if they cannot be listed."""
        return None

    # States

    def list_of(self, subtask: _Subtask, name: str) -> Any:
        """Access a list of a subtask, as its operator does."""
        subtask.accessed.add(name)
        subtask.lists.setdefault(name, [])
        if name in _SPLIT:
            return subtask.backend.get_list_state(ListStateDescriptor(name, _ELEMENT))
        type_ = pa.int64() if self.wide else pa.int32()
        return subtask.backend.get_union_list_state(ListStateDescriptor(name, type_))

    def map_of(self, subtask: _Subtask, name: str) -> Any:
        subtask.accessed.add(name)
        values = pa.list_(pa.int64() if self.wide else pa.int32())
        return subtask.backend.get_broadcast_state(MapStateDescriptor(name, pa.utf8(), values))

    def new_elements(self, name: str, count: int) -> list[Any]:
        """Return elements that were never used before."""
        numbers = range(self.created, self.created + count)
        self.created += count
        return [{"id": n, "tags": ["new"]} if name in _SPLIT else n for n in numbers]

    def subtask(self, index: int) -> _Subtask:
        return self.subtasks[index % len(self.subtasks)]

    # Rules

    @initialize(parallelism=st.integers(1, 4))
    def start(self, parallelism: int) -> None:
        self.subtasks = [_Subtask(DefaultOperatorStateBackend()) for _ in range(parallelism)]

    @rule(index=_indexes, name=_lists, count=_some)
    def add(self, index: int, name: str, count: int) -> None:
        subtask, elements = self.subtask(index), self.new_elements(name, count)
        state = self.list_of(subtask, name)
        subtask.lists[name] += copy.deepcopy(elements)
        for element in elements[:1]:
            state.add(element)
        state.add_all(elements[1:])

    @rule(index=_indexes, name=_lists, count=_some)
    def update(self, index: int, name: str, count: int) -> None:
        subtask, elements = self.subtask(index), self.new_elements(name, count)
        self.list_of(subtask, name).update(elements)
        subtask.lists[name] = copy.deepcopy(elements)

    @rule(index=_indexes, name=_lists)
    def clear(self, index: int, name: str) -> None:
        subtask = self.subtask(index)
        self.list_of(subtask, name).clear()
        subtask.lists[name] = []

    @rule(name=_splits)
    def change_elements(self, name: str) -> None:
        """Change elements in place, on all subtasks that use them."""
        for subtask in [s for s in self.subtasks if name in s.accessed]:
            for elements in (self.list_of(subtask, name).get(), subtask.lists[name]):
                for element in elements[::2]:
                    element["tags"].append("changed")

    @rule(name=_maps, key=_keys, value=st.lists(st.integers(0, 9), max_size=2))
    def put(self, name: str, key: str, value: list[int]) -> None:
        for subtask in self.subtasks:
            self.map_of(subtask, name).put(key, list(value))
        self.maps.setdefault(name, {})[key] = list(value)

    @rule(name=_maps)
    def change_values(self, name: str) -> None:
        for entries in (
            *(self.map_of(s, name).items() for s in self.subtasks),
            self.maps.get(name, {}).items(),
        ):
            for _, value in entries:
                value.append(7)

    @rule(name=_maps, key=st.none() | _keys)
    def remove(self, name: str, key: str | None) -> None:
        for subtask in self.subtasks:
            state = self.map_of(subtask, name)
            state.clear() if key is None else state.remove(key)
        self.maps[name] = {k: v for k, v in self.maps.get(name, {}).items() if key not in (None, k)}

    @rule(index=_indexes, name=_lists | _maps)
    def look(self, index: int, name: str) -> None:
        """Access a state and compare it; from then on, it is compared after every step."""
        subtask = self.subtask(index)
        if name in _MAPS:
            self.maps.setdefault(name, {})
            for each in self.subtasks:
                self.map_of(each, name)
        else:
            self.list_of(subtask, name)

    @rule(finished=st.sets(st.integers(1, 3)))
    def snapshot(self, finished: set[int]) -> None:
        """Take a checkpoint; some empty subtasks have finished and report nothing."""
        factory = self.stream_factory()
        reporting = [
            n not in finished or any(subtask.lists.values()) for n, subtask in enumerate(self.subtasks)
        ]
        checkpoint = _Checkpoint(
            [copy.deepcopy(subtask.lists) for subtask in self.subtasks],
            copy.deepcopy(self.maps),
            {name for subtask, there in zip(self.subtasks, reporting, strict=True) if there
             for name in _names(subtask.backend)},
            [subtask.backend.snapshot(1, 0, factory, _OPTIONS) if there else None
             for subtask, there in zip(self.subtasks, reporting, strict=True)],
        )  # fmt: skip
        self.pending.append(checkpoint)

    @precondition(lambda self: self.pending)
    @rule(index=_indexes, parallelism=_same_or_other, via=_via)
    def complete(self, index: int, parallelism: int | None, via: int | None) -> None:
        """Write the snapshots of a checkpoint and restore it elsewhere too."""
        checkpoint = self.pending.pop(index % len(self.pending))
        for future in checkpoint.futures:
            if future is not None:
                future.run()
        self.completed.append(checkpoint)
        for number, subtask in enumerate(restored := self.restored(checkpoint, parallelism, via)):
            for name in (*_SPLIT, *_UNION, *_MAPS):
                self.compare(f"{number} of {len(restored)}", subtask, name, checkpoint.maps)

    @precondition(lambda self: self.pending)
    @rule(index=_indexes, written_count=_some)
    def cancel(self, index: int, written_count: int) -> None:
        """Cancel a checkpoint of which some subtasks have written their snapshots."""
        futures = self.pending.pop(index % len(self.pending)).futures
        for number, future in enumerate(f for f in futures if f is not None):
            if number < written_count:
                future.run()
            assert future.cancel() == (number >= written_count)
            if number < written_count:
                future.result().discard_state()
            else:
                self.require_cancelled(future)

    @staticmethod
    def require_cancelled(future: SnapshotFuture[OperatorStateHandle]) -> None:
        future.run()
        assert future.cancelled()
        assert future.done()
        with pytest.raises(CancelledError):
            future.result()

    @precondition(lambda self: len(self.completed) > 1)
    @rule()
    def subsume(self) -> None:
        for handle in self.completed.pop(0).subtask_handles:
            if handle is not None:
                handle.discard_state()

    @rule(index=_indexes, parallelism=_same_or_other, via=_via, widen=st.booleans(), tidy=st.booleans())
    def restart(self, index: int, parallelism: int | None, via: int | None, widen: bool, tidy: bool) -> None:
        """Lose all subtasks, and restore a complete checkpoint with any number of them."""
        for number, subtask in enumerate(self.subtasks if tidy else ()):
            subtask.backend.dispose()
            for checkpoint in self.pending:
                if (future := checkpoint.futures[number]) is not None:
                    self.require_cancelled(future)
        self.pending.clear()
        self.wide = self.wide or widen
        if self.completed:
            checkpoint = self.completed[index % len(self.completed)]
            self.subtasks = self.restored(checkpoint, parallelism, via)
            self.maps = copy.deepcopy(checkpoint.maps)
        else:
            self.maps = {}
            self.start(parallelism or len(self.subtasks))

    def restored(self, checkpoint: _Checkpoint, parallelism: int | None, via: int | None) -> list[_Subtask]:
        """Return the subtasks that a checkpoint restores; `via` is an intermediate parallelism."""
        handles: Any = [[] if handle is None else [handle] for handle in checkpoint.subtask_handles]
        lists = _united(checkpoint.lists)
        last = parallelism or len(lists)
        for number in (last,) if via is None else (via, last):
            handles = RoundRobinOperatorStateRepartitioner().repartition_state(handles, len(handles), number)
            lists = _dealt(lists, number)
        subtasks = [
            _Subtask(DefaultOperatorStateBackend(h), states) for h, states in zip(handles, lists, strict=True)
        ]
        lost = checkpoint.names - {name for subtask in subtasks for name in _names(subtask.backend)}
        assert not lost, f"states {lost} are unknown after a restore to {last} subtasks, via {via}"
        return subtasks

    # What must hold

    @invariant()
    def states_in_use_are_as_they_should_be(self) -> None:
        """Compare the accessed states; the rest stays as it was restored."""
        for number, subtask in enumerate(self.subtasks):
            for name in subtask.accessed:
                self.compare(number, subtask, name, self.maps)

    @invariant()
    def the_storage_has_what_checkpoints_need_and_nothing_else(self) -> None:
        """Compare the streams in storage with the handles, if the storage can list them."""
        stored = self.stored_streams()
        if stored is not None:
            needed = {
                h.stream_state_handle_id for c in self.completed for h in c.subtask_handles if h is not None
            }
            assert set(stored) == needed, f"the storage has {stored}, and {needed} are needed"

    def compare(self, label: object, subtask: _Subtask, name: str, maps: Maps) -> None:
        got: Any
        expected: Any
        if name in _MAPS:
            got, expected = dict(self.map_of(subtask, name).items()), maps.get(name, {})
        else:
            got = self.list_of(subtask, name).get()
            expected = subtask.lists[name]
        assert got == expected, f"{name} of subtask {label} is {got}, and should be {expected}"

    def teardown(self) -> None:
        for number, subtask in enumerate(self.subtasks):
            for name in (*_SPLIT, *_UNION, *_MAPS):
                self.compare(number, subtask, name, self.maps)


def _names(backend: DefaultOperatorStateBackend) -> set[str]:
    return {*backend.registered_state_names, *backend.registered_broadcast_state_names}


def _united(old: list[Lists]) -> list[Lists]:
    """Return the lists, with each union list whole on every subtask."""
    union: Lists = {name: [e for lists in old for e in lists.get(name, [])] for name in _UNION}
    return [copy.deepcopy(lists | union) for lists in old]


def _dealt(old: list[Lists], parallelism: int) -> list[Lists]:
    """Return the expected lists of each new subtask, element by element."""
    if len(old) == parallelism:
        return old
    new: list[Lists] = [{name: list(old[0][name]) for name in _UNION} for _ in range(parallelism)]
    turn = 0
    for name in sorted(_SPLIT):
        elements = [element for lists in old for element in lists.get(name, [])]
        longer = len(elements) % parallelism
        for number in range(parallelism):
            remaining = parallelism - number
            size = -(-len(elements) // remaining)
            new[(turn + number) % parallelism][name] = elements[:size]
            del elements[:size]
        turn = (turn + longer) % parallelism
    return new

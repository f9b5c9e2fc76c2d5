"""Operator state against plain lists and dicts: changed, written, cancelled, lost, restored, rescaled."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spark_statestore.checkpoint.streams import CheckpointStreamFactory, MemCheckpointStreamFactory
from spark_statestore.state.handles import OperatorStateHandle
from spark_statestore.state.operator import (
    DefaultOperatorStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
    RoundRobinOperatorStateRepartitioner,
)
from spark_statestore.state.snapshot import SnapshotFuture, SnapshotResult

__all__ = ["OperatorStateMachine"]

Lists = dict[str, list[Any]]
Maps = dict[str, dict[str, list[int]]]

_SPLIT = ("a-split", "z-split")
_UNION = ("m-union",)
_MAPS = ("rules",)

_ELEMENT = pa.struct([("id", pa.int64()), ("tags", pa.list_(pa.utf8()))])

_splits = st.sampled_from(_SPLIT)
_lists = st.sampled_from(_SPLIT + _UNION)
_maps = st.sampled_from(_MAPS)
_keys = st.sampled_from(["", "k", "ü"])
_some = st.integers(0, 4)
_which = st.integers(0, 99)
_parallelism = st.integers(1, 5)
_via = st.none() | _parallelism
_same_or_other = st.none() | _parallelism


@dataclass
class _Subtask:
    """A subtask, and what should be in its lists; a list that was never seen there is not."""

    backend: DefaultOperatorStateBackend
    lists: Lists = field(default_factory=dict)
    accessed: set[str] = field(default_factory=set)


@dataclass
class _Checkpoint:
    """A checkpoint, complete or not: what was there when it was taken, and how it is written."""

    lists: list[Lists]
    maps: Maps
    names: set[str]
    futures: list[SnapshotFuture[SnapshotResult[OperatorStateHandle]] | None]

    @property
    def complete(self) -> bool:
        return all(future is None or future.done() for future in self.futures)

    @property
    def written(self) -> list[OperatorStateHandle | None]:
        """The handle of each subtask, as far as they are there."""
        return [
            future.result().job_manager_owned if future is not None and future.done() else None
            for future in self.futures
        ]


class OperatorStateMachine(RuleBasedStateMachine):
    """Several subtasks of an operator, and a model of them in plain lists and dicts.

    No element may be lost or doubled, lists keep their order within a run, union lists have the
    order of the subtasks, broadcast maps are the same everywhere, a name is never forgotten, and a
    cancelled checkpoint leaves nothing. Some states are restored and written again without anybody
    asking for them, some with another type than before.

    Subclass it with your storage, and run it as any other machine of Hypothesis::

        class OnMyStorage(OperatorStateMachine):
            def stream_factory(self) -> CheckpointStreamFactory:
                return FsCheckpointStreamFactory(MyFileSystem(), "/chk", "/shared", 0, 0)


        TestOnMyStorage = OnMyStorage.TestCase
    """

    def __init__(self) -> None:
        super().__init__()
        self.subtasks: list[_Subtask] = []
        self.maps: Maps = {}
        self.pending: list[_Checkpoint] = []
        self.completed: list[_Checkpoint] = []
        self.wide = False
        self.created = 0

    def stream_factory(self) -> CheckpointStreamFactory:
        """Where snapshots go; called for every checkpoint."""
        return MemCheckpointStreamFactory(1 << 20)

    def stored_streams(self) -> Iterable[str] | None:
        """The `stream_state_handle_id` of every stream that the storage has, None if it cannot tell."""
        return None

    # States

    def list_of(self, subtask: _Subtask, name: str) -> Any:
        """Ask a subtask for a list, as its operator does."""
        subtask.accessed.add(name)
        subtask.lists.setdefault(name, [])
        if name in _SPLIT:
            return subtask.backend.get_list_state(ListStateDescriptor(name, _ELEMENT))
        type_ = pa.int64() if self.wide else pa.int32()
        return subtask.backend.get_union_list_state(ListStateDescriptor(name, type_))

    def map_of(self, subtask: _Subtask, name: str) -> Any:
        """Ask a subtask for a map."""
        subtask.accessed.add(name)
        values = pa.list_(pa.int64() if self.wide else pa.int32())
        return subtask.backend.get_broadcast_state(MapStateDescriptor(name, pa.utf8(), values))

    def new_elements(self, name: str, count: int) -> list[Any]:
        """Elements that never were before."""
        numbers = range(self.created, self.created + count)
        self.created += count
        return [{"id": n, "tags": ["new"]} if name in _SPLIT else n for n in numbers]

    def subtask(self, which: int) -> _Subtask:
        """Any subtask."""
        return self.subtasks[which % len(self.subtasks)]

    # Rules

    @initialize(parallelism=st.integers(1, 4))
    def start(self, parallelism: int) -> None:
        """Start without state."""
        self.subtasks = [_Subtask(DefaultOperatorStateBackend()) for _ in range(parallelism)]

    @rule(which=_which, name=_lists, count=_some)
    def add(self, which: int, name: str, count: int) -> None:
        """Append elements."""
        subtask, elements = self.subtask(which), self.new_elements(name, count)
        state = self.list_of(subtask, name)
        subtask.lists[name] += copy.deepcopy(elements)
        for element in elements[:1]:
            state.add(element)
        state.add_all(elements[1:])

    @rule(which=_which, name=_lists, count=_some)
    def update(self, which: int, name: str, count: int) -> None:
        """Replace a list's elements."""
        subtask, elements = self.subtask(which), self.new_elements(name, count)
        self.list_of(subtask, name).update(elements)
        subtask.lists[name] = copy.deepcopy(elements)

    @rule(which=_which, name=_lists)
    def clear(self, which: int, name: str) -> None:
        """Clear a list."""
        subtask = self.subtask(which)
        self.list_of(subtask, name).clear()
        subtask.lists[name] = []

    @rule(name=_splits)
    def change_elements(self, name: str) -> None:
        """Change elements where they are, on all subtasks that use them."""
        for subtask in [s for s in self.subtasks if name in s.accessed]:
            for elements in (self.list_of(subtask, name).get(), subtask.lists[name]):
                for element in elements[::2]:
                    element["tags"].append("changed")

    @rule(name=_maps, key=_keys, value=st.lists(st.integers(0, 9), max_size=2))
    def put(self, name: str, key: str, value: list[int]) -> None:
        """Put an entry into a map, on all subtasks."""
        for subtask in self.subtasks:
            self.map_of(subtask, name).put(key, list(value))
        self.maps.setdefault(name, {})[key] = list(value)

    @rule(name=_maps)
    def change_values(self, name: str) -> None:
        """Change a map's values where they are, on all subtasks."""
        for entries in (
            *(self.map_of(s, name).items() for s in self.subtasks),
            self.maps.get(name, {}).items(),
        ):
            for _, value in entries:
                value.append(7)

    @rule(name=_maps, key=st.none() | _keys)
    def remove(self, name: str, key: str | None) -> None:
        """Remove one key of a map or all, on all subtasks."""
        for subtask in self.subtasks:
            state = self.map_of(subtask, name)
            state.clear() if key is None else state.remove(key)
        self.maps[name] = {k: v for k, v in self.maps.get(name, {}).items() if key not in (None, k)}

    @rule(which=_which, name=_lists | _maps)
    def look(self, which: int, name: str) -> None:
        """Ask for a state and compare it; from then on, it is compared after every step."""
        subtask = self.subtask(which)
        if name in _MAPS:
            self.maps.setdefault(name, {})
            for each in self.subtasks:
                self.map_of(each, name)
        else:
            self.list_of(subtask, name)

    @precondition(lambda self: len(self.pending) < 3)
    @rule(how=st.sampled_from(["now", "after changes", "later", "cancelled"]),
          finished=st.sets(st.integers(1, 3)), parallelism=_same_or_other, via=_via)  # fmt: skip
    def snapshot(self, how: str, finished: set[int], parallelism: int | None, via: int | None) -> None:
        """Take a checkpoint. Some subtasks without elements have finished and report nothing."""
        factory = self.stream_factory()
        reporting = [
            n not in finished or any(subtask.lists.values()) for n, subtask in enumerate(self.subtasks)
        ]
        checkpoint = _Checkpoint(
            [copy.deepcopy(subtask.lists) for subtask in self.subtasks],
            copy.deepcopy(self.maps),
            {name for subtask, there in zip(self.subtasks, reporting, strict=True) if there
             for name in _names(subtask.backend)},
            [subtask.backend.snapshot(1, 0, factory) if there else None
             for subtask, there in zip(self.subtasks, reporting, strict=True)],
        )  # fmt: skip
        self.pending.append(checkpoint)
        if how == "after changes":
            for name in _SPLIT:
                self.change_elements(name)
            for name in self.maps:
                self.change_values(name)
        if how in ("now", "after changes"):
            self.write(-1, 0, len(self.subtasks), parallelism, via)
        elif how == "cancelled":
            self.cancel(-1)

    @precondition(lambda self: self.pending)
    @rule(which=_which, first=_which, count=st.sampled_from([1, 2, 5]), parallelism=_same_or_other, via=_via)
    def write(self, which: int, first: int, count: int, parallelism: int | None, via: int | None) -> None:
        """Let subtasks write their part of a checkpoint; once it is complete, restore it elsewhere too."""
        checkpoint = self.pending[which % len(self.pending)]
        waiting = [f for f in checkpoint.futures if f is not None and not f.done()]
        for number in range(min(count, len(waiting))):
            waiting[(first + number) % len(waiting)].run()
        if checkpoint.complete:
            self.pending.remove(checkpoint)
            self.completed.append(checkpoint)
            for number, subtask in enumerate(restored := self.restored(checkpoint, parallelism, via)):
                for name in (*_SPLIT, *_UNION, *_MAPS):
                    self.compare(f"{number} of {len(restored)}", subtask, name, checkpoint.maps)

    @precondition(lambda self: self.pending)
    @rule(which=_which)
    def cancel(self, which: int) -> None:
        """Give a checkpoint up, of which some parts may be written."""
        checkpoint = self.pending.pop(which % len(self.pending))
        for future in checkpoint.futures:
            if future is not None and future.cancel():
                future.run()
                try:
                    future.result(0)
                except CancelledError:
                    continue
                raise AssertionError(f"{future!r} was cancelled and has a result")
            if future is not None:
                future.result().discard_state()

    @precondition(lambda self: len(self.completed) > 1)
    @rule()
    def subsume(self) -> None:
        """Discard the oldest checkpoint."""
        for handle in self.completed.pop(0).written:
            if handle is not None:
                handle.discard_state()

    @rule(which=_which, parallelism=_same_or_other, via=_via, widen=st.booleans(), tidy=st.booleans())
    def restart(self, which: int, parallelism: int | None, via: int | None, widen: bool, tidy: bool) -> None:
        """Lose all subtasks, and restore a complete checkpoint with any number of them."""
        for subtask in self.subtasks:
            if tidy:
                subtask.backend.dispose()
        while self.pending:
            self.cancel(0)
        self.wide = self.wide or widen
        if self.completed:
            checkpoint = self.completed[which % len(self.completed)]
            self.subtasks = self.restored(checkpoint, parallelism, via)
            self.maps = copy.deepcopy(checkpoint.maps)
        else:
            self.maps = {}
            self.start(parallelism or len(self.subtasks))

    def restored(self, checkpoint: _Checkpoint, parallelism: int | None, via: int | None) -> list[_Subtask]:
        """The subtasks that a checkpoint gives; `via` is a number of them that comes to nothing before."""
        handles: Any = [[] if handle is None else [handle] for handle in checkpoint.written]
        lists = _united(checkpoint.lists)
        last = parallelism or len(lists)
        for number in (last,) if via is None else (via, last):
            handles = RoundRobinOperatorStateRepartitioner().repartition_state(handles, len(handles), number)
            lists = _dealt(lists, number)
        subtasks = [
            _Subtask(DefaultOperatorStateBackend(h), mine) for h, mine in zip(handles, lists, strict=True)
        ]
        lost = checkpoint.names - {name for subtask in subtasks for name in _names(subtask.backend)}
        _require(not lost, f"states {lost} are unknown after a restore to {last} subtasks, via {via}")
        return subtasks

    # What must hold

    @invariant()
    def states_in_use_are_as_they_should_be(self) -> None:
        """Compare what was asked for; the rest stays as it was restored."""
        for number, subtask in enumerate(self.subtasks):
            for name in subtask.accessed:
                self.compare(number, subtask, name, self.maps)

    @invariant()
    def the_storage_has_what_checkpoints_need_and_nothing_else(self) -> None:
        """Compare the streams in storage with the handles, if the storage can tell."""
        stored = self.stored_streams()
        if stored is not None:
            checkpoints = self.pending + self.completed
            needed = {h.stream_state_handle_id for c in checkpoints for h in c.written if h is not None}
            _require(set(stored) == needed, f"the storage has {stored}, and {needed} are needed")

    def compare(self, which: object, subtask: _Subtask, name: str, maps: Maps) -> None:
        """Compare a state of a subtask with the model."""
        got: Any
        expected: Any
        if name in _MAPS:
            got, expected = dict(self.map_of(subtask, name).items()), maps.get(name, {})
        else:
            got = self.list_of(subtask, name).get()
            expected = subtask.lists[name]
        _require(got == expected, f"{name} of subtask {which} is {got}, and should be {expected}")

    def teardown(self) -> None:
        """Compare everything."""
        for number, subtask in enumerate(self.subtasks):
            for name in (*_SPLIT, *_UNION, *_MAPS):
                self.compare(number, subtask, name, self.maps)


def _names(backend: DefaultOperatorStateBackend) -> set[str]:
    return {*backend.registered_state_names, *backend.registered_broadcast_state_names}


def _united(old: list[Lists]) -> list[Lists]:
    """The lists, with each union list whole everywhere."""
    union: Lists = {name: [e for lists in old for e in lists.get(name, [])] for name in _UNION}
    return [copy.deepcopy(lists | union) for lists in old]


def _dealt(old: list[Lists], parallelism: int) -> list[Lists]:
    """What each new subtask should have, element by element."""
    if len(old) == parallelism:
        return old
    new: list[Lists] = [{name: list(old[0][name]) for name in _UNION} for _ in range(parallelism)]
    turn = 0
    for name in sorted(_SPLIT):
        elements = [element for lists in old for element in lists.get(name, [])]
        longer = len(elements) % parallelism
        for number in range(parallelism):
            left = parallelism - number
            size = -(-len(elements) // left)
            new[(turn + number) % parallelism][name] = elements[:size]
            del elements[:size]
        turn = (turn + longer) % parallelism
    return new


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(message)

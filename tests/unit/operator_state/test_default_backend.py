"""Registration, restore and disposal of states, and all of them against plain lists and dicts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from spark_statestore.errors import IllegalStateError, StateMigrationError
from spark_statestore.files import LocalFileSystem
from spark_statestore.operator_state import (
    BytesSerializer,
    DefaultOperatorStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
)
from spark_statestore.storage.fs_streams import FsCheckpointStreamFactory
from spark_statestore.storage.streams import CheckpointStreamFactory
from tests.support.effort import EFFORT
from tests.support.machines.operators import OperatorStateMachine
from tests.unit.operator_state.backends import (
    FLAGS,
    MEMORY,
    NUMBERS,
    OPTIONS,
    UNION,
    Point,
    PointSerializer,
    backend_with,
    snapshot_of,
)

USES = {
    "SPLIT_DISTRIBUTE": lambda b: b.get_list_state(ListStateDescriptor("x", pa.int64())),
    "UNION": lambda b: b.get_union_list_state(ListStateDescriptor("x", pa.int64())),
    "BROADCAST": lambda b: b.get_broadcast_state(MapStateDescriptor("x", pa.int64(), pa.int64())),
}


@pytest.mark.parametrize("restored", [False, True], ids=["registered", "restored"])
@pytest.mark.parametrize("first", USES)
@pytest.mark.parametrize("second", USES)
def test_backend_refuses_a_name_of_another_kind_of_state(first: str, second: str, restored: bool) -> None:
    backend = DefaultOperatorStateBackend()
    state = USES[first](backend)
    if restored:
        backend = DefaultOperatorStateBackend([snapshot_of(backend)])
    if first == second:
        assert restored or USES[second](backend) is state
        return
    with pytest.raises(IllegalStateError, match=f"'x' is {first} and cannot be used as {second}"):
        USES[second](backend)
    USES[first](backend)


@pytest.mark.parametrize("wrong", [None, "numbers", FLAGS, NUMBERS])
def test_backend_refuses_a_descriptor_of_another_kind(wrong: Any) -> None:
    backend = DefaultOperatorStateBackend()
    for get, right in (
        (backend.get_list_state, NUMBERS),
        (backend.get_union_list_state, NUMBERS),
        (backend.get_broadcast_state, FLAGS),
    ):
        if wrong is not right:
            with pytest.raises(TypeError, match="StateDescriptor, got"):
                get(wrong)
    assert list(backend.registered_state_names) == []


@pytest.mark.parametrize("restored", [False, True], ids=["accessed", "restored"])
def test_backend_refuses_an_incompatible_serializer_and_keeps_the_state(restored: bool) -> None:
    backend = backend_with(numbers=[1], flags={1: True})
    if restored:
        backend = DefaultOperatorStateBackend([snapshot_of(backend)])
    why = r".* was written by .* cannot read" if restored else ".* Use one descriptor throughout a run"
    with pytest.raises(StateMigrationError, match=f"each element of list state 'numbers'{why}"):
        backend.get_list_state(ListStateDescriptor("numbers", pa.utf8()))
    with pytest.raises(StateMigrationError, match=f"each key of broadcast state 'flags'{why}"):
        backend.get_broadcast_state(MapStateDescriptor("flags", BytesSerializer(), pa.bool_()))
    with pytest.raises(StateMigrationError, match=f"each value of broadcast state 'flags'{why}"):
        backend.get_broadcast_state(MapStateDescriptor("flags", pa.int32(), pa.int8()))
    assert backend.get_list_state(NUMBERS).get() == [1]
    assert backend.get_broadcast_state(FLAGS).get(1) is True


def points(version: int) -> ListStateDescriptor[Point]:
    return ListStateDescriptor("points", PointSerializer(version))


def test_restore_reads_each_stream_with_its_own_serializer() -> None:
    old, new = DefaultOperatorStateBackend(), DefaultOperatorStateBackend()
    old.get_list_state(points(1)).update([Point(1, 2), Point(3, 4)])
    old.get_broadcast_state(MapStateDescriptor("m", pa.int8(), pa.int8())).put_all({1: 1, 2: 2})
    new.get_list_state(points(2)).update([Point(5, 6)])
    new.get_broadcast_state(MapStateDescriptor("m", pa.int64(), pa.int8())).put_all({2: 3})
    merged = DefaultOperatorStateBackend([snapshot_of(old), snapshot_of(new)])
    # Neither is accessed: both serializers go into the next stream.
    restored = DefaultOperatorStateBackend([snapshot_of(merged)])
    assert restored.get_list_state(points(2)).get() == [Point(1, 2), Point(3, 4), Point(5, 6)]
    entries = restored.get_broadcast_state(MapStateDescriptor("m", pa.int64(), pa.int8())).immutable_entries
    assert entries == {1: 1, 2: 3}
    with pytest.raises(StateMigrationError):
        DefaultOperatorStateBackend([snapshot_of(merged)]).get_list_state(points(1))


def test_backend_refuses_a_restore_into_existing_state() -> None:
    handle = snapshot_of(backend_with(numbers=[1]))
    backend = DefaultOperatorStateBackend()
    backend.restore(None)
    backend.restore([])
    backend.restore([handle])
    with pytest.raises(IllegalStateError, match=r"has the states \['numbers'\] already"):
        backend.restore([handle])
    assert backend.get_list_state(NUMBERS).get() == [1]


def test_dispose_releases_state_and_refuses_further_use() -> None:
    backend = backend_with(numbers=[1], flags={1: True})
    backend.dispose()
    backend.dispose()
    assert not backend.registered_state_names
    assert not backend.registered_broadcast_state_names
    for use in (
        lambda: backend.get_list_state(NUMBERS),
        lambda: backend.get_union_list_state(UNION),
        lambda: backend.get_broadcast_state(FLAGS),
        lambda: backend.snapshot(1, 0, MEMORY, OPTIONS),
        lambda: backend.restore(None),
    ):
        with pytest.raises(IllegalStateError, match="disposed of"):
            use()


class OnFiles(OperatorStateMachine):
    """Every snapshot is a file of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.files = LocalFileSystem()
        self.scratch = tempfile.TemporaryDirectory()

    def stream_factory(self) -> CheckpointStreamFactory:
        return FsCheckpointStreamFactory(self.files, self.scratch.name, self.scratch.name, 0, 0)

    def stored_streams(self) -> Iterable[str]:
        return {self.files.url(status.path) for status in self.files.list_files(self.scratch.name)}

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.scratch.cleanup()


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "examples"), [(OperatorStateMachine, 100), (OnFiles, 60)])
def test_operator_state_machine_agrees_with_lists_and_dicts(
    machine: type[OperatorStateMachine], examples: int
) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples * EFFORT, stateful_step_count=40)
    )

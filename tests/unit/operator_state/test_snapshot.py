"""Snapshots of operator state: one stream, isolated from later changes, nothing left after a failure."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_statestore.errors import CheckpointIOError, StateTooLargeError
from spark_statestore.files import LocalFileSystem
from spark_statestore.operator_state import (
    DefaultOperatorStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
    StateSerializer,
)
from spark_statestore.operator_state.stream_format import ListMetaInfo, decode_header, encode_header
from spark_statestore.storage.fs_streams import FsCheckpointStreamFactory
from spark_statestore.storage.memory_streams import MemCheckpointStreamFactory
from spark_statestore.storage.operator_handles import Mode
from spark_statestore.storage.streams import CheckpointedStateScope, CheckpointStreamFactory
from tests.support.contracts.snapshots import SnapshotTests
from tests.unit.file_system_fixtures import FsspecMemoryFiles, LocalFiles, ProcessMemoryFiles
from tests.unit.operator_state.backends import (
    MEMORY,
    NUMBERS,
    OPTIONS,
    backend_with,
    snapshot_of,
)


class TestSnapshotsOnLocalFiles(LocalFiles, SnapshotTests):
    pass


class TestSnapshotsOnFsspecMemory(FsspecMemoryFiles, SnapshotTests):
    pass


class TestSnapshotsInThisProcess(ProcessMemoryFiles, SnapshotTests):
    pass


def files_in(directory: Path) -> FsCheckpointStreamFactory:
    return FsCheckpointStreamFactory(LocalFileSystem(), str(directory), str(directory / "shared"), 0, 0)


def full() -> dict[str, Any]:
    return {
        "numbers": [1, 2, 3],
        "offsets": [{"topic": "a", "parts": [1]}, {"topic": "b", "parts": [2]}],
        "union": ["u"],
        "rules": {"r": [1], "s": [2]},
        "flags": {1: True},
    }


class Counting(CheckpointStreamFactory):
    """Counts the streams, by scope; those of an unreliable storage have no handle."""

    def __init__(self, *, reliable: bool = True) -> None:
        self.scopes: list[CheckpointedStateScope] = []
        self._reliable = reliable

    def create_checkpoint_state_output_stream(self, scope: CheckpointedStateScope) -> Any:
        self.scopes.append(scope)
        stream = MEMORY.create_checkpoint_state_output_stream(scope)
        if not self._reliable:
            stream.close_and_get_handle = lambda: None
        return stream


def test_snapshot_opens_one_exclusive_stream_or_none_without_state() -> None:
    factory = Counting()
    assert snapshot_of(DefaultOperatorStateBackend(), factory) is None
    assert factory.scopes == []
    assert snapshot_of(backend_with(**full()), factory) is not None
    assert factory.scopes == [CheckpointedStateScope.EXCLUSIVE]
    assert snapshot_of(backend_with(**full()), Counting(reliable=False)) is None


def test_storage_failure_fails_only_the_snapshot(tmp_path: Path) -> None:
    backend = backend_with(numbers=[1, 2, 3])
    for factory, error in (
        (files_in(tmp_path / "missing"), CheckpointIOError),
        (MemCheckpointStreamFactory(10), StateTooLargeError),
    ):
        with pytest.raises(error):
            snapshot_of(backend, factory)
    restored = DefaultOperatorStateBackend([snapshot_of(backend)])
    assert restored.get_list_state(NUMBERS).get() == [1, 2, 3]


@pytest.mark.parametrize("name", ["list", "broadcast"])
def test_serializer_failure_names_the_state_and_leaves_no_file(tmp_path: Path, name: str) -> None:
    backend = backend_with(**full())
    value: dict[str, Any] = {"a": 1}
    if name == "list":
        backend.get_list_state(ListStateDescriptor("odd", pa.struct([("a", pa.int8())]))).add(value)
    else:
        state = MapStateDescriptor("odd", pa.int8(), pa.struct([("a", pa.int8())]))
        backend.get_broadcast_state(state).put(1, value)
    value["a"] = "no number"
    future = backend.snapshot(8, 0, files_in(tmp_path), OPTIONS)
    future.run()
    with pytest.raises(TypeError, match="no number") as raised:
        future.result()
    assert raised.value.__notes__ == [f"while {name} state 'odd' of checkpoint 8 was written"]
    # It must be serialized at once.
    value["a"] = object()
    with pytest.raises(TypeError, match="object object") as raised:
        backend.snapshot(8, 0, files_in(tmp_path), OPTIONS)
    assert raised.value.__notes__ == [f"while {name} state 'odd' was copied for a snapshot"]
    assert list(tmp_path.iterdir()) == []


def test_copy_shares_what_cannot_change_and_serializes_what_it_does_not_know() -> None:
    serialized: list[Any] = []

    class Recording(StateSerializer[Any]):
        snapshot = {"serializer": "recording"}  # noqa: RUF012

        def serialize(self, value: Any) -> bytes:
            serialized.append(value)
            return b"bytes"

        def deserialize(self, data: bytes) -> Any:
            raise AssertionError

    large = b"large"
    plain = [large, [large, {"a": (large, None), "b": [1]}], {}]
    opaque = [bytearray(b"buffer"), [1, [bytearray(b"in a list")]], {"a": {1, 2}}, {Key(): 1}, List()]
    backend = DefaultOperatorStateBackend()
    backend.get_list_state(ListStateDescriptor("list", Recording())).update([*plain, *opaque])
    entries = dict(enumerate([*plain, *opaque]))
    backend.get_broadcast_state(MapStateDescriptor("map", pa.int8(), Recording())).put_all(entries)
    future = backend.snapshot(1, 0, MEMORY, OPTIONS)
    assert serialized == opaque * 2
    del serialized[:]
    plain[1][1]["b"].append(2)
    future.run()
    unchanged = [large, [large, {"a": (large, None), "b": [1]}], {}]
    assert serialized == unchanged * 2
    assert serialized[0] is serialized[1][0] is serialized[1][1]["a"][0] is large
    del serialized[:]
    # Nothing is copied for a thread that writes at once.
    future = backend.snapshot(1, 0, MEMORY, replace(OPTIONS, is_synchronous=True))
    assert serialized == []
    future.run()
    assert list(map(id, serialized)) == list(map(id, [*plain, *opaque] * 2))


class Key:
    """A key, which may have more than it is compared by."""


class List(list[int]):
    """A list with attributes, perhaps."""


def test_large_states_are_written_in_several_pieces() -> None:
    backend = DefaultOperatorStateBackend()
    elements = [b"%d" % n * size for n, size in enumerate((0, 1, 1 << 20, 5, 1 << 19, 1 << 19, 1 << 19, 7))]
    descriptor = ListStateDescriptor("list", pa.binary())
    backend.get_list_state(descriptor).update(elements)
    entries = dict(enumerate(elements))
    backend.get_broadcast_state(MapStateDescriptor("map", pa.int8(), pa.binary())).put_all(entries)
    restored = DefaultOperatorStateBackend([snapshot_of(backend, MemCheckpointStreamFactory(1 << 25))])
    assert restored.get_list_state(descriptor).get() == elements
    state = restored.get_broadcast_state(MapStateDescriptor("map", pa.int8(), pa.binary()))
    assert dict(state.items()) == entries


def test_snapshot_logs_the_duration_of_both_parts(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", "spark_statestore.operator_state"):
        future = backend_with(**full()).snapshot(7, 0, MEMORY, OPTIONS)
        future.run()
    for record, part in zip(caplog.records, ("synchronous", "asynchronous"), strict=True):
        assert re.fullmatch(rf"the {part} part of checkpoint 7 of operator state took \d+ ms", record.message)


def test_snapshot_has_no_16_bit_limits() -> None:
    backend = DefaultOperatorStateBackend()
    long = "n" * 70_000
    backend.get_list_state(ListStateDescriptor(long, pa.int8())).add(1)
    backend.get_list_state(ListStateDescriptor("\ud800 ünï", pa.int8())).add(2)
    restored = DefaultOperatorStateBackend([snapshot_of(backend)])
    assert restored.get_list_state(ListStateDescriptor(long, pa.int8())).get() == [1]
    assert restored.get_list_state(ListStateDescriptor("\ud800 ünï", pa.int8())).get() == [2]
    many = [ListMetaInfo(str(n), Mode.UNION, ({"serializer": "bytes"},)) for n in range((1 << 16) + 1)]
    assert decode_header(encode_header(many, []), "") == (many, [])

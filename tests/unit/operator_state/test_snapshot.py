"""Snapshots of operator state: one stream, isolated from later changes, nothing left after a failure."""

from __future__ import annotations

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
)
from spark_statestore.operator_state.stream_format import ListMetaInfo, decode_header, encode_header
from spark_statestore.storage.file_handles import FileStateHandle
from spark_statestore.storage.fs_streams import FsCheckpointStreamFactory
from spark_statestore.storage.handle_codec import HandleContext, decode_handle, encode_handle
from spark_statestore.storage.memory_streams import MemCheckpointStreamFactory
from spark_statestore.storage.operator_handles import Mode
from spark_statestore.storage.stream_handles import ByteStreamStateHandle
from spark_statestore.storage.streams import CheckpointedStateScope, CheckpointStreamFactory
from tests.unit.operator_state.backends import (
    FLAGS,
    MEMORY,
    NUMBERS,
    OFFSETS,
    RULES,
    UNION,
    backend_with,
    written,
)


def files_in(directory: Path) -> FsCheckpointStreamFactory:
    return FsCheckpointStreamFactory(LocalFileSystem(), str(directory), str(directory / "shared"), 0, 0)


class Counting(CheckpointStreamFactory):
    """Counts the streams, by scope."""

    def __init__(self) -> None:
        self.scopes: list[CheckpointedStateScope] = []

    def create_checkpoint_state_output_stream(self, scope: CheckpointedStateScope) -> Any:
        self.scopes.append(scope)
        return MEMORY.create_checkpoint_state_output_stream(scope)


def content(backend: DefaultOperatorStateBackend) -> dict[str, Any]:
    return {
        "numbers": backend.get_list_state(NUMBERS).get(),
        "offsets": backend.get_list_state(OFFSETS).get(),
        "union": backend.get_union_list_state(UNION).get(),
        "rules": dict(backend.get_broadcast_state(RULES).immutable_entries),
        "flags": dict(backend.get_broadcast_state(FLAGS).immutable_entries),
    }


def full() -> dict[str, Any]:
    return {
        "numbers": [1, 2, 3],
        "offsets": [{"topic": "a", "parts": [1]}, {"topic": "b", "parts": [2]}],
        "union": ["u"],
        "rules": {"r": [1], "s": [2]},
        "flags": {1: True},
    }


def test_snapshot_without_state_opens_no_stream() -> None:
    factory = Counting()
    assert DefaultOperatorStateBackend().snapshot(1, 0, factory) is None
    assert factory.scopes == []


def test_snapshot_writes_one_exclusive_stream(tmp_path: Path) -> None:
    factory = Counting()
    assert written(backend_with(**full()), factory) is not None
    assert factory.scopes == [CheckpointedStateScope.EXCLUSIVE]
    handle = written(backend_with(**full()), files_in(tmp_path))
    assert isinstance(handle.delegate_state_handle, FileStateHandle)
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [handle.state_size]


def test_snapshot_keeps_empty_states() -> None:
    handle = written(backend_with(numbers=[], union=[], rules={}))
    states = handle.state_name_to_partition_offsets
    assert {name: (len(meta.offsets), meta.distribution_mode) for name, meta in states.items()} == {
        "numbers": (0, Mode.SPLIT_DISTRIBUTE),
        "union": (0, Mode.UNION),
        "rules": (1, Mode.BROADCAST),
    }
    restored = DefaultOperatorStateBackend([handle])
    assert [*restored.registered_state_names, *restored.registered_broadcast_state_names] == list(states)


def test_snapshot_handle_round_trips_through_its_codec(tmp_path: Path) -> None:
    backend = backend_with(**full())
    context = HandleContext(LocalFileSystem(), str(tmp_path))
    for factory in (MEMORY, files_in(tmp_path)):
        handle = decode_handle(encode_handle(written(backend, factory), context), context)
        assert content(DefaultOperatorStateBackend([handle])) == full()


def test_snapshot_excludes_later_changes() -> None:
    backend = backend_with(**full())
    handle = written(backend)
    backend.get_list_state(OFFSETS).get()[0]["parts"].append(99)
    backend.get_list_state(OFFSETS).get()[1]["topic"] = "changed"
    backend.get_list_state(NUMBERS).add(4)
    backend.get_union_list_state(UNION).clear()
    rules = backend.get_broadcast_state(RULES)
    rules.get("r").append(99)
    rules.put("t", [3])
    rules.remove("s")
    backend.get_broadcast_state(FLAGS).clear()
    backend.get_list_state(ListStateDescriptor("late", pa.int64())).add(1)
    backend.get_broadcast_state(MapStateDescriptor("late too", pa.int64(), pa.int8())).put(1, 1)
    restored = DefaultOperatorStateBackend([handle])
    assert "late" not in restored.registered_state_names
    assert "late too" not in restored.registered_broadcast_state_names
    assert content(restored) == full()


def test_restored_state_shares_no_objects_with_the_written_one() -> None:
    handle = written(backend_with(**full()))
    first, second = DefaultOperatorStateBackend([handle]), DefaultOperatorStateBackend([handle])
    first.get_list_state(OFFSETS).get()[0]["parts"].append(99)
    first.get_broadcast_state(RULES).get("r").append(99)
    assert content(second) == full()


def test_storage_failure_fails_only_the_snapshot(tmp_path: Path) -> None:
    backend = backend_with(**full())
    for factory, error in (
        (files_in(tmp_path / "missing"), CheckpointIOError),
        (MemCheckpointStreamFactory(10), StateTooLargeError),
    ):
        with pytest.raises(error):
            backend.snapshot(1, 0, factory)
    assert content(DefaultOperatorStateBackend([written(backend)])) == full()


@pytest.mark.parametrize("name", ["list", "broadcast"])
def test_serializer_failure_names_the_state_and_leaves_no_file(tmp_path: Path, name: str) -> None:
    backend = DefaultOperatorStateBackend()
    value: dict[str, Any] = {"a": 1}
    if name == "list":
        backend.get_list_state(ListStateDescriptor("odd", pa.struct([("a", pa.int8())]))).add(value)
    else:
        state = MapStateDescriptor("odd", pa.int8(), pa.struct([("a", pa.int8())]))
        backend.get_broadcast_state(state).put(1, value)
    value["a"] = "no number"
    with pytest.raises(TypeError, match="no number") as raised:
        backend.snapshot(8, 0, files_in(tmp_path))
    assert raised.value.__notes__ == [f"while {name} state 'odd' of checkpoint 8 was written"]
    assert list(tmp_path.iterdir()) == []


def test_snapshot_is_empty_if_the_stream_has_no_handle() -> None:
    class Nothing(CheckpointStreamFactory):
        def create_checkpoint_state_output_stream(self, scope: CheckpointedStateScope) -> Any:
            stream = MEMORY.create_checkpoint_state_output_stream(scope)
            stream.close_and_get_handle = lambda: None
            return stream

    assert backend_with(numbers=[1]).snapshot(1, 0, Nothing()) is None


def test_snapshot_has_no_16_bit_limits() -> None:
    backend = DefaultOperatorStateBackend()
    long = "n" * 70_000
    backend.get_list_state(ListStateDescriptor(long, pa.int8())).add(1)
    backend.get_list_state(ListStateDescriptor("\ud800 ünï", pa.int8())).add(2)
    restored = DefaultOperatorStateBackend([written(backend)])
    assert restored.get_list_state(ListStateDescriptor(long, pa.int8())).get() == [1]
    assert restored.get_list_state(ListStateDescriptor("\ud800 ünï", pa.int8())).get() == [2]
    many = [ListMetaInfo(str(n), Mode.UNION, ({"serializer": "bytes"},)) for n in range((1 << 16) + 1)]
    assert decode_header(encode_header(many, []), "") == (many, [])


def test_snapshot_contains_no_pickle() -> None:
    handle = written(backend_with(**full()))
    data = handle.as_bytes_if_in_memory()
    assert b"\x80\x04" not in data
    assert b"\x80\x05" not in data
    assert b"numbers" in data


def test_small_state_is_inline_in_the_handle() -> None:
    assert isinstance(written(backend_with(numbers=[1])).delegate_state_handle, ByteStreamStateHandle)

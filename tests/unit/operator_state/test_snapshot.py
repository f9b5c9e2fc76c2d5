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
from spark_statestore.storage.fs_streams import FsCheckpointStreamFactory
from spark_statestore.storage.memory_streams import MemCheckpointStreamFactory
from spark_statestore.storage.operator_handles import Mode
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
    assert written(DefaultOperatorStateBackend(), factory) is None
    assert factory.scopes == []
    assert written(backend_with(**full()), factory) is not None
    assert factory.scopes == [CheckpointedStateScope.EXCLUSIVE]
    assert written(backend_with(**full()), Counting(reliable=False)) is None


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

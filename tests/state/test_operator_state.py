"""The state of one operator: its subtasks' handles as one."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_statestore.checkpoint.files import LocalFileSystem
from spark_statestore.checkpoint.registry import SharedStateRegistry
from spark_statestore.state.handles import (
    ByteStreamStateHandle,
    ChainEntry,
    FileStateHandle,
    IncrementalStateHandle,
    OperatorStreamStateHandle,
)
from spark_statestore.state.operator_state import OperatorState


def file(directory: Path, name: str) -> FileStateHandle:
    (directory / name).write_bytes(b"12345")
    return FileStateHandle(LocalFileSystem(), str(directory / name), 5)


def chain(stream: FileStateHandle) -> IncrementalStateHandle:
    state = OperatorStreamStateHandle(state_name_to_partition_offsets={}, delegate_state_handle=stream)
    return IncrementalStateHandle(1, 1, [ChainEntry(1, True, state)], persisted_size=2)


def test_sizes_are_those_of_the_subtasks_that_have_state(tmp_path: Path) -> None:
    unknown = FileStateHandle(LocalFileSystem(), "/x", -1)
    subtasks = {0: chain(file(tmp_path, "a")), 2: ByteStreamStateHandle("b", b"123"), 3: unknown}
    state = OperatorState("op", 4, 8, subtasks)
    assert state.state_size == 8
    assert state.checkpointed_size == 5


def test_discarding_leaves_what_is_registered(tmp_path: Path) -> None:
    registry = SharedStateRegistry()
    state = OperatorState("op", 2, 2, {0: chain(file(tmp_path, "shared")), 1: file(tmp_path, "own")})
    state.register_shared_states(registry, 1)
    state.discard_state()
    assert [path.name for path in tmp_path.iterdir()] == ["shared"]
    registry.unregister_unused_state(2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("parallelism", "most", "subtask"), [(0, 1, None), (2, 1, None), (2, 2, 2), (2, 2, -1)]
)
def test_numbers_out_of_range_are_refused(parallelism: int, most: int, subtask: int | None) -> None:
    subtasks = {} if subtask is None else {subtask: ByteStreamStateHandle("s", b"")}
    with pytest.raises(ValueError, match="'op'"):
        OperatorState("op", parallelism, most, subtasks)

"""Tests of state handles: content, equality and discarding."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_statestore.errors import CheckpointIOError, IllegalStateError
from spark_statestore.files import LocalFileSystem, MemoryFileSystem
from spark_statestore.formats.metadata import InlineState, MetadataKind, encode_object
from spark_statestore.storage.file_handles import FileStateHandle, SegmentFileStateHandle
from spark_statestore.storage.incremental_handle import ChainEntry, IncrementalStateHandle
from spark_statestore.storage.operator_handles import OperatorStreamStateHandle
from spark_statestore.storage.shared_state_registry import SharedStateRegistry
from spark_statestore.storage.snapshot_result import SnapshotResult
from spark_statestore.storage.stream_handles import ByteStreamStateHandle
from tests.unit.storage.handles import state_file, state_in

FILES = MemoryFileSystem()


def test_handles_are_equal_if_their_ids_are() -> None:
    assert ByteStreamStateHandle("s", b"1") == ByteStreamStateHandle("s", b"2")
    assert ByteStreamStateHandle("s", b"1") != ByteStreamStateHandle("t", b"1")
    assert FileStateHandle(FILES, "/a", 1) == FileStateHandle(FILES, "/a", 2)
    assert FileStateHandle(FILES, "/a", 1) != FileStateHandle(LocalFileSystem(), "/a", 1)
    assert ByteStreamStateHandle("process-memory:///a", b"") != FileStateHandle(FILES, "/a", 1)
    assert SegmentFileStateHandle(FILES, "/a", 0, 1, "x") != SegmentFileStateHandle(FILES, "/a", 0, 1, "y")
    assert state_in(ByteStreamStateHandle("s", b"1")) != ByteStreamStateHandle("s", b"1")


def test_handles_refuse_invalid_arguments() -> None:
    with pytest.raises(TypeError, match="needs a name and data"):
        ByteStreamStateHandle("s", None)
    with pytest.raises(ValueError, match="-1"):
        FileStateHandle(FILES, "/a", -2)
    with pytest.raises(ValueError, match="negative"):
        SegmentFileStateHandle(FILES, "/a", -1, 1, "o")
    with pytest.raises(TypeError, match="needs the handle"):
        OperatorStreamStateHandle(state_name_to_partition_offsets={}, delegate_state_handle=None)


def test_chain_sizes_are_those_of_its_streams() -> None:
    entries = [
        ChainEntry(version, version == 1, state_in(ByteStreamStateHandle(f"{version}", bytes(size))))
        for version, size in ((1, 10), (2, 3), (4, 5))
    ]
    handle = IncrementalStateHandle(4, 1, entries)
    assert (handle.base_size, len(handle.runs_and_deltas), handle.state_size) == (10, 2, 18)


def test_segment_is_read_from_the_copy_of_replaced_metadata() -> None:
    attempt_id, files = "0123456789abcdef", MemoryFileSystem()
    metadata = bytes(
        encode_object(MetadataKind.STORE_VERSION, attempt_id, {}, [], InlineState.from_data(b"inside"))
    )
    segment = SegmentFileStateHandle(files, "/s/_metadata", 40, 6, attempt_id)
    with pytest.raises(FileNotFoundError, match="process-memory:///s/_metadata"):
        segment.open_input_stream()
    files.create(f"/s/_metadata.{attempt_id}", metadata)
    files.create("/s/_metadata", metadata.replace(bytes.fromhex(attempt_id), bytes(8)))
    assert segment.open_input_stream().read() == b"inside"
    segment.discard_state()
    assert files.exists("/s/_metadata")
    files.replace("/s/_metadata", b"")
    files.delete(f"/s/_metadata.{attempt_id}")
    with pytest.raises(FileNotFoundError):
        segment.open_input_stream()


# Discarding a file


class Watched(LocalFileSystem):
    """File system that fails to delete, and counts calls of `exists`."""

    def __init__(self, error: OSError | None = None, unsure: bool = False) -> None:
        super().__init__()
        self.error, self.unsure, self.exists_calls = error, unsure, 0

    def delete(self, path: str) -> None:
        if self.error:
            raise self.error
        super().delete(path)

    def exists(self, path: str) -> bool:
        self.exists_calls += 1
        if self.unsure:
            raise PermissionError(path)
        return super().exists(path)


def test_discard_checks_for_the_file_only_after_a_failure(tmp_path: Path) -> None:
    files = Watched()
    state = state_file(tmp_path, "state", files)
    for _ in range(2):
        state.discard_state()
    assert files.exists_calls == 0
    files.error = PermissionError("no")
    state.discard_state()
    assert files.exists_calls == 1


@pytest.mark.parametrize("unsure", [False, True])
def test_discard_raises_if_the_file_may_still_exist(tmp_path: Path, unsure: bool) -> None:
    state = state_file(tmp_path, "state", Watched(PermissionError("no"), unsure))
    with pytest.raises(CheckpointIOError, match=rf"{tmp_path}/state could not be deleted: no"):
        state.discard_state()
    assert (tmp_path / "state").exists()


# Results of snapshots


def test_snapshot_result_has_the_size_of_the_state_that_the_checkpoint_owns() -> None:
    owned, local = ByteStreamStateHandle("owned", b"123"), ByteStreamStateHandle("local", b"12")
    assert SnapshotResult.of(owned) != SnapshotResult.with_local_state(owned, local)
    assert SnapshotResult.of(None) == SnapshotResult.empty()
    for result, size in (
        (SnapshotResult.with_local_state(owned, local), 3),
        (SnapshotResult.of(owned), 3),
        (SnapshotResult[ByteStreamStateHandle].empty(), 0),
    ):
        assert result.state_size == size
        result.discard_state()
    with pytest.raises(IllegalStateError, match="not the state that the checkpoint owns"):
        SnapshotResult(None, local)


@pytest.mark.parametrize("failing", [set(), {"owned"}, {"local"}, {"owned", "local"}])
def test_snapshot_result_discards_both_although_one_fails(tmp_path: Path, failing: set[str]) -> None:
    owned, local = (
        state_file(tmp_path, name, Watched(PermissionError(f"no {name}") if name in failing else None))
        for name in ("owned", "local")
    )
    result = SnapshotResult.with_local_state(owned, local)
    if failing:
        with pytest.raises(CheckpointIOError, match="|".join(f"no {name}" for name in failing)):
            result.discard_state()
    else:
        result.discard_state()
    assert {path.name for path in tmp_path.iterdir()} == failing


# Chains with a registry


def test_chain_registers_once_with_each_registry(tmp_path: Path) -> None:
    old, new = SharedStateRegistry(), SharedStateRegistry()
    chain = IncrementalStateHandle(1, 1, [ChainEntry(1, True, state_in(state_file(tmp_path, "1")))])
    chain.register_shared_states(old)
    old.unregister_unused_state(2)
    assert list(tmp_path.iterdir()) == []
    # The discarded stream is not registered again.
    chain.register_shared_states(old)
    assert len(old) == 0
    chain.register_shared_states(new)
    assert len(new) == 1


def test_segment_keeps_its_version_in_use() -> None:
    registry = SharedStateRegistry()
    segment = SegmentFileStateHandle(FILES, "/store/chk-1/_metadata", 40, 5, "0123456789abcdef")
    chain = IncrementalStateHandle(3, 1, [ChainEntry(1, True, state_in(segment))])
    chain.register_shared_states(registry)
    assert registry.checkpoints_in_use(2) == {1}

"""A completed checkpoint: what it knows, and how it is discarded."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_statestore.checkpoint.completed.checkpoint import CompletedCheckpoint
from spark_statestore.checkpoint.completed.location import NonPersistentCompletedCheckpointStorageLocation
from spark_statestore.checkpoint.completed.properties import (
    CheckpointProperties,
    CheckpointRetentionPolicy,
    JobStatus,
    SharingFilesStrategy,
)
from spark_statestore.checkpoint.registry import RestoreMode, SharedStateRegistry
from spark_statestore.errors import IllegalStateError
from spark_statestore.state.handles import ByteStreamStateHandle
from tests.checkpoint.completed.checkpoints import CHECKPOINT, SAVEPOINT, Files, checkpoint, left, write

LOCATION = NonPersistentCompletedCheckpointStorageLocation(ByteStreamStateHandle("metadata", b""))


def test_a_checkpoint_knows_its_times_sizes_and_place(tmp_path: Path) -> None:
    files = Files()
    found = checkpoint(files, tmp_path, 3, shared=[write(files, tmp_path / "shared")], private=2)
    assert found.duration == 7
    assert found.state_size == found.checkpointed_size == 15
    assert found.external_pointer == f"file://{tmp_path}/chk-3"
    assert repr(found) == f"checkpoint 3 @ 100 located at file://{tmp_path}/chk-3"


@pytest.mark.parametrize(
    ("what", "numbers"),
    [("number", (-1, 0, 0)), ("timestamp", (0, -1, 0)), ("completion timestamp", (0, 0, -1))],
)
def test_negative_numbers_are_refused(what: str, numbers: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=f"the {what} of checkpoint .* -1, but it must be 0 or more"):
        CompletedCheckpoint(*numbers, {}, CHECKPOINT, LOCATION)


def test_a_checkpoint_needs_a_location_and_copies_its_states() -> None:
    with pytest.raises(TypeError, match="needs a storage location"):
        CompletedCheckpoint(1, 0, 0, {}, CHECKPOINT, None)
    states: dict[str, object] = {}
    found = CompletedCheckpoint(1, 0, 0, states, CHECKPOINT, LOCATION)
    states["op"] = object()
    assert found.operator_states == {}


def test_only_what_is_marked_is_discarded(tmp_path: Path) -> None:
    found = checkpoint(Files(), tmp_path, 1)
    before = left(tmp_path)
    for discard in (found.discard, lambda: found.discard_async(ThreadPoolExecutor(1))):
        with pytest.raises(IllegalStateError, match=r"checkpoint 1 at .*/chk-1 cannot be discarded.* Mark"):
            discard()
    assert left(tmp_path) == before
    assert not found.is_marked_as_discarded
    found.mark_as_discarded()
    assert found.is_marked_as_discarded


def run(found: CompletedCheckpoint, threads: int) -> None:
    found.mark_as_discarded()
    if threads == 0:
        found.discard()
        return
    with ThreadPoolExecutor(threads) as pool:
        found.discard_async(pool).result(60)


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("states", [0, 3])
def test_metadata_goes_first_and_the_location_last(tmp_path: Path, threads: int, states: int) -> None:
    files = Files()
    found = checkpoint(files, tmp_path, 1, private=states)
    run(found, threads)
    assert files.log[0] == "1-metadata"
    assert sorted(files.log[1:-1]) == [f"1-state-{i}" for i in range(states)]
    assert files.log[-1] == "chk-1"
    assert left(tmp_path) == set()
    assert found.operator_states == {}
    run(found, threads)


@pytest.mark.parametrize("threads", [0, 2])
def test_all_is_tried_before_the_first_failure_is_raised_and_what_failed_is_tried_again(
    tmp_path: Path, threads: int
) -> None:
    files = Files()
    files.stubborn = {"1-metadata", "1-state-1", "1-state-3"}
    found = checkpoint(files, tmp_path, 1, private=5)
    with pytest.raises(OSError, match="1-metadata could not be deleted") as raised:
        run(found, threads)
    notes = "\n".join(raised.value.__notes__)
    assert "1-state-1" in notes
    assert "not empty" in notes
    assert left(tmp_path) == files.stubborn
    assert found.operator_states == {}
    files.stubborn = set()
    files.log.clear()
    run(found, threads)
    assert left(tmp_path) == set()
    assert sorted(files.log) == ["1-metadata", "1-state-1", "1-state-3", "chk-1"]


def test_states_are_discarded_at_the_same_time(tmp_path: Path) -> None:
    together = threading.Barrier(3, timeout=60)

    class Meeting(Files):
        def delete(self, path: str) -> None:
            if "1-state" in path:
                together.wait()
            super().delete(path)

    run(checkpoint(Meeting(), tmp_path, 1, private=3), 3)
    assert left(tmp_path) == set()


def test_an_executor_that_is_shut_down_leaves_it_to_the_caller(tmp_path: Path) -> None:
    found = checkpoint(Files(), tmp_path, 1)
    found.mark_as_discarded()
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    found.discard_async(pool).result(0)
    assert left(tmp_path) == set()


def test_shared_state_is_left_to_the_registry_once_it_is_registered(tmp_path: Path) -> None:
    files, registry = Files(), SharedStateRegistry()
    ours = checkpoint(files, tmp_path, 1, shared=[write(files, tmp_path / "shared-1")])
    other = checkpoint(files, tmp_path, 2, shared=[write(files, tmp_path / "shared-2")])
    ours.register_shared_states_after_restored(registry, RestoreMode.CLAIM)
    run(ours, 0)
    run(other, 0)
    assert left(tmp_path) == {"shared-1"}
    registry.unregister_unused_state(2)
    assert left(tmp_path) == set()


def test_the_properties_decide_when_it_is_discarded(tmp_path: Path) -> None:
    policy = CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION
    plain = checkpoint(Files(), tmp_path, 1, CheckpointProperties.for_checkpoint(policy))
    savepoint = checkpoint(Files(), tmp_path, 2, SAVEPOINT)
    assert plain.should_be_discarded_on_subsume()
    assert not savepoint.should_be_discarded_on_subsume()
    assert [s for s in JobStatus if plain.should_be_discarded_on_shutdown(s)] == [JobStatus.FINISHED]
    assert not any(savepoint.should_be_discarded_on_shutdown(s) for s in JobStatus)


def test_what_it_was_taken_as_decides_whether_it_shares_files(tmp_path: Path) -> None:
    plain = checkpoint(Files(), tmp_path, 1)
    claimed = checkpoint(Files(), tmp_path, 2, CHECKPOINT, restored=SAVEPOINT)
    assert plain.sharing_files_strategy is SharingFilesStrategy.FORWARD_BACKWARD
    assert claimed.sharing_files_strategy is SharingFilesStrategy.NO_SHARING

"""The checkpoints that a job keeps: which stay, and when the others go."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_statestore.checkpoint.completed.checkpoint import CompletedCheckpoint
from spark_statestore.checkpoint.completed.properties import (
    CheckpointProperties,
    CheckpointRetentionPolicy,
    JobStatus,
    SavepointFormatType,
)
from spark_statestore.checkpoint.completed.store import StandaloneCompletedCheckpointStore
from spark_statestore.checkpoint.registry import RestoreMode, SharedStateRegistry
from spark_statestore.errors import IllegalStateError
from spark_statestore.state.handles import PlaceholderStreamStateHandle
from tests.checkpoint.completed.checkpoints import CHECKPOINT, SAVEPOINT, Files, checkpoint, left, write

NATIVE = CheckpointProperties.for_savepoint(savepoint_format=SavepointFormatType.NATIVE)


def files_of(*numbers: int) -> set[str]:
    return {f"{number}-{what}" for number in numbers for what in ("metadata", "state-0")}


def ids(store: StandaloneCompletedCheckpointStore) -> list[int]:
    return [found.checkpoint_id for found in store.all_checkpoints]


@pytest.mark.parametrize("most", [0, -1])
def test_at_least_one_checkpoint_is_retained(most: int) -> None:
    with pytest.raises(ValueError, match="at least one"):
        StandaloneCompletedCheckpointStore(most)


def test_an_empty_store_has_nothing() -> None:
    store = StandaloneCompletedCheckpointStore(3)
    assert store.latest_checkpoint is None
    assert store.all_checkpoints == []
    assert store.number_of_retained_checkpoints == 0
    assert store.max_number_of_retained_checkpoints == 3
    assert not store.requires_externalized_checkpoints


def test_the_newest_checkpoints_are_kept_in_order_and_older_ones_discarded(tmp_path: Path) -> None:
    store, files = StandaloneCompletedCheckpointStore(2), Files()
    gone = []
    for number in (1, 2, 3, 4):
        gone.append(store.add_checkpoint_and_subsume_oldest_one(checkpoint(files, tmp_path, number)))
        latest = store.latest_checkpoint
        assert latest is not None
        assert latest.checkpoint_id == number
    assert ids(store) == [3, 4]
    assert store.number_of_retained_checkpoints == 2
    assert [old and old.checkpoint_id for old in gone] == [None, None, 1, 2]
    assert left(tmp_path) == files_of(3, 4)


def test_what_a_store_begins_with_goes_as_newer_checkpoints_come(tmp_path: Path) -> None:
    files = Files()
    recovered = [checkpoint(files, tmp_path, number) for number in (1, 2, 3)]
    store = StandaloneCompletedCheckpointStore(2, recovered=iter(recovered))
    assert ids(store) == [1, 2, 3]
    assert left(tmp_path) == files_of(1, 2, 3)
    store.add_checkpoint_and_subsume_oldest_one(checkpoint(files, tmp_path, 4))
    assert ids(store) == [3, 4]
    assert left(tmp_path) == files_of(3, 4)


def test_a_checkpoint_is_persisted_before_older_ones_go(tmp_path: Path) -> None:
    seen: list[set[str]] = []
    store = StandaloneCompletedCheckpointStore(1, persist=lambda _: seen.append(left(tmp_path)))
    files = Files()
    for number in (1, 2):
        store.add_checkpoint_and_subsume_oldest_one(checkpoint(files, tmp_path, number))
    assert seen[1] == files_of(1, 2)


def test_a_checkpoint_that_cannot_be_persisted_is_not_added_and_nothing_goes(tmp_path: Path) -> None:
    def persist(added: CompletedCheckpoint) -> None:
        if added.checkpoint_id == 2:
            raise OSError("full")

    store, files = StandaloneCompletedCheckpointStore(1, persist=persist), Files()
    store.add_checkpoint_and_subsume_oldest_one(checkpoint(files, tmp_path, 1))
    with pytest.raises(OSError, match="full"):
        store.add_checkpoint_and_subsume_oldest_one(checkpoint(files, tmp_path, 2))
    assert ids(store) == [1]
    assert left(tmp_path) == files_of(1, 2)


def test_savepoints_leave_the_store_but_not_the_storage(tmp_path: Path) -> None:
    store, files = StandaloneCompletedCheckpointStore(1), Files()
    for number, kind in ((1, CHECKPOINT), (2, SAVEPOINT), (3, SAVEPOINT)):
        store.add_checkpoint_and_subsume_oldest_one(checkpoint(files, tmp_path, number, kind))
    assert ids(store) == [1, 3]
    assert left(tmp_path) == files_of(1, 2, 3)
    last = store.add_checkpoint_and_subsume_oldest_one(checkpoint(files, tmp_path, 4))
    assert last is not None
    assert last.checkpoint_id == 3
    assert ids(store) == [4]
    assert left(tmp_path) == files_of(2, 3, 4)


def test_shared_streams_go_with_the_last_checkpoint_that_uses_them(tmp_path: Path) -> None:
    registry, files = SharedStateRegistry(), Files()
    store = StandaloneCompletedCheckpointStore(1, registry)
    assert store.shared_state_registry is registry
    base = write(files, tmp_path / "base")
    for number in (1, 2, 3):
        sent = base if number == 1 else PlaceholderStreamStateHandle(base.stream_state_handle_id)
        shared = [sent] if number < 3 else []
        added = checkpoint(files, tmp_path, number, shared=shared)
        registry.register_all(added.operator_states.values(), number)
        store.add_checkpoint_and_subsume_oldest_one(added)
        assert ("base" in left(tmp_path)) == (number < 3)
    metadata, base_log = files.log.index("2-metadata"), files.log.index("base")
    assert metadata < base_log


def test_adding_a_checkpoint_confirms_its_streams(tmp_path: Path) -> None:
    registry, files = SharedStateRegistry(), Files()
    store = StandaloneCompletedCheckpointStore(1, registry)
    first = write(files, tmp_path / "first")
    registry.register_reference("key", first, 1)
    store.add_checkpoint_and_subsume_oldest_one(checkpoint(files, tmp_path, 1))
    assert registry.register_reference("key", write(files, tmp_path / "again"), 2) is first


def test_a_claimed_savepoint_stays_in_storage_while_its_streams_are_used(tmp_path: Path) -> None:
    registry, files = SharedStateRegistry(), Files()
    store = StandaloneCompletedCheckpointStore(1, registry)
    inside = write(files, tmp_path / "chk-1" / "inside")
    claimed = checkpoint(files, tmp_path, 1, CHECKPOINT, shared=[inside], restored=NATIVE)
    claimed.register_shared_states_after_restored(registry, RestoreMode.CLAIM)
    store.add_checkpoint_and_subsume_oldest_one(claimed)
    for number in (2, 3):
        shared = [PlaceholderStreamStateHandle(inside.stream_state_handle_id)] if number == 2 else []
        added = checkpoint(files, tmp_path, number, shared=shared)
        registry.register_all(added.operator_states.values(), number)
        store.add_checkpoint_and_subsume_oldest_one(added)
        assert ids(store) == [number]
        assert left(tmp_path) == (files_of(1, 2) | {"inside"} if number == 2 else files_of(3))


@pytest.mark.parametrize("what", ["1-metadata", "1-state-0", "chk-1"])
def test_what_cannot_be_discarded_is_tried_again(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    store, files = StandaloneCompletedCheckpointStore(1), Files()
    files.stubborn = {what}
    for number in (1, 2):
        store.add_checkpoint_and_subsume_oldest_one(checkpoint(files, tmp_path, number))
    assert ids(store) == [2]
    assert "could not discard checkpoint 1" in caplog.text
    assert left(tmp_path) == files_of(2) | {what}
    files.stubborn = set()
    store.clean_up()
    assert left(tmp_path) == files_of(2)


def test_what_could_not_be_discarded_before_the_end_is_tried_again_then(tmp_path: Path) -> None:
    store, files = StandaloneCompletedCheckpointStore(1), Files()
    files.stubborn = {"1-metadata"}
    for number in (1, 2):
        store.add_checkpoint_and_subsume_oldest_one(checkpoint(files, tmp_path, number))
    files.stubborn = set()
    store.shutdown(JobStatus.FINISHED)
    assert left(tmp_path) == set()


def test_an_executor_discards_later(tmp_path: Path) -> None:
    tasks: list[object] = []
    store, files = StandaloneCompletedCheckpointStore(1, executor=tasks.append), Files()
    for number in (1, 2):
        store.add_checkpoint_and_subsume_oldest_one(checkpoint(files, tmp_path, number))
    assert left(tmp_path) == files_of(1, 2)
    for task in tasks:
        task()
    assert left(tmp_path) == files_of(2)


@pytest.mark.parametrize("status", JobStatus)
@pytest.mark.parametrize("policy", CheckpointRetentionPolicy)
def test_at_the_end_each_checkpoint_goes_as_its_properties_say(
    tmp_path: Path, status: JobStatus, policy: CheckpointRetentionPolicy
) -> None:
    registry, files = SharedStateRegistry(), Files()
    store = StandaloneCompletedCheckpointStore(3, registry)
    kind = CheckpointProperties.for_checkpoint(policy)
    base = write(files, tmp_path / "base")
    for number, properties in ((1, kind), (2, SAVEPOINT), (3, kind)):
        shared = [] if properties is SAVEPOINT else [base]
        added = checkpoint(files, tmp_path, number, properties, shared=shared)
        if shared:
            registry.register_all(added.operator_states.values(), number)
        store.add_checkpoint_and_subsume_oldest_one(added)
    store.shutdown(status)
    kept = not kind.discard_on(status)
    assert left(tmp_path) == (files_of(1, 2, 3) | {"base"} if kept else files_of(2))
    assert store.all_checkpoints == []
    store.shutdown(JobStatus.FINISHED)
    assert left(tmp_path) == (files_of(1, 2, 3) | {"base"} if kept else files_of(2))
    with pytest.raises(IllegalStateError, match=r"checkpoint 9 @ .* shut down"):
        store.add_checkpoint_and_subsume_oldest_one(checkpoint(files, tmp_path / "late", 9))
    with pytest.raises(IllegalStateError, match="closed"):
        registry.register_reference("s", base, 9)


def test_at_the_end_a_checkpoint_stays_while_a_kept_one_needs_a_stream_inside(tmp_path: Path) -> None:
    registry, files = SharedStateRegistry(), Files()
    store = StandaloneCompletedCheckpointStore(4, registry)
    retained = CheckpointProperties.for_checkpoint(CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION)
    inside = write(files, tmp_path / "chk-2" / "inside")
    claimed = checkpoint(files, tmp_path, 2, CHECKPOINT, shared=[inside], restored=NATIVE)
    claimed.register_shared_states_after_restored(registry, RestoreMode.CLAIM)
    store.add_checkpoint_and_subsume_oldest_one(checkpoint(files, tmp_path, 1, retained))
    store.add_checkpoint_and_subsume_oldest_one(claimed)
    user = checkpoint(
        files, tmp_path, 3, retained, shared=[PlaceholderStreamStateHandle(inside.stream_state_handle_id)]
    )
    registry.register_all(user.operator_states.values(), 3)
    store.add_checkpoint_and_subsume_oldest_one(user)
    store.add_checkpoint_and_subsume_oldest_one(checkpoint(files, tmp_path, 4, retained))
    store.shutdown(JobStatus.CANCELED)
    # 2 is to go, but 3 is kept and needs a stream inside of it.
    assert left(tmp_path) == files_of(1, 2, 3, 4) | {"inside"}


def test_a_newer_checkpoint_than_a_kept_one_goes_if_nothing_needs_it(tmp_path: Path) -> None:
    store, files = StandaloneCompletedCheckpointStore(3), Files()
    retained = CheckpointProperties.for_checkpoint(CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION)
    for number, kind in ((1, retained), (2, CHECKPOINT), (3, retained)):
        store.add_checkpoint_and_subsume_oldest_one(checkpoint(files, tmp_path, number, kind))
    store.shutdown(JobStatus.CANCELED)
    assert left(tmp_path) == files_of(1, 3)


@pytest.mark.parametrize("number", [0, 1])
def test_a_savepoint_lets_no_stream_of_a_pending_checkpoint_go(tmp_path: Path, number: int) -> None:
    registry, files = SharedStateRegistry(), Files()
    store = StandaloneCompletedCheckpointStore(1, registry)
    pending = checkpoint(files, tmp_path, number, shared=[write(files, tmp_path / "shared")])
    registry.register_all(pending.operator_states.values(), number)
    store.add_checkpoint_and_subsume_oldest_one(checkpoint(files, tmp_path, 2, SAVEPOINT))
    assert "shared" in left(tmp_path)
    store.add_checkpoint_and_subsume_oldest_one(pending)
    assert left(tmp_path) == files_of(number, 2) | {"shared"}
    stop = checkpoint(files, tmp_path, 3, CheckpointProperties.for_sync_savepoint())
    store.add_checkpoint_and_subsume_oldest_one(stop)
    assert left(tmp_path) == files_of(2, 3)

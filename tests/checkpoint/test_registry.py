"""Which streams are still needed, and what is deleted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_statestore.checkpoint import chain
from spark_statestore.checkpoint.completed.checkpoint import CompletedCheckpoint
from spark_statestore.checkpoint.completed.location import NonPersistentCompletedCheckpointStorageLocation
from spark_statestore.checkpoint.completed.properties import CheckpointProperties, SavepointFormatType
from spark_statestore.checkpoint.files import LocalFileSystem
from spark_statestore.checkpoint.registry import RestoreMode, SharedStateRegistry
from spark_statestore.errors import IllegalStateError
from spark_statestore.state import CompositeStateHandle
from spark_statestore.state.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    OperatorStreamStateHandle,
    PlaceholderStreamStateHandle,
    RelativeFileStateHandle,
    StateMetaInfo,
    StreamStateHandle,
)
from spark_statestore.state.operator_state import OperatorState


def handle(name: str) -> ByteStreamStateHandle:
    return ByteStreamStateHandle(name, b"")


def file(directory: Path, name: str, files: LocalFileSystem | None = None) -> FileStateHandle:
    (directory / name).write_bytes(b"1")
    return FileStateHandle(files or LocalFileSystem(), str(directory / name), 1)


class StubbornFiles(LocalFileSystem):
    """Refuses to delete, as long as it is told to."""

    stubborn = True

    def delete(self, path: str) -> None:
        if self.stubborn:
            raise PermissionError(path)
        super().delete(path)


def relative(handle: FileStateHandle) -> RelativeFileStateHandle:
    directory, _, name = handle.path.rpartition("/")
    return RelativeFileStateHandle(handle.files, directory, name, 1)


class Keyed(CompositeStateHandle):
    """Streams under keys of their own, as a backend that names its files has them."""

    state_size = checkpointed_size = 0

    def __init__(self, **streams: StreamStateHandle) -> None:
        self.streams = dict(streams)

    def register_shared_states(self, registry: SharedStateRegistry, checkpoint_id: int) -> None:
        for key, stream in self.streams.items():
            self.streams[key] = registry.register_reference(key, stream, checkpoint_id)

    def discard_state(self) -> None:
        pass


def restored(
    number: int,
    properties: CheckpointProperties | None = None,
    **streams: StreamStateHandle,
) -> CompletedCheckpoint:
    return CompletedCheckpoint(
        number,
        0,
        0,
        {"op": OperatorState("op", 1, 1, {0: Keyed(**streams)})},
        CheckpointProperties.for_checkpoint(),
        NonPersistentCompletedCheckpointStorageLocation(handle("metadata")),
        properties,
    )


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


NATIVE_SAVEPOINT = CheckpointProperties.for_savepoint(savepoint_format=SavepointFormatType.NATIVE)


def test_the_first_handle_of_a_stream_is_the_one_that_counts() -> None:
    registry = SharedStateRegistry()
    first, again = handle("s"), handle("s")
    assert registry.register_reference("s", first, 1) is first
    assert registry.register_reference("s", first, 1) is first
    assert registry.register_reference("s", again, 2) is first
    assert "s" in registry
    assert len(registry) == 1


def test_an_older_checkpoint_that_is_noted_later_does_not_shorten_a_streams_life() -> None:
    registry = SharedStateRegistry()
    registry.register_reference("s", handle("s"), 5)
    registry.register_reference("s", handle("s"), 3)
    registry.unregister_unused_state(5)
    assert "s" in registry
    registry.unregister_unused_state(6)
    assert len(registry) == 0


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(1, 9), st.integers(0, 3), st.booleans()), max_size=30
    ),
    st.integers(0, 11),
)
def test_a_stream_lives_as_long_as_its_last_user_and_its_creator_with_it(
    uses: list[tuple[str, int, int, bool]], lowest: int
) -> None:
    discarded: list[str] = []
    registry = SharedStateRegistry(on_discarded=lambda h: discarded.append(h.stream_state_handle_id))
    created: dict[str, tuple[int, bool]] = {}
    last: dict[str, int] = {}
    for key, version, age, keeps in uses:
        created.setdefault(key, (version - age, keeps))
        last[key] = max(last.get(key, 0), version)
        registry.register_reference(key, handle(key), version, created_by=version - age, keeps_creator=keeps)
    used = {created[key][0] for key in last if created[key][1] and last[key] >= lowest}
    assert registry.checkpoints_in_use(lowest) == {creator for creator in used if creator < lowest}
    assert registry.unregister_unused_state(lowest) == used
    assert sorted(discarded) == sorted(key for key in last if last[key] < lowest)
    assert all((key in registry) == (key not in discarded) for key in last)


def test_a_missing_handle_and_a_closed_registry_are_errors(tmp_path: Path) -> None:
    registry = SharedStateRegistry()
    registry.register_reference("s", file(tmp_path, "s"), 1)
    with pytest.raises(TypeError, match="'t' needs a handle"):
        registry.register_reference("t", None, 1)
    registry.close()
    with pytest.raises(IllegalStateError, match=r"checkpoint 2 cannot register 't'.* closed"):
        registry.register_reference("t", handle("t"), 2)
    registry.unregister_unused_state(2)
    assert names(tmp_path) == set()


@pytest.mark.parametrize("lowest", [-1, 0, 2**63 - 1])
def test_numbers_of_checkpoints_that_do_not_exist_do_no_harm(lowest: int) -> None:
    assert SharedStateRegistry().unregister_unused_state(lowest) == set()
    registry = SharedStateRegistry()
    registry.register_reference("s", handle("s"), 1)
    assert registry.unregister_unused_state(lowest) == set()
    assert ("s" in registry) == (lowest < 2)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9)), max_size=30), st.sets(st.integers(0, 10))
)
def test_at_the_end_only_what_the_remaining_checkpoints_use_stays(
    uses: list[tuple[str, int]], remaining: set[int]
) -> None:
    registry = SharedStateRegistry()
    users: dict[str, set[int]] = {}
    for key, user in uses:
        creator = 20 + ord(key)
        users.setdefault(key, set()).add(user)
        registry.register_reference(key, handle(key), user, created_by=creator, keeps_creator=True)
    kept = {key for key in users if users[key] & remaining}
    assert registry.checkpoints_needed_by(remaining) == {20 + ord(key) for key in kept}
    assert registry.unregister_all_but(remaining) == {20 + ord(key) for key in kept}
    assert {key for key in users if key in registry} == kept


@pytest.mark.parametrize("numbers", [range(1, 9), range(8, 0, -1)])
def test_a_long_row_of_users_takes_no_more_room_than_a_short_one(numbers: range) -> None:
    registry = SharedStateRegistry()
    for number in numbers:
        registry.register_reference("s", handle("s"), number)
    assert registry._entries["s"].users == [(1, 8)]


@pytest.mark.parametrize("numbers", [(3, 5), (5, 3)])
def test_a_checkpoint_between_two_users_is_none(numbers: tuple[int, int]) -> None:
    registry = SharedStateRegistry()
    for number in numbers:
        registry.register_reference("s", handle("s"), number, created_by=1, keeps_creator=True)
    assert [registry.checkpoints_needed_by([number]) for number in (2, 3, 4, 5, 6)] == [
        set(), {1}, set(), {1}, set()
    ]  # fmt: skip
    assert registry.checkpoints_in_use(1) == set()
    assert registry.checkpoints_in_use(2) == {1}


def test_nothing_to_register_is_fine() -> None:
    registry = SharedStateRegistry()
    registry.register_all(None, 1)
    registry.register_all([None, handle("private")], 1)
    assert len(registry) == 0


# Placeholders and duplicates


def test_a_placeholder_gives_the_handle_it_stands_for(tmp_path: Path) -> None:
    registry = SharedStateRegistry()
    state = file(tmp_path, "s")
    with pytest.raises(IllegalStateError, match=r"checkpoint 1 refers to the stream 's'.* Send the state"):
        registry.register_reference("s", PlaceholderStreamStateHandle("s"), 1)
    registry.register_reference("s", state, 1)
    assert registry.register_reference("s", PlaceholderStreamStateHandle("s"), 2) is state
    registry.unregister_unused_state(2)
    assert names(tmp_path) == {"s"}


def test_before_a_checkpoint_has_it_a_stream_is_replaced(tmp_path: Path) -> None:
    registry = SharedStateRegistry()
    old, new = file(tmp_path, "old"), file(tmp_path, "new")
    registry.register_reference("s", old, 1)
    assert registry.register_reference("s", new, 2) is new
    assert names(tmp_path) == {"new"}
    registry.unregister_unused_state(3)
    assert names(tmp_path) == set()


def test_of_a_stream_that_was_replaced_nothing_is_kept_but_its_key(tmp_path: Path) -> None:
    registry = SharedStateRegistry()
    registry.register_all_after_restored(restored(1), RestoreMode.CLAIM)
    for key, keeps in (("a", False), ("b", True)):
        registry.register_reference(key, file(tmp_path, f"{key}-old"), 2, True, created_by=1)
        registry.register_reference(key, file(tmp_path, f"{key}-new"), 3, created_by=1, keeps_creator=keeps)
    assert registry.checkpoints_needed_by([2]) == set()
    registry.register_reference("b", PlaceholderStreamStateHandle("b"), 4)
    assert registry.checkpoints_in_use(3) == {1}
    registry.register_reference("a", PlaceholderStreamStateHandle("a"), 5)
    assert registry.checkpoints_in_use(5) == set()


def test_once_a_checkpoint_has_it_a_stream_stays(tmp_path: Path) -> None:
    registry = SharedStateRegistry()
    old, new = file(tmp_path, "old"), file(tmp_path, "new")
    registry.register_reference("s", old, 1)
    registry.checkpoint_completed(1)
    assert registry.register_reference("s", new, 2) is old
    assert names(tmp_path) == {"old"}
    registry.unregister_unused_state(2)
    assert names(tmp_path) == {"old"}


@pytest.mark.parametrize("completed", [1, 3])
def test_any_completed_checkpoint_that_uses_a_stream_confirms_it(tmp_path: Path, completed: int) -> None:
    registry = SharedStateRegistry()
    old = file(tmp_path, "old")
    registry.register_reference("s", old, 1)
    registry.register_reference("s", PlaceholderStreamStateHandle("s"), 3)
    registry.checkpoint_completed(completed)
    assert registry.register_reference("s", file(tmp_path, "new"), 4) is old
    assert names(tmp_path) == {"old"}


@pytest.mark.parametrize("completed", [0, 2])
def test_a_checkpoint_that_does_not_use_a_stream_does_not_confirm_it(tmp_path: Path, completed: int) -> None:
    registry = SharedStateRegistry()
    registry.register_reference("s", file(tmp_path, "old"), 1)
    registry.register_reference("s", PlaceholderStreamStateHandle("s"), 3)
    registry.checkpoint_completed(completed)
    new = file(tmp_path, "new")
    assert registry.register_reference("s", new, 4) is new


@pytest.mark.parametrize("confirmed", [False, True])
def test_two_handles_to_one_file_never_delete_it(tmp_path: Path, confirmed: bool) -> None:
    registry = SharedStateRegistry()
    absolute = file(tmp_path, "s")
    assert absolute != relative(absolute)
    registry.register_reference("s", absolute, 1)
    if confirmed:
        registry.checkpoint_completed(1)
    assert registry.register_reference("s", relative(absolute), 2) is absolute
    registry.register_reference("other key", relative(absolute), 3)
    registry.unregister_unused_state(3)
    assert names(tmp_path) == {"s"}
    registry.unregister_unused_state(4)
    assert names(tmp_path) == set()


# Restored checkpoints


@pytest.mark.parametrize("mode", RestoreMode)
def test_only_a_claimed_snapshot_is_ever_deleted(tmp_path: Path, mode: RestoreMode) -> None:
    registry = SharedStateRegistry()
    state = file(tmp_path, "old")
    checkpoint = restored(7, None, s=state)
    checkpoint.register_shared_states_after_restored(registry, mode)
    # Under another key, as its own.
    registry.register_reference("t", relative(state), 8)
    assert registry.register_reference("s", file(tmp_path, "again"), 8) is state
    registry.register_reference("u", file(tmp_path, "new"), 8)
    registry.unregister_unused_state(9)
    assert names(tmp_path) == (set() if mode is RestoreMode.CLAIM else {"old"})


@pytest.mark.parametrize("creator", [5, 7])
def test_what_an_unclaimed_checkpoint_left_under_its_number_or_earlier_ones_stays_too(
    tmp_path: Path, creator: int
) -> None:
    registry = SharedStateRegistry()
    registry.register_all_after_restored(restored(7), RestoreMode.NO_CLAIM)
    registry.register_reference("s", file(tmp_path, "old"), 8, created_by=creator)
    registry.unregister_unused_state(9)
    assert names(tmp_path) == {"old"}


def test_a_native_savepoint_is_in_use_until_its_state_is_not() -> None:
    registry = SharedStateRegistry()
    registry.register_all_after_restored(restored(1, NATIVE_SAVEPOINT, s=handle("s")), RestoreMode.CLAIM)
    registry.register_reference("s", PlaceholderStreamStateHandle("s"), 2)
    registry.register_reference("new", handle("new"), 3)
    assert registry.checkpoints_in_use(2) == {1}
    assert registry.unregister_unused_state(2) == {1}
    assert registry.unregister_unused_state(3) == set()


def test_a_native_savepoint_has_all_of_its_streams_inside_whoever_wrote_them() -> None:
    registry = SharedStateRegistry()
    stream = OperatorStreamStateHandle(
        state_name_to_partition_offsets={"default": StateMetaInfo((0,))}, delegate_state_handle=handle("s")
    )
    checkpoint = restored(5, NATIVE_SAVEPOINT)
    checkpoint.operator_states["op"] = OperatorState("op", 1, 1, {0: chain.start(3, stream)})
    registry.register_all_after_restored(checkpoint, RestoreMode.CLAIM)
    assert registry.unregister_unused_state(5) == {5}


def test_a_checkpoint_is_not_in_use_because_its_files_are() -> None:
    registry = SharedStateRegistry()
    registry.register_reference("s", handle("s"), 1)
    registry.register_reference("s", PlaceholderStreamStateHandle("s"), 2)
    assert registry.unregister_unused_state(2) == set()


@pytest.mark.parametrize("prevent", [False, True])
def test_a_restored_checkpoint_is_in_use_only_if_a_stream_prevents_discarding_it(prevent: bool) -> None:
    registry = SharedStateRegistry()
    registry.register_all_after_restored(restored(1, None, s=handle("s")), RestoreMode.CLAIM)
    registry.register_reference("s", PlaceholderStreamStateHandle("s"), 2, prevent)
    registry.register_reference("s", PlaceholderStreamStateHandle("s"), 3)
    assert registry.unregister_unused_state(3) == ({1} if prevent else set())
    assert registry.unregister_unused_state(4) == set()


def test_discarding_is_prevented_from_the_first_registration_on() -> None:
    registry = SharedStateRegistry()
    registry.register_all_after_restored(restored(1), RestoreMode.CLAIM)
    registry.register_reference("s", handle("s"), 2, True, created_by=1)
    registry.register_reference("t", handle("t"), 2, True)
    assert registry.unregister_unused_state(2) == {1}


# Deletions


def test_a_materialised_base_survives_while_a_newer_handle_uses_it(tmp_path: Path) -> None:
    registry = SharedStateRegistry()
    base = file(tmp_path, "base")
    for number in (1, 2, 3):
        registry.register_reference(
            "base", base if number == 1 else PlaceholderStreamStateHandle("base"), number
        )
        registry.register_reference(f"{number}", file(tmp_path, f"{number}"), number)
    registry.unregister_unused_state(3)
    assert names(tmp_path) == {"base", "3"}
    registry.unregister_unused_state(4)
    assert names(tmp_path) == set()


def test_a_stream_that_could_not_be_discarded_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = StubbornFiles()
    registry = SharedStateRegistry()
    state = file(tmp_path, "s", files)
    registry.register_reference("s", state, 1)
    registry.unregister_unused_state(2)
    assert "will try again" in caplog.text
    assert "s" not in registry
    assert registry.is_discarding(state.stream_state_handle_id)
    files.stubborn = False
    registry.unregister_unused_state(0)
    assert names(tmp_path) == set()
    assert not registry.is_discarding(state.stream_state_handle_id)


def test_a_stream_that_waits_to_be_discarded_is_kept_if_it_is_used_again(tmp_path: Path) -> None:
    tasks: list[Callable[[], None]] = []
    registry = SharedStateRegistry(tasks.append)
    old, other = file(tmp_path, "old"), file(tmp_path, "other")
    registry.register_reference("s", old, 1)
    registry.register_reference("s", other, 2)
    registry.register_reference("t", old, 3)
    registry.register_reference("t", other, 4)
    registry.register_reference("t", old, 5)
    for task in tasks:
        task()
    assert names(tmp_path) == {"old", "other"}
    registry.unregister_unused_state(9)
    for task in tasks:
        task()
    assert names(tmp_path) == set()


def test_a_stream_that_is_just_being_deleted_cannot_be_used_again(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    class SlowFiles(LocalFileSystem):
        def delete(self, path: str) -> None:
            begun.set()
            assert go_on.wait(60)
            super().delete(path)

    with ThreadPoolExecutor(1) as pool:
        registry = SharedStateRegistry(pool)
        state = file(tmp_path, "s", SlowFiles())
        registry.register_reference("s", state, 1)
        registry.unregister_unused_state(2)
        assert begun.wait(60)
        # The registry is at work meanwhile.
        registry.register_reference("t", handle("t"), 3)
        with pytest.raises(IllegalStateError, match=r"checkpoint 3 uses .*/s, which is being deleted"):
            registry.register_reference("s", state, 3)
        registry.unregister_unused_state(2)
        assert registry.is_discarding(state.stream_state_handle_id)
        go_on.set()
    assert names(tmp_path) == set()
    registry.register_reference("s", state, 3)


def test_an_executor_that_refuses_leaves_the_deletion_to_the_caller(tmp_path: Path) -> None:
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    registry = SharedStateRegistry(pool)
    registry.register_reference("s", file(tmp_path, "s"), 1)
    registry.unregister_unused_state(2)
    assert names(tmp_path) == set()


def test_a_deletion_that_an_executor_forgets_is_asked_for_again(tmp_path: Path) -> None:
    tasks: list[Callable[[], None]] = []
    registry = SharedStateRegistry(tasks.append)
    registry.register_reference("s", file(tmp_path, "s"), 1)
    registry.unregister_unused_state(2)
    tasks.clear()
    registry.unregister_unused_state(2)
    assert len(tasks) == 1
    tasks.pop()()
    assert names(tmp_path) == set()


def test_many_threads_register_and_each_unused_stream_is_discarded_once(tmp_path: Path) -> None:
    discarded: list[StreamStateHandle] = []
    registry = SharedStateRegistry(on_discarded=discarded.append)
    files = LocalFileSystem()

    def checkpoints(worker: int) -> None:
        for number in range(1, 41):
            registry.register_reference("all", handle("all"), number)
            own = FileStateHandle(files, str(tmp_path / f"{worker}-{number}"), 1)
            files.create(own.path, b"1")
            registry.register_reference(own.path, own, number)
            registry.unregister_unused_state(number - 10)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(checkpoints, worker) for worker in range(4)]:
            done.result()
    registry.unregister_unused_state(36)
    assert names(tmp_path) == {f"{worker}-{number}" for worker in range(4) for number in range(36, 41)}
    assert len({id(stream) for stream in discarded}) == len(discarded) == 4 * 35

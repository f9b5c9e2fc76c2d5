"""Tests of the shared state registry: the life of a stream, and its deletion."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import run_state_machine_as_test

from spark_statestore.errors import IllegalStateError
from spark_statestore.files import LocalFileSystem
from spark_statestore.storage.file_handles import FileStateHandle
from spark_statestore.storage.shared_state_registry import SharedStateRegistry
from spark_statestore.storage.stream_handles import ByteStreamStateHandle, StreamStateHandle
from tests.support.effort import EFFORT
from tests.support.machines.registry import SharedStateRegistryMachine
from tests.unit.storage.handles import StubbornFiles, state_file


def handle(name: str) -> ByteStreamStateHandle:
    return ByteStreamStateHandle(name, b"")


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(1, 9), st.integers(0, 3), st.booleans()), max_size=30
    ),
    st.integers(0, 11),
    st.sets(st.integers(0, 10), max_size=3),
)
def test_registry_discards_what_no_kept_checkpoint_uses(
    uses: list[tuple[str, int, int, bool]], lowest: int, held_checkpoints: set[int]
) -> None:
    discarded: list[str] = []
    registry = SharedStateRegistry(on_discarded=lambda h: discarded.append(h.stream_state_handle_id))
    created: dict[str, tuple[int, bool]] = {}
    users: dict[str, set[int]] = {}
    for key, version, age, keeps in uses:
        created.setdefault(key, (version - age, keeps))
        users.setdefault(key, set()).add(version)
        registry.register_reference(handle(key), version, created_by=version - age, keeps_creator=keeps)
    keys_in_use = {key for key in users if max(users[key]) >= lowest or users[key] & held_checkpoints}
    used = {created[key][0] for key in keys_in_use if created[key][1]}
    assert registry.checkpoints_in_use(lowest, held_checkpoints) == {
        creator for creator in used if creator < lowest
    }
    assert registry.unregister_unused_state(lowest, held_checkpoints) == used
    assert sorted(discarded) == sorted(users.keys() - keys_in_use)
    assert {key for key in users if key in registry} == keys_in_use


@pytest.mark.parametrize("numbers", [range(1, 9), range(8, 0, -1)])
def test_registry_stores_consecutive_users_as_one_run(numbers: range) -> None:
    registry = SharedStateRegistry()
    for number in numbers:
        registry.register_reference(handle("s"), number)
    assert registry._entries["s"].users == [(1, 8)]


@pytest.mark.parametrize("orphan", [False, True])
def test_registry_cancels_a_pending_deletion_when_the_stream_is_used_again(
    tmp_path: Path, orphan: bool
) -> None:
    files = StubbornFiles()
    registry = SharedStateRegistry()
    state = state_file(tmp_path, "s", files)
    registry.register_reference(state, 1)
    registry.unregister_unused_state(2)
    if orphan:
        registry.register_orphan(state, 3)
    else:
        registry.register_reference(state, 3)
    files.stubborn = False
    registry.unregister_unused_state(3)
    assert names(tmp_path) == {"s"}
    registry.unregister_unused_state(4)
    assert names(tmp_path) == set()


def test_registry_refuses_a_stream_that_is_being_deleted(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    class SlowFiles(LocalFileSystem):
        def delete(self, path: str) -> None:
            begun.set()
            assert go_on.wait(60)
            super().delete(path)

    registry = SharedStateRegistry()
    state = state_file(tmp_path, "s", SlowFiles())
    registry.register_reference(state, 1)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(registry.unregister_unused_state, 2)
        assert begun.wait(60)
        # The deletion holds no lock.
        registry.register_reference(handle("t"), 3)
        with pytest.raises(IllegalStateError, match=r"checkpoint 3 uses .*/s, which is being deleted"):
            registry.register_reference(state, 3)
        registry.unregister_unused_state(2)
        assert registry.is_discarding(state.stream_state_handle_id)
        go_on.set()
    assert names(tmp_path) == set()
    registry.register_reference(state, 3)


def test_registry_discards_each_stream_once_with_several_threads(tmp_path: Path) -> None:
    discarded: list[StreamStateHandle] = []
    registry = SharedStateRegistry(on_discarded=discarded.append)
    files = LocalFileSystem()

    def checkpoints(worker: int) -> None:
        for number in range(1, 41):
            registry.register_reference(handle("all"), number)
            own = FileStateHandle(files, str(tmp_path / f"{worker}-{number}"), 1)
            files.create(own.path, b"1")
            registry.register_reference(own, number)
            registry.unregister_unused_state(number - 10)

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(checkpoints, worker) for worker in range(4)]:
            future.result()
    registry.unregister_unused_state(36)
    assert names(tmp_path) == {f"{worker}-{number}" for worker in range(4) for number in range(36, 41)}
    assert len({id(stream) for stream in discarded}) == len(discarded) == 4 * 35


@pytest.mark.slow
def test_registry_keeps_the_streams_in_use_and_nothing_else() -> None:
    run_state_machine_as_test(
        SharedStateRegistryMachine,
        settings=settings(max_examples=150 * EFFORT, stateful_step_count=30, deadline=None),
    )

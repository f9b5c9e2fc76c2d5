"""The edge cases of Flink's storage model that concern state: points 15 to 19, 22 and 23, see test_edge_cases.py."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError
from pathlib import Path

import pyarrow as pa
import pytest

from spark_statestore.checkpoint.completed.checkpoint import CompletedCheckpoint
from spark_statestore.checkpoint.completed.properties import (
    CheckpointProperties,
    CheckpointRetentionPolicy,
    JobStatus,
)
from spark_statestore.checkpoint.completed.store import StandaloneCompletedCheckpointStore
from spark_statestore.checkpoint.files import FileOutput, LocalFileSystem
from spark_statestore.checkpoint.registry import RestoreMode, SharedStateRegistry
from spark_statestore.checkpoint.storage import (
    METADATA_FILE_NAME,
    FsCheckpointStorage,
)
from spark_statestore.errors import (
    IllegalStateError,
)
from spark_statestore.savepoint import FileSystemStateStore, HeapStateStore, SavepointStoreFactory
from spark_statestore.state.handles import (
    ByteStreamStateHandle,
    ChainEntry,
    FileStateHandle,
    IncrementalStateHandle,
    Mode,
    OperatorStreamStateHandle,
    StateMetaInfo,
)
from spark_statestore.state.handles.placeholder import PlaceholderStreamStateHandle
from spark_statestore.state.operator import (
    DefaultOperatorStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
    RoundRobinOperatorStateRepartitioner,
)
from spark_statestore.state.operator_state import OperatorState

FILES = LocalFileSystem()
NUMBERS = ListStateDescriptor("numbers", pa.int64())
RULES = MapStateDescriptor("rules", pa.utf8(), pa.int64())


def storage(directory: Path) -> FsCheckpointStorage:
    found = FsCheckpointStorage(FILES, str(directory), 0)
    found.initialize_base_locations_for_checkpoint()
    return found


# Registry and retention


def in_file(directory: Path, name: str) -> FileStateHandle:
    (directory / name).write_bytes(b"state")
    return FileStateHandle(FILES, str(directory / name), 5)


def checkpoint(
    directory: Path, number: int, properties: CheckpointProperties, states: dict[int, object] | None = None
) -> CompletedCheckpoint:
    location = storage(directory / "job").initialize_location_for_checkpoint(number)
    with location.create_metadata_output_stream() as out:
        out.write(b"metadata")
        completed = out.close_and_finalize_checkpoint()
    operator = OperatorState("operator", 4, 4, states or {})
    return CompletedCheckpoint(number, 0, 0, {"operator": operator}, properties, completed)


def exists(completed: CompletedCheckpoint) -> bool:
    return Path(completed.external_pointer.removeprefix("file://"), METADATA_FILE_NAME).exists()


CHECKPOINT = CheckpointProperties.for_checkpoint()
SAVEPOINT = CheckpointProperties.for_savepoint()
STOP = CheckpointProperties.for_sync_savepoint()


def test_15_a_placeholder_needs_what_it_stands_for() -> None:
    with pytest.raises(IllegalStateError, match="refers to the stream 'key'"):
        SharedStateRegistry().register_reference("key", PlaceholderStreamStateHandle("key", 5), 1)


def test_15_before_it_is_confirmed_the_new_one_stays_and_then_the_old_one(tmp_path: Path) -> None:
    registry = SharedStateRegistry()
    one, two, three = (in_file(tmp_path, name) for name in ("one", "two", "three"))
    assert registry.register_reference("key", one, 1) is one
    assert registry.register_reference("key", two, 1) is two
    assert not Path(one.path).exists()
    registry.checkpoint_completed(1)
    assert registry.register_reference("key", three, 2) is two
    assert not Path(three.path).exists()
    assert Path(two.path).exists()


@pytest.mark.parametrize(("mode", "stays"), [(RestoreMode.CLAIM, False), (RestoreMode.NO_CLAIM, True)])
def test_15_files_of_a_snapshot_that_is_not_claimed_are_never_deleted(
    tmp_path: Path, mode: RestoreMode, stays: bool
) -> None:
    handle, registry = in_file(tmp_path, "inherited"), SharedStateRegistry()
    chain = IncrementalStateHandle(5, 5, [ChainEntry(5, True, named(handle))])
    registry.register_all_after_restored(checkpoint(tmp_path, 5, CHECKPOINT, {0: chain}), mode)
    registry.unregister_unused_state(9)
    assert Path(handle.path).exists() == stays


def test_15_a_native_savepoint_that_is_claimed_stays_while_it_is_used(tmp_path: Path) -> None:
    handle, registry = in_file(tmp_path, "inherited"), SharedStateRegistry()
    chain = IncrementalStateHandle(5, 5, [ChainEntry(5, True, named(handle))])
    registry.register_all_after_restored(checkpoint(tmp_path, 5, SAVEPOINT, {0: chain}), RestoreMode.CLAIM)
    registry.register_reference(handle.stream_state_handle_id, handle, 6)
    assert registry.unregister_unused_state(6) == {5}
    assert registry.unregister_unused_state(7) == set()


def named(handle: FileStateHandle) -> OperatorStreamStateHandle:
    return OperatorStreamStateHandle(
        state_name_to_partition_offsets={"default": StateMetaInfo((0,))}, delegate_state_handle=handle
    )


def test_16_the_newest_checkpoint_is_kept_beside_a_savepoint(tmp_path: Path) -> None:
    retained = StandaloneCompletedCheckpointStore(1)
    one, two, three = (
        checkpoint(tmp_path, number, kind)
        for number, kind in ((1, CHECKPOINT), (2, SAVEPOINT), (3, SAVEPOINT))
    )
    for new in (one, two, three):
        retained.add_checkpoint_and_subsume_oldest_one(new)
    assert retained.all_checkpoints == [one, three]
    # A savepoint is its owner's: only the place in the queue went.
    assert all(map(exists, (one, two, three)))


def test_16_after_stopping_with_a_savepoint_everything_older_goes(tmp_path: Path) -> None:
    retained = StandaloneCompletedCheckpointStore(1)
    one, stop = checkpoint(tmp_path, 1, CHECKPOINT), checkpoint(tmp_path, 2, STOP)
    for new in (one, stop):
        retained.add_checkpoint_and_subsume_oldest_one(new)
    assert retained.all_checkpoints == [stop]
    assert [exists(one), exists(stop)] == [False, True]


@pytest.mark.parametrize("status", list(JobStatus))
def test_17_checkpoints_retained_on_cancellation(tmp_path: Path, status: JobStatus) -> None:
    properties = CheckpointProperties.for_checkpoint(CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION)
    retained, one = StandaloneCompletedCheckpointStore(1), checkpoint(tmp_path, 1, properties)
    retained.add_checkpoint_and_subsume_oldest_one(one)
    retained.shutdown(status)
    assert exists(one) == (status is not JobStatus.FINISHED)


# Operator state


def written(backend: DefaultOperatorStateBackend, directory: Path) -> OperatorStreamStateHandle:
    future = backend.snapshot(1, 0, storage(directory).initialize_location_for_checkpoint(1))
    future.run()
    return future.result(30).job_manager_owned


def test_18_a_name_is_a_list_or_a_map(tmp_path: Path) -> None:
    backend = DefaultOperatorStateBackend()
    backend.get_list_state(NUMBERS)
    with pytest.raises(IllegalStateError, match=r"SPLIT_DISTRIBUTE .* BROADCAST"):
        backend.get_broadcast_state(MapStateDescriptor("numbers", pa.utf8(), pa.int64()))
    backend.get_broadcast_state(RULES)
    with pytest.raises(IllegalStateError, match=r"BROADCAST .* UNION"):
        backend.get_union_list_state(ListStateDescriptor("rules", pa.int64()))


def test_18_a_list_is_split_or_united_also_after_it_was_restored(tmp_path: Path) -> None:
    backend = DefaultOperatorStateBackend()
    backend.get_list_state(NUMBERS).update([1, 2])
    for again in (backend, DefaultOperatorStateBackend([written(backend, tmp_path)])):
        with pytest.raises(IllegalStateError, match=r"SPLIT_DISTRIBUTE .* UNION"):
            again.get_union_list_state(NUMBERS)
        assert again.get_list_state(NUMBERS).get() == [1, 2]


def test_18_a_snapshot_does_not_see_what_comes_after_it(tmp_path: Path) -> None:
    backend = DefaultOperatorStateBackend()
    backend.get_list_state(NUMBERS).update([1, 2])
    backend.get_broadcast_state(RULES).put("a", 1)
    future = backend.snapshot(1, 0, storage(tmp_path).initialize_location_for_checkpoint(1))
    backend.get_list_state(NUMBERS).add(3)
    backend.get_broadcast_state(RULES).clear()
    backend.get_list_state(ListStateDescriptor("late", pa.int64())).add(1)
    future.run()
    again = DefaultOperatorStateBackend([future.result(30).job_manager_owned])
    assert again.get_list_state(NUMBERS).get() == [1, 2]
    assert dict(again.get_broadcast_state(RULES).items()) == {"a": 1}
    assert set(again.registered_state_names) == {"numbers"}


def test_18_a_cancelled_snapshot_leaves_nothing(tmp_path: Path) -> None:
    for cancel in ("future", "backend"):
        backend = DefaultOperatorStateBackend()
        backend.get_list_state(NUMBERS).update(range(100))
        future = backend.snapshot(1, 0, storage(tmp_path).initialize_location_for_checkpoint(1))
        if cancel == "future":
            assert future.cancel()
        else:
            backend.close()
        future.run()
        with pytest.raises(CancelledError):
            future.result(30)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


class Waiting(LocalFileSystem):
    """Waits while a file is opened, or when it is finished, until it may go on."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def wait(self, where: str) -> None:
        if where == self.where:
            self.reached.set()
            assert self.go_on.wait(30)

    def open_output(self, path: str) -> FileOutput:
        out = super().open_output(path)
        self.wait("opened")
        close = out.close

        def close_and_wait() -> None:
            close()
            self.wait("finished")

        out.close = close_and_wait
        return out


@pytest.mark.parametrize("where", ["opened", "finished"])
def test_18_a_snapshot_that_is_cancelled_while_it_is_written_leaves_nothing(
    tmp_path: Path, where: str
) -> None:
    files = Waiting(where)
    found = FsCheckpointStorage(files, str(tmp_path), 0)
    backend = DefaultOperatorStateBackend()
    backend.get_list_state(NUMBERS).update(range(100))
    future = backend.snapshot(1, 0, found.initialize_location_for_checkpoint(1))
    thread = threading.Thread(target=future.run)
    thread.start()
    assert files.reached.wait(30)
    canceller = threading.Thread(target=future.cancel)
    canceller.start()
    # It need not wait for the stream; give it the time to close it first.
    canceller.join(0.2)
    files.go_on.set()
    for started in (canceller, thread):
        started.join(30)
        assert not started.is_alive()
    with pytest.raises(CancelledError):
        future.result(0)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


@pytest.mark.parametrize(("old", "new"), [(2, 3), (3, 2), (4, 1), (1, 4), (2, 9), (3, 3)])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_19_every_element_is_on_one_subtask_after_rescaling(
    tmp_path: Path, old: int, new: int, count: int
) -> None:
    handles = []
    for subtask in range(old):
        backend = DefaultOperatorStateBackend()
        for name in ("numbers", "others"):
            state = backend.get_list_state(ListStateDescriptor(name, pa.int64()))
            state.update(range(subtask, count, old))
        backend.get_union_list_state(ListStateDescriptor("united", pa.int64())).add(7)
        if subtask == 0:
            # One donor for all.
            backend.get_broadcast_state(RULES).put("a", 1)
        handles.append([written(backend, tmp_path / str(subtask))])
    shares = RoundRobinOperatorStateRepartitioner().repartition_state(handles, old, new)
    assert len(shares) == new
    backends = [DefaultOperatorStateBackend(share) for share in shares]
    for name in ("numbers", "others"):
        lists = [b.get_list_state(ListStateDescriptor(name, pa.int64())).get() for b in backends]
        assert sorted(element for part in lists for element in part) == list(range(count))
        assert old == new or max(map(len, lists)) - min(map(len, lists)) <= 1
    for backend in backends:
        assert backend.get_union_list_state(ListStateDescriptor("united", pa.int64())).get() == [7] * old
        assert dict(backend.get_broadcast_state(RULES).items()) == {"a": 1}


def test_19_remainders_go_around_the_subtasks() -> None:
    handle = OperatorStreamStateHandle(
        state_name_to_partition_offsets={name: StateMetaInfo((0, 1, 2, 3)) for name in "abc"},
        delegate_state_handle=ByteStreamStateHandle("stream", bytes(4)),
    )
    shares = RoundRobinOperatorStateRepartitioner().repartition_state([[handle]], 1, 3)
    counts = [
        {n: len(m.offsets) for h in share for n, m in h.state_name_to_partition_offsets.items()}
        for share in shares
    ]
    assert counts == [{"a": 2, "b": 1, "c": 1}, {"a": 1, "b": 2, "c": 1}, {"a": 1, "b": 1, "c": 2}]


def test_19_with_as_many_subtasks_lists_stay_where_they_are() -> None:
    handle = OperatorStreamStateHandle(
        state_name_to_partition_offsets={"a": StateMetaInfo((0,), Mode.SPLIT_DISTRIBUTE)},
        delegate_state_handle=ByteStreamStateHandle("stream", b"1"),
    )
    previous = [[handle], []]
    assert RoundRobinOperatorStateRepartitioner().repartition_state(previous, 2, 2) is previous


# Disposing


def test_22_metadata_goes_first_and_the_place_last(tmp_path: Path) -> None:
    order: list[str] = []

    class State(FileStateHandle):
        def discard_state(self) -> None:
            order.append(Path(self.path).name)
            assert not exists(found)
            assert Path(found.external_pointer.removeprefix("file://")).is_dir()
            raise OSError(f"{Path(self.path).name} stays")

    states = {n: State(FILES, str(tmp_path / name), 1) for n, name in enumerate(("one", "two"))}
    found = checkpoint(tmp_path, 1, CHECKPOINT, states)
    with pytest.raises(IllegalStateError, match="Mark it as discarded"):
        found.discard()
    found.mark_as_discarded()
    with pytest.raises(OSError, match="one stays") as raised:
        found.discard()
    assert any("two stays" in note for note in raised.value.__notes__)
    assert order == ["one", "two"]
    assert not Path(found.external_pointer.removeprefix("file://")).exists()
    with pytest.raises(FileNotFoundError):
        storage(tmp_path / "job").resolve_checkpoint(found.external_pointer)


# Stores of savepoints


def test_23_savepoints_in_memory_have_numbers() -> None:
    store: HeapStateStore[str] = HeapStateStore()
    assert [store.put_state("a"), store.put_state("b")] == ["1", "2"]
    for path in ("3", "not a number", ""):
        with pytest.raises(ValueError, match="no savepoint"):
            store.get_state(path)


def test_23_the_directory_goes_with_the_last_savepoint(tmp_path: Path) -> None:
    root = tmp_path / "savepoints"
    store = FileSystemStateStore(str(root), "savepoint-", str.encode, bytes.decode)
    paths = [store.put_state("a"), store.put_state("b")]
    assert [store.get_state(path) for path in paths] == ["a", "b"]
    store.dispose_state(paths[0])
    assert root.is_dir()
    store.dispose_state(paths[1])
    assert not root.exists()
    with pytest.raises(ValueError, match="no savepoint"):
        store.get_state(paths[1])


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"savepoints.state.backend": "filesystem"},
        {"savepoints.state.backend": "something", "savepoints.state.backend.fs.dir": "/tmp/x"},
        {"savepoints.state.backend": "filesystem", "savepoints.state.backend.fs.dir": "nonsense://x/y"},
    ],
)
def test_23_any_configuration_gives_a_store(config: dict[str, str]) -> None:
    store = SavepointStoreFactory.create_from_config(
        config, serialize=str.encode, deserialize=bytes.decode, discard=lambda _: None
    )
    assert isinstance(store.state_store, HeapStateStore)

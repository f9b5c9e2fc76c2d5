"""Where savepoints are put: in memory, in files, and what happens to them at the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from spark_statestore.checkpoint.completed.checkpoint import CompletedCheckpoint
from spark_statestore.checkpoint.files import FileSystem, LocalFileSystem, MemoryFileSystem
from spark_statestore.checkpoint.files.base import Buffer
from spark_statestore.errors import (
    CheckpointIOError,
    CheckpointNotFoundError,
    SavepointNotFoundError,
    StorageURLError,
)
from spark_statestore.savepoint import FileSystemStateStore, HeapStateStore, SavepointStore, StateStore
from spark_statestore.savepoint.stores.savepoints import discard_savepoint
from tests.checkpoint.completed.checkpoints import SAVEPOINT, Files, checkpoint, left

State = dict[str, Any]


def dump(state: State) -> bytes:
    return json.dumps(state).encode()


def in_files(root: Path | str, files: FileSystem | None = None) -> FileSystemStateStore[State]:
    return FileSystemStateStore(str(root), "savepoint-", dump, json.loads, files=files)


STORES: dict[str, Callable[[Path], StateStore[State]]] = {
    "heap": lambda _: HeapStateStore(),
    "files": in_files,
    "url": lambda root: in_files(f"file://{root}"),
    "memory": lambda root: in_files("/savepoints", MemoryFileSystem()),
    "savepoints": lambda root: SavepointStore(in_files(root), lambda _: None),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateStore[State]]:
    store = STORES[request.param](tmp_path / "savepoints")
    store.start()
    yield store
    store.stop()


def test_a_state_is_found_under_its_path_until_it_is_disposed_of(store: StateStore[State]) -> None:
    paths = [store.put_state({"n": n}) for n in range(3)]
    assert len(set(paths)) == 3
    assert [store.get_state(path) for path in paths] == [{"n": 0}, {"n": 1}, {"n": 2}]
    store.dispose_state(paths[1])
    for ask in (store.get_state, store.dispose_state):
        with pytest.raises(SavepointNotFoundError) as raised:
            ask(paths[1])
        assert repr(paths[1]) in str(raised.value)
        assert raised.value.filename == paths[1]
    assert store.get_state(paths[2]) == {"n": 2}


@pytest.mark.parametrize("path", ["99", "no number", "", "/nowhere/savepoint-1", "http://host/x", "-1", "²"])
def test_a_path_without_a_state_is_a_value_error(store: StateStore[State], path: str) -> None:
    for ask in (store.get_state, store.dispose_state):
        with pytest.raises(ValueError, match="no savepoint under the path"):
            ask(path)
        with pytest.raises(CheckpointNotFoundError):
            ask(path)


def test_nothing_is_no_state(store: StateStore[State]) -> None:
    with pytest.raises(TypeError, match="None"):
        store.put_state(None)


def test_ids_in_memory_begin_with_1_and_are_never_used_again() -> None:
    store: HeapStateStore[str] = HeapStateStore()
    assert [store.put_state("a"), store.put_state("b")] == ["1", "2"]
    assert store.get_all() == ["a", "b"]
    store.dispose_state("2")
    assert store.put_state("c") == "3"
    assert store.clear_all() == ["a", "c"]
    assert store.get_all() == []
    assert store.put_state("d") == "4"


def test_many_threads_get_ids_of_their_own() -> None:
    store: HeapStateStore[int] = HeapStateStore()
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(store.put_state, range(200)))
    assert sorted(map(int, paths)) == list(range(1, 201))
    assert [store.get_state(path) for path in paths] == list(range(200))


def test_a_file_is_named_by_prefix_and_12_digits_and_the_directory_goes_with_the_last(tmp_path: Path) -> None:
    root = tmp_path / "savepoints"
    store = in_files(f"{root}/")
    assert not root.exists()
    paths = [store.put_state({}), store.put_state({})]
    assert all(path.startswith(f"file://{root}/savepoint-") for path in paths)
    assert all(len(path) == len(f"file://{root}/savepoint-") + 12 for path in paths)
    store.dispose_state(paths[0])
    assert root.exists()
    store.dispose_state(paths[1])
    assert not root.exists()
    assert tmp_path.exists()


def test_the_directory_stays_if_something_else_is_in_it(tmp_path: Path) -> None:
    store = in_files(tmp_path / "savepoints")
    path = store.put_state({})
    (tmp_path / "savepoints" / "notes").write_text("mine")
    store.dispose_state(path)
    assert left(tmp_path) == {"notes"}


def test_another_stores_savepoint_is_read_but_not_removed(tmp_path: Path) -> None:
    path = in_files(tmp_path / "one").put_state({"n": 1})
    other = in_files(tmp_path / "two")
    plain = path.removeprefix("file://")
    assert other.get_state(path) == other.get_state(plain) == {"n": 1}
    with pytest.raises(SavepointNotFoundError, match=r"two/savepoint-\* only.* Use the store"):
        other.dispose_state(path)
    assert in_files(tmp_path / "one").get_state(plain) == {"n": 1}
    in_files(tmp_path / "one").dispose_state(plain)
    assert left(tmp_path) == set()


def test_a_savepoint_on_another_file_system_is_read_there(tmp_path: Path) -> None:
    path = in_files(tmp_path / "one").put_state({"n": 1})
    other = in_files("/savepoints", MemoryFileSystem())
    assert other.get_state(path) == {"n": 1}
    with pytest.raises(SavepointNotFoundError):
        other.dispose_state(path)


@pytest.mark.parametrize("path", ["savepoints", "savepoints/keep", "savepoints/savepoint-dir/x"])
def test_only_its_own_files_are_removed(tmp_path: Path, path: str) -> None:
    store = in_files(tmp_path / "savepoints")
    store.put_state({})
    (tmp_path / "savepoints" / "keep").write_text("{}")
    (tmp_path / "savepoints" / "savepoint-dir").mkdir()
    (tmp_path / "savepoints" / "savepoint-dir" / "x").write_text("{}")
    before = left(tmp_path)
    with pytest.raises(SavepointNotFoundError):
        store.dispose_state(str(tmp_path / path))
    assert left(tmp_path) == before


class Troubled(LocalFileSystem):
    """Fails to create, read or delete as told."""

    def __init__(self, **errors: list[OSError]) -> None:
        super().__init__()
        self.errors = errors

    def fail(self, what: str) -> None:
        if self.errors.get(what):
            raise self.errors[what].pop(0)

    def create(self, path: str, data: Buffer) -> None:
        self.fail("create")
        super().create(path, data)

    def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        self.fail("read")
        return super().read(path, start, size)

    def delete(self, path: str) -> None:
        self.fail("delete")
        super().delete(path)


@pytest.mark.parametrize("error", [FileExistsError, FileNotFoundError])
def test_a_name_that_is_taken_is_tried_again_ten_times(tmp_path: Path, error: type[OSError]) -> None:
    store = in_files(tmp_path / "s", Troubled(create=[error("taken")] * 9))
    assert store.get_state(store.put_state({"n": 1})) == {"n": 1}
    with pytest.raises(CheckpointIOError, match=r"could not be written below .*taken"):
        in_files(tmp_path / "s", Troubled(create=[error("taken")] * 10)).put_state({})
    assert len(left(tmp_path)) == 1


def test_a_write_that_fails_is_not_repeated_and_leaves_nothing(tmp_path: Path) -> None:
    files = Troubled(create=[OSError("disk full")])
    store = in_files(tmp_path / "s", files)
    with pytest.raises(CheckpointIOError, match=r"disk full.* Nothing was left"):
        store.put_state({})
    assert left(tmp_path) == set()
    store.put_state({})
    files.errors["create"] = [OSError("disk full")]
    with pytest.raises(CheckpointIOError):
        store.put_state({})
    assert len(left(tmp_path)) == 1


def test_a_state_that_cannot_be_serialised_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        in_files(tmp_path / "s").put_state({"n": object()})
    assert left(tmp_path) == set()


def test_a_savepoint_that_cannot_be_read_or_removed_is_named(tmp_path: Path) -> None:
    store = in_files(tmp_path / "s", Troubled(read=[PermissionError("no")], delete=[PermissionError("no")]))
    path = store.put_state({})
    with pytest.raises(CheckpointIOError, match=r"savepoint-\w{12} cannot be read: no"):
        store.get_state(path)
    with pytest.raises(CheckpointIOError, match=r"savepoint-\w{12} could not be removed: no"):
        store.dispose_state(path)
    assert store.get_state(path) == {}


def test_a_directory_and_a_prefix_are_needed(tmp_path: Path) -> None:
    for root, prefix in ((None, "p"), (str(tmp_path), None)):
        with pytest.raises(TypeError, match="a directory and a prefix"):
            FileSystemStateStore(root, prefix, dump, json.loads)
    with pytest.raises(StorageURLError):
        in_files("http://host/savepoints")


def test_savepoints_in_memory_are_discarded_at_the_end(tmp_path: Path) -> None:
    heap: HeapStateStore[CompletedCheckpoint] = HeapStateStore()
    store = SavepointStore(heap, discard_savepoint)
    assert store.state_store is heap
    files = Files()
    path = store.put_state(checkpoint(files, tmp_path, 1, SAVEPOINT))
    store.put_state(checkpoint(files, tmp_path, 2, SAVEPOINT))
    store.stop()
    assert left(tmp_path) == set()
    with pytest.raises(SavepointNotFoundError):
        store.get_state(path)
    store.stop()


def test_at_the_end_all_savepoints_are_tried_before_the_first_failure_is_raised(tmp_path: Path) -> None:
    store = SavepointStore(HeapStateStore(), discard_savepoint)
    files = Files()
    files.stubborn = {"1-metadata", "2-metadata"}
    for number in (1, 2, 3):
        store.put_state(checkpoint(files, tmp_path, number, SAVEPOINT))
    with pytest.raises(OSError, match="1-metadata") as raised:
        store.stop()
    assert any("2-metadata" in note for note in raised.value.__notes__)
    assert left(tmp_path) == {"1-metadata", "2-metadata"}
    store.stop()


def test_savepoints_in_files_stay_at_the_end(tmp_path: Path) -> None:
    store = SavepointStore(in_files(tmp_path / "s"), lambda state: pytest.fail(f"{state} was discarded"))
    path = store.put_state({"n": 1})
    store.stop()
    assert in_files(tmp_path / "s").get_state(path) == {"n": 1}

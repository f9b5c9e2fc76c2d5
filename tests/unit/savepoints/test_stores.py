"""Tests of the stores of savepoints: the contract on the heap and in files, and the choice between them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from spark_statestore import dispose_savepoint, list_savepoints, load_savepoint, restore, savepoint
from spark_statestore.errors import (
    CheckpointIOError,
    CheckpointNotFoundError,
    OptionError,
    SavepointNotFoundError,
)
from spark_statestore.query.savepoint import open_checkpoint
from spark_statestore.savepoints import (
    FileSystemStateStore,
    HeapStateStore,
    SavepointStoreFactory,
    StateStore,
)
from tests.support.trees import files_below
from tests.unit.savepoints.written_query import OPERATORS, WrittenQuery, content

State = dict[str, Any]


def in_files(root: Path | str) -> FileSystemStateStore[State]:
    return FileSystemStateStore(
        str(root),
        lambda state: f"{root}/{state['name']}",
        lambda state: json.dumps(state).encode(),
        lambda data, path, where: json.loads(data),
        lambda name: name.startswith("savepoint-"),
    )


STORES: dict[str, Callable[[Path], StateStore[State]]] = {
    "heap": lambda _: HeapStateStore(),
    "heap-with-paths": lambda root: HeapStateStore(lambda state: f"{root}/{state['name']}"),
    "files": in_files,
    "url": lambda root: in_files(f"file://{root}"),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> StateStore[State]:
    return STORES[request.param](tmp_path / "savepoints")


def state(number: int) -> State:
    return {"name": f"savepoint-{number}"}


def test_store_returns_a_state_until_it_is_disposed_of(store: StateStore[State]) -> None:
    paths = [store.put_state(state(n)) for n in range(3)]
    assert len(set(paths)) == 3
    assert [store.get_state(path) for path in paths] == [state(0), state(1), state(2)]
    assert sorted(store.get_all(), key=str) == [state(0), state(1), state(2)]
    store.dispose_state(paths[1])
    assert [store.exists(path) for path in paths] == [True, False, True]
    for ask in (store.get_state, store.find, store.dispose_state):
        with pytest.raises(SavepointNotFoundError) as raised:
            ask(paths[1])
        assert repr(paths[1]) in str(raised.value)
        assert raised.value.filename == paths[1]
    assert store.get_state(paths[2]) == state(2)


def test_store_resumes_a_disposal_and_cancels_it(store: StateStore[State]) -> None:
    path = store.put_state(state(0))
    for _ in range(2):
        assert store.begin_disposal(path) == state(0)
        assert not store.exists(path)
        assert store.is_being_disposed(path)
        assert store.find(path) == state(0)
        assert store.get_all() == []
        with pytest.raises(SavepointNotFoundError):
            store.get_state(path)
    store.cancel_disposal(state(0))
    assert store.get_state(path) == state(0)
    assert not store.is_being_disposed(path)
    store.begin_disposal(path)
    store.end_disposal(path)
    with pytest.raises(SavepointNotFoundError):
        store.find(path)


@pytest.mark.parametrize("path", ["/nowhere/savepoint-1", "/-1"])
def test_store_raises_a_value_error_for_an_unknown_path(store: StateStore[State], path: str) -> None:
    for ask in (store.get_state, store.dispose_state):
        with pytest.raises(ValueError, match="no savepoint exists under the path"):
            ask(path)
        with pytest.raises(CheckpointNotFoundError):
            ask(path)


def test_store_refuses_none(store: StateStore[State]) -> None:
    with pytest.raises(TypeError, match="None"):
        store.put_state(None)


def test_heap_store_numbers_states_of_several_threads_and_reuses_no_number() -> None:
    store: HeapStateStore[int] = HeapStateStore()
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(store.put_state, range(200)))
    assert sorted(map(int, paths)) == list(range(1, 201))
    assert [store.get_state(path) for path in paths] == list(range(200))
    store.dispose_state("200")
    assert store.put_state(7) == "201"


def test_file_store_removes_only_its_own_files(tmp_path: Path) -> None:
    store = in_files(tmp_path)
    path = store.put_state(state(0))
    notes = tmp_path / "savepoint-0" / "notes"
    notes.write_text("mine")
    store.dispose_state(path)
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [notes]
    with pytest.raises(SavepointNotFoundError):
        store.dispose_state(str(tmp_path))
    assert notes.exists()


def test_file_store_never_replaces_a_state(tmp_path: Path) -> None:
    store = in_files(tmp_path)
    store.put_state(state(0))
    before = files_below(tmp_path)
    with pytest.raises(CheckpointIOError, match="could not write"):
        store.put_state(state(0) | {"other": 1})
    assert files_below(tmp_path) == before


def test_file_store_names_what_cannot_be_written_or_listed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointIOError, match=r"file/savepoint-0"):
        in_files(tmp_path / "file").put_state(state(0))
    assert in_files(tmp_path / "missing").get_all() == []


def test_factory_needs_a_target_or_the_option_savepoints_dir(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="savepointsDir"):
        SavepointStoreFactory.create(None)
    assert SavepointStoreFactory.create(None, f"{tmp_path}/default").target == f"{tmp_path}/default"
    assert SavepointStoreFactory.create(f"{tmp_path}/x", f"{tmp_path}/default").target == f"{tmp_path}/x"


@pytest.mark.parametrize(("scheme", "kind"), [("memory", HeapStateStore), ("file", FileSystemStateStore)])
def test_factory_chooses_the_heap_for_memory_targets(scheme: str, kind: type, tmp_path: Path) -> None:
    target = f"memory://{uuid.uuid4()}/target" if scheme == "memory" else f"file://{tmp_path}/target"
    assert isinstance(SavepointStoreFactory.create(target).store, kind)
    query = WrittenQuery(str(tmp_path / "checkpoint"), True, operators=OPERATORS)
    for _ in range(2):
        query.run()
    wanted = dict(query.rows)
    for snapshot in ("canonical", "pointer"):
        made = savepoint(query.url, target, snapshot)
        assert load_savepoint(made.path) == load_savepoint(f"{made.path}/_metadata") == made
        assert list_savepoints(target) == [made]
        assert content(open_checkpoint(made.path)) == wanted
        new = str(tmp_path / f"new-{snapshot}")
        assert restore(made, new) == made.batch
        assert content(open_checkpoint(new)) == wanted
        removed = dispose_savepoint(made.path, dry_run=True)
        assert list_savepoints(target) == [made]
        assert dispose_savepoint(made.path) == removed
        assert list_savepoints(target) == []
        with pytest.raises(SavepointNotFoundError):
            load_savepoint(made.path)

"""Tests of the stores of savepoints: the contract on the heap and in files, and the choice between them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_statestore import dispose_savepoint, list_savepoints, load_savepoint, restore, savepoint
from spark_statestore.errors import (
    CheckpointExistsError,
    CheckpointIOError,
    OptionError,
    SavepointNotFoundError,
)
from spark_statestore.query.savepoint import Savepoint
from spark_statestore.query.savepoint_lookup import open_checkpoint
from spark_statestore.savepoints import (
    FileSystemStateStore,
    HeapStateStore,
    SavepointStoreFactory,
    StateStore,
)
from tests.support.trees import files_below
from tests.unit.savepoints.written_query import WrittenQuery, content

STORES: dict[str, Callable[[Path], StateStore]] = {
    "heap": lambda _: HeapStateStore(),
    "files": lambda root: FileSystemStateStore(str(root)),
    "url": lambda root: FileSystemStateStore(f"file://{root}"),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> StateStore:
    return STORES[request.param](tmp_path)


def state(root: Path, number: int = 0, **changed: Any) -> Savepoint:
    """A savepoint in a directory of its own."""
    name, path = f"savepoint-abc-{number:012x}", f"file://{root}/savepoint-abc-{number:012x}"
    new_savepoint = Savepoint(
        path, "canonical", "abc", 1, 2, "source", f"{path}/state", name, f"{number:016x}"
    )
    return replace(new_savepoint, **changed)


def test_store_returns_a_state_until_it_is_disposed_of(store: StateStore, tmp_path: Path) -> None:
    states = [state(tmp_path, n) for n in range(3)]
    paths = [store.put_state(new_savepoint) for new_savepoint in states]
    assert len(set(paths)) == 3
    assert [store.get_state(path) for path in paths] == states
    assert sorted(store.get_all(), key=str) == states
    store.dispose_state(paths[1])
    assert [store.exists(path) for path in paths] == [True, False, True]
    for ask in (store.get_state, store.find, store.dispose_state):
        for path in (paths[1], "/nowhere/savepoint-1", "/-1"):
            with pytest.raises(SavepointNotFoundError, match="no savepoint exists under the path") as raised:
                ask(path)
            assert raised.value.filename == path
    with pytest.raises(TypeError, match="None"):
        store.put_state(None)
    assert store.get_state(paths[2]) == states[2]


def test_store_resumes_a_disposal_and_cancels_it(store: StateStore, tmp_path: Path) -> None:
    new_savepoint = state(tmp_path)
    path = store.put_state(new_savepoint)
    for _ in range(2):
        assert store.begin_disposal(path) == new_savepoint
        assert not store.exists(path)
        assert store.is_being_disposed(path)
        assert store.find(path) == new_savepoint
        assert store.get_all() == []
        with pytest.raises(SavepointNotFoundError):
            store.get_state(path)
    store.cancel_disposal(new_savepoint)
    assert store.get_state(path) == new_savepoint
    assert not store.is_being_disposed(path)
    store.begin_disposal(path)
    store.end_disposal(path)
    with pytest.raises(SavepointNotFoundError):
        store.find(path)


def test_heap_store_keeps_the_states_of_several_threads(tmp_path: Path) -> None:
    store = HeapStateStore()
    states = [state(tmp_path, n) for n in range(200)]
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(store.put_state, states))
    assert len(set(paths)) == 200
    assert [store.get_state(path) for path in paths] == states


def test_file_store_removes_only_its_own_files(tmp_path: Path) -> None:
    store = FileSystemStateStore(str(tmp_path))
    path = store.put_state(state(tmp_path))
    notes = tmp_path / state(tmp_path).name / "notes"
    notes.write_text("mine")
    store.dispose_state(path)
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [notes]
    with pytest.raises(SavepointNotFoundError):
        store.dispose_state(str(tmp_path))
    assert notes.exists()


def test_file_store_never_replaces_a_state(tmp_path: Path) -> None:
    store = FileSystemStateStore(str(tmp_path))
    store.put_state(state(tmp_path))
    before = files_below(tmp_path)
    with pytest.raises(CheckpointExistsError, match="never replaced"):
        store.put_state(state(tmp_path, batch=7))
    assert files_below(tmp_path) == before


def test_file_store_names_what_cannot_be_written_or_listed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    unwritable = state(tmp_path / "file")
    with pytest.raises(CheckpointIOError, match=f"file/{unwritable.name}"):
        FileSystemStateStore(str(tmp_path / "file")).put_state(unwritable)
    assert FileSystemStateStore(str(tmp_path / "missing")).get_all() == []


def test_factory_needs_a_target_or_the_option_savepoints_dir(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="savepointsDir"):
        SavepointStoreFactory.create(None)
    assert SavepointStoreFactory.create(None, f"{tmp_path}/default").target == f"{tmp_path}/default"
    destination = SavepointStoreFactory.create(f"{tmp_path}/x", f"{tmp_path}/default")
    assert destination.target == f"{tmp_path}/x"
    assert isinstance(destination.store, FileSystemStateStore)


def test_memory_target_has_savepoints_on_the_heap(tmp_path: Path) -> None:
    target = f"memory://{uuid.uuid4()}/target"
    assert isinstance(SavepointStoreFactory.create(target).store, HeapStateStore)
    query = WrittenQuery(str(tmp_path / "checkpoint"), True)
    query.run()
    for kind in ("canonical", "pointer"):
        new_savepoint = savepoint(query.url, target, kind)
        assert (
            load_savepoint(new_savepoint.path)
            == load_savepoint(f"{new_savepoint.path}/_metadata")
            == new_savepoint
        )
        assert list_savepoints(target) == [new_savepoint]
        restore(new_savepoint, str(tmp_path / kind))
        for checkpoint in (new_savepoint.path, str(tmp_path / kind)):
            assert content(open_checkpoint(checkpoint)) == query.rows
        removed = dispose_savepoint(new_savepoint.path, dry_run=True)
        assert list_savepoints(target) == [new_savepoint]
        assert dispose_savepoint(new_savepoint.path) == removed
        assert list_savepoints(target) == []

"""Which store of savepoints a configuration asks for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_statestore.options import OPTION_PREFIX
from spark_statestore.savepoint import (
    FileSystemStateStore,
    HeapStateStore,
    SavepointStore,
    SavepointStoreFactory,
)

BACKEND, DIRECTORY = "savepoints.state.backend", "savepoints.state.backend.fs.dir"


def create(config: dict[str, str]) -> SavepointStore[dict[str, int]]:
    return SavepointStoreFactory.create_from_config(
        config,
        serialize=lambda state: json.dumps(state).encode(),
        deserialize=json.loads,
        discard=lambda _: None,
    )


@pytest.mark.parametrize(
    ("config", "kind", "warning"),
    [
        ({}, HeapStateStore, None),
        ({BACKEND: "jobmanager"}, HeapStateStore, None),
        ({BACKEND: "memory", DIRECTORY: "DIR"}, HeapStateStore, None),
        ({BACKEND: "filesystem", DIRECTORY: "DIR"}, FileSystemStateStore, None),
        ({BACKEND: "filesystem", DIRECTORY: "DIR", "storage": "filesystem"}, FileSystemStateStore, None),
        ({BACKEND: "filesystem", "savepointsDir": "DIR"}, FileSystemStateStore, None),
        ({"savepointsDir": "DIR"}, FileSystemStateStore, None),
        ({OPTION_PREFIX + "savepointsDir": "DIR"}, FileSystemStateStore, None),
        ({BACKEND: "filesystem", DIRECTORY: "DIR", "storage": "memory"}, HeapStateStore, "goes with"),
        ({BACKEND: "filesystem", DIRECTORY: "DIR", "storage": "jobmanager"}, HeapStateStore, "goes with"),
        ({"savepointsDir": "DIR", OPTION_PREFIX + "storage": "memory"}, HeapStateStore, "goes with"),
        ({"savepointsDir": "DIR", "storage": "memory", "checkpointsDir": "x"}, FileSystemStateStore, None),
        ({BACKEND: "filesystem"}, HeapStateStore, "savepointsDir is not set"),
        ({BACKEND: "filesystem", DIRECTORY: "  "}, HeapStateStore, "savepointsDir is not set"),
        ({BACKEND: "filesystem", DIRECTORY: "http://host/x"}, HeapStateStore, "cannot be used"),
        ({BACKEND: "filesystem", DIRECTORY: "file:///"}, HeapStateStore, "cannot be used"),
        ({BACKEND: "rocksdb", DIRECTORY: "DIR"}, HeapStateStore, "'rocksdb'"),
    ],
)
def test_the_configuration_chooses_and_never_fails(
    config: dict[str, str],
    kind: type,
    warning: str | None,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    directory = f"file://{tmp_path}/savepoints"
    store = create({key: directory if value == "DIR" else value for key, value in config.items()})
    assert isinstance(store.state_store, kind)
    if warning is None:
        assert caplog.text == ""
    else:
        assert warning in caplog.text
        assert "lost when this process ends" in caplog.text


def test_the_explicit_directory_is_preferred_and_files_are_called_savepoints(tmp_path: Path) -> None:
    store = create({DIRECTORY: str(tmp_path / "one"), "savepointsDir": str(tmp_path / "two")})
    path = store.put_state({"n": 1})
    assert path.startswith(f"file://{tmp_path}/one/savepoint-")
    assert store.get_state(path) == {"n": 1}


def test_values_of_other_types_do_not_make_it_fail(caplog: pytest.LogCaptureFixture) -> None:
    for value in (None, 5, True):
        create({BACKEND: value})  # type: ignore[dict-item]
        create({BACKEND: "filesystem", DIRECTORY: value})  # type: ignore[dict-item]
    assert "5" in caplog.text

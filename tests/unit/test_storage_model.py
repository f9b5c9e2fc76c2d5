"""Tests that docs/storage-model.md names, for each class, the features whose traces have it."""

from __future__ import annotations

import ast
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

import spark_statestore
from spark_statestore import dispose_savepoint, list_savepoints, load_savepoint, restore, savepoint
from spark_statestore.operator_state import (
    BytesSerializer,
    ListStateDescriptor,
    MapStateDescriptor,
    QueryOperatorState,
)
from spark_statestore.options import StorageOptions
from spark_statestore.query.verify import verify
from spark_statestore.storage import CheckpointName
from tests.unit.query.stored_query import StoredQuery
from tests.unit.savepoints.written_query import LARGE, WrittenQuery, content
from tests.unit.store.stores import commit, load, open_store

PACKAGE = Path(spark_statestore.__file__).parent
PAGE = PACKAGE.parent / "docs" / "storage-model.md"

# As the page's second column calls them.
FEATURES = ("state", "memory state", "cleanup", "operator state", "savepoints")

# Called by users only; values without code of their own; what needs a running query.
UNTRACED = ("API", "constants", "Spark")


def state(directory: Path) -> None:
    """Commit and load versions, whose state is in files and inside of metadata, which may be merged."""
    query = WrittenQuery(str(directory / "state"))
    query.run(put={b"large": LARGE})
    query.run()
    query.restart()
    content(query.checkpoint)
    merging = StoredQuery(directory / "merged", merges=True)
    for batch in range(2):
        merging.run(word=batch)
    again = merging.restart(2)
    for store, attempt in zip(again.stores, again.counted[-1], strict=True):
        load(store, CheckpointName(2, attempt.id))


def memory_state(directory: Path) -> None:
    """Commit a version that the driver keeps, and one whose metadata with the state is a file; load it."""
    on_driver = StorageOptions(storage="memory", compression=None)
    commit(open_store(directory / "driver", on_driver), CheckpointName(1), {b"key": b"value"})
    in_files = StorageOptions(storage="memory", compression=None, checkpoints_dir=str(directory))
    store = open_store(directory / "memory", in_files)
    commit(store, CheckpointName(1), {b"key": b"value"})
    load(store, CheckpointName(1))


def clean_up(directory: Path) -> None:
    """Discard old versions."""
    query = WrittenQuery(str(directory / "cleaned"))
    for _ in range(5):
        query.run(put={b"large": LARGE}, whole=True)
    assert query.clean_up(1)


def operator_state(directory: Path) -> None:
    """Checkpoint the state of a query's own code, and read it back."""
    for batch in range(3):
        own = QueryOperatorState(str(directory / "own"), "own", num_retained=2)
        with own.batch(batch) as store:
            store.get_list_state(ListStateDescriptor("list", pa.int64())).add(batch)
            store.get_list_state(ListStateDescriptor("raw", BytesSerializer())).add(b"raw")
            store.get_broadcast_state(MapStateDescriptor("map", pa.utf8(), pa.int64())).put("a", batch)
            if batch == 1:
                store.snapshot()
    assert own.read().get_list_state(ListStateDescriptor("list", pa.int64())).get() == [0, 1, 2]
    second = QueryOperatorState(str(directory / "own"), "own", subtask=1, parallelism=2)
    assert second.read().get_list_state(ListStateDescriptor("list", pa.int64())).get() == [2]


def savepoints(directory: Path) -> None:
    """Take, list, load, verify, restore and dispose of savepoints, in files and in memory."""
    query = WrittenQuery(str(directory / "query"))
    for _ in range(2):
        query.run(put={b"large": LARGE})
    for target in (str(directory / "target"), f"memory://{directory.name}/target"):
        for kind in ("canonical", "pointer"):
            new_savepoint = savepoint(query.url, target, kind)
            assert list_savepoints(target) == [load_savepoint(new_savepoint.path)]
            verify(new_savepoint.path)
            restore(new_savepoint, str(directory / f"{kind}-{target[:6].strip('/:')}"))
            dispose_savepoint(new_savepoint.path)


RUNS: dict[str, Callable[[Path], None]] = dict(
    zip(FEATURES, (state, memory_state, clean_up, operator_state, savepoints), strict=True)
)


def trace(run: Callable[[], None]) -> set[str]:
    """Return the names of the package's classes and functions that a call enters, with base classes."""
    entered: set[str] = set()

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        if event != "call":
            return
        instance = frame.f_locals.get("self")
        if instance is not None:
            for parent in type(instance).__mro__:
                if parent.__module__.startswith("spark_statestore."):
                    entered.add(parent.__name__)
        if frame.f_code.co_filename.startswith(str(PACKAGE)):
            # A function, or the class of a method, static ones included.
            entered.add(frame.f_code.co_qualname.partition(".")[0])

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return entered


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    return {
        feature: trace(lambda run=run: run(tmp_path_factory.mktemp("trace"))) for feature, run in RUNS.items()
    }


def rows() -> list[tuple[list[str], list[str]]]:
    """Return the names and the features of each row of the page's tables."""
    table_rows = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        names = re.findall(r"`(\w+)`", cells[0])
        if line.startswith("| `") and names:
            table_rows.append((names, [feature.strip() for feature in cells[1].split(",")]))
    return table_rows


def test_page_names_the_features_that_run_each_class(traces: dict[str, set[str]]) -> None:
    for names, features in rows():
        for name in names:
            traced = [feature for feature in FEATURES if name in traces[feature]]
            expected = list(FEATURES) if features == ["all"] else [f for f in features if f not in UNTRACED]
            assert traced == expected, name


def test_page_has_every_public_class_of_the_model() -> None:
    named = {name for names, _ in rows() for name in names}
    classes = set()
    for package in ("storage", "operator_state", "savepoints"):
        for path in (PACKAGE / package).glob("*.py"):
            nodes = ast.parse(path.read_text()).body
            classes |= {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    assert {name for name in classes - named if not name.startswith("_")} == set()

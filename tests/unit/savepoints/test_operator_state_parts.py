"""Savepoints and their tools for a query whose sink keeps operator state in each partition.

The tools copy, roll back, verify and clean up.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from spark_statestore import (
    CorruptCheckpointError,
    SavepointError,
    clone,
    dispose_savepoint,
    gc,
    repair,
    restore,
    rollback,
    savepoint,
    verify,
)
from spark_statestore.operator_state import ListStateDescriptor, QueryOperatorState
from spark_statestore.savepoints.api import Kind
from tests.support.trees import files_below
from tests.unit.query.stored_query import StoredQuery

SEEN = ListStateDescriptor("seen", pa.int64())
LARGE = ListStateDescriptor("large", pa.binary())
PARALLELISMS = (4, 7, 3)
"""Parallelism of each committed batch."""


def run_sink(url: str, batch: int, parallelism: int, only: int | None = None) -> None:
    """Let each subtask, or as many as `only`, add the batch and its number, and keep some state in a file."""
    for subtask in range(parallelism)[:only]:
        state = QueryOperatorState(url, "sink", subtask=subtask, parallelism=parallelism)
        with state.batch(batch) as store:
            store.get_list_state(SEEN).add(batch * 10 + subtask)
            store.get_list_state(LARGE).update([b"%d" % subtask * 30_000])


def elements(url: str, batch: int | None = None) -> list[int]:
    return sorted(QueryOperatorState(url, "sink").read(batch).get_list_state(SEEN).get())


def expected(batch: int) -> list[int]:
    return [10 * b + subtask for b in range(batch + 1) for subtask in range(PARALLELISMS[b])]


@pytest.fixture
def query(tmp_path: Path) -> StoredQuery:
    """Three committed batches, and a fourth one that was cut short after two subtasks of five."""
    stored_query = StoredQuery(tmp_path / "checkpoint")
    for batch, parallelism in enumerate(PARALLELISMS):
        run_sink(stored_query.url, batch, parallelism)
        stored_query.run(ann=batch, bob=batch)
    run_sink(stored_query.url, 3, 5, only=2)
    return stored_query


def continues(url: str, batch: int) -> None:
    """Run the next batch with another parallelism, and compare."""
    assert elements(url, batch) == expected(batch)
    run_sink(url, batch + 1, 2)
    assert elements(url) == [*expected(batch), 10 * batch + 10, 10 * batch + 11]


@pytest.mark.parametrize("kind", ["canonical", "pointer"])
def test_savepoint_and_restore_have_all_parts_of_the_batch(
    query: StoredQuery, tmp_path: Path, kind: Kind
) -> None:
    new_savepoint = savepoint(query.url, str(tmp_path / "savepoints"), kind)
    assert verify(new_savepoint.path).ok
    parts = sorted(Path(new_savepoint.path.removeprefix("file://")).glob("operator-state/sink/*"))
    assert [part.name[-8:] for part in parts] == [f"0003{subtask:04x}" for subtask in range(3)]
    restore(new_savepoint, str(tmp_path / "restored"))
    assert verify(str(tmp_path / "restored")).ok
    continues(str(tmp_path / "restored"), 2)
    dispose_savepoint(new_savepoint.path)
    assert not any(part.exists() for part in parts)
    continues(query.url, 2)


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_clone_has_all_parts_of_its_batch_and_no_others(
    query: StoredQuery, tmp_path: Path, batch: int
) -> None:
    clone(query.url, str(tmp_path / "new"), batch=batch)
    names = {path.name[-8:] for path in (tmp_path / "new").glob("operator-state/sink/*")}
    assert names == {f"{PARALLELISMS[batch]:04x}{subtask:04x}" for subtask in range(PARALLELISMS[batch])}
    continues(str(tmp_path / "new"), batch)
    assert elements(query.url, 2) == expected(2)


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_rollback_moves_all_parts_of_later_batches(query: StoredQuery, batch: int) -> None:
    rollback(query.url, batch, stopped=True)
    assert QueryOperatorState(query.url, "sink").batches() == list(range(batch + 1))
    assert verify(query.url).ok
    continues(query.url, batch)


def test_gc_removes_no_part(query: StoredQuery) -> None:
    before = files_below(query.directory / "operator-state")
    gc(query.url, stopped=True)
    assert files_below(query.directory / "operator-state") == before
    continues(query.url, 2)


def test_verify_reads_every_byte_of_every_part(query: StoredQuery) -> None:
    assert verify(query.url).ok
    sizes = [path.stat().st_size for path in query.directory.glob("operator-state/sink/chk-2_*/*")]
    with_parts = verify(query.url)
    for path in sorted(query.directory.glob("operator-state/sink/chk-2_*/*")):
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        (problem,) = verify(query.url).problems
        assert (problem.what, problem.kind) == ("the operator state 'sink'", "damaged"), path
        path.write_bytes(data)
    shutil.rmtree(query.directory / "operator-state")
    without = verify(query.url)
    assert (with_parts.files - without.files, with_parts.bytes - without.bytes) == (len(sizes), sum(sizes))
    assert len(sizes) == 2 * PARALLELISMS[2]


@pytest.mark.parametrize("subtask", range(PARALLELISMS[2]))
def test_committed_batch_without_one_part_is_refused_and_repaired(
    query: StoredQuery, tmp_path: Path, subtask: int
) -> None:
    (part,) = query.directory.glob(f"operator-state/sink/chk-2_*{subtask:04x}")
    shutil.rmtree(part)
    (problem,) = verify(query.url).problems
    assert problem.kind == "damaged"
    assert "incomplete for batch 2" in problem.message
    for copied in (
        lambda: clone(query.url, str(tmp_path / "new")),
        lambda: savepoint(query.url, str(tmp_path / "savepoints")),
        lambda: rollback(query.url, 2, stopped=True),
    ):
        with pytest.raises((CorruptCheckpointError, SavepointError), match="incomplete for batch 2"):
            copied()
    assert not (tmp_path / "new" / "metadata").exists()
    repair(query.url, stopped=True)
    continues(query.url, 1)

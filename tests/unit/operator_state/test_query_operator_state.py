"""Operator state of a query's own code: one checkpoint for each batch, each counting once."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from spark_statestore.errors import (
    CheckpointExistsError,
    CheckpointIOError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    IllegalStateError,
    OptionError,
)
from spark_statestore.operator_state import ListStateDescriptor, QueryOperatorState, query_operator_state
from spark_statestore.storage import METADATA_FILE_NAME
from tests.support.trees import files_below

OFFSETS = ListStateDescriptor("offsets", pa.int64())


def opened(location: str, **options: object) -> QueryOperatorState:
    return QueryOperatorState(location, "rules", **options)


def add(state: QueryOperatorState, batch_id: int, value: int) -> list[int]:
    with state.batch(batch_id) as store:
        offsets = store.get_list_state(OFFSETS)
        offsets.add(value)
        return offsets.get()


def offsets(state: QueryOperatorState, batch_id: int | None = None) -> list[int]:
    return state.read(batch_id).get_list_state(OFFSETS).get()


def test_batch_that_runs_again_finds_the_batch_before_with_one_retained(tmp_path: Path) -> None:
    location = str(tmp_path)
    state = opened(location, num_retained=1)
    assert [add(state, batch, batch) for batch in range(3)] == [[0], [0, 1], [0, 1, 2]]
    # The driver ended before Spark had committed batch 2, so another one runs it again.
    assert add(opened(location, num_retained=1), 2, 7) == [0, 1, 7]
    assert opened(location).batches() == [1, 2]


def test_batches_may_have_no_state_or_be_skipped(tmp_path: Path) -> None:
    location = str(tmp_path / "with spaces")
    state = opened(location)
    with state.batch(0):
        pass
    add(state, 4, 4)
    with opened(location).batch(7) as store:
        assert store.get_list_state(OFFSETS).get() == [4]
    assert opened(location).batches() == [0, 4, 7]
    assert list(opened(location).read(0).registered_state_names) == []


def test_large_state_is_in_a_relocatable_file_of_its_checkpoint(tmp_path: Path) -> None:
    large = ListStateDescriptor("large", pa.binary())
    old, new = tmp_path / "old", tmp_path / "new"
    state = opened(str(old))
    for batch in range(3):
        with state.batch(batch) as store:
            store.get_list_state(large).update([b"%d" % batch * 30_000])
    files = files_below(old)
    assert len(files) == 6
    assert {Path(name).parts[:2] for name in files} == {("operator-state", "rules")}
    old.rename(new)
    assert opened(str(new)).read().get_list_state(large).get() == [b"2" * 30_000]


def test_batch_refuses_a_concurrent_batch_of_the_same_object(tmp_path: Path) -> None:
    state = opened(str(tmp_path))
    with state.batch(0):
        with pytest.raises(IllegalStateError, match="used by another batch"):
            add(state, 0, 0)
        with ThreadPoolExecutor(1) as pool, pytest.raises(IllegalStateError, match="used by another batch"):
            pool.submit(add, state, 0, 0).result()
    assert add(state, 1, 1) == [1]


def test_read_returns_a_copy_and_refuses_unknown_batches(tmp_path: Path) -> None:
    location = str(tmp_path)
    state = opened(location)
    add(state, 0, 0)
    state.read().get_list_state(OFFSETS).add(99)
    assert offsets(state) == [0]
    with pytest.raises(CheckpointNotFoundError, match=r"of batch 5 .*of the batches \[0\]"):
        state.read(5)
    with pytest.raises(CheckpointNotFoundError, match="any batch"):
        opened(f"{location}/empty").read()


def test_query_operator_state_refuses_invalid_arguments(tmp_path: Path) -> None:
    for name in ("", "a/b", "..", "x" * 101, None):
        with pytest.raises(OptionError, match="an operator's name"):
            QueryOperatorState(str(tmp_path), name)
    with pytest.raises(OptionError, match="at least 1"):
        opened(str(tmp_path), num_retained=0)
    with pytest.raises(ValueError, match="negative"):
        add(opened(str(tmp_path)), -1, 0)


def test_damaged_metadata_is_refused_by_path_and_left_alone(tmp_path: Path) -> None:
    state = opened(str(tmp_path))
    add(state, 0, 0)
    add(state, 1, 1)
    paths = sorted((tmp_path / "operator-state" / "rules").glob(f"chk-*/{METADATA_FILE_NAME}"))
    paths[1].write_bytes(paths[1].read_bytes()[:-9])
    before = files_below(tmp_path)
    with pytest.raises(CorruptCheckpointError, match="batch 1") as raised:
        add(opened(str(tmp_path)), 2, 2)
    assert str(paths[1]) in str(raised.value)
    assert files_below(tmp_path) == before
    # Set back by one batch, the query continues from the complete one.
    assert add(opened(str(tmp_path)), 1, 11) == [0, 11]


def test_unwritable_location_fails_the_batch(tmp_path: Path) -> None:
    (tmp_path / "operator-state").write_text("in the way")
    state = opened(str(tmp_path))
    with pytest.raises(CheckpointIOError, match="batch 0, cannot be written"):
        add(state, 0, 0)
    (tmp_path / "operator-state").unlink()
    assert add(state, 0, 1) == [1]


def commit(location: Path, *batches: int) -> None:
    """Let Spark's commit log have these batches and no others."""
    shutil.rmtree(location / "commits", ignore_errors=True)
    for batch in batches:
        (location / "commits").mkdir(exist_ok=True)
        (location / "commits" / str(batch)).touch()


@pytest.fixture(params=[None, (1, 2)], ids=["no log", "log"])
def committed(request: pytest.FixtureRequest) -> tuple[int, ...] | None:
    """Spark's commit log after batch 2: none, as another application's batches have, or purged of batch 0."""
    return request.param


@pytest.mark.parametrize("late_batch", [0, 1])
def test_late_batch_leaves_those_after_it(
    tmp_path: Path, committed: tuple[int, ...] | None, late_batch: int
) -> None:
    for batch in range(3):
        add(opened(str(tmp_path)), batch, batch)
    commit(tmp_path, *(committed or ()))
    # A task of batch 3 has begun to write, by the same subtask.
    begun = tmp_path / "operator-state" / "rules" / "chk-3_0000000400010000"
    begun.mkdir()
    (begun / "3-stream").touch()
    add(opened(str(tmp_path)), late_batch, 7)
    assert opened(str(tmp_path)).batches() == [0, 1, 2]
    assert begun.exists()
    assert add(opened(str(tmp_path)), 3, 3) == [0, 1, 2, 3]


def test_late_batch_of_subtasks_leaves_those_after_it(tmp_path: Path) -> None:
    def run(batch: int, subtasks: range = range(2)) -> list[int]:
        states = [opened(str(tmp_path), subtask=subtask, parallelism=2) for subtask in subtasks]
        return [number for state in states for number in add(state, batch, 10 * batch + state.subtask)]

    for batch in range(3):
        run(batch)
    run(0, range(1))
    assert run(3) == [0, 10, 20, 30, 1, 11, 21, 31]


@pytest.mark.parametrize("batch", [1, 2])
def test_batch_that_spark_has_committed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    for number in range(3):
        add(opened(str(tmp_path)), number, number)
    commit(tmp_path, 0, 1, 2)
    before = files_below(tmp_path)
    monkeypatch.setattr(query_operator_state, "_running_batch", lambda: ("id", str(batch)))
    with pytest.raises(CheckpointExistsError, match=rf"batch {batch}, is not replaced: .* has batch 2"):
        add(opened(str(tmp_path)), batch, 7)
    assert files_below(tmp_path) == before
    # Spark runs a batch again that its log lacks.
    commit(tmp_path, *range(batch))
    assert add(opened(str(tmp_path)), batch, 7) == [*range(batch), 7]


@pytest.mark.parametrize("runs_in_spark", [False, True])
def test_batch_to_which_a_query_was_set_back_discards_those_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs_in_spark: bool
) -> None:
    """A batch may be skipped: the one after it must not start from state that was undone."""
    for batch in range(4):
        add(opened(str(tmp_path)), batch, batch)
    commit(tmp_path, 0)
    if runs_in_spark:
        monkeypatch.setattr(query_operator_state, "_running_batch", lambda: ("id", "1"))
    assert add(opened(str(tmp_path)), 1, 7) == [0, 7]
    monkeypatch.undo()
    assert opened(str(tmp_path)).batches() == [0, 1]
    assert add(opened(str(tmp_path)), 3, 9) == [0, 7, 9]


def test_batch_whose_earlier_state_is_not_retained_is_refused(tmp_path: Path) -> None:
    location = str(tmp_path)
    for batch in range(5):
        add(opened(location, num_retained=2), batch, batch)
    before = files_below(tmp_path)
    with pytest.raises(CheckpointNotFoundError, match=r"before batch 3 .* of the batches \[4\]"):
        add(opened(location, num_retained=2), 3, 7)
    assert files_below(tmp_path) == before
    # State that begins with a later batch than the one that runs again is none that was lost.
    for batch in (5, 6):
        add(opened(f"{location}/later"), batch, batch)
    assert add(opened(f"{location}/later"), 4, 4) == [4]


@pytest.mark.parametrize("size", [1, 30_000])
def test_object_reads_the_part_that_another_driver_published_after_a_rollback(
    tmp_path: Path, size: int
) -> None:
    values = ListStateDescriptor("values", pa.binary())

    def run(state: QueryOperatorState, batch: int, value: bytes) -> list[bytes]:
        with state.batch(batch) as store:
            store.get_list_state(values).add(value * size)
            return store.get_list_state(values).get()

    state = opened(str(tmp_path))
    for batch in range(3):
        run(state, batch, b"%d" % batch)
    # As `rollback` does; the attempts that follow are numbered like those that were removed.
    (newest,) = (tmp_path / "operator-state" / "rules").glob("chk-2_*")
    shutil.rmtree(newest)
    run(opened(str(tmp_path)), 2, b"x")
    assert newest.exists()
    assert run(state, 3, b"3") == [value * size for value in (b"0", b"1", b"x", b"3")]

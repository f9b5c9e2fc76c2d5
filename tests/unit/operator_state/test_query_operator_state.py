"""Operator state of a query's own code: one checkpoint for each batch, each counting once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from spark_statestore.errors import (
    CheckpointIOError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    IllegalStateError,
    OptionError,
)
from spark_statestore.operator_state import ListStateDescriptor, QueryOperatorState
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

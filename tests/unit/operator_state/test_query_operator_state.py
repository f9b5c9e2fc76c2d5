"""Operator state of a query's own code: one checkpoint for each batch, each counting once."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from spark_statestore.errors import (
    CheckpointExistsError,
    CheckpointIOError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    IllegalStateError,
    OptionError,
)
from spark_statestore.operator_state import ListStateDescriptor, MapStateDescriptor, QueryOperatorState
from spark_statestore.storage import METADATA_FILE_NAME
from tests.support.effort import EFFORT
from tests.support.trees import files_below

OFFSETS = ListStateDescriptor("offsets", pa.int64())
RULES = MapStateDescriptor("rules", pa.string(), pa.string())


def opened(location: str, **options: object) -> QueryOperatorState:
    return QueryOperatorState(location, "rules", **options)


def add(state: QueryOperatorState, batch_id: int, value: int) -> list[int]:
    with state.batch(batch_id) as store:
        offsets = store.get_list_state(OFFSETS)
        offsets.add(value)
        return offsets.get()


def fail(state: QueryOperatorState, batch_id: int, *, early: bool = False) -> None:
    with state.batch(batch_id) as store:
        store.get_list_state(OFFSETS).add(-1)
        store.get_broadcast_state(RULES).put("fails", "b")
        if early:
            store.snapshot()
        raise ZeroDivisionError


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


def test_failed_write_leaves_no_files_and_the_batch_can_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = opened(str(tmp_path))
    add(state, 0, 0)
    before = files_below(tmp_path)

    def refuse(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(type(state._files), "create_of_parts", refuse)
    with pytest.raises(CheckpointIOError, match="no space left"):
        add(state, 1, 1)
    monkeypatch.undo()
    assert files_below(tmp_path) == before
    assert add(state, 1, 11) == [0, 11]


def test_late_driver_does_not_replace_a_published_batch(tmp_path: Path) -> None:
    large = ListStateDescriptor("large", pa.binary())
    late, other_driver = opened(str(tmp_path)), opened(str(tmp_path))
    add(late, 0, 0)

    def be_late() -> None:
        with late.batch(1) as store:
            store.get_list_state(large).add(b"late" * 30_000)
            with other_driver.batch(1) as other_store:
                other_store.get_list_state(large).add(b"other" * 30_000)

    with pytest.raises(CheckpointExistsError, match="never replaced") as raised:
        be_late()
    assert "another driver" in str(raised.value.__notes__)
    assert other_driver.batches() == [0, 1]
    assert opened(str(tmp_path)).read().get_list_state(large).get() == [b"other" * 30_000]
    assert len(files_below(tmp_path)) == 3


class QueryMachine(RuleBasedStateMachine):
    """Batches that succeed, fail, are run again and set back, over drivers that come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.location = f"memory://{uuid.uuid4()}"
        self.state = opened(self.location, num_retained=50)
        self.other_driver = opened(self.location, num_retained=50)
        self.history: dict[int, tuple[list[int], dict[str, str]]] = {}
        self.next = 0

    def work(self, store: object, batch: int, values: list[int], entries: dict[str, str | None]) -> None:
        values_before, rules = self.before(batch)
        offsets, broadcast = store.get_list_state(OFFSETS), store.get_broadcast_state(RULES)
        assert (offsets.get(), dict(broadcast.items())) == (values_before, rules)
        offsets.add_all(values)
        for key, value in entries.items():
            if value is None:
                broadcast.remove(key)
            else:
                broadcast.put(key, value)
        self.state_after = (
            [*values_before, *values],
            {k: v for k, v in (rules | entries).items() if v is not None},
        )

    def before(self, batch: int) -> tuple[list[int], dict[str, str]]:
        earlier = [number for number in self.history if number < batch]
        return self.history[max(earlier)] if earlier else ([], {})

    @rule(
        values=st.lists(st.integers(-9, 9), max_size=3),
        entries=st.dictionaries(st.sampled_from("abc"), st.none() | st.text(max_size=3), max_size=3),
        is_committed=st.booleans(),
        early=st.booleans(),
    )
    def run(self, values: list[int], entries: dict[str, str | None], is_committed: bool, early: bool) -> None:
        with self.state.batch(self.next) as store:
            self.work(store, self.next, values, entries)
            if early:
                store.snapshot()
        self.history = {n: state for n, state in self.history.items() if n < self.next}
        self.history[self.next] = self.state_after
        # Otherwise the driver fails before Spark logs the commit.
        if is_committed:
            self.next += 1

    @rule(early=st.booleans())
    def fail(self, early: bool) -> None:
        with pytest.raises(ZeroDivisionError):
            fail(self.state, self.next, early=early)
        assert all(self.state._directory.list().values())

    @rule()
    def restart(self) -> None:
        self.state = opened(self.location, num_retained=50)

    @rule()
    def another_driver_takes_over(self) -> None:
        self.state, self.other_driver = self.other_driver, self.state

    @precondition(lambda self: self.next > 0)
    @rule(data=st.data())
    def set_back(self, data: st.DataObject) -> None:
        self.next = data.draw(st.integers(0, self.next - 1))

    @invariant()
    def what_is_kept_is_what_was_done(self) -> None:
        reader = opened(self.location)
        assert reader.batches() == sorted(self.history)
        if self.history:
            newest = reader.read()
            values, rules = self.history[max(self.history)]
            assert newest.get_list_state(OFFSETS).get() == values
            assert dict(newest.get_broadcast_state(RULES).items()) == rules


TestQueryMachine = QueryMachine.TestCase
TestQueryMachine.settings = settings(max_examples=40 * EFFORT, stateful_step_count=20)

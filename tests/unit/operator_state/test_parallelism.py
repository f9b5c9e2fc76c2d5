"""Operator state of several subtasks: complete batches, and redistribution when their number changes."""

from __future__ import annotations

import pickle
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_statestore.errors import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    OptionError,
)
from spark_statestore.files import LocalFileSystem
from spark_statestore.operator_state import ListStateDescriptor, MapStateDescriptor, QueryOperatorState
from spark_statestore.operator_state.metadata import OperatorState, decode_operators, encode_operators
from spark_statestore.operator_state.parts import StatePart, complete_parts
from spark_statestore.operator_state.state_directory import OperatorStateDirectory
from spark_statestore.storage import CheckpointName
from spark_statestore.storage.handle_codec import HandleContext
from tests.support.trees import files_below

ITEMS = ListStateDescriptor("items", pa.int64())
SHARED = ListStateDescriptor("shared", pa.int64())
RULES = MapStateDescriptor("rules", pa.string(), pa.int64())

Change = Callable[[Any, int], object]


@pytest.fixture(params=["local", "fsspec"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return (
        f"memory://{uuid.uuid4()}/checkpoint" if request.param == "fsspec" else str(tmp_path / "checkpoint")
    )


def opened(location: str, subtask: int, parallelism: int, **options: Any) -> QueryOperatorState:
    return QueryOperatorState(location, "sink", subtask=subtask, parallelism=parallelism, **options)


def run(
    location: str,
    batch: int,
    parallelism: int,
    change: Change,
    only: Sequence[int] | None = None,
    **options: Any,
) -> list[Any]:
    """Run a batch on all subtasks or some; return what the change returned for each."""
    found = []
    for subtask in range(parallelism) if only is None else only:
        with opened(location, subtask, parallelism, **options).batch(batch) as store:
            found.append(change(store, subtask))
    return found


def items(store: Any, _: int = 0) -> list[int]:
    return store.get_list_state(ITEMS).get()


def shared(store: Any, _: int = 0) -> list[int]:
    return store.get_union_list_state(SHARED).get()


def rules(store: Any, _: int = 0) -> dict[str, int]:
    return dict(store.get_broadcast_state(RULES).items())


def nothing(store: Any, subtask: int) -> None:
    pass


def add(*numbers: int) -> Change:
    """Return a change that adds one number on each subtask."""
    return lambda store, subtask: store.get_list_state(ITEMS).add(numbers[subtask])


def names(location: Path) -> list[str]:
    return sorted(path.parent.name for path in location.glob("operator-state/sink/chk-*/_metadata"))


def test_query_operator_state_splits_lists_when_the_parallelism_changes(location: str) -> None:
    run(
        location,
        0,
        4,
        lambda store, subtask: store.get_list_state(ITEMS).add_all(range(subtask * 10, subtask * 10 + 3)),
    )
    assert run(location, 1, 7, items) == [[0, 1], [2, 10], [11, 12], [20, 21], [22, 30], [31], [32]]
    assert run(location, 2, 4, items) == [[0, 1, 2], [10, 11, 12], [20, 21, 22], [30, 31, 32]]
    assert run(location, 3, 1, items) == [[0, 1, 2, 10, 11, 12, 20, 21, 22, 30, 31, 32]]


def test_query_operator_state_gives_union_lists_to_all_when_the_parallelism_changes(location: str) -> None:
    run(location, 0, 2, lambda store, subtask: store.get_union_list_state(SHARED).add(subtask))
    assert run(location, 1, 3, shared) == [[0, 1]] * 3


def test_query_operator_state_copies_broadcast_state_when_the_parallelism_changes(location: str) -> None:
    run(location, 0, 2, lambda store, _: store.get_broadcast_state(RULES).put("a", 1))
    assert run(location, 1, 5, rules) == [{"a": 1}] * 5
    assert run(location, 2, 2, rules) == [{"a": 1}] * 2


def test_query_operator_state_continues_with_its_own_share_at_the_same_parallelism(location: str) -> None:
    def change(store: Any, subtask: int) -> None:
        store.get_list_state(ITEMS).add(subtask)
        store.get_union_list_state(SHARED).add(subtask)

    run(location, 0, 3, change)
    assert run(location, 1, 3, lambda store, _: (items(store), shared(store))) == [
        ([n], [n]) for n in range(3)
    ]


def test_query_operator_state_without_subtask_is_subtask_0_of_1(location: str) -> None:
    whole = QueryOperatorState(location, "sink")
    with whole.batch(0) as store:
        store.get_list_state(ITEMS).add_all(range(5))
    assert run(location, 1, 2, items) == [[0, 1, 2], [3, 4]]
    with whole.batch(2) as store:
        assert items(store) == list(range(5))
    assert run(location, 3, 1, items) == [list(range(5))]


def test_query_operator_state_keeps_parts_without_any_state(location: str) -> None:
    run(location, 0, 3, lambda store, subtask: subtask == 1 and store.get_list_state(ITEMS).add(7))
    assert run(location, 1, 3, items) == [[], [7], []]
    assert QueryOperatorState(location, "sink").batches() == [0, 1]


def test_object_of_a_subtask_follows_a_change_of_parallelism_by_others(location: str) -> None:
    state = opened(location, 0, 2)
    for batch in (0, 1):
        with state.batch(batch) as store:
            store.get_list_state(ITEMS).add(batch)
        run(location, batch, 2, nothing, only=[1])
    run(location, 2, 3, add(20, 21, 22))
    # It has the state after batch 1 in memory.
    with state.batch(3) as store:
        assert items(store) == [0, 20, 1]


def test_batch_after_an_incomplete_one_is_refused(tmp_path: Path) -> None:
    location = str(tmp_path)
    run(location, 0, 4, add(0, 1, 2, 3))
    run(location, 1, 4, nothing, only=[0, 2])
    before = files_below(tmp_path)
    for parallelism in (4, 2):
        with pytest.raises(
            CorruptCheckpointError, match=r"batch 1: there are the parts of subtasks \[0, 2\] of 4"
        ):
            run(location, 2, parallelism, nothing)
    assert files_below(tmp_path) == before
    # The query was rolled back by a batch.
    assert run(location, 1, 3, items) == [[0, 1], [2], [3]]


def test_batch_is_refused_when_the_part_of_another_subtask_is_lost(tmp_path: Path) -> None:
    run(str(tmp_path), 0, 3, nothing)
    shutil.rmtree(next(tmp_path.glob("operator-state/sink/chk-0_*0002")))
    with pytest.raises(CorruptCheckpointError, match=r"\[0, 1\] of 3"):
        run(str(tmp_path), 1, 3, nothing, only=[0])


def test_read_skips_a_batch_that_is_not_complete_unless_spark_committed_it(tmp_path: Path) -> None:
    location = str(tmp_path)
    run(location, 0, 2, add(0, 1))
    run(location, 1, 2, add(10, 11), only=[1])
    state = QueryOperatorState(location, "sink")
    assert items(state.read()) == [0, 1]
    assert state.batches() == [0]
    with pytest.raises(CorruptCheckpointError, match="incomplete for batch 1"):
        state.read(1)
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "0").touch()
    assert items(state.read()) == [0, 1]
    # The entry of batch 1 itself may have been purged since.
    (tmp_path / "commits" / "2").touch()
    with pytest.raises(CorruptCheckpointError, match="incomplete for batch 1"):
        state.read()


def test_read_returns_the_share_of_a_subtask_or_all(location: str) -> None:
    run(location, 0, 3, add(0, 1, 2))
    assert items(QueryOperatorState(location, "sink").read()) == [0, 1, 2]
    assert [items(opened(location, subtask, 3).read(0)) for subtask in range(3)] == [[0], [1], [2]]
    assert [items(opened(location, subtask, 2).read(0)) for subtask in range(2)] == [[0, 1], [2]]
    with pytest.raises(CheckpointNotFoundError, match=r"batch 5 .*subtask 1 of 2.*of the batches \[0\]"):
        opened(location, 1, 2).read(5)


@pytest.mark.parametrize("again", [4, 7, 2])
def test_batch_that_runs_again_starts_from_the_same_state_at_any_parallelism(
    tmp_path: Path, again: int
) -> None:
    location = str(tmp_path)
    run(location, 0, 4, add(0, 1, 2, 3))
    # One run is complete and another is cut short before Spark commits the batch.
    run(location, 1, 4, add(90, 91, 92, 93))
    run(location, 1, 7, add(*range(80, 87)), only=[2, 0, 5])
    found = run(location, 1, again, items)
    assert [item for share in found for item in share] == [0, 1, 2, 3]
    assert items(QueryOperatorState(location, "sink").read(1)) == [0, 1, 2, 3]
    # Nothing is left of the earlier runs.
    left = sorted(name[-8:] for name in names(tmp_path) if name.startswith("chk-1_"))
    assert left == [f"{again:04x}{subtask:04x}" for subtask in range(again)]


def test_last_run_counts_although_parts_of_earlier_ones_could_not_be_discarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = str(tmp_path)
    run(location, 0, 2, add(0, 1))
    monkeypatch.setattr(OperatorStateDirectory, "discard", lambda *_: None)
    for parallelism, value in ((4, 10), (4, 20), (3, 30), (4, 40), (2, 50)):
        run(location, 1, parallelism, add(*range(value, value + parallelism)))
    assert len(names(tmp_path)) == 2 + 4 + 4 + 3 + 4 + 2
    assert run(location, 2, 2, items) == [[0, 50], [1, 51]]


def test_part_without_metadata_does_not_complete_a_batch(tmp_path: Path) -> None:
    location = str(tmp_path)
    run(location, 0, 2, add(0, 1))
    run(location, 1, 2, add(10, 11))
    (path,) = tmp_path.glob("operator-state/sink/chk-1_*0001/_metadata")
    path.rename(path.with_name("1-stream"))
    assert QueryOperatorState(location, "sink").batches() == [0]
    with pytest.raises(CorruptCheckpointError, match=r"\[0\] of 2"):
        run(location, 2, 2, nothing)


def test_subtasks_of_one_run_have_one_attempt_number(tmp_path: Path) -> None:
    for batch in range(3):
        run(str(tmp_path), batch, 3, nothing)
    assert names(tmp_path) == [
        f"chk-{batch}_{batch + 1:08x}0003{subtask:04x}" for batch in range(3) for subtask in range(3)
    ]


def test_retention_keeps_whole_batches_of_all_parallelisms(tmp_path: Path) -> None:
    for batch, parallelism in enumerate((2, 4, 3, 3, 2)):
        run(str(tmp_path), batch, parallelism, nothing, num_retained=3)
        state = QueryOperatorState(str(tmp_path), "sink")
        assert state.batches() == list(range(max(batch - 2, 0), batch + 1))
    assert len(names(tmp_path)) == 3 + 3 + 2


def test_subtask_leaves_what_others_of_its_parallelism_are_writing(tmp_path: Path) -> None:
    run(str(tmp_path), 0, 2, nothing)
    root = tmp_path / "operator-state" / "sink"
    writing = {subtask: root / f"chk-1_00000002{of:04x}{subtask:04x}" for subtask, of in ((1, 2), (0, 5))}
    for directory in writing.values():
        directory.mkdir()
        (directory / "1-stream").write_bytes(b"not published yet")
    run(str(tmp_path), 1, 2, nothing, only=[0])
    assert [directory.exists() for directory in writing.values()] == [True, False]
    run(str(tmp_path), 1, 2, nothing, only=[1])
    assert not writing[1].exists()
    assert QueryOperatorState(str(tmp_path), "sink").batches() == [0, 1]


def test_second_attempt_of_a_task_replaces_nothing_and_a_later_one_counts(location: str) -> None:
    run(location, 0, 2, add(0, 1))
    slow = opened(location, 1, 2)

    def overtaken() -> None:
        with slow.batch(1) as store:
            store.get_list_state(ITEMS).add(90)
            run(location, 1, 2, add(10, 11))

    with pytest.raises(CheckpointExistsError, match="never replaced"):
        overtaken()
    assert items(QueryOperatorState(location, "sink").read(1)) == [0, 10, 1, 11]
    # The task that was overtaken runs again, as its first result was lost with its executor.
    with slow.batch(1) as store:
        store.get_list_state(ITEMS).add(12)
    assert items(QueryOperatorState(location, "sink").read(1)) == [0, 10, 1, 12]


@pytest.mark.parametrize(
    ("subtask", "parallelism"),
    [(4, 4), (5, 4), (-1, 4), (0, 0), (0, -1), (0, 65_536), (0, None), (None, 4), ("0", 4), (0, 1.5)],
)
def test_query_operator_state_refuses_a_subtask_out_of_range(
    tmp_path: Path, subtask: Any, parallelism: Any
) -> None:
    with pytest.raises(
        OptionError, match=f"subtask is {subtask!r} and parallelism {parallelism!r}"
    ) as raised:
        opened(str(tmp_path), subtask, parallelism)
    assert isinstance(raised.value, ValueError)


@pytest.mark.parametrize(("target", "source"), [("00030001", "00030002"), ("00030001", "00020001")])
def test_part_of_another_subtask_or_parallelism_is_refused_in_its_place(
    tmp_path: Path, target: str, source: str
) -> None:
    run(str(tmp_path), 0, 2, add(0, 1))
    other = tmp_path / "other"
    run(str(other), 0, 3, add(0, 1, 2))
    (wrong,) = (other if source.startswith("0003") else tmp_path).glob(
        f"operator-state/sink/*{source}/_metadata"
    )
    (metadata_path,) = other.glob(f"operator-state/sink/*{target}/_metadata")
    metadata_path.write_bytes(wrong.read_bytes())
    with pytest.raises(CorruptCheckpointError, match="moved or mixed up"):
        run(str(other), 1, 3, nothing)


@pytest.mark.parametrize(("subtask", "parallelism"), [(0, 2), (1, 3)])
def test_metadata_that_contradicts_the_name_of_its_part_is_refused(
    tmp_path: Path, subtask: int, parallelism: int
) -> None:
    run(str(tmp_path), 0, 2, add(0, 1))
    (path,) = tmp_path.glob("operator-state/sink/*00020001/_metadata")
    context = HandleContext(LocalFileSystem(), str(path.parent))
    metadata = decode_operators(path.read_bytes(), context, "here")
    (handle,) = metadata.operator_states["sink"].subtasks.values()
    other = OperatorState("sink", parallelism, parallelism, {subtask: handle})
    path.write_bytes(encode_operators(replace(metadata, operator_states={"sink": other}), context))
    with pytest.raises(CorruptCheckpointError, match="moved or mixed up"):
        run(str(tmp_path), 1, 2, nothing)


def test_query_operator_state_is_shipped_with_its_subtask(tmp_path: Path) -> None:
    state = opened(str(tmp_path), 2, 5, num_retained=4)
    shipped = pickle.loads(pickle.dumps(state))
    assert (shipped.subtask, shipped.parallelism, str(shipped)) == (2, 5, str(state))
    assert "subtask 2 of 5" in str(state)


@pytest.mark.parametrize(
    "attempt_id", [f"{7:016x}", f"{1:08x}00030003", f"{1:08x}0003000G", f"{1:08x}000A0001", "1", None]
)
def test_state_part_refuses_other_ids(attempt_id: str | None) -> None:
    assert StatePart.of(CheckpointName(1, attempt_id)) is None


def test_state_part_round_trips_through_its_name() -> None:
    part = StatePart(12, 0xABC, 65_534, 65_535)
    assert StatePart.of(CheckpointName.parse(part.name.directory)) == part


def parts(*runs: tuple[int, int, Sequence[int]]) -> list[StatePart]:
    """Return parts of batch 1, by attempt, parallelism and subtasks."""
    return [StatePart(1, attempt, subtask, of) for attempt, of, subtasks in runs for subtask in subtasks]


@pytest.mark.parametrize(
    ("found", "attempts"),
    [
        # The newest attempt of each subtask.
        (parts((1, 2, [0, 1]), (3, 2, [1])), [1, 3]),
        # The last of two complete runs.
        (parts((1, 4, range(4)), (2, 2, range(2))), [2, 2]),
        # A task of an earlier run, which was numbered before the last run's parts were there, is late.
        (parts((2, 4, [3]), (2, 2, range(2))), [2, 2]),
        # The last run is cut short; Spark committed neither.
        (parts((1, 4, range(4)), (2, 2, [0])), None),
        (parts((1, 3, [0, 2])), None),
        # Two complete runs that cannot be ordered.
        (parts((2, 4, range(4)), (2, 2, range(2))), None),
    ],
)
def test_complete_parts_are_those_of_the_last_run(found: list[StatePart], attempts: list[int] | None) -> None:
    complete = complete_parts(found)
    assert (complete and [part.attempt for part in complete]) == attempts
    assert complete is None or [part.subtask for part in complete] == list(range(len(complete)))

"""Operator state of several subtasks: complete batches, and redistribution when their number changes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_statestore.errors import CorruptCheckpointError, OptionError
from spark_statestore.files import LocalFileSystem
from spark_statestore.operator_state import ListStateDescriptor, QueryOperatorState
from spark_statestore.operator_state.metadata import OperatorState, decode_operators, encode_operators
from spark_statestore.operator_state.parts import StatePart, complete_parts
from spark_statestore.operator_state.state_directory import OperatorStateDirectory
from spark_statestore.storage import CheckpointName
from spark_statestore.storage.handle_codec import HandleContext
from spark_statestore.storage.stream_handles import ByteStreamStateHandle
from tests.support.trees import files_below

ITEMS = ListStateDescriptor("items", pa.int64())
Change = Callable[[Any, int], object]


def opened(location: str, subtask: int, parallelism: int, **options: Any) -> QueryOperatorState:
    return QueryOperatorState(location, "sink", subtask=subtask, parallelism=parallelism, **options)


def run(
    location: str, batch: int, parallelism: int, change: Change, only: Sequence[int] | None = None
) -> list[Any]:
    """Run a batch on all subtasks or some; return what the change returned for each."""
    results = []
    for subtask in range(parallelism) if only is None else only:
        with opened(location, subtask, parallelism).batch(batch) as store:
            results.append(change(store, subtask))
    return results


def items(store: Any, _: int = 0) -> list[int]:
    return store.get_list_state(ITEMS).get()


def nothing(store: Any, subtask: int) -> None:
    pass


def add(*numbers: int) -> Change:
    """Return a change that adds one number on each subtask."""
    return lambda store, subtask: store.get_list_state(ITEMS).add(numbers[subtask])


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


def test_last_run_counts_although_parts_of_earlier_ones_could_not_be_discarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = str(tmp_path)
    run(location, 0, 2, add(0, 1))
    monkeypatch.setattr(OperatorStateDirectory, "discard", lambda *_: None)
    for parallelism, value in ((4, 10), (4, 20), (3, 30), (4, 40), (2, 50)):
        run(location, 1, parallelism, add(*range(value, value + parallelism)))
    assert len(list(tmp_path.glob("operator-state/sink/chk-*/_metadata"))) == 2 + 4 + 4 + 3 + 4 + 2
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


def test_subtask_leaves_what_others_of_its_parallelism_are_writing(tmp_path: Path) -> None:
    run(str(tmp_path), 0, 2, nothing)
    root = tmp_path / "operator-state" / "sink"
    writing = {
        subtask: root / f"chk-1_00000002{parallelism:04x}{subtask:04x}"
        for subtask, parallelism in ((1, 2), (0, 5))
    }
    for directory in writing.values():
        directory.mkdir()
        (directory / "1-stream").write_bytes(b"not published yet")
    run(str(tmp_path), 1, 2, nothing, only=[0])
    assert [directory.exists() for directory in writing.values()] == [True, False]
    run(str(tmp_path), 1, 2, nothing, only=[1])
    assert not writing[1].exists()
    assert QueryOperatorState(str(tmp_path), "sink").batches() == [0, 1]
    # A task that was killed has left files beside those of the attempt that counts.
    killed = root / "chk-1_0000000900020000"
    killed.mkdir()
    (killed / "1-stream").write_bytes(b"never published")
    run(str(tmp_path), 2, 2, nothing)
    assert not killed.exists()


@pytest.mark.parametrize(
    ("subtask", "parallelism"),
    [(4, 4), (-1, 4), (0, 0), (0, 65_536), (0, None), (None, 4), ("0", 4)],
)
def test_query_operator_state_refuses_a_subtask_out_of_range(
    tmp_path: Path, subtask: Any, parallelism: Any
) -> None:
    with pytest.raises(OptionError, match=f"subtask is {subtask!r} and parallelism {parallelism!r}"):
        opened(str(tmp_path), subtask, parallelism)


@pytest.mark.parametrize(
    ("subtask", "parallelism", "changes", "is_state"),
    [
        pytest.param(0, 2, {}, True, id="another subtask"),
        pytest.param(1, 3, {}, True, id="another parallelism"),
        pytest.param(1, 2, {"checkpoint_id": 7}, True, id="another batch"),
        pytest.param(1, 2, {"attempt_id": "0000000900020001"}, True, id="another attempt"),
        pytest.param(1, 2, {}, False, id="another kind of handle"),
    ],
)
def test_part_with_metadata_of_another_is_refused(
    tmp_path: Path, subtask: int, parallelism: int, changes: dict[str, Any], is_state: bool
) -> None:
    run(str(tmp_path), 0, 2, add(0, 1))
    (path,) = tmp_path.glob("operator-state/sink/*00020001/_metadata")
    context = HandleContext(LocalFileSystem(), str(path.parent))
    metadata = decode_operators(path.read_bytes(), context, "here")
    (handle,) = metadata.operator_states["sink"].subtasks.values()
    part = handle if is_state else ByteStreamStateHandle("bytes", b"1")
    state = OperatorState("sink", parallelism, parallelism, {subtask: part})
    changed = replace(metadata, operator_states={"sink": state}, **changes)
    path.write_bytes(encode_operators(changed, context))
    problem = (
        "files were moved or mixed up" if is_state else "ByteStreamStateHandle instead of operator state"
    )
    message = f"{path}.*{problem}"
    with pytest.raises(CorruptCheckpointError, match=message):
        run(str(tmp_path), 1, 2, nothing)
    with pytest.raises(CorruptCheckpointError, match=message):
        QueryOperatorState(str(tmp_path), "sink").read(0)


def test_query_operator_state_is_shipped_with_its_subtask(tmp_path: Path) -> None:
    state = opened(str(tmp_path), 2, 5, num_retained=4)
    shipped = pickle.loads(pickle.dumps(state))
    assert (shipped.subtask, shipped.parallelism, str(shipped)) == (2, 5, str(state))
    assert "subtask 2 of 5" in str(state)


@pytest.mark.parametrize(
    "attempt_id", [f"{7:016x}", f"{1:08x}00030003", f"{1:08x}0003000G", f"{1:08x}000A0001", "1", None]
)
def test_state_part_refuses_other_ids(attempt_id: str | None) -> None:
    assert StatePart.from_checkpoint(CheckpointName(1, attempt_id)) is None


def parts(*runs: tuple[int, int, Sequence[int]]) -> list[StatePart]:
    """Return parts of batch 1, by attempt, parallelism and subtasks."""
    return [
        StatePart(1, attempt, subtask, parallelism)
        for attempt, parallelism, subtasks in runs
        for subtask in subtasks
    ]


@pytest.mark.parametrize(
    ("stored_parts", "attempts"),
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
def test_complete_parts_are_those_of_the_last_run(
    stored_parts: list[StatePart], attempts: list[int] | None
) -> None:
    complete = complete_parts(stored_parts)
    assert (complete and [part.attempt for part in complete]) == attempts
    assert complete is None or [part.subtask for part in complete] == list(range(len(complete)))

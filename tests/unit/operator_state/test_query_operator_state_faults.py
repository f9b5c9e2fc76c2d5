"""Operator state of a query's own code under faults at every storage call and damage to every byte."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from spark_statestore.errors import StateStoreError
from spark_statestore.operator_state import ListStateDescriptor, QueryOperatorState
from spark_statestore.testing.faults import FaultInjectingFileSystem
from spark_statestore.testing.faults_plan import CrashedError, Fault
from tests.support.damage import cuts, damaged, flips, replacements
from tests.support.effort import EFFORT
from tests.support.figures import count
from tests.unit.files.local_disk import LOSSES, LocalDisk, local_disk
from tests.unit.store.fault_bench import KINDS, Model, faults_at, some

SEEN = ListStateDescriptor("seen", pa.string())
# More than what stays inside of metadata.
LARGE = "x" * 30_000

_numbers = itertools.count()


def add(
    location: str, batch: int, value: str, *, fsync: bool, parallelism: int = 1, early: bool = False
) -> list[str]:
    """Run a batch by new objects, whose last subtask adds a value; return the list of all subtasks.

    With `early` another thread writes the snapshot.
    """
    elements: list[str] = []
    for subtask in range(parallelism):
        state = QueryOperatorState(
            location, "own", subtask=subtask, parallelism=parallelism, num_retained=2, fsync=fsync
        )
        with state.batch(batch) as store:
            list_state = store.get_list_state(SEEN)
            if subtask == parallelism - 1:
                list_state.add(value)
            elements += list_state.get()
            if early:
                store.snapshot()
    return elements


def read(location: str, batch: int) -> list[str] | None:
    state = QueryOperatorState(location, "own")
    return state.read(batch).get_list_state(SEEN).get() if batch in state.batches() else None


def run(
    model: Model, values: list[str], fault: Fault | None, parallelisms: Sequence[int], *, early: bool
) -> list[Fault]:
    """Run three batches, the last one cut short and run again; return the faults that it may meet.

    The parallelisms are those of each batch until the fault, and then of the last batch again and the next
    one.
    """
    if fault is not None:
        count(f"operator state: {fault.kind}")
    location = model.fs.url(f"query-{next(_numbers)}")
    for batch in (0, 1):
        add(location, batch, values[batch], fsync=model.fsync, parallelism=parallelisms[batch])
    model.fs.inject(*([fault] if fault else []))
    is_published = False
    try:
        add(location, 2, values[2], fsync=model.fsync, parallelism=parallelisms[2], early=early)
        is_published = True
    except (StateStoreError, CrashedError):
        pass
    calls = model.fs.calls
    model.fs.restart()
    assert read(location, 1) == values[:2]
    assert read(location, 2) in ([values[:3]] if is_published else [None, values[:3]])
    if model.fsync:
        model.fs.crash()
        model.fs.restart()
        assert read(location, 1) == values[:2]
        assert not is_published or read(location, 2) == values[:3]
    # Spark repeats the batch, and continues.
    for batch, parallelism in zip((2, 3), parallelisms[3:], strict=True):
        elements = add(location, batch, values[batch], fsync=model.fsync, parallelism=parallelism)
        assert elements == values[: batch + 1]
    if model.fsync:
        model.fs.crash()
        model.fs.restart()
    assert read(location, 3) == values
    return list(faults_at(calls, model.kinds))


@pytest.fixture(params=["objects", "local"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Model]:
    if request.param == "objects":
        yield Model(FaultInjectingFileSystem(), False, False, (*KINDS[:3], "kill"))
        return
    with local_disk(tmp_path) as disk:
        yield Model(disk, True, False, (*KINDS, "kill"))


@pytest.mark.parametrize(
    ("size", "parallelisms"),
    [
        pytest.param("small", (1, 1, 1, 1, 1), id="small"),
        pytest.param("large", (1, 1, 1, 1, 1), id="large"),
        pytest.param("large and early", (1, 1, 1, 1, 1), id="large and early"),
        pytest.param("small", (2, 2, 3, 2, 3), id="small, 2 to 3", marks=pytest.mark.slow),
        pytest.param("large and early", (2, 3, 3, 3, 1), id="large, 3 to 1", marks=pytest.mark.slow),
    ],
)
def test_interrupted_batch_is_published_or_not_and_can_run_again(
    model: Model, size: str, parallelisms: Sequence[int]
) -> None:
    values = [f"{batch}{'' if size == 'small' else LARGE}" for batch in range(4)]
    early = size == "large and early"
    stride = 3 if max(parallelisms) == 1 else 7
    for number, fault in some(run(model, values, None, parallelisms, early=early), stride):
        if isinstance(model.fs, LocalDisk):
            names = list(LOSSES)
            model.fs.loss = LOSSES[names[number // stride % len(names)]]
        try:
            run(model, values, fault, parallelisms, early=early)
        except BaseException as error:
            error.add_note(str(fault))
            raise


def test_damage_to_any_byte_is_detected(tmp_path: Path) -> None:
    location = str(tmp_path)
    for batch, value in enumerate(["small", LARGE, "small again"]):
        add(location, batch, value, fsync=False)
    whole = [read(location, batch) for batch in range(3)]
    metadata = sorted(tmp_path.glob("operator-state/own/chk-*/_metadata"))
    for path in sorted(tmp_path.glob("operator-state/own/chk-1_*/*")):
        stride = 1 if path.name == "_metadata" or EFFORT > 1 else 997
        swaps = replacements(path, [file for file in metadata if path.name == "_metadata"])
        for damage in (*flips(path, stride=stride), *cuts(path, stride=stride), *swaps):
            if damage.data is None and path.name == "_metadata":
                # As of a batch that had no state; the one before then counts.
                continue
            with damaged(damage), pytest.raises(StateStoreError) as raised:
                QueryOperatorState(location, "own").read(1).get_list_state(SEEN).get()
            assert str(tmp_path) in str(raised.value), damage
    assert [read(location, batch) for batch in range(3)] == whole

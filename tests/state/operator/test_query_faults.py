"""Operator state of a query's own code: cut short at every call, damaged in every byte. Old, new or refused, never in between."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_statestore.errors import CheckpointNotFoundError, StateStoreError
from spark_statestore.state.operator import ListStateDescriptor, QueryOperatorState
from spark_statestore.testing.faults import CrashedError, Fault, FaultInjectingFileSystem
from tests.checkpoint.fault_bench import KINDS, Model, faults_at, some
from tests.checkpoint.local_disk import LOSSES, LocalDisk, installed
from tests.damage import cuts, damaged, flips, others
from tests.effort import EFFORT
from tests.figures import count

SEEN = ListStateDescriptor("seen", pa.string())
# More than what stays inside of metadata.
LARGE = "x" * 30_000

_numbers = itertools.count()


def add(location: str, batch: int, value: str, *, fsync: bool) -> list[str]:
    """A batch of a driver that has just started."""
    with QueryOperatorState(location, "own", num_retained=2, fsync=fsync).batch(batch) as store:
        seen = store.get_list_state(SEEN)
        seen.add(value)
        return seen.get()


def read(location: str, batch: int) -> list[str] | None:
    try:
        return QueryOperatorState(location, "own").read(batch).get_list_state(SEEN).get()
    except CheckpointNotFoundError:
        return None


def run(model: Model, values: list[str], fault: Fault | None) -> list[Fault]:
    """Three batches, the last one cut short and run again; the faults that it may meet."""
    if fault is not None:
        count(f"operator state: {fault.kind}")
    location = model.fs.url(f"query-{next(_numbers)}")
    for batch in (0, 1):
        add(location, batch, values[batch], fsync=model.fsync)
    model.fs.inject(*([fault] if fault else []))
    done = False
    try:
        add(location, 2, values[2], fsync=model.fsync)
        done = True
    except (StateStoreError, CrashedError):
        pass
    calls = model.fs.calls
    model.fs.restart()
    assert read(location, 1) == values[:2]
    assert read(location, 2) in ([values[:3]] if done else [None, values[:3]])
    if model.fsync:
        model.fs.crash()
        model.fs.restart()
        assert read(location, 1) == values[:2]
        assert not done or read(location, 2) == values[:3]
    # Spark runs the batch again, and goes on.
    for batch in (2, 3):
        assert add(location, batch, values[batch], fsync=model.fsync) == values[: batch + 1]
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
    disk = LocalDisk(tmp_path)
    with installed(disk):
        yield Model(disk, True, False, (*KINDS, "kill"))
        disk.restart()


@pytest.mark.parametrize("size", ["small", "large"])
def test_a_batch_that_is_cut_short_is_done_or_not_and_can_be_run_again(model: Model, size: str) -> None:
    values = [f"{batch}{LARGE if size == 'large' else ''}" for batch in range(4)]
    for number, fault in some(run(model, values, None), 3):
        if isinstance(model.fs, LocalDisk):
            names = list(LOSSES)
            model.fs.loss = LOSSES[names[number // 3 % len(names)]]
        try:
            run(model, values, fault)
        except BaseException as error:
            error.add_note(str(fault))
            raise


def test_damage_to_any_byte_is_noticed(tmp_path: Path) -> None:
    location = str(tmp_path)
    for batch, value in enumerate(["small", LARGE, "small again"]):
        add(location, batch, value, fsync=False)
    whole = [read(location, batch) for batch in range(3)]
    for batch in (1, 2):
        for path in sorted(tmp_path.glob(f"operator-state/own/chk-{batch}_*/*")):
            metadata = sorted(tmp_path.glob("operator-state/own/chk-*/_metadata"))
            stride = 1 if path.name == "_metadata" or EFFORT > 1 else 997
            swaps = others(path, [other for other in metadata if path.name == "_metadata"])
            for damage in (*flips(path, stride=stride), *cuts(path, stride=stride), *swaps):
                if damage.data is None and path.name == "_metadata":
                    # As of a batch that had no state; the one before then counts.
                    continue
                with damaged(damage), pytest.raises(StateStoreError) as told:
                    QueryOperatorState(location, "own").read(batch).get_list_state(SEEN).get()
                assert str(tmp_path) in str(told.value), damage
    assert [read(location, batch) for batch in range(3)] == whole

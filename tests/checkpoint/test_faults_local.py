"""Every operation of a store on local files is cut short at every system call, and the machine loses power."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_statestore.checkpoint.storage import CheckpointName
from spark_statestore.errors import CheckpointNotFoundError
from spark_statestore.options import StorageOptions
from tests.checkpoint.fault_bench import KINDS, OPERATIONS, Model, some
from tests.checkpoint.local_disk import LOSSES, LocalDisk, installed
from tests.checkpoint.stores import commit, open_store, rows_of
from tests.effort import EFFORT

STRIDE = 7


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LocalDisk]:
    disk = LocalDisk(tmp_path)
    with installed(disk):
        yield disk
        disk.restart()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_process_that_fails_or_is_killed_harms_no_version(disk: LocalDisk, operation: str) -> None:
    model = Model(disk, False, False, ("fail", "fail_after", "tear", "kill"), outlives_crashes=False)
    for _, fault in some(OPERATIONS[operation].faults(model, survives=False), STRIDE):
        OPERATIONS[operation].run(model, fault, survives=fault.kind != "kill")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_was_synced_outlives_a_loss_of_power_at_every_call(disk: LocalDisk, operation: str) -> None:
    """Whatever of the rest survives it, and in whatever order; also after the process was killed or met errors before."""
    model = Model(disk, True, False, (*KINDS, "kill"))
    disk.loss = LOSSES["nothing"]
    for number, fault in some(OPERATIONS[operation].faults(model, survives=False), STRIDE):
        if EFFORT > 1:
            losses = list(LOSSES)
        elif fault.kind == "lose_unsynced":
            losses = [list(LOSSES)[number // STRIDE % len(LOSSES)]]
        else:
            losses = ["nothing"]
        for loss in losses:
            disk.loss = LOSSES[loss]
            survives = fault.kind not in ("kill", "lose_unsynced")
            OPERATIONS[operation].run(model, fault, survives=survives, power_fails=True)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("fsync", [False, True])
def test_what_was_not_synced_may_be_lost(disk: LocalDisk, fsync: bool, loss: str) -> None:
    """What all of the above would not notice, if a loss of power took nothing away."""
    disk.loss = LOSSES[loss]
    url, options = disk.url("0/3"), StorageOptions(file_state_threshold=512, fsync=fsync)
    name, rows = CheckpointName(1), {b"small": b"1", b"large": b"x" * 600}
    commit(open_store(url, options), name, rows)
    disk.crash()
    disk.restart()
    if fsync:
        assert rows_of(open_store(url, options), name) == rows
    elif loss == "nothing":
        with pytest.raises(CheckpointNotFoundError):
            rows_of(open_store(url, options), name)

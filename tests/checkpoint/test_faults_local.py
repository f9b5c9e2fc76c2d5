"""Every operation of a store on local files is cut short at every system call, and the machine loses power."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_statestore.checkpoint.storage import CheckpointName
from spark_statestore.errors import CheckpointNotFoundError
from spark_statestore.options import StorageOptions
from tests.checkpoint.fault_bench import ABSENT, KINDS, OPERATIONS, TORN, Bench, Model, some
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


@pytest.mark.parametrize(
    "operation", ["a-small-commit", "a-large-commit", "a-replacing-commit-asked-for-again", "a-cleanup"]
)
@pytest.mark.parametrize("lacks", [{"tmpfile"}, {"tmpfile", "link"}], ids=["hidden-names", "in-place"])
def test_file_systems_that_lack_calls_keep_what_was_synced_too(
    tmp_path: Path, operation: str, lacks: set[str]
) -> None:
    disk = LocalDisk(tmp_path, lacks=frozenset(lacks))
    disk.loss = LOSSES["nothing"]
    # Without links a file shows as it is written, and is known by its checksum.
    model = Model(disk, True, "link" in lacks, (*KINDS, "kill"))
    with installed(disk):
        for number, fault in some(OPERATIONS[operation].faults(model, survives=False), STRIDE):
            if fault.kind == "lose_unsynced":
                disk.loss = LOSSES[list(LOSSES)[number // STRIDE % len(LOSSES)]]
            survives = fault.kind not in ("kill", "lose_unsynced")
            OPERATIONS[operation].run(model, fault, survives=survives, power_fails=True)
        disk.restart()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("ids", [False, True], ids=["v1", "v2"])
def test_without_syncing_a_loss_of_power_takes_versions_and_changes_none(
    disk: LocalDisk, ids: bool, loss: str
) -> None:
    disk.loss = LOSSES[loss]
    bench = Bench(Model(disk, False, False), ids=ids)
    for version in range(1, 7):
        bench.commit(version, {b"%d" % version: b"x" * (900 * (version % 2))}, on=version - 1 or None)
    bench.cleanup(3, 6)
    bench.fs.crash()
    bench.fs.restart()
    outcomes = {bench.found(name, bench.instance()) != rows for name, rows in bench.promised.items()}
    for name, rows in bench.promised.items():
        assert bench.found(name, bench.instance()) in (rows, ABSENT, TORN), name
    assert outcomes == {True} or loss not in ("nothing", "names", "halves")
    bench.remove()


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

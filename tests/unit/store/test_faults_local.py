"""Faults and power losses at the system calls of every operation of a store on local files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.effort import EFFORT
from tests.unit.files.local_disk import LOSSES, LocalDisk, local_disk
from tests.unit.store.fault_bench import ABSENT, KINDS, OPERATIONS, TORN, Bench, Model, every_operation, some

STRIDE = 7


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LocalDisk]:
    with local_disk(tmp_path) as disk:
        yield disk


@every_operation
def test_killed_or_failed_process_damages_no_version(disk: LocalDisk, operation: str) -> None:
    model = Model(disk, False, False, ("fail", "fail_after", "tear", "kill"), outlives_crashes=False)
    for _, fault in some(OPERATIONS[operation].faults(model, survives=False), STRIDE):
        OPERATIONS[operation].run(model, fault, survives=fault.kind != "kill")


@every_operation
def test_synced_version_survives_a_power_loss_at_every_call(disk: LocalDisk, operation: str) -> None:
    """Whatever of the rest survives it, and in whatever order.

    Also after the process was killed or met errors before.
    """
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
    "operation", ["small-commit", "full-snapshot-commit", "replacing-commit-retried", "cleanup"]
)
@pytest.mark.parametrize("lacks", [{"tmpfile"}, {"tmpfile", "link"}], ids=["hidden-names", "in-place"])
def test_synced_version_survives_a_power_loss_without_tmpfile_and_link(
    tmp_path: Path, operation: str, lacks: set[str]
) -> None:
    with local_disk(tmp_path, lacks=frozenset(lacks)) as disk:
        disk.loss = LOSSES["nothing"]
        # Without links a file is visible while it is written; its checksum shows that it is partial.
        model = Model(disk, True, "link" in lacks, (*KINDS, "kill"))
        for number, fault in some(OPERATIONS[operation].faults(model, survives=False), STRIDE):
            if fault.kind == "lose_unsynced":
                disk.loss = LOSSES[list(LOSSES)[number // STRIDE % len(LOSSES)]]
            survives = fault.kind not in ("kill", "lose_unsynced")
            OPERATIONS[operation].run(model, fault, survives=survives, power_fails=True)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("ids", [False, True], ids=["v1", "v2"])
def test_power_loss_without_fsync_loses_versions_and_changes_none(
    disk: LocalDisk, ids: bool, loss: str
) -> None:
    disk.loss = LOSSES[loss]
    bench = Bench(Model(disk, False, False), ids=ids)
    for version in range(1, 7):
        bench.commit(version, {b"%d" % version: b"x" * (900 * (version % 2))}, on=version - 1 or None)
    bench.cleanup(3, 6)
    bench.fs.crash()
    bench.fs.restart()
    outcomes = {bench.outcome(name, bench.instance()) != rows for name, rows in bench.promised.items()}
    for name, rows in bench.promised.items():
        assert bench.outcome(name, bench.instance()) in (rows, ABSENT, TORN), name
    assert outcomes == {True} or loss not in ("nothing", "names", "halves")
    bench.remove()

"""Faults at every storage call of batches in merged files, of their loads and their cleanup."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_statestore.errors import CorruptCheckpointError
from spark_statestore.query.verify import Verifier
from spark_statestore.storage import CheckpointName, merged_index
from spark_statestore.testing.stores import rows_of
from tests.unit.files.local_disk import LOSSES, LocalDisk, local_disk
from tests.unit.query.hand_over_bench import HAND_OVERS
from tests.unit.query.merged_bench import OPERATIONS, MergedBench, Operation, three_batches
from tests.unit.store.fault_bench import KINDS, MODELS, Model, some

# Soak takes every fault.
STRIDE = 23

every_operation = pytest.mark.parametrize("operation", OPERATIONS)
# On a cluster commits are handed over in format v2 alone.
every_mode = pytest.mark.parametrize(
    ("ids", "cluster"), [(False, False), (True, False), (True, True)], ids=["v1", "v2", "v2-cluster"]
)
every_hand_over = pytest.mark.parametrize("operation", HAND_OVERS)
# An end of the machine loses nothing of finished objects, so survivors of a fault find the same storage.
every_model = pytest.mark.parametrize(
    ("model", "survives"),
    [
        pytest.param("objects", False, id="objects"),
        pytest.param("disk", False, id="disk", marks=pytest.mark.slow),
        pytest.param("disk", True, id="disk-and-go-on", marks=pytest.mark.soak),
    ],
)


@pytest.fixture(autouse=True)
def _little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have small files rewritten, too."""
    monkeypatch.setattr(merged_index, "_LITTLE", 0)


@pytest.fixture(autouse=True)
def _one_store_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify without threads, which take longer to start than three small stores to read."""
    monkeypatch.setattr(
        sys.modules[Verifier.__module__],
        "parallel_map",
        lambda do, items, progress: [do(item) for item in items],
    )


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LocalDisk]:
    with local_disk(tmp_path) as disk:
        yield disk


@every_model
@every_mode
@every_operation
def test_batch_is_whole_or_absent_after_a_fault_at_any_call(
    operation: str, ids: bool, cluster: bool, model: str, survives: bool
) -> None:
    run_with_faults(OPERATIONS[operation], MODELS[model], ids=ids, cluster=cluster, survives=survives)


@pytest.mark.slow
@every_model
@every_hand_over
def test_batch_handed_over_is_whole_or_absent_after_a_fault_at_any_call(
    operation: str, model: str, survives: bool
) -> None:
    run_with_faults(HAND_OVERS[operation], MODELS[model], ids=True, cluster=True, survives=survives)


def run_with_faults(operation: Operation, model: Model, *, ids: bool, cluster: bool, survives: bool) -> None:
    all_faults = operation.faults(model, ids=ids, cluster=cluster, survives=survives)
    faults = [fault for _, fault in some(all_faults, STRIDE)]
    assert faults
    for fault in faults:
        operation.run(model, fault, ids=ids, cluster=cluster, survives=survives)


@pytest.mark.slow
@every_mode
@every_operation
def test_synced_batch_survives_a_power_loss_at_any_call(
    disk: LocalDisk, operation: str, ids: bool, cluster: bool
) -> None:
    run_with_power_losses(OPERATIONS[operation], disk, ids=ids, cluster=cluster)


@pytest.mark.soak
@every_hand_over
def test_synced_batch_handed_over_survives_a_power_loss_at_any_call(disk: LocalDisk, operation: str) -> None:
    run_with_power_losses(HAND_OVERS[operation], disk, ids=True, cluster=True)


def run_with_power_losses(operation: Operation, disk: LocalDisk, *, ids: bool, cluster: bool) -> None:
    model = Model(disk, True, False, (*KINDS, "kill"))
    disk.loss = LOSSES["nothing"]
    faults = operation.faults(model, ids=ids, cluster=cluster, survives=False)
    for number, fault in some(faults, STRIDE):
        disk.loss = LOSSES[list(LOSSES)[number // STRIDE % len(LOSSES)]]
        operation.run(model, fault, ids=ids, cluster=cluster, survives=False)


@pytest.mark.parametrize("operation", ["batch", "batch-again", "cleanup", "rewrite"])
def test_operations_are_what_they_are_called(operation: str) -> None:
    """Without a fault: what each leaves in the directory of merged files."""
    bench = MergedBench(MODELS["objects"], True, False)
    OPERATIONS[operation].prepare(bench)
    OPERATIONS[operation].operate(bench)
    path = f"{bench.root}/state/_merged".removeprefix("faulty://")
    names = sorted(file.rpartition("/")[2] for file in bench.fs.wrapped.find(path))
    assert names == {
        "batch": ["2-2-0", "3-3-0", "4-4-0"],
        "batch-again": ["2-2-0", "3-3-0", "4-4-0", "4-4-1"],
        # What the last two batches need; the snapshots are in files of their own.
        "cleanup": ["4-4-0", "5-5-0"],
        # The store without a snapshot needs the first batches.
        "rewrite": ["2-2-1-copy", *(f"{version}-{version}-0" for version in range(3, 10))],
    }[operation]  # fmt: skip


def test_part_of_a_file_hides_no_version_that_was_published_since() -> None:
    """A killed driver left the part; an executor that lists it loads the version of the next run."""
    bench = MergedBench(MODELS["objects"], True, True)
    three_batches(bench)
    bench.fs.wrapped.pipe_file(f"{bench.root}/state/_merged/4-4-0".removeprefix("faulty://"), b"part")
    bench.restart()
    moved = bench.executors[0].open(1)
    moved.load(bench.names[-1][1])
    with pytest.raises(CorruptCheckpointError, match="4-4-0"):
        moved.load(CheckpointName(4, "0" * 16))
    bench.batch(b"next")
    assert rows_of(moved, bench.names[-1][1]) == bench.committed[-1][1]

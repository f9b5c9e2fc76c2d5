"""Faults at every storage call of batches whose versions are in merged files, of their loads and their clean-up."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_statestore.query.verify import Verifier
from spark_statestore.storage import merged_index
from tests.unit.files.local_disk import LOSSES, LocalDisk, local_disk
from tests.unit.query.merged_bench import OPERATIONS, MergedBench
from tests.unit.store.fault_bench import KINDS, MODELS, Model, some

STRIDE = 5

every_operation = pytest.mark.parametrize("operation", OPERATIONS)
# On a cluster commits are handed over in format v2 alone.
every_mode = pytest.mark.parametrize(
    ("ids", "cluster"), [(False, False), (True, False), (True, True)], ids=["v1", "v2", "v2-cluster"]
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
        lambda do, items, progress: [do(one) for one in items],
    )


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LocalDisk]:
    with local_disk(tmp_path) as disk:
        yield disk


@pytest.mark.parametrize(
    ("model", "survives"),
    [
        pytest.param("objects", False, id="objects"),
        pytest.param("objects", True, id="objects-and-go-on", marks=pytest.mark.slow),
        pytest.param("disk", False, id="disk", marks=pytest.mark.slow),
        pytest.param("disk", True, id="disk-and-go-on", marks=pytest.mark.slow),
    ],
)
@every_mode
@every_operation
def test_batch_is_whole_or_absent_after_a_fault_at_any_call(
    operation: str, ids: bool, cluster: bool, model: str, survives: bool
) -> None:
    found = OPERATIONS[operation].faults(MODELS[model], ids=ids, cluster=cluster, survives=survives)
    faults = [fault for _, fault in some(found, STRIDE)]
    assert faults
    for fault in faults:
        OPERATIONS[operation].run(MODELS[model], fault, ids=ids, cluster=cluster, survives=survives)


@pytest.mark.slow
@every_mode
@every_operation
def test_synced_batch_survives_a_power_loss_at_any_call(
    disk: LocalDisk, operation: str, ids: bool, cluster: bool
) -> None:
    model = Model(disk, True, False, (*KINDS, "kill"))
    disk.loss = LOSSES["nothing"]
    found = OPERATIONS[operation].faults(model, ids=ids, cluster=cluster, survives=False)
    for number, fault in some(found, STRIDE):
        disk.loss = LOSSES[list(LOSSES)[number // STRIDE % len(LOSSES)]]
        OPERATIONS[operation].run(model, fault, ids=ids, cluster=cluster, survives=False)


@pytest.mark.parametrize("operation", ["batch", "batch-again", "cleanup", "rewrite"])
def test_operations_are_what_they_are_called(operation: str) -> None:
    """Without a fault: what each leaves in the directory of merged files."""
    bench = MergedBench(MODELS["objects"], True, False)
    OPERATIONS[operation].prepare(bench)
    OPERATIONS[operation].operate(bench)
    path = f"{bench.root}/state/_merged".removeprefix("faulty://")
    names = sorted(found.rpartition("/")[2] for found in bench.fs.wrapped.find(path))
    assert names == {
        "batch": ["2-2-0", "3-3-0", "4-4-0"],
        "batch-again": ["2-2-0", "3-3-0", "4-4-0", "4-4-1"],
        # What the last two batches need; the snapshots are in files of their own.
        "cleanup": ["4-4-0", "5-5-0"],
        # The store without a snapshot needs the first batches.
        "rewrite": ["2-2-1-copy", *(f"{version}-{version}-0" for version in range(3, 10))],
    }[operation]  # fmt: skip

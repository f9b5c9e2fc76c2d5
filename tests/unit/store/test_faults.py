"""Faults at every storage call of every operation of a store, on a simulated object store and disk."""

from __future__ import annotations

import pytest

from spark_statestore.errors import CheckpointNotFoundError
from spark_statestore.options import StorageOptions
from spark_statestore.storage import CheckpointName
from spark_statestore.testing.faults import FaultInjectingFileSystem
from tests.unit.store.fault_bench import MODELS, OPERATIONS, every_operation, some
from tests.unit.store.stores import commit, open_store, rows_of

STRIDES = {("disk", False): 5, ("disk", True): 3, ("objects", True): 3}
"""Distance of the faults that the second tier injects; `test_faults_local` injects them on local files."""


@pytest.mark.parametrize(
    ("model", "survives"),
    [
        pytest.param("objects", False, id="objects"),
        pytest.param("objects", True, id="objects-and-go-on", marks=pytest.mark.slow),
        pytest.param("disk", False, id="disk", marks=pytest.mark.slow),
        pytest.param("disk", True, id="disk-and-go-on", marks=pytest.mark.slow),
        pytest.param("disk-with-empty-files", False, id="disk-with-empty-files", marks=pytest.mark.slow),
        pytest.param("unsynced-disk", True, id="unsynced-disk-and-go-on"),
    ],
)
@every_operation
def test_interrupted_operation_damages_no_version_and_can_be_retried(
    operation: str, model: str, survives: bool
) -> None:
    faults = list(OPERATIONS[operation].faults(MODELS[model], survives=survives))
    assert faults
    for _, fault in some(faults, STRIDES.get((model, survives), 1)):
        OPERATIONS[operation].run(MODELS[model], fault, survives=survives)


@pytest.mark.parametrize("fsync", [False, True])
def test_synced_commit_survives_a_crash_of_the_disk(fsync: bool) -> None:
    fs = FaultInjectingFileSystem(durability="synced")
    url, options = fs.url("0/3"), StorageOptions(file_state_threshold=512, fsync=fsync)
    name, rows = CheckpointName(1), {b"small": b"1", b"large": b"x" * 600}
    commit(open_store(url, options), name, rows)
    assert rows_of(open_store(url, options), name) == rows
    fs.crash()
    fs.restart()
    if fsync:
        assert rows_of(open_store(url, options), name) == rows
    else:
        # What all of the above would not notice, if a crash took nothing away.
        with pytest.raises(CheckpointNotFoundError):
            rows_of(open_store(url, options), name)

"""Every operation of a store is cut short at every call to its storage, in every way."""

from __future__ import annotations

import pytest

from spark_statestore.checkpoint.storage import CheckpointName
from spark_statestore.errors import CheckpointNotFoundError
from spark_statestore.options import StorageOptions
from spark_statestore.testing.faults import FaultInjectingFileSystem
from tests.checkpoint.fault_bench import MODELS, OPERATIONS
from tests.checkpoint.stores import commit, open_store, rows_of


@pytest.mark.parametrize(
    ("model", "survives"),
    [
        pytest.param("objects", False, id="objects"),
        pytest.param("objects", True, id="objects-and-go-on"),
        pytest.param("disk", False, id="disk"),
        pytest.param("disk", True, id="disk-and-go-on"),
        pytest.param("disk-that-keeps-names", False, id="disk-that-keeps-names"),
        pytest.param("unsynced-disk", True, id="unsynced-disk-and-go-on"),
    ],
)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_is_cut_short_harms_no_version_and_can_be_repeated(
    operation: str, model: str, survives: bool
) -> None:
    faults = list(OPERATIONS[operation].faults(MODELS[model], survives=survives))
    assert faults
    for fault in faults:
        OPERATIONS[operation].run(MODELS[model], fault, survives=survives)


@pytest.mark.parametrize("fsync", [False, True])
def test_a_commit_outlives_a_crash_of_a_disk_if_it_was_synced(fsync: bool) -> None:
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

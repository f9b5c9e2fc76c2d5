"""A checkpoint that the first release wrote is read, also by this one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_statestore.checkpoint.files import MemoryFileSystem
from spark_statestore.checkpoint.metadata import StoreId
from spark_statestore.checkpoint.storage import CheckpointName
from spark_statestore.checkpoint.versions import VersionStore
from spark_statestore.options import StorageOptions
from spark_statestore.state.handles import FileStateHandle, SegmentFileStateHandle
from tests.checkpoint.stores import load
from tests.checkpoint.write_format_sample import KEY_SCHEMA, VALUE_SCHEMA
from tests.trees import files_below

SAMPLE = Path(__file__).parent / "data" / "format-v1"
DESCRIBED = json.loads((SAMPLE / "rows.json").read_text())
VERSIONS = [
    (store, name, rows) for store, names in DESCRIBED["versions"].items() for name, rows in names.items()
]


def opened(store: str) -> VersionStore:
    operator, partition = map(int, store.split("/"))
    directory = str(SAMPLE / store)
    return VersionStore(StoreId(operator, partition), directory, StorageOptions(), MemoryFileSystem())


@pytest.mark.parametrize(("store", "name", "rows"), VERSIONS, ids=lambda value: str(value).replace("/", "-"))
def test_every_version_has_its_rows(store: str, name: str, rows: int) -> None:
    wanted = {
        state: {bytes.fromhex(key): bytes.fromhex(value) for key, value in content.items()}
        for state, content in DESCRIBED["rows"][rows].items()
    }
    before = files_below(SAMPLE)
    assert load(opened(store), CheckpointName.parse(name)) == wanted
    assert files_below(SAMPLE) == before


def test_the_sample_has_every_kind_of_stream_and_name() -> None:
    names = [CheckpointName.parse(name) for _, name, _ in VERSIONS]
    assert {name.id is None for name in names} == {True, False}
    kinds = set()
    lengths = set()
    for store, name, _ in VERSIONS:
        handle = opened(store).load(CheckpointName.parse(name)).handle
        lengths.add(len(handle))
        kinds |= {(type(entry.state.delegate_state_handle), entry.full) for entry in handle}
    assert {(FileStateHandle, True), (SegmentFileStateHandle, True), (SegmentFileStateHandle, False)} <= {
        (FileStateHandle if issubclass(kind, FileStateHandle) else kind, full) for kind, full in kinds
    }
    assert {0, 1, 2, 3} <= lengths
    assert list(SAMPLE.glob("0/*/chk-4/_metadata.*"))


def test_metadata_says_what_the_states_are() -> None:
    metadata = opened("0/1").load(CheckpointName(2, "0000000000000002"))
    assert (metadata.store, metadata.attempt, metadata.parent_attempt) == (
        StoreId(0, 1),
        "0" * 15 + "2",
        None,
    )
    assert metadata.created_ms > 1_700_000_000_000
    assert metadata.written_by
    first, second = metadata.states
    assert (first.name, first.rows, first.key_encoder, first.prefix_columns) == ("default", 60, "hash", 0)
    assert (second.name, second.rows, second.key_encoder, second.prefix_columns) == ("timers", 6, "prefix", 1)
    assert (first.key_schema, first.value_schema) == (KEY_SCHEMA, VALUE_SCHEMA)

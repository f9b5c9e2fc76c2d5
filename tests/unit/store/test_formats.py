"""The stored sample of format version 1 is read exactly."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pytest

from spark_statestore.files import LocalFileSystem, MemoryFileSystem, join
from spark_statestore.formats.change_batches import read_change_batch
from spark_statestore.formats.messages import message_layout
from spark_statestore.formats.metadata import METADATA_FORMAT_VERSION
from spark_statestore.operator_state.metadata import OperatorsMetadata, decode_operators
from spark_statestore.options import StorageOptions
from spark_statestore.query.savepoint_lookup import list_savepoints
from spark_statestore.storage import METADATA_FILE_NAME, CheckpointName
from spark_statestore.storage.file_handles import FileStateHandle, SegmentFileStateHandle
from spark_statestore.storage.handle_codec import HandleContext
from spark_statestore.storage.stream_handles import ByteStreamStateHandle
from spark_statestore.store.changelog import DELETE, read_messages
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.metadata import StoreId
from tests.support.trees import files_below
from tests.unit.store.stores import load
from tests.unit.store.write_format_sample import describe_operators, describe_savepoint

SAMPLE = Path(__file__).parent / "data" / f"format-{METADATA_FORMAT_VERSION}"
EXPECTED = json.loads((SAMPLE / "rows.json").read_text())
VERSIONS = [
    (store, name, rows) for store, names in EXPECTED["versions"].items() for name, rows in names.items()
]


def open_sample(store: str) -> StoreDirectory:
    operator, partition = map(int, store.split("/"))
    return StoreDirectory(
        StoreId(operator, partition), str(SAMPLE / store), StorageOptions(), MemoryFileSystem()
    )


def read_operators() -> OperatorsMetadata:
    directory = str(SAMPLE / "operators" / "chk-1")
    data = LocalFileSystem().read(join(directory, METADATA_FILE_NAME))
    return decode_operators(data, HandleContext(LocalFileSystem(), directory), directory)


def test_sample_metadata_has_the_current_format_version() -> None:
    headers = [path.read_bytes()[:10] for path in SAMPLE.rglob(f"{METADATA_FILE_NAME}*")]
    assert len(headers) >= 20
    assert {int.from_bytes(header[8:], "little") for header in headers} == {METADATA_FORMAT_VERSION}


@pytest.mark.parametrize(("store", "name", "rows"), VERSIONS, ids=lambda value: str(value).replace("/", "-"))
def test_sample_version_has_the_expected_rows(store: str, name: str, rows: int) -> None:
    expected = {
        state: {bytes.fromhex(key): bytes.fromhex(value) for key, value in content.items()}
        for state, content in EXPECTED["rows"][rows].items()
    }
    before = files_below(SAMPLE)
    assert load(open_sample(store), CheckpointName.parse(name)) == expected
    assert files_below(SAMPLE) == before


def test_sample_has_every_kind_of_stream_and_name() -> None:
    versions = [(store, CheckpointName.parse(name)) for store, name, _ in VERSIONS]
    assert {name.id is None for _, name in versions} == {True, False}
    kinds = set()
    lengths = set()
    for store, name in versions:
        handle = open_sample(store).load(name).handle
        lengths.add(len(handle))
        kinds |= {
            (type(entry.state.delegate_state_handle), entry.full, entry.since is not None) for entry in handle
        }
    assert kinds >= {
        (FileStateHandle, True, False),
        (FileStateHandle, False, True),
        (SegmentFileStateHandle, True, False),
        (SegmentFileStateHandle, False, False),
    }
    assert {0, 1, 2, 3} <= lengths
    assert list(SAMPLE.glob("0/*/chk-4/_metadata.*"))


def test_sample_has_every_layout_of_change_batches() -> None:
    layouts = set()
    for store, name, _ in VERSIONS:
        for entry in open_sample(store).load(CheckpointName.parse(name)).handle:
            for _, data in read_messages(entry.state, "here"):
                batch = read_change_batch(pa.py_buffer(data), full=True)
                layouts.add((message_layout(pa.py_buffer(data)).buffers, DELETE in batch["op"].to_pylist()))
    assert layouts == {(8, False), (8, True), (6, False), (6, True)}


def test_sample_metadata_describes_the_column_families() -> None:
    metadata = open_sample("0/1").load(CheckpointName(2, "0000000000000002"))
    assert (metadata.store, metadata.attempt_id) == (StoreId(0, 1), "0" * 15 + "2")
    assert metadata.parent_attempt_id == "0" * 15 + "1"
    assert metadata.created_ms > 1_700_000_000_000
    assert metadata.written_by
    assert [asdict(family) for family in metadata.column_families] == [
        {**family, "ordering_columns": tuple(family["ordering_columns"])}
        for family in EXPECTED["columnFamilies"]
    ]


def test_sample_operators_have_their_state() -> None:
    metadata = read_operators()
    assert describe_operators(metadata) == EXPECTED["operators"]
    assert (metadata.checkpoint_id, metadata.attempt_id) == (1, "0" * 15 + "1")
    assert metadata.created_ms > 1_700_000_000_000
    streams = [
        getattr(handle, "delegate_state_handle", handle)
        for state in metadata.operator_states.values()
        for handle in state.subtasks.values()
    ]
    assert {type(stream) for stream in streams} == {ByteStreamStateHandle, FileStateHandle}
    assert len({type(h) for s in metadata.operator_states.values() for h in s.subtasks.values()}) >= 2


def test_sample_savepoints_have_their_properties() -> None:
    savepoints = list_savepoints(str(SAMPLE / "savepoints"))
    described = [json.loads(json.dumps(describe_savepoint(savepoint))) for savepoint in savepoints]
    assert described == EXPECTED["savepoints"]
    assert {savepoint.kind for savepoint in savepoints} == {"canonical", "pointer"}

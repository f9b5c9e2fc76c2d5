"""Checkpoints that earlier releases wrote, in every format so far, are read by this one."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from spark_statestore.checkpoint.files import LocalFileSystem, MemoryFileSystem, join
from spark_statestore.checkpoint.metadata import (
    METADATA_FORMAT_VERSION,
    OperatorsMetadata,
    StoreId,
    decode_operators,
)
from spark_statestore.checkpoint.metadata.format import decode_object
from spark_statestore.checkpoint.storage import METADATA_FILE_NAME, CheckpointName
from spark_statestore.checkpoint.versions import VersionStore
from spark_statestore.options import StorageOptions
from spark_statestore.savepoint.savepoint import list_savepoints
from spark_statestore.state.change_batches import read_change_batch
from spark_statestore.state.changes import REMOVE, read_messages
from spark_statestore.state.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    RelativeFileStateHandle,
    SegmentFileStateHandle,
)
from spark_statestore.state.handles.codec import HandleContext
from spark_statestore.state.messages import shape_of
from tests.checkpoint.stores import load
from tests.checkpoint.write_format_sample import (
    KEY_SCHEMA,
    VALUE_SCHEMA,
    describe_operators,
    describe_savepoint,
)
from tests.trees import files_below

DATA = Path(__file__).parent / "data"
SAMPLES = {int(path.name.removeprefix("format-v")): path for path in sorted(DATA.glob("format-v*"))}
ROWS = {number: json.loads((path / "rows.json").read_text()) for number, path in SAMPLES.items()}
VERSIONS = [
    (number, store, name, rows)
    for number, described in ROWS.items()
    for store, names in described["versions"].items()
    for name, rows in names.items()
]
WITH_SAVEPOINTS = [number for number, described in ROWS.items() if "savepoints" in described]
WITH_OPERATORS = [number for number, described in ROWS.items() if "operators" in described]

# Since format 3: ordered and internal states, and several values of a key.
LATER_STATES = [("$times", "range", (0,), None, True, 0), ("list", "timestampPostfix", (), 26, False, 1)]

each_format = pytest.mark.parametrize("number", SAMPLES)


def opened(number: int, store: str) -> VersionStore:
    operator, partition = map(int, store.split("/"))
    directory = str(SAMPLES[number] / store)
    return VersionStore(StoreId(operator, partition), directory, StorageOptions(), MemoryFileSystem())


def operators_of(number: int) -> OperatorsMetadata:
    directory = str(SAMPLES[number] / "operators" / "chk-1")
    data = LocalFileSystem().read(join(directory, METADATA_FILE_NAME))
    return decode_operators(data, HandleContext(LocalFileSystem(), directory), directory)


def test_there_is_a_sample_of_every_format() -> None:
    assert list(SAMPLES) == list(range(1, METADATA_FORMAT_VERSION + 1))
    assert list(range(2, METADATA_FORMAT_VERSION + 1)) == WITH_OPERATORS
    assert list(range(4, METADATA_FORMAT_VERSION + 1)) == WITH_SAVEPOINTS


@each_format
def test_a_sample_is_of_its_format(number: int) -> None:
    paths = list(SAMPLES[number].rglob(f"{METADATA_FILE_NAME}*"))
    assert len(paths) >= 20
    for path in paths:
        assert decode_object(path.read_bytes(), str(path)).format_version == number


@pytest.mark.parametrize(
    ("number", "store", "name", "rows"), VERSIONS, ids=lambda value: str(value).replace("/", "-")
)
def test_every_version_has_its_rows(number: int, store: str, name: str, rows: int) -> None:
    wanted = {
        state: {bytes.fromhex(key): bytes.fromhex(value) for key, value in content.items()}
        for state, content in ROWS[number]["rows"][rows].items()
    }
    before = files_below(SAMPLES[number])
    assert load(opened(number, store), CheckpointName.parse(name)) == wanted
    assert files_below(SAMPLES[number]) == before


@each_format
def test_a_sample_has_every_kind_of_stream_and_name(number: int) -> None:
    versions = [(store, CheckpointName.parse(name)) for n, store, name, _ in VERSIONS if n == number]
    assert {name.id is None for _, name in versions} == {True, False}
    kinds = set()
    lengths = set()
    for store, name in versions:
        handle = opened(number, store).load(name).handle
        lengths.add(len(handle))
        kinds |= {(type(entry.state.delegate_state_handle), entry.full) for entry in handle}
    assert {(FileStateHandle, True), (SegmentFileStateHandle, True), (SegmentFileStateHandle, False)} <= {
        (FileStateHandle if issubclass(kind, FileStateHandle) else kind, full) for kind, full in kinds
    }
    assert {0, 1, 2, 3} <= lengths
    assert list(SAMPLES[number].glob("0/*/chk-4/_metadata.*"))


@each_format
def test_a_sample_has_every_layout_of_changes(number: int) -> None:
    seen = set()
    for _, store, name, _ in (version for version in VERSIONS if version[0] == number):
        for entry in opened(number, store).load(CheckpointName.parse(name)).handle:
            for _, data in read_messages(entry.state, "here"):
                batch = read_change_batch(pa.py_buffer(data), full=True)
                seen.add((shape_of(pa.py_buffer(data)).buffers, REMOVE in batch["op"].to_pylist()))
    assert seen == ({(8, False), (8, True)} if number < 5 else {(8, False), (6, False), (6, True)})


@each_format
def test_metadata_says_what_the_states_are(number: int) -> None:
    metadata = opened(number, "0/1").load(CheckpointName(2, "0000000000000002"))
    assert (metadata.store, metadata.attempt, metadata.parent_attempt) == (
        StoreId(0, 1),
        "0" * 15 + "2",
        None,
    )
    assert metadata.created_ms > 1_700_000_000_000
    assert metadata.written_by
    first, second, *later = metadata.states
    assert (first.name, first.rows, first.key_encoder, first.prefix_columns) == ("default", 60, "hash", 0)
    assert (second.name, second.rows, second.key_encoder, second.prefix_columns) == ("timers", 6, "prefix", 1)
    assert (first.key_schema, first.value_schema) == (KEY_SCHEMA, VALUE_SCHEMA)
    assert not first.has_multiple_values
    described = [(s.name, s.key_encoder, s.ordering_columns, s.values, s.internal, s.since) for s in later]
    assert described == ([] if number < 3 else LATER_STATES)


@pytest.mark.parametrize("number", WITH_OPERATORS)
def test_operators_have_their_state(number: int) -> None:
    metadata = operators_of(number)
    assert describe_operators(metadata) == ROWS[number]["operators"]
    assert (metadata.checkpoint_id, metadata.attempt) == (1, "0" * 15 + "1")
    assert metadata.created_ms > 1_700_000_000_000
    streams = [
        getattr(handle, "delegate_state_handle", handle)
        for state in metadata.operator_states.values()
        for handle in state.subtasks.values()
    ]
    assert {type(stream) for stream in streams} == {ByteStreamStateHandle, RelativeFileStateHandle}
    assert len({type(h) for s in metadata.operator_states.values() for h in s.subtasks.values()}) >= 2


@pytest.mark.parametrize("number", WITH_SAVEPOINTS)
def test_savepoints_say_what_they_are_of(number: int) -> None:
    found = list_savepoints(str(SAMPLES[number] / "savepoints"))
    described = [json.loads(json.dumps(describe_savepoint(savepoint))) for savepoint in found]
    assert described == ROWS[number]["savepoints"]
    assert {savepoint.kind for savepoint in found} == {"canonical", "pointer"}

"""Tests of the encoding of handles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from spark_statestore.errors import CorruptCheckpointError
from spark_statestore.files import LocalFileSystem
from spark_statestore.storage.chains import extend_chain
from spark_statestore.storage.file_handles import FileStateHandle, SegmentFileStateHandle
from spark_statestore.storage.handle_codec import (
    HANDLE_SCHEMA,
    HandleContext,
    decode_handle,
    encode_extended_handle,
    encode_handle,
)
from spark_statestore.storage.incremental_handle import ChainEntry, IncrementalStateHandle
from spark_statestore.storage.stream_handles import StateObject, StreamStateHandle
from tests.unit.damaged_bytes import encoded
from tests.unit.storage.handles import CONTEXT, FILES, facts, operators, streams


@st.composite
def chains(draw: st.DrawFn) -> IncrementalStateHandle:
    versions = sorted(draw(st.lists(st.integers(1, 2**60), max_size=4)))
    full = draw(st.booleans())
    entries = [ChainEntry(version, full and i == 0, draw(operators)) for i, version in enumerate(versions)]
    base = versions[0] if versions else 1
    version = (versions or [1])[-1] + draw(st.integers(0, 3))
    return IncrementalStateHandle(version, base, entries)


handles = st.one_of(streams, operators, chains())


@given(chains(), st.lists(st.none() | operators, min_size=1, max_size=12))
def test_extended_handle_is_encoded_as_the_whole(parent: IncrementalStateHandle, changes: list[Any]) -> None:
    message = encode_handle(parent, CONTEXT)
    for change in changes:
        handle = extend_chain(parent, parent.version + 1, change)
        message = encode_extended_handle(handle, parent, message, CONTEXT)
        assert message == encode_handle(handle, CONTEXT)
        parent = handle


@given(handles)
def test_handle_round_trip(state: StateObject) -> None:
    again = decode_handle(encode_handle(state, CONTEXT), CONTEXT)
    assert facts(again) == facts(state)
    assert (again, hash(again)) == (state, hash(state))


def test_encode_stores_files_of_the_store_by_relative_path(tmp_path: Path) -> None:
    files = LocalFileSystem()
    (tmp_path / "old" / "shared").mkdir(parents=True)
    (tmp_path / "old" / "shared" / "1-x").write_bytes(b"state")
    stored = encode_handle(
        FileStateHandle(files, f"{tmp_path}/old/shared/1-x", 5), HandleContext(files, f"{tmp_path}/old")
    )
    (tmp_path / "old").rename(tmp_path / "new")
    handle = decode_handle(stored, HandleContext(files, f"{tmp_path}/new"))
    assert isinstance(handle, StreamStateHandle)
    with handle.open_input_stream() as stream:
        assert stream.read() == b"state"
    assert str(tmp_path).encode() not in stored


def test_encode_refuses_an_unknown_handle() -> None:
    class Unknown(StateObject):
        state_size = 0

    with pytest.raises(TypeError, match="Unknown has no stored form"):
        encode_handle(Unknown(), CONTEXT)


def stored(*rows: dict[str, object]) -> bytes:
    batch = pa.Table.from_pylist([{"parent": -1} | row for row in rows], schema=HANDLE_SCHEMA).to_batches()[0]
    return bytes(batch.serialize())


ATTEMPT = "0123456789abcdef"
OPERATOR = {"kind": 2, "stream": 1, "name": "s", "data": b""}


@pytest.mark.parametrize(
    "rows",
    [
        [{"kind": 99}],
        [{"kind": 1, "stream": 99}],
        [{"kind": 1, "stream": None}],
        [{"kind": 1, "stream": 1, "name": "s", "data": None}],
        [{"kind": 1, "stream": 3, "path": "x", "size": None}],
        [{"kind": 1, "stream": 3, "path": None, "size": 1}],
        [{"kind": 1, "stream": 3, "path": "x", "size": -1}],
        [{"kind": 1, "stream": 3, "path": "", "size": 1}],
        [{"kind": 1, "stream": 4, "path": "x", "start": -1, "size": 1, "attempt_id": ATTEMPT}],
        [{"kind": 1, "stream": 4, "path": "x", "start": 1, "size": -1, "attempt_id": ATTEMPT}],
        [{"kind": 1, "stream": 4, "path": "x", "start": 1, "size": 1, "attempt_id": "o"}],
        [{"kind": 4, "version": -1, "start": -1}],
        [OPERATOR, {"parent": 0, "kind": 3, "name": "s", "mode": 0, "offsets": [3, -1]}],
        [{"kind": 4, "version": 1, "start": 1}, {"parent": 0, "kind": 3, "name": "s"}],
        [{"kind": 4, "version": None, "start": 1}, OPERATOR | {"parent": 0, "kind": 5, "version": 1}],
        [{"kind": 4, "version": 1, "start": 1}, OPERATOR | {"parent": 0, "kind": 5, "version": 9}],
        [OPERATOR, {"parent": 0, "kind": 3, "name": "s", "mode": 9, "offsets": []}],
        [OPERATOR, {"parent": 0, "kind": 3, "name": "s", "mode": 0, "offsets": None}],
        [OPERATOR, *[{"parent": 0, "kind": 3, "name": "s", "mode": 0, "offsets": []}] * 2],
        [OPERATOR, OPERATOR],
        [OPERATOR | {"parent": 0}],
        [OPERATOR, {"parent": 1, "kind": 3, "name": "s", "mode": 0, "offsets": []}],
    ],
)
def test_decode_refuses_an_invalid_handle(rows: list[dict[str, object]]) -> None:
    with pytest.raises(CorruptCheckpointError):
        decode_handle(stored(*rows), CONTEXT)


def test_decode_refuses_compressed_buffers() -> None:
    batch = pa.ipc.read_record_batch(
        pa.py_buffer(stored({"kind": 4, "version": 1, "start": 1})), HANDLE_SCHEMA
    )
    with pytest.raises(CorruptCheckpointError, match="its format does not allow"):
        decode_handle(encoded(batch, "zstd"), CONTEXT)


@given(st.binary(max_size=80))
def test_decode_refuses_arbitrary_bytes(data: bytes) -> None:
    with pytest.raises(CorruptCheckpointError):
        decode_handle(data, CONTEXT)


@pytest.mark.parametrize("path", ["/elsewhere/x", "/store/../x", "/store//x", "/store2/x", "/store/"])
def test_encode_refuses_a_file_outside_of_the_store(path: str) -> None:
    for handle in (FileStateHandle(FILES, path, 1), SegmentFileStateHandle(FILES, path, 0, 1, ATTEMPT)):
        with pytest.raises(TypeError, match="outside of process-memory:///store"):
            encode_handle(handle, CONTEXT)


def test_encode_refuses_a_file_of_another_file_system_or_unknown_size() -> None:
    with pytest.raises(TypeError, match="outside of process-memory:///store"):
        encode_handle(FileStateHandle(LocalFileSystem(), "/store/x", 1), CONTEXT)
    with pytest.raises(ValueError, match="not known"):
        encode_handle(FileStateHandle(FILES, "/store/x", -1), CONTEXT)

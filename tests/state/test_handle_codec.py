"""The stored form of handles."""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from spark_statestore.checkpoint.files import LocalFileSystem, MemoryFileSystem
from spark_statestore.errors import (
    CorruptCheckpointError,
    UnsupportedFormatError,
)
from spark_statestore.state import StateObject
from spark_statestore.state.handles import (
    ByteStreamStateHandle,
    ChainEntry,
    FileStateHandle,
    IncrementalStateHandle,
    Mode,
    OperatorStreamStateHandle,
    PlaceholderStreamStateHandle,
    RelativeFileStateHandle,
    SegmentFileStateHandle,
    StateMetaInfo,
    StreamStateHandle,
)
from spark_statestore.state.handles.codec import HANDLE_SCHEMA, HandleContext, decode_handle, encode_handle
from spark_statestore.state.snapshot import SnapshotResult

FILES = MemoryFileSystem()
CONTEXT = HandleContext(FILES, "/store")

names = st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=12).filter(
    lambda name: name != ".."
)
sizes = st.integers(0, 2**62)
checksums = st.one_of(st.none(), st.integers(0, 2**32 - 1))
below = names.map(lambda name: f"/store/shared/{name}")

streams = st.one_of(
    st.builds(ByteStreamStateHandle, names, st.binary(max_size=20), checksums),
    st.builds(
        FileStateHandle, st.just(FILES), names.map(lambda name: f"/elsewhere/{name}"), sizes, checksums
    ),
    st.builds(
        RelativeFileStateHandle,
        st.just(FILES),
        st.just("/store"),
        names.map("shared/{}".format),
        sizes,
        checksums,
    ),
    st.builds(SegmentFileStateHandle, st.just(FILES), below, sizes, sizes, names, checksums),
    st.builds(PlaceholderStreamStateHandle, names, sizes),
)
operators = st.builds(
    OperatorStreamStateHandle,
    state_name_to_partition_offsets=st.dictionaries(
        names,
        st.builds(StateMetaInfo, st.lists(sizes, max_size=3).map(tuple), st.sampled_from(Mode)),
        max_size=3,
    ),
    delegate_state_handle=streams,
)


@st.composite
def chains(draw: st.DrawFn) -> IncrementalStateHandle:
    versions = sorted(draw(st.lists(st.integers(1, 2**60), max_size=4)))
    full = draw(st.booleans())
    entries = [ChainEntry(version, full and i == 0, draw(operators)) for i, version in enumerate(versions)]
    base = versions[0] if versions else 1
    version = (versions or [1])[-1] + draw(st.integers(0, 3))
    return IncrementalStateHandle(version, base, entries, persisted_size=draw(st.integers(-1, 2**40)))


plain = st.one_of(streams, operators, chains())
snapshots = st.one_of(
    st.just(SnapshotResult.empty()),
    st.builds(SnapshotResult.of, plain),
    st.builds(SnapshotResult.with_local_state, plain, plain),
)


def facts(state: StateObject) -> object:
    """All that a handle knows; handles are equal by their names alone."""
    match state:
        case IncrementalStateHandle():
            entries = [(entry.version, entry.full, facts(entry.state)) for entry in state]
            return (state.version, state.base_version, state.persisted_size, entries)
        case OperatorStreamStateHandle():
            states = list(state.state_name_to_partition_offsets.items())
            return (states, facts(state.delegate_state_handle))
        case SnapshotResult():
            return [None if s is None else facts(s) for s in (state.job_manager_owned, state.task_local)]
        case _:
            return (type(state), {k: v for k, v in vars(state).items() if k != "files"})


@given(st.one_of(plain, snapshots))
def test_a_handle_comes_back_as_it_was(state: StateObject) -> None:
    again = decode_handle(encode_handle(state, CONTEXT), CONTEXT)
    assert facts(again) == facts(state)
    assert again == state


def test_a_file_of_the_store_is_stored_relative_to_it(tmp_path: Path) -> None:
    files = LocalFileSystem()
    (tmp_path / "old" / "shared").mkdir(parents=True)
    (tmp_path / "old" / "shared" / "1-x").write_bytes(b"state")
    stored = encode_handle(
        FileStateHandle(files, f"{tmp_path}/old/shared/1-x", 5), HandleContext(files, f"{tmp_path}/old")
    )
    (tmp_path / "old").rename(tmp_path / "new")
    found = decode_handle(stored, HandleContext(files, f"{tmp_path}/new"))
    assert isinstance(found, StreamStateHandle)
    with found.open_input_stream() as stream:
        assert stream.read() == b"state"
    assert str(tmp_path).encode() not in stored


def test_a_segment_outside_of_the_store_has_no_stored_form() -> None:
    with pytest.raises(TypeError, match="outside"):
        encode_handle(SegmentFileStateHandle(FILES, "/elsewhere/_metadata", 0, 1, "owner"), CONTEXT)


def test_an_unknown_handle_has_no_stored_form() -> None:
    class Unknown(StateObject):
        state_size = 0

        def discard_state(self) -> None:
            pass

    with pytest.raises(TypeError, match="Unknown has no stored form"):
        encode_handle(Unknown(), CONTEXT)


def test_a_newer_format_is_refused_with_both_numbers() -> None:
    stored = encode_handle(ByteStreamStateHandle("s", b"1"), CONTEXT)
    with pytest.raises(UnsupportedFormatError, match=r"format 3, .* up to 2"):
        decode_handle(stored, CONTEXT, version=3)


def stored(*rows: dict[str, object]) -> bytes:
    batch = pa.Table.from_pylist([{"parent": -1} | row for row in rows], schema=HANDLE_SCHEMA).to_batches()[0]
    return bytes(batch.serialize())


OPERATOR = {"kind": 2, "stream": 1, "name": "s", "data": b""}


@pytest.mark.parametrize(
    "rows",
    [
        [{"kind": 99}],
        [{"kind": 1, "stream": 99}],
        [{"kind": 1, "stream": None}],
        [{"kind": 1, "stream": 1, "name": "s", "data": None}],
        [{"kind": 1, "stream": 2, "path": "/x", "size": -7}],
        [{"kind": 1, "stream": 2, "path": "/x", "size": None}],
        [{"kind": 1, "stream": 2, "path": "/x", "size": -1}],
        [{"kind": 1, "stream": 2, "path": None, "size": 1}],
        [{"kind": 1, "stream": 3, "path": None, "size": 1}],
        [{"kind": 1, "stream": 3, "path": "x", "size": -1}],
        [{"kind": 1, "stream": 3, "path": "", "size": 1}],
        [{"kind": 1, "stream": 4, "path": "x", "start": -1, "size": 1, "owner": "o"}],
        [{"kind": 1, "stream": 4, "path": "x", "start": 1, "size": -1, "owner": "o"}],
        [{"kind": 1, "stream": 5, "name": "s", "size": -1}],
        [{"kind": 1, "stream": 5, "name": None, "size": 1}],
        [{"kind": 4, "version": 1, "start": 1, "size": -1}],
        [{"kind": 4, "version": -1, "start": -1}],
        [{"kind": 7}, *[OPERATOR | {"parent": 0}] * 3],
        [{"kind": 7}, {"kind": 7, "parent": 0}],
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
def test_a_handle_that_makes_no_sense_is_refused(rows: list[dict[str, object]]) -> None:
    with pytest.raises(CorruptCheckpointError):
        decode_handle(stored(*rows), CONTEXT)


@pytest.mark.parametrize("path", ["/etc/passwd", "../other/shared/1-x", "shared/../../x"])
@pytest.mark.parametrize("kind", [3, 4])
def test_a_handle_that_leads_out_of_the_store_is_refused(path: str, kind: int) -> None:
    row = {"kind": 1, "stream": kind, "path": path, "size": 1, "start": 0, "owner": "o"}
    with pytest.raises(CorruptCheckpointError, match="outside"):
        decode_handle(stored(row), CONTEXT)


@given(st.binary(max_size=80))
def test_any_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptCheckpointError):
        decode_handle(data, CONTEXT)


# Stored forms, version by version


@pytest.mark.parametrize(
    "rows",
    [
        [{"kind": 1, "stream": 5, "name": "s", "size": 1}],
        [OPERATOR | {"stream": 5, "size": 1}],
        [{"kind": 7}],
    ],
)
def test_what_version_1_does_not_have_is_refused_in_it(rows: list[dict[str, object]]) -> None:
    decode_handle(stored(*rows), CONTEXT, version=2)
    for version in (0, 1):
        with pytest.raises(CorruptCheckpointError, match=rf"format {version}"):
            decode_handle(stored(*rows), CONTEXT, version=version)


@given(chains())
def test_a_handle_of_version_1_is_still_read(chain: IncrementalStateHandle) -> None:
    entries = [
        e for e in chain if not isinstance(e.state.delegate_state_handle, PlaceholderStreamStateHandle)
    ]
    old = IncrementalStateHandle(chain.version, chain.base_version, entries)
    assert facts(decode_handle(encode_handle(old, CONTEXT), CONTEXT, version=1)) == facts(old)


@pytest.mark.parametrize("path", ["/elsewhere/x", "/store/../x", "/store//x", "/store2/x"])
def test_a_file_that_does_not_lie_in_the_store_is_stored_absolute(path: str) -> None:
    found = decode_handle(encode_handle(FileStateHandle(FILES, path, 1), CONTEXT), CONTEXT)
    assert type(found) is FileStateHandle
    assert found.path == path


def test_a_file_that_belongs_to_another_directory_is_stored_absolute() -> None:
    # As after a restore that claimed a savepoint: its files are reused where they are.
    foreign = RelativeFileStateHandle(FILES, "/savepoint", "shared/x", 1)
    found = decode_handle(encode_handle(foreign, CONTEXT), CONTEXT)
    assert type(found) is FileStateHandle
    assert found.path == "/savepoint/shared/x"


def test_a_file_of_another_file_system_or_of_unknown_size_has_no_stored_form() -> None:
    with pytest.raises(TypeError, match="another file system"):
        encode_handle(FileStateHandle(LocalFileSystem(), "/store/x", 1), CONTEXT)
    with pytest.raises(ValueError, match="not known"):
        encode_handle(FileStateHandle(FILES, "/store/x", -1), CONTEXT)


@given(st.one_of(plain, snapshots))
def test_a_handle_can_be_printed_and_equal_ones_hash_alike(state: StateObject) -> None:
    again = decode_handle(encode_handle(state, CONTEXT), CONTEXT)
    assert hash(again) == hash(state)
    # A relative handle is described like the absolute one that it is read for.
    assert type(state).__name__ in repr(state)

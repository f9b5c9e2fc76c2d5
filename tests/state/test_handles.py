"""Handles: what they give, when they are equal, and their stored form."""

from __future__ import annotations

import io
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from spark_statestore.checkpoint.files import FileSystem, LocalFileSystem, MemoryFileSystem
from spark_statestore.errors import CheckpointIOError, CorruptCheckpointError, UnsupportedFormatError
from spark_statestore.state import StateObject, discard_all
from spark_statestore.state.handles import (
    ByteStreamStateHandle,
    ChainEntry,
    FileStateHandle,
    IncrementalStateHandle,
    Mode,
    OperatorStreamStateHandle,
    RelativeFileStateHandle,
    SegmentFileStateHandle,
    StateMetaInfo,
    StreamStateHandle,
)
from spark_statestore.state.handles.codec import HANDLE_SCHEMA, HandleContext, decode_handle, encode_handle

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
    return IncrementalStateHandle((versions or [1])[-1] + draw(st.integers(0, 3)), base, entries)


def facts(state: StateObject) -> object:
    """All that a handle knows; handles are equal by their names alone."""
    match state:
        case IncrementalStateHandle():
            entries = [(entry.version, entry.full, facts(entry.state)) for entry in state]
            return (state.version, state.base_version, entries)
        case OperatorStreamStateHandle():
            states = list(state.state_name_to_partition_offsets.items())
            return (states, facts(state.delegate_state_handle))
        case _:
            return (type(state), {k: v for k, v in vars(state).items() if k != "files"})


@given(st.one_of(streams, operators, chains()))
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
    with pytest.raises(UnsupportedFormatError, match=r"format 2, .* up to 1"):
        decode_handle(stored, CONTEXT, version=2)


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
        [{"kind": 1, "stream": 3, "path": None, "size": 1}],
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


# What handles do


def test_handles_are_equal_if_their_names_are() -> None:
    assert ByteStreamStateHandle("s", b"1") == ByteStreamStateHandle("s", b"2")
    assert ByteStreamStateHandle("s", b"1") != ByteStreamStateHandle("t", b"1")
    assert FileStateHandle(FILES, "/a", 1) == FileStateHandle(FILES, "/a", 2)
    assert FileStateHandle(FILES, "/a", 1) != FileStateHandle(LocalFileSystem(), "/a", 1)
    assert RelativeFileStateHandle(FILES, "/d", "a", 1) != FileStateHandle(FILES, "/d/a", 1)
    assert SegmentFileStateHandle(FILES, "/a", 0, 1, "x") != SegmentFileStateHandle(FILES, "/a", 0, 1, "y")


def test_positions_outside_of_state_in_memory_are_refused() -> None:
    stream = ByteStreamStateHandle("s", b"123").open_input_stream()
    assert stream.seek(3) == 3
    for position in (-1, 4):
        with pytest.raises(OSError, match="out of bounds"):
            stream.seek(position)
    assert stream.seek(-1, io.SEEK_END) == 2


def test_state_in_memory_needs_a_name_and_data() -> None:
    with pytest.raises(TypeError, match="needs a name and data"):
        ByteStreamStateHandle("s", None)
    with pytest.raises(ValueError, match="-1"):
        FileStateHandle(FILES, "/a", -2)


def test_discarding_twice_succeeds_and_leaves_the_directory(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"1")
    handle = FileStateHandle(LocalFileSystem(), str(tmp_path / "state"), 1)
    handle.discard_state()
    handle.discard_state()
    assert list(tmp_path.iterdir()) == []
    assert tmp_path.exists()


def test_what_cannot_be_discarded_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointIOError, match="could not be deleted") as raised:
        FileStateHandle(LocalFileSystem(), str(tmp_path), 1).discard_state()
    assert str(tmp_path) in str(raised.value)


class Discarded(StateObject):
    state_size = 0

    def __init__(self, log: list[str], name: str, error: Exception | None = None) -> None:
        self.log, self.name, self.error = log, name, error

    def discard_state(self) -> None:
        self.log.append(self.name)
        if self.error:
            raise self.error


def test_all_are_discarded_before_the_first_failure_is_raised() -> None:
    log: list[str] = []
    failing = [Discarded(log, "a", OSError("first")), Discarded(log, "b", OSError("second"))]
    with pytest.raises(OSError, match="first") as raised:
        discard_all([failing[0], None, failing[1], Discarded(log, "c")])
    assert log == ["a", "b", "c"]
    assert "second" in raised.value.__notes__[0]


def test_a_chain_knows_its_sizes_and_discards_all_of_it(tmp_path: Path) -> None:
    files: FileSystem = LocalFileSystem()
    entries = []
    for version, size in ((1, 10), (2, 3), (4, 5)):
        (tmp_path / str(version)).write_bytes(bytes(size))
        stream = FileStateHandle(files, str(tmp_path / str(version)), size)
        operator = OperatorStreamStateHandle(state_name_to_partition_offsets={}, delegate_state_handle=stream)
        entries.append(ChainEntry(version, version == 1, operator))
    handle = IncrementalStateHandle(4, 1, entries)
    assert (handle.base_size, handle.delta_size, handle.state_size) == (10, 8, 18)
    handle.discard_state()
    assert list(tmp_path.iterdir()) == []


def test_a_segment_is_found_beside_the_metadata_that_replaced_it() -> None:
    from tests.checkpoint.test_metadata import SAMPLE

    owner, files = "0123456789abcdef", MemoryFileSystem()
    segment = SegmentFileStateHandle(files, "/s/_metadata", 40, 6, owner)
    with pytest.raises(FileNotFoundError, match="process-memory:///s/_metadata"):
        segment.open_input_stream()
    files.create(f"/s/_metadata.{owner}", SAMPLE)
    files.create("/s/_metadata", SAMPLE.replace(bytes.fromhex(owner), bytes(8)))
    assert segment.open_input_stream().read() == SAMPLE[40:46]
    segment.discard_state()
    assert files.exists("/s/_metadata")
    files.replace("/s/_metadata", b"")
    files.delete(f"/s/_metadata.{owner}")
    with pytest.raises(FileNotFoundError):
        segment.open_input_stream()

"""Checkpoint streams, in files and in memory."""

from __future__ import annotations

import zlib
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_statestore.checkpoint.files import LocalFileSystem, MemoryFileSystem
from spark_statestore.checkpoint.streams import (
    CheckpointedStateScope,
    FsCheckpointMetadataOutputStream,
    FsCheckpointStateOutputStream,
    FsCheckpointStreamFactory,
    MemCheckpointStreamFactory,
    MemoryCheckpointOutputStream,
)
from spark_statestore.errors import CheckpointIOError, StateTooLargeError
from spark_statestore.options import MAX_FILE_STATE_THRESHOLD
from spark_statestore.state.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    RelativeFileStateHandle,
    StreamStateHandle,
)

pieces = st.lists(st.one_of(st.binary(max_size=9), st.just("flush")), max_size=12)


@given(pieces, st.integers(0, 12), st.integers(0, 12))
def test_what_is_written_is_what_is_read_on_either_side_of_the_threshold(
    pieces: list[bytes | str], threshold: int, extra: int
) -> None:
    files = MemoryFileSystem()
    out = FsCheckpointStateOutputStream(files, "/d", threshold + extra, threshold, name_prefix="7-")
    written = b""
    for piece in pieces:
        if isinstance(piece, str):
            out.flush()
        else:
            out.write(piece)
            written += piece
            assert out.get_pos() == len(written)
    handle = out.close_and_get_handle()
    if not written:
        assert handle is None
        assert not files.exists("/d")
        return
    assert isinstance(handle, StreamStateHandle)
    assert handle.open_input_stream().read() == written
    assert (handle.state_size, handle.checksum) == (len(written), zlib.crc32(written))
    # A buffer beyond the threshold may have been written through before the end was known.
    in_memory = handle.as_bytes_if_in_memory() is not None
    assert in_memory == (len(written) <= threshold)
    assert len(list(files.list_files("/d"))) == (0 if in_memory else 1)


@pytest.mark.parametrize(("size", "in_memory"), [(1, True), (10, True), (11, False), (100, False)])
def test_state_of_exactly_the_threshold_stays_in_memory(tmp_path: Path, size: int, in_memory: bool) -> None:
    out = FsCheckpointStateOutputStream(LocalFileSystem(), str(tmp_path), 50, 10)
    out.write(bytes(size))
    out.flush()
    handle = out.close_and_get_handle()
    assert isinstance(handle, ByteStreamStateHandle if in_memory else FileStateHandle)
    assert len(list(tmp_path.iterdir())) == (0 if in_memory else 1)


@pytest.mark.parametrize("size", [0, 10, 5000])
def test_leaving_the_block_without_the_handle_removes_the_state(tmp_path: Path, size: int) -> None:
    with FsCheckpointStateOutputStream(LocalFileSystem(), str(tmp_path), 100, 10) as out:
        out.write(bytes(size))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(CheckpointIOError, match="closed"):
        out.write(b"1")


def test_a_finished_stream_stays_and_gives_its_handle_once(tmp_path: Path) -> None:
    with FsCheckpointStateOutputStream(LocalFileSystem(), str(tmp_path), 100, 10) as out:
        out.write(bytes(5000))
        handle = out.close_and_get_handle()
    with handle.open_input_stream() as stream:
        assert stream.read() == bytes(5000)
    with pytest.raises(CheckpointIOError, match="closed"):
        out.close_and_get_handle()


def test_exclusive_state_is_relative_to_its_checkpoint_and_shared_state_is_not(tmp_path: Path) -> None:
    files = LocalFileSystem()
    (tmp_path / "chk-1").mkdir()
    (tmp_path / "shared").mkdir()
    factory = FsCheckpointStreamFactory(files, f"{tmp_path}/chk-1", f"{tmp_path}/shared", 0, 0, "1-")
    handles = {}
    for scope in CheckpointedStateScope:
        out = factory.create_checkpoint_state_output_stream(scope)
        out.write(b"state")
        handles[scope] = out.close_and_get_handle()
    exclusive, shared = handles[CheckpointedStateScope.EXCLUSIVE], handles[CheckpointedStateScope.SHARED]
    assert type(exclusive) is RelativeFileStateHandle
    assert Path(exclusive.path).parent == tmp_path / "chk-1"
    assert type(shared) is FileStateHandle
    assert Path(shared.path).parent == tmp_path / "shared"
    assert Path(shared.path).name.startswith("1-")


@pytest.mark.parametrize("threshold", [-1, MAX_FILE_STATE_THRESHOLD + 1])
def test_a_threshold_out_of_range_is_refused(threshold: int) -> None:
    with pytest.raises(ValueError, match=f"is {threshold} bytes"):
        FsCheckpointStreamFactory(MemoryFileSystem(), "/c", "/s", threshold, 0)
    with pytest.raises(ValueError, match="is -1 bytes"):
        FsCheckpointStreamFactory(MemoryFileSystem(), "/c", "/s", 0, -1)
    with pytest.raises(ValueError, match="smaller than the threshold"):
        FsCheckpointStateOutputStream(MemoryFileSystem(), "/c", 1, 2)


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    out = FsCheckpointStateOutputStream(LocalFileSystem(), str(tmp_path / "gone"), 0, 0)
    with pytest.raises(CheckpointIOError, match=r"Check that the directory exists") as raised:
        out.write(b"1")
    assert str(tmp_path / "gone") in str(raised.value)


def test_memory_holds_exactly_what_it_may() -> None:
    out = MemoryCheckpointOutputStream(10)
    out.write(bytes(4))
    out.write(bytes(6))
    assert out.get_pos() == 10
    handle = out.close_and_get_handle()
    assert isinstance(handle, ByteStreamStateHandle)
    assert (handle.data, handle.checksum) == (bytes(10), zlib.crc32(bytes(10)))
    assert out.is_closed
    with pytest.raises(CheckpointIOError, match="closed"):
        out.write(b"1")
    with pytest.raises(CheckpointIOError, match="closed"):
        out.close_and_get_bytes()


@given(st.lists(st.binary(max_size=9)), st.integers(1, 20))
def test_state_beyond_its_bound_is_refused_when_it_is_finished(pieces: list[bytes], most: int) -> None:
    out = MemCheckpointStreamFactory(most).create_checkpoint_state_output_stream(
        CheckpointedStateScope.SHARED
    )
    for piece in pieces:
        out.write(piece)
    size = sum(map(len, pieces))
    if not pieces:
        assert out.close_and_get_handle() is None
    elif size <= most:
        assert out.close_and_get_handle().data == b"".join(pieces)
    else:
        with pytest.raises(StateTooLargeError, match=rf"a state of {size} bytes .*maxStateSize={most} bytes"):
            out.close_and_get_handle()


def test_metadata_shows_only_when_it_is_published_and_never_replaces_any(tmp_path: Path) -> None:
    files, path = LocalFileSystem(), str(tmp_path / "_metadata")
    with FsCheckpointMetadataOutputStream(files, path, str(tmp_path)) as out:
        out.write(b"one")
        out.write(memoryview(b" two"))
        assert out.get_pos() == 7
        assert list(tmp_path.iterdir()) == []
        completed = out.close_and_finalize_checkpoint()
    assert completed.external_pointer == f"file://{tmp_path}"
    assert completed.metadata_handle.checksum == zlib.crc32(b"one two")
    again = FsCheckpointMetadataOutputStream(files, path, str(tmp_path))
    again.write(b"other")
    with pytest.raises(FileExistsError):
        again.close_and_finalize_checkpoint()
    assert (tmp_path / "_metadata").read_bytes() == b"one two"
    with pytest.raises(CheckpointIOError, match="closed"):
        again.close_and_finalize_checkpoint()


def test_abandoned_metadata_leaves_nothing(tmp_path: Path) -> None:
    with FsCheckpointMetadataOutputStream(
        LocalFileSystem(), str(tmp_path / "_metadata"), str(tmp_path)
    ) as out:
        out.write(b"one")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(CheckpointIOError, match="closed"):
        out.write(b"two")
    gone = FsCheckpointMetadataOutputStream(
        LocalFileSystem(), f"{tmp_path}/gone/_metadata", f"{tmp_path}/gone"
    )
    with pytest.raises(CheckpointIOError, match="could not publish"):
        gone.close_and_finalize_checkpoint()

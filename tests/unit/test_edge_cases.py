"""Tests of edge cases of Flink's storage model that no contract in `tests/support/contracts` has."""

from __future__ import annotations

import shutil
import zlib
from pathlib import Path

import pytest

from spark_statestore.errors import (
    CheckpointIOError,
    CorruptCheckpointError,
    StateTooLargeError,
    UnsupportedFormatError,
)
from spark_statestore.files import LocalFileSystem
from spark_statestore.operator_state.metadata import (
    OperatorsMetadata,
    OperatorState,
    decode_operators,
    encode_operators,
)
from spark_statestore.storage.file_handles import FileStateHandle
from spark_statestore.storage.fs_streams import FsCheckpointStateOutputStream, FsCheckpointStreamFactory
from spark_statestore.storage.handle_codec import HandleContext, decode_handle, encode_handle
from spark_statestore.storage.memory_streams import MemoryCheckpointOutputStream
from spark_statestore.storage.stream_handles import ByteStreamStateHandle
from spark_statestore.storage.streams import CheckpointedStateScope

FILES = LocalFileSystem()


def file_stream(directory: Path, threshold: int = 0) -> FsCheckpointStateOutputStream:
    return FsCheckpointStateOutputStream(FILES, str(directory), max(threshold, 64), threshold)


# Streams


def test_empty_write_gives_a_handle_in_memory_and_none_in_files(tmp_path: Path) -> None:
    memory, file = MemoryCheckpointOutputStream(10), file_stream(tmp_path)
    for out in (memory, file):
        out.write(b"")
    handle = memory.close_and_get_handle()
    assert handle is not None
    assert handle.state_size == 0
    assert file.close_and_get_handle() is None
    assert list(tmp_path.iterdir()) == []


def test_memory_stream_allows_the_limit_and_fails_beyond_it_when_finished() -> None:
    exact, over = MemoryCheckpointOutputStream(10), MemoryCheckpointOutputStream(10)
    exact.write(bytes(10))
    assert exact.close_and_get_handle() is not None
    over.write(bytes(10))
    over.write(b"1")
    with pytest.raises(StateTooLargeError, match="11 bytes"):
        over.close_and_get_handle()
    with pytest.raises(CheckpointIOError, match="already been closed"):
        over.close_and_get_handle()


@pytest.mark.parametrize(("size", "kind"), [(10, ByteStreamStateHandle), (11, FileStateHandle)])
def test_stream_writes_a_file_above_the_threshold(tmp_path: Path, size: int, kind: type) -> None:
    out = file_stream(tmp_path, threshold=10)
    out.write(bytes(size))
    assert isinstance(out.close_and_get_handle(), kind)


def test_stream_flushes_to_a_file_on_request(tmp_path: Path) -> None:
    out = file_stream(tmp_path, threshold=10)
    out.write(b"1")
    out.flush_to_file()
    assert isinstance(out.close_and_get_handle(), FileStateHandle)


def test_closed_empty_stream_has_no_handle(tmp_path: Path) -> None:
    memory, file = MemoryCheckpointOutputStream(10), file_stream(tmp_path)
    memory.close()
    file.close()
    assert memory.close_and_get_handle() is None
    with pytest.raises(CheckpointIOError, match="closed and discarded"):
        file.close_and_get_handle()


# Handles


def test_file_handle_moves_with_its_directory(tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    factory = FsCheckpointStreamFactory(FILES, str(tmp_path / "before"), str(tmp_path), 0, 0)
    out = factory.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE)
    out.write(b"state")
    stored = encode_handle(out.close_and_get_handle(), HandleContext(FILES, str(tmp_path / "before")))
    shutil.move(tmp_path / "before", tmp_path / "after")
    again = decode_handle(stored, HandleContext(FILES, str(tmp_path / "after")))
    assert isinstance(again, FileStateHandle)
    with again.open_input_stream() as stream:
        assert stream.read() == b"state"


# Metadata


def metadata(checkpoint_id: int = 3, operator: str = "operator") -> bytes:
    column_families = {
        # Of five subtasks two have state, the others have finished or never had any.
        operator: OperatorState(
            operator, 5, 128, {4: ByteStreamStateHandle("a", b"1"), 1: ByteStreamStateHandle("b", b"2")}
        ),
        "finished": OperatorState("finished", 2, 2, {}),
    }
    return encode_operators(
        OperatorsMetadata(checkpoint_id, "0" * 16, 1, column_families), HandleContext(FILES, "/d")
    )


def read(data: bytes) -> OperatorsMetadata:
    return decode_operators(data, HandleContext(FILES, "/d"), "file:///d/_metadata")


def test_operators_metadata_keeps_finished_operators_and_long_names() -> None:
    name = "ä" * 70_000
    found = read(metadata(operator=name))
    assert list(found.operator_states) == [name, "finished"]
    assert {n: h.data for n, h in found.operator_states[name].subtasks.items()} == {4: b"1", 1: b"2"}
    assert found.operator_states["finished"].subtasks == {}


def test_operators_metadata_refuses_damage_and_names_the_file() -> None:
    data = metadata()
    damaged = [b"\0" + data[1:], data + b"\0", metadata(-1), *(data[:length] for length in range(len(data)))]
    for broken in damaged:
        with pytest.raises(CorruptCheckpointError, match="file:///d/_metadata"):
            read(broken)
    newer = data[:8] + b"\xff\xff" + data[10:-8]
    with pytest.raises(CorruptCheckpointError, match="file:///d/_metadata"):
        read(newer + data[-8:])
    with pytest.raises(UnsupportedFormatError, match="file:///d/_metadata"):
        read(newer + zlib.crc32(newer).to_bytes(4, "little") + data[-4:])

"""Checkpoint streams: the contracts in every place, and what is special about one."""

from __future__ import annotations

import errno
import tempfile
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import run_state_machine_as_test

from spark_statestore.checkpoint.files import FileOutput, FileSystem, LocalFileSystem, MemoryFileSystem, join
from spark_statestore.checkpoint.files.base import Buffer
from spark_statestore.checkpoint.streams import (
    CheckpointedStateScope,
    FsCheckpointMetadataOutputStream,
    FsCheckpointStateOutputStream,
    FsCheckpointStreamFactory,
    MemCheckpointStreamFactory,
    MemoryCheckpointMetadataOutputStream,
    MemoryCheckpointOutputStream,
)
from spark_statestore.errors import CheckpointExistsError, CheckpointIOError, StateTooLargeError
from spark_statestore.state.handles import RelativeFileStateHandle
from spark_statestore.testing import (
    CheckpointStreamMachine,
    FsCheckpointStreamTests,
    MemoryCheckpointStreamTests,
)
from tests.checkpoint.places import FsspecMemory, Local, ProcessMemory, Synced
from tests.effort import EFFORT


class TestLocalStreams(Local, FsCheckpointStreamTests):
    examples = 100


class TestSyncedStreams(Synced, FsCheckpointStreamTests):
    examples = 5


class TestStreamsOfThisProcess(ProcessMemory, FsCheckpointStreamTests):
    examples = 100


class TestFsspecMemoryStreams(FsspecMemory, FsCheckpointStreamTests):
    pass


class TestMemoryStreams(ProcessMemory, MemoryCheckpointStreamTests):
    pass


def fs_machine(
    files: FileSystem, directory: str, threshold: int, buffer_size: int
) -> CheckpointStreamMachine:
    for name in ("chk-1", "shared"):
        files.make_directory(join(directory, name))
    factory = FsCheckpointStreamFactory(
        files, join(directory, "chk-1"), join(directory, "shared"), threshold, buffer_size, "1-"
    )
    return CheckpointStreamMachine(factory, files, directory)


MACHINES: dict[str, Callable[[Path], CheckpointStreamMachine]] = {
    "memory": lambda _: CheckpointStreamMachine(
        MemCheckpointStreamFactory(1 << 30), MemoryFileSystem(), "/d", an_empty_write_counts=True
    ),
    "files": lambda path: fs_machine(LocalFileSystem(), tempfile.mkdtemp(dir=path), 1000, 4096),
    "synced": lambda path: fs_machine(LocalFileSystem(fsync=True), tempfile.mkdtemp(dir=path), 100, 100),
    "unbuffered": lambda path: fs_machine(LocalFileSystem(), tempfile.mkdtemp(dir=path), 0, 0),
    "large buffer": lambda _: fs_machine(MemoryFileSystem(), "/d", 30, 1 << 20),
}


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_streams_against_plain_bytes(
    machine: Callable[[Path], CheckpointStreamMachine], tmp_path: Path
) -> None:
    run_state_machine_as_test(
        lambda: machine(tmp_path), settings=settings(max_examples=25 * EFFORT, stateful_step_count=30)
    )


# Failures


class Noting(MemoryFileSystem):
    """Notes what is asked of it, and fails where it is told to."""

    def __init__(self, *failing: str) -> None:
        super().__init__()
        self.failing = failing
        self.calls: list[str] = []

    def note(self, call: str) -> None:
        self.calls.append(call)
        if call in self.failing:
            raise OSError(errno.ENOSPC, "no space left")

    def open_output(self, path: str) -> FileOutput:
        self.note("open")
        return NotingOutput(self, super().open_output(path))


class NotingOutput(FileOutput):
    def __init__(self, files: Noting, out: FileOutput) -> None:
        self._files = files
        self._out = out

    def write(self, data: Buffer) -> None:
        self._files.note("write")
        self._out.write(data)

    def flush(self) -> None:
        self._out.flush()

    def sync(self) -> None:
        self._files.note("sync")
        self._out.sync()

    def close(self) -> None:
        self._files.note("close")
        self._out.close()

    def abandon(self) -> None:
        self._files.note("abandon")
        self._out.abandon()


def test_opening_is_tried_ten_times() -> None:
    files = Noting("open")
    out = FsCheckpointStateOutputStream(files, "/d", 10, 10)
    out.write(bytes(10))
    with pytest.raises(
        CheckpointIOError, match=r"in 10 attempts: .*no space left.*directory exists"
    ) as raised:
        out.write(b"1")
    assert isinstance(raised.value.__cause__, OSError)
    assert files.calls == ["open"] * 10
    out.close()
    assert files.calls == ["open"] * 10


class TwoNamesTaken(Noting):
    """Others have the files that are asked for first."""

    def open_output(self, path: str) -> FileOutput:
        if len(self.calls) < 2:
            self.create(path, b"of others")
            self.calls.append("open")
            raise FileExistsError(path)
        return super().open_output(path)


def test_opening_succeeds_as_soon_as_a_name_is_free() -> None:
    files = TwoNamesTaken()
    out = FsCheckpointStateOutputStream(files, "/d", 0, 0)
    out.write(b"1")
    assert out.close_and_get_handle().open_input_stream().read() == b"1"
    assert files.calls.count("open") == 3


def test_a_file_of_others_with_the_same_name_stays() -> None:
    files = TwoNamesTaken()
    with FsCheckpointStateOutputStream(files, "/d", 0, 0) as out:
        out.write(b"1")
    assert [files.read(status.path) for status in files.list_files("/d")] == [b"of others"] * 2


def test_a_stream_that_cannot_be_finished_is_removed_and_told_with_its_file() -> None:
    files = Noting("close")
    out = FsCheckpointStateOutputStream(files, "/d", 0, 0, name_prefix="7-")
    out.write(b"1")
    with pytest.raises(CheckpointIOError, match=r"process-memory:///d/7-.*no space left") as raised:
        out.close_and_get_handle()
    assert isinstance(raised.value.__cause__, OSError)
    assert files.calls[-2:] == ["close", "abandon"]
    assert list(files.list_files("/d")) == []
    with pytest.raises(CheckpointIOError, match="closed"):
        out.close_and_get_handle()


@pytest.mark.parametrize("size", [1, 1_000_000])
def test_a_stream_that_could_not_be_written_is_removed_and_closed(size: int) -> None:
    files = Noting("write")
    out = FsCheckpointStateOutputStream(files, "/d", 0, 0)
    with pytest.raises(CheckpointIOError, match=r"process-memory:///d/.*no space left"):
        out.write(bytes(size))
    assert files.calls[-1] == "abandon"
    for again in (lambda: out.write(b"1"), out.close_and_get_handle, out.flush):
        with pytest.raises(CheckpointIOError, match=r"process-memory:///d .*closed"):
            again()
    assert files.calls.count("abandon") == 1


def test_an_abandoned_stream_removes_its_file_once() -> None:
    files = Noting()
    with FsCheckpointStateOutputStream(files, "/d", 0, 0) as out:
        out.write(b"1")
        out.close()
    assert files.calls.count("abandon") == 1


def test_a_file_that_cannot_be_removed_does_not_hide_why_it_should_be(
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = Noting("close", "abandon")
    out = FsCheckpointStateOutputStream(files, "/d", 0, 0)
    out.write(b"1")
    with pytest.raises(CheckpointIOError, match="could not finish"):
        out.close_and_get_handle()
    assert "could not remove the abandoned state file process-memory:///d/" in caplog.text
    with FsCheckpointStateOutputStream(files, "/d", 0, 0) as other:
        other.write(b"1")
    assert caplog.text.count("could not remove") == 2


def test_a_file_is_synced_when_the_stream_is() -> None:
    files = Noting()
    out = FsCheckpointStateOutputStream(files, "/d", 0, 0)
    out.sync()
    assert files.calls == []
    out.write(b"1")
    out.sync()
    assert files.calls[-1] == "sync"


def test_streams_make_no_directory_and_remove_none(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    out = FsCheckpointStateOutputStream(LocalFileSystem(), str(gone), 0, 0)
    with pytest.raises(CheckpointIOError, match=r"Check that the directory exists") as raised:
        out.write(b"1")
    assert str(gone) in str(raised.value)
    assert not gone.exists()
    gone.mkdir()
    for finish in (True, False):
        with FsCheckpointStateOutputStream(LocalFileSystem(), str(gone), 0, 0) as out:
            out.write(b"1")
            if finish:
                out.close_and_get_handle().discard_state()
    assert gone.exists()


def test_factories_say_where_they_write() -> None:
    factory = FsCheckpointStreamFactory(LocalFileSystem(), "/data/chk-1", "/data/shared", 0, 0)
    assert str(factory) == "File Stream Factory @ file:///data/chk-1"
    assert str(MemCheckpointStreamFactory(10)) == "In-Memory Stream Factory"


def test_memory_that_is_too_much_is_let_go_while_it_is_written() -> None:
    out = MemoryCheckpointOutputStream(1000)
    for _ in range(100):
        out.write(bytes(1000))
    assert out.get_pos() == 100_000
    assert out._buffer.getbuffer().nbytes <= 1000
    with pytest.raises(StateTooLargeError, match="storage=filesystem"):
        out.close_and_get_handle()


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


# Metadata


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
    with pytest.raises(CheckpointExistsError, match="never replaced"):
        FsCheckpointMetadataOutputStream(files, path, str(tmp_path))
    again = FsCheckpointMetadataOutputStream(files, path, str(tmp_path), look_first=False)
    again.write(b"other")
    with pytest.raises(CheckpointExistsError, match="never replaced"):
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


def test_metadata_that_could_not_be_published_leaves_nothing() -> None:
    class Full(MemoryFileSystem):
        def create(self, path: str, data: Buffer) -> None:
            raise OSError(errno.ENOSPC, "no space left")

    files = Full()
    out = FsCheckpointMetadataOutputStream(files, "/d/_metadata", "/d")
    out.write(b"one")
    with pytest.raises(CheckpointIOError, match=r"process-memory:///d/_metadata: .*no space left") as raised:
        out.close_and_finalize_checkpoint()
    assert isinstance(raised.value.__cause__, OSError)
    assert not files.exists("/d")
    with pytest.raises(CheckpointIOError, match="closed"):
        out.close_and_finalize_checkpoint()


def test_metadata_in_memory_is_its_handle() -> None:
    with MemoryCheckpointMetadataOutputStream() as out:
        out.write(b"zero")
        completed = out.close_and_finalize_checkpoint()
    assert completed.metadata_handle.data == b"zero"
    assert completed.metadata_handle.checksum == zlib.crc32(b"zero")
    nameless = MemoryCheckpointMetadataOutputStream().close_and_finalize_checkpoint()
    assert nameless.metadata_handle.stream_state_handle_id != completed.metadata_handle.stream_state_handle_id
    with pytest.raises(CheckpointIOError, match="closed"):
        out.close_and_finalize_checkpoint()
    other = MemoryCheckpointMetadataOutputStream()
    other.write(b"one")
    other.close()
    assert other.get_pos() == 3
    with pytest.raises(CheckpointIOError, match="closed"):
        other.close_and_finalize_checkpoint()


def test_the_handle_of_exclusive_state_knows_its_name_in_the_directory(tmp_path: Path) -> None:
    factory = FsCheckpointStreamFactory(LocalFileSystem(), str(tmp_path), str(tmp_path), 0, 0)
    out = factory.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE)
    out.write(b"1")
    handle = out.close_and_get_handle()
    assert isinstance(handle, RelativeFileStateHandle)
    assert [path.name for path in tmp_path.iterdir()] == [handle.relative_path]
    assert str(uuid.UUID(handle.relative_path)) == handle.relative_path


def test_a_buffer_is_filled_and_never_overfilled(tmp_path: Path) -> None:
    with FsCheckpointStateOutputStream(LocalFileSystem(), str(tmp_path), 10, 0) as out:
        out.write(bytes(6))
        out.write(bytes(4))
        assert list(tmp_path.iterdir()) == []
        out.write(bytes(5))
        (path,) = tmp_path.iterdir()
        assert str(uuid.UUID(path.name)) == path.name
        assert path.stat().st_size == 10
        out.write(bytes(6))
        assert path.stat().st_size == 15
        out.flush()
        assert path.stat().st_size == 21


def test_a_flush_writes_what_is_too_much_for_memory(tmp_path: Path) -> None:
    with FsCheckpointStateOutputStream(LocalFileSystem(), str(tmp_path), 10, 5) as out:
        out.write(bytes(5))
        out.flush()
        assert list(tmp_path.iterdir()) == []
        out.write(b"1")
        out.flush()
        assert [path.stat().st_size for path in tmp_path.iterdir()] == [6]

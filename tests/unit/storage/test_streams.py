"""Tests of checkpoint streams: the contracts, failures and processor time."""

from __future__ import annotations

import errno
import os
import statistics
import tempfile
import time
import uuid
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from spark_statestore.errors import CheckpointIOError, StateTooLargeError
from spark_statestore.files import FileOutput, FileSystem, LocalFileSystem, MemoryFileSystem, join
from spark_statestore.files.base import Buffer
from spark_statestore.storage import CheckpointStorageLocationReference, FsCheckpointStorage
from spark_statestore.storage.file_handles import FileStateHandle
from spark_statestore.storage.fs_streams import FsCheckpointStateOutputStream, FsCheckpointStreamFactory
from spark_statestore.storage.memory_streams import MemCheckpointStreamFactory, MemoryCheckpointOutputStream
from spark_statestore.storage.metadata_streams import (
    FsCheckpointMetadataOutputStream,
    MemoryCheckpointMetadataOutputStream,
)
from spark_statestore.storage.stream_handles import StreamStateHandle
from spark_statestore.storage.streams import CheckpointedStateScope, CheckpointMetadataOutputStream
from tests.support.contracts.streams_by_kind import FsCheckpointStreamTests, MemoryCheckpointStreamTests
from tests.support.effort import EFFORT
from tests.support.machines.streams import CheckpointStreamMachine
from tests.unit.file_system_fixtures import (
    LocalFiles,
    ProcessMemoryFiles,
)


class TestLocalStreams(LocalFiles, FsCheckpointStreamTests):
    examples = 100


class TestStreamsOfThisProcess(ProcessMemoryFiles, FsCheckpointStreamTests):
    examples = 100


class TestMemoryStreams(ProcessMemoryFiles, MemoryCheckpointStreamTests):
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


class RecordingFileSystem(MemoryFileSystem):
    """File system that records its calls, and fails at a chosen one."""

    def __init__(self, *failing: str) -> None:
        super().__init__()
        self.failing = failing
        self.calls: list[str] = []

    def record(self, call: str) -> None:
        self.calls.append(call)
        if call in self.failing:
            raise OSError(errno.ENOSPC, "no space left")

    def open_output(self, path: str) -> FileOutput:
        self.record("open")
        return NotingOutput(self, super().open_output(path))


class NotingOutput(FileOutput):
    def __init__(self, files: RecordingFileSystem, out: FileOutput) -> None:
        self._files = files
        self._out = out

    def write(self, data: Buffer) -> None:
        self._files.record("write")
        self._out.write(data)

    def close(self) -> None:
        self._files.record("close")
        self._out.close()

    def abandon(self) -> None:
        self._files.record("abandon")
        self._out.abandon()


def test_state_stream_tries_ten_names() -> None:
    files = RecordingFileSystem("open")
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


class TwoNamesTaken(RecordingFileSystem):
    """File system in which the first names are taken."""

    def open_output(self, path: str) -> FileOutput:
        if len(self.calls) < 2:
            self.create(path, b"of others")
            self.calls.append("open")
            raise FileExistsError(path)
        return super().open_output(path)


def test_state_stream_retries_taken_names() -> None:
    files = TwoNamesTaken()
    out = FsCheckpointStateOutputStream(files, "/d", 0, 0)
    out.write(b"1")
    handle = out.close_and_get_handle()
    assert handle.open_input_stream().read() == b"1"
    assert files.calls.count("open") == 3
    handle.discard_state()
    assert [files.read(status.path) for status in files.list_files("/d")] == [b"of others"] * 2


def test_state_stream_that_fails_to_close_removes_and_names_its_file() -> None:
    files = RecordingFileSystem("close")
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
def test_state_stream_that_fails_to_write_removes_its_file(size: int) -> None:
    files = RecordingFileSystem("write")
    out = FsCheckpointStateOutputStream(files, "/d", 0, 0)
    with pytest.raises(CheckpointIOError, match=r"process-memory:///d/.*no space left"):
        out.write(bytes(size))
    assert files.calls[-1] == "abandon"
    for again in (lambda: out.write(b"1"), out.close_and_get_handle, out.flush_to_file):
        with pytest.raises(CheckpointIOError, match=r"process-memory:///d .*closed"):
            again()
    assert files.calls.count("abandon") == 1


def test_failed_abandon_keeps_the_original_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = RecordingFileSystem("close", "abandon")
    out = FsCheckpointStateOutputStream(files, "/d", 0, 0)
    out.write(b"1")
    with pytest.raises(CheckpointIOError, match="could not finish"):
        out.close_and_get_handle()
    assert "could not remove the abandoned state file process-memory:///d/" in caplog.text
    with FsCheckpointStateOutputStream(files, "/d", 0, 0) as next_stream:
        next_stream.write(b"1")
    assert caplog.text.count("could not remove") == 2


def test_state_stream_makes_and_removes_no_directory(tmp_path: Path) -> None:
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


def test_memory_stream_releases_state_beyond_its_limit() -> None:
    out = MemoryCheckpointOutputStream(1000)
    for _ in range(100):
        out.write(bytes(1000))
    assert out.get_pos() == 100_000
    assert out._buffer.getbuffer().nbytes <= 1000
    with pytest.raises(StateTooLargeError, match="storage=filesystem"):
        out.close_and_get_handle()


# Metadata


def test_metadata_stream_that_fails_leaves_nothing() -> None:
    class Full(MemoryFileSystem):
        def create(self, path: str, data: Buffer) -> None:
            raise OSError(errno.ENOSPC, "no space left")

    files = Full()
    out = FsCheckpointMetadataOutputStream(files, "/d/_metadata")
    out.write(b"one")
    with pytest.raises(CheckpointIOError, match=r"process-memory:///d/_metadata: .*no space left") as raised:
        out.close_and_finalize_checkpoint()
    assert isinstance(raised.value.__cause__, OSError)
    assert not files.exists("/d")
    with pytest.raises(CheckpointIOError, match="closed"):
        out.close_and_finalize_checkpoint()


def test_metadata_handles_have_names_and_checksums(tmp_path: Path) -> None:
    def finished(out: CheckpointMetadataOutputStream) -> StreamStateHandle:
        out.write(b"one")
        return out.close_and_finalize_checkpoint().metadata_handle

    memory = [finished(MemoryCheckpointMetadataOutputStream()) for _ in range(2)]
    assert memory[0].stream_state_handle_id != memory[1].stream_state_handle_id
    stored = finished(FsCheckpointMetadataOutputStream(LocalFileSystem(), str(tmp_path / "_metadata")))
    assert stored.checksum == memory[0].checksum == zlib.crc32(b"one")


def test_state_stream_flushes_a_full_buffer(tmp_path: Path) -> None:
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
        out.flush_to_file()
        assert path.stat().st_size == 21


# Processor time


PIECES = [os.urandom(64 * 1024)] * 2048
SIZE = sum(map(len, PIECES))
ROUNDS = 10
MOST = 1.25


@pytest.mark.alone
@pytest.mark.slow
def test_stream_takes_little_more_processor_time_than_a_file_with_a_checksum(tmp_path: Path) -> None:
    storage = FsCheckpointStorage(LocalFileSystem(), str(tmp_path), 1024)
    storage.initialize_base_locations_for_checkpoint()
    plain, stream = [], []
    # The first round warms up.
    for _ in range(ROUNDS + 1):
        plain.append(processor_time(lambda: write_plain(tmp_path / "plain")))
        stream.append(processor_time(lambda: write_stream(storage)))
    times = statistics.median(stream[1:]) / statistics.median(plain[1:])
    assert times <= MOST, f"the stream takes {times:.2f} times the processor time: {plain}, {stream}"


def processor_time(write: Callable[[], None]) -> float:
    """Return the processor time of all threads."""
    start = time.process_time()
    write()
    return time.process_time() - start


def checksum_of(pieces: list[bytes]) -> int:
    value = 0
    for piece in pieces:
        value = zlib.crc32(piece, value)
    return value


def write_plain(path: Path) -> None:
    """Write a file while another thread computes its checksum, as a stream has one."""
    with ThreadPoolExecutor(1) as pool:
        checksum = pool.submit(checksum_of, PIECES)
        with open(path, "wb") as file:
            file.writelines(PIECES)
        checksum.result()
    assert path.stat().st_size == SIZE
    path.unlink()


def write_stream(storage: FsCheckpointStorage) -> None:
    factory = storage.resolve_checkpoint_storage_location(1, CheckpointStorageLocationReference.default())
    with factory.create_checkpoint_state_output_stream(CheckpointedStateScope.SHARED) as out:
        for piece in PIECES:
            out.write(piece)
        handle = out.close_and_get_handle()
    assert isinstance(handle, FileStateHandle)
    assert storage.files.size(handle.path) == SIZE
    handle.discard_state()

"""The edge cases of Flink's storage model, each test with the number of its point in the list of them.

Points 15 to 19, 22 and 23 are in test_edge_cases_state.py, 21 and 24 in test_edge_cases_savepoints.py.

The contracts in `spark_statestore.testing` have many of the same cases for every kind of storage;
here each is shown once, in its smallest form.
"""

from __future__ import annotations

import errno
import shutil
import zlib
from pathlib import Path

import pytest

from spark_statestore.checkpoint.files import FileOutput, LocalFileSystem, MemoryFileSystem
from spark_statestore.checkpoint.metadata import OperatorsMetadata, decode_operators, encode_operators
from spark_statestore.checkpoint.storage import (
    METADATA_FILE_NAME,
    CheckpointStorageLocationReference,
    FsCheckpointStorage,
    MemoryBackendCheckpointStorage,
    decode_path_from_reference,
    encode_path_as_reference,
)
from spark_statestore.checkpoint.streams import (
    CheckpointedStateScope,
    FsCheckpointMetadataOutputStream,
    FsCheckpointStateOutputStream,
    FsCheckpointStreamFactory,
    MemoryCheckpointOutputStream,
)
from spark_statestore.errors import (
    CheckpointExistsError,
    CheckpointIOError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    MetadataNotFoundError,
    OptionError,
    StateTooLargeError,
    StorageURLError,
    UnsupportedFormatError,
)
from spark_statestore.state.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    RelativeFileStateHandle,
)
from spark_statestore.state.handles.codec import HandleContext, decode_handle, encode_handle
from spark_statestore.state.operator_state import OperatorState

FILES = LocalFileSystem()
DEFAULT = CheckpointStorageLocationReference.default()
JOB = "7cedf7" + "0" * 26


def file_stream(directory: Path, threshold: int = 0) -> FsCheckpointStateOutputStream:
    return FsCheckpointStateOutputStream(FILES, str(directory), max(threshold, 64), threshold)


def storage(directory: Path, **options: str) -> FsCheckpointStorage:
    found = FsCheckpointStorage(FILES, str(directory), 0, job_id=JOB, **options)
    found.initialize_base_locations_for_checkpoint()
    return found


# Streams


def test_01_a_stream_of_nothing_has_no_handle_and_is_still_open(tmp_path: Path) -> None:
    for out in (MemoryCheckpointOutputStream(10), file_stream(tmp_path)):
        assert out.close_and_get_handle() is None
        out.write(b"still open")
        assert out.close_and_get_handle() is not None


def test_01_writing_nothing_is_a_state_in_memory_and_none_in_files(tmp_path: Path) -> None:
    memory, file = MemoryCheckpointOutputStream(10), file_stream(tmp_path)
    for out in (memory, file):
        out.write(b"")
    handle = memory.close_and_get_handle()
    assert handle is not None
    assert handle.state_size == 0
    assert file.close_and_get_handle() is None
    assert list(tmp_path.iterdir()) == []


def test_02_the_limit_itself_is_allowed_and_more_shows_at_the_end() -> None:
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
def test_03_one_byte_more_than_the_threshold_is_a_file(tmp_path: Path, size: int, kind: type) -> None:
    out = file_stream(tmp_path, threshold=10)
    out.write(bytes(size))
    out.flush()
    assert isinstance(out.close_and_get_handle(), kind)


def test_03_the_file_can_be_asked_for(tmp_path: Path) -> None:
    out = file_stream(tmp_path, threshold=10)
    out.write(b"1")
    out.flush_to_file()
    assert isinstance(out.close_and_get_handle(), FileStateHandle)


def test_04_a_closed_stream_of_nothing(tmp_path: Path) -> None:
    memory, file = MemoryCheckpointOutputStream(10), file_stream(tmp_path)
    memory.close()
    file.close()
    assert memory.close_and_get_handle() is None
    with pytest.raises(CheckpointIOError, match="closed and discarded"):
        file.close_and_get_handle()


def test_05_the_block_keeps_what_has_a_handle_and_removes_the_rest(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    directory.mkdir()
    with file_stream(directory) as out:
        out.write(b"1")
        handle = out.close_and_get_handle()
    assert len(list(directory.iterdir())) == 1
    with file_stream(directory) as out:
        out.write(b"1")
    assert len(list(directory.iterdir())) == 1
    handle.discard_state()
    assert list(directory.iterdir()) == []


def test_06_a_file_is_tried_ten_times_and_nothing_else_is_deleted() -> None:
    class Full(MemoryFileSystem):
        def __init__(self) -> None:
            super().__init__()
            self.tried: list[str] = []

        def open_output(self, path: str) -> FileOutput:
            self.tried.append(path)
            raise OSError(errno.ENOSPC, "no space left")

        def delete(self, path: str) -> None:
            # Flink leaves a file whose creation failed without an answer; here such a one goes.
            assert path in self.tried
            super().delete(path)

    files = Full()
    files.create("/d/other", b"1")
    out = FsCheckpointStateOutputStream(files, "/d", 0, 0)
    with pytest.raises(CheckpointIOError, match="10 attempts"):
        out.write(b"1")
    out.close()
    assert len(set(files.tried)) == 10
    assert [status.path for status in files.list_files("/d")] == ["/d/other"]


def test_07_metadata_is_published_once_or_not_at_all(tmp_path: Path) -> None:
    path = str(tmp_path / METADATA_FILE_NAME)
    with FsCheckpointMetadataOutputStream(FILES, path, str(tmp_path)) as out:
        out.write(b"abandoned")
    assert list(tmp_path.iterdir()) == []
    out = FsCheckpointMetadataOutputStream(FILES, path, str(tmp_path))
    out.write(b"metadata")
    out.close_and_finalize_checkpoint()
    with pytest.raises(CheckpointIOError, match="already been closed"):
        out.close_and_finalize_checkpoint()
    with pytest.raises(CheckpointExistsError, match=path):
        FsCheckpointMetadataOutputStream(FILES, path, str(tmp_path))


def test_07_metadata_that_cannot_be_published_shows_nowhere(tmp_path: Path) -> None:
    out = FsCheckpointMetadataOutputStream(
        FILES, str(tmp_path / "gone" / "_metadata"), str(tmp_path / "gone")
    )
    out.write(b"metadata")
    with pytest.raises(CheckpointIOError, match="could not publish"):
        out.close_and_finalize_checkpoint()
    assert list(tmp_path.iterdir()) == []


# Pointers, references, places


def test_08_every_form_of_a_pointer_is_one_directory(tmp_path: Path) -> None:
    path = tmp_path / "chk-1"
    path.mkdir()
    (path / METADATA_FILE_NAME).write_bytes(b"1")
    (path / "another name").write_bytes(b"1")
    forms = [path, f"{path}/", f"{path}/_metadata", f"{path}/another name", f"file://{path}", f"file:{path}/"]
    pointers = {storage(tmp_path).resolve_checkpoint(str(form)).external_pointer for form in forms}
    assert pointers == {f"file://{path}"}


def test_08_what_is_wrong_with_a_pointer_is_told_apart(tmp_path: Path) -> None:
    resolve = storage(tmp_path).resolve_checkpoint
    with pytest.raises(MetadataNotFoundError):
        resolve(str(tmp_path))
    with pytest.raises(CheckpointNotFoundError) as missing:
        resolve(str(tmp_path / "this-is_not/a#filepath.at.all"))
    assert not isinstance(missing.value, MetadataNotFoundError)
    with pytest.raises(StorageURLError):
        resolve("nonsense://x/y")
    with pytest.raises(StorageURLError):
        resolve("")
    with pytest.raises(TypeError):
        resolve(None)


def test_09_what_is_no_reference_to_a_path(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="too short"):
        decode_path_from_reference(CheckpointStorageLocationReference(b"\x05\x5f\x3f\x18"))
    with pytest.raises(ValueError, match="default reference"):
        decode_path_from_reference(DEFAULT)
    for url in ("file:///späte Züge/ä b", "s3://bucket/€"):
        assert decode_path_from_reference(encode_path_as_reference(url)) == url


def test_10_a_savepoint_is_a_directory_of_its_own_in_its_target(tmp_path: Path) -> None:
    found = storage(tmp_path / "job", default_savepoint_directory=str(tmp_path / "default"))
    for target, base in ((None, "default"), (str(tmp_path / "target"), "target")):
        location = found.initialize_location_for_savepoint(1, target)
        place = Path(location.checkpoint_directory)
        assert place.parent == tmp_path / base
        start, job, random = place.name.split("-")
        assert (start, job, len(bytes.fromhex(random))) == ("savepoint", "7cedf7", 6)
        assert place.is_dir()


def test_10_without_a_target_and_a_default_there_is_no_savepoint(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no place for a savepoint"):
        storage(tmp_path).initialize_location_for_savepoint(1)


def test_11_a_savepoint_of_memory_storage_is_one_file(tmp_path: Path) -> None:
    found = MemoryBackendCheckpointStorage(None, "job", 100_000)
    location = found.initialize_location_for_savepoint(1, str(tmp_path))
    assert location.location_reference.is_default_reference
    for scope in CheckpointedStateScope:
        out = location.create_checkpoint_state_output_stream(scope)
        out.write(bytes(100_000))
        assert isinstance(out.close_and_get_handle(), ByteStreamStateHandle)
    with location.create_metadata_output_stream() as out:
        completed = out.close_and_finalize_checkpoint()
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == [METADATA_FILE_NAME]
    assert found.resolve_checkpoint(completed.external_pointer)


def test_12_only_initialising_makes_directories(tmp_path: Path) -> None:
    found = FsCheckpointStorage(FILES, str(tmp_path / "job"), 0)
    found.resolve_checkpoint_storage_location(1, DEFAULT)
    assert not (tmp_path / "job").exists()
    for _ in range(2):
        found.initialize_base_locations_for_checkpoint()
    assert {p.name for p in (tmp_path / "job").iterdir()} == {"shared", "taskowned"}


def test_12_two_jobs_on_one_base_do_not_meet_and_a_job_may_be_the_base(tmp_path: Path) -> None:
    # Without a directory of the job's own, as with execution.checkpointing.create-subdir=false.
    for job in (tmp_path / "one", tmp_path / "two", tmp_path):
        with storage(job).initialize_location_for_checkpoint(177).create_metadata_output_stream() as out:
            out.write(job.name.encode())
            assert out.close_and_finalize_checkpoint().external_pointer == f"file://{job}/chk-177"
    assert (tmp_path / "one" / "chk-177" / METADATA_FILE_NAME).read_bytes() == b"one"
    assert (tmp_path / "chk-177" / METADATA_FILE_NAME).read_bytes() == tmp_path.name.encode()


# Handles


class Asked(MemoryFileSystem):
    """Counts who asks whether a file exists, and fails to delete."""

    def __init__(self, failure: OSError | None = None) -> None:
        super().__init__()
        self.asked = 0
        self.failure = failure

    def exists(self, path: str) -> bool:
        self.asked += 1
        return super().exists(path)

    def delete(self, path: str) -> None:
        if self.failure is not None:
            raise self.failure
        super().delete(path)


def test_13_discarding_asks_for_the_file_only_after_a_failure() -> None:
    files = Asked()
    files.create("/d/file", b"1")
    for _ in range(2):
        FileStateHandle(files, "/d/file", 1).discard_state()
    assert files.asked == 0
    failing = Asked(PermissionError(errno.EACCES, "denied"))
    FileStateHandle(failing, "/d/file", 1).discard_state()
    assert failing.asked == 1
    failing.create("/d/file", b"1")
    with pytest.raises(CheckpointIOError, match="denied"):
        FileStateHandle(failing, "/d/file", 1).discard_state()


def test_14_a_relative_handle_moves_with_its_directory(tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    factory = FsCheckpointStreamFactory(FILES, str(tmp_path / "before"), str(tmp_path), 0, 0)
    out = factory.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE)
    out.write(b"state")
    stored = encode_handle(out.close_and_get_handle(), HandleContext(FILES, str(tmp_path / "before")))
    shutil.move(tmp_path / "before", tmp_path / "after")
    again = decode_handle(stored, HandleContext(FILES, str(tmp_path / "after")))
    assert isinstance(again, RelativeFileStateHandle)
    with again.open_input_stream() as stream:
        assert stream.read() == b"state"


def test_14_a_relative_handle_of_another_directory_is_stored_by_its_full_path(tmp_path: Path) -> None:
    foreign = RelativeFileStateHandle(FILES, str(tmp_path / "old"), "state", 5)
    stored = encode_handle(foreign, HandleContext(FILES, str(tmp_path / "new")))
    again = decode_handle(stored, HandleContext(FILES, str(tmp_path / "moved")))
    assert type(again) is FileStateHandle
    assert again.path == str(tmp_path / "old" / "state")


# Metadata


def metadata(checkpoint_id: int = 3, operator: str = "operator") -> bytes:
    states = {
        # Of five subtasks two have state, the others have finished or never had any.
        operator: OperatorState(
            operator, 5, 128, {4: ByteStreamStateHandle("a", b"1"), 1: ByteStreamStateHandle("b", b"2")}
        ),
        "finished": OperatorState("finished", 2, 2, {}),
    }
    return encode_operators(OperatorsMetadata(checkpoint_id, "0" * 16, 1, states), HandleContext(FILES, "/d"))


def read(data: bytes) -> OperatorsMetadata:
    return decode_operators(data, HandleContext(FILES, "/d"), "file:///d/_metadata")


def test_20_operators_that_have_finished_and_long_names_come_back() -> None:
    name = "ä" * 70_000
    found = read(metadata(operator=name))
    assert list(found.operator_states) == [name, "finished"]
    assert {n: h.data for n, h in found.operator_states[name].subtasks.items()} == {4: b"1", 1: b"2"}
    assert found.operator_states["finished"].subtasks == {}


def test_20_damaged_metadata_is_refused_and_named() -> None:
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

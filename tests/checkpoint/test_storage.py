"""Checkpoint storages: the contracts in every place, and what is special about one."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_statestore.checkpoint.files import LocalFileSystem, MemoryFileSystem
from spark_statestore.checkpoint.storage import (
    CheckpointName,
    CheckpointStorageLocationReference,
    FsCheckpointStorage,
    FsCompletedCheckpointStorageLocation,
    MemoryBackendCheckpointStorage,
    decode_path_from_reference,
    encode_path_as_reference,
)
from spark_statestore.checkpoint.streams import FsCheckpointMetadataOutputStream
from spark_statestore.errors import CheckpointIOError, StorageURLError
from spark_statestore.state.handles import ByteStreamStateHandle
from spark_statestore.testing import FsCheckpointStorageTests, MemoryCheckpointStorageTests
from tests.checkpoint.places import FsspecMemory, Local, ProcessMemory, Synced


class TestLocalStorage(Local, FsCheckpointStorageTests):
    pass


class TestSyncedStorage(Synced, FsCheckpointStorageTests):
    pass


class TestFsspecMemoryStorage(FsspecMemory, FsCheckpointStorageTests):
    pass


class TestStorageOfThisProcess(ProcessMemory, FsCheckpointStorageTests):
    pass


class TestMemoryStorage(Local, MemoryCheckpointStorageTests):
    keeps_metadata = False


class TestMemoryStorageWithADirectory(Local, MemoryCheckpointStorageTests):
    pass


class TestMemoryStorageWithAnFsspecDirectory(FsspecMemory, MemoryCheckpointStorageTests):
    pass


class TestStorageThatDoesNotLookFirst(Local, FsCheckpointStorageTests):
    sees_metadata_at_once = False

    def storage_of(self, files, directory, **options):
        storage = super().storage_of(files, directory, **options)
        storage._look_first = False
        return storage


# Savepoints that cannot be made


class Refusing(LocalFileSystem):
    """Refuses to make the first directories that must be new."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.refused: list[str] = []
        self._times = times

    def make_directory(self, path: str, *, exist_ok: bool = True) -> None:
        if not exist_ok and len(self.refused) < self._times:
            self.refused.append(path)
            raise FileExistsError(path)
        super().make_directory(path, exist_ok=exist_ok)


def storage_on(
    files: LocalFileSystem, directory: Path, kind: str
) -> FsCheckpointStorage | MemoryBackendCheckpointStorage:
    if kind == "files":
        return FsCheckpointStorage(files, str(directory), 0, open_files=lambda url: (files, url))
    return MemoryBackendCheckpointStorage(None, str(directory), 10, open_files=lambda url: (files, url))


@pytest.mark.parametrize("kind", ["files", "memory"])
def test_a_savepoint_is_tried_ten_times_under_ten_names(tmp_path: Path, kind: str) -> None:
    files = Refusing(9)
    location = storage_on(files, tmp_path, kind).initialize_location_for_savepoint(1, str(tmp_path / "s"))
    assert Path(location.checkpoint_directory).is_dir()
    assert len({*files.refused, location.checkpoint_directory}) == 10
    files = Refusing(10)
    target = str(tmp_path / "other")
    with pytest.raises(CheckpointIOError, match=r"in 10 attempts") as raised:
        storage_on(files, tmp_path, kind).initialize_location_for_savepoint(1, target)
    assert target in str(raised.value)
    assert isinstance(raised.value.__cause__, FileExistsError)
    assert list((tmp_path / "other").iterdir()) == []


def test_a_directory_that_is_there_is_never_taken_for_a_savepoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = storage_on(LocalFileSystem(), tmp_path, "files")
    name = f"savepoint-{storage.job_id[:6]}-{'a' * 12}"
    (tmp_path / name).mkdir()
    drawn = iter(["a" * 12, "b" * 12])
    monkeypatch.setattr("secrets.token_hex", lambda _: next(drawn))
    location = storage.initialize_location_for_savepoint(1, str(tmp_path))
    assert location.checkpoint_directory.endswith("b" * 12)


def test_a_target_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    for kind in ("files", "memory"):
        with pytest.raises(CheckpointIOError, match="writable") as raised:
            storage_on(LocalFileSystem(), tmp_path, kind).initialize_location_for_savepoint(
                1, str(tmp_path / "file")
            )
        assert str(tmp_path / "file") in str(raised.value)


class Forbidding(LocalFileSystem):
    """Lets nothing of directories be changed, or looked at."""

    def make_directory(self, path: str, *, exist_ok: bool = True) -> None:
        raise PermissionError("not allowed")

    def delete_directory(self, path: str, *, recursive: bool = False) -> None:
        raise PermissionError("not allowed")

    def exists(self, path: str) -> bool:
        raise PermissionError("not allowed")


def test_what_could_not_be_done_is_told_with_its_place(tmp_path: Path) -> None:
    files, directory, chk = Forbidding(), str(tmp_path), f"{tmp_path}/chk-1"
    in_files = FsCheckpointStorage(files, directory, 0)
    in_memory = MemoryBackendCheckpointStorage(files, directory, 1)
    location = FsCheckpointStorage(LocalFileSystem(), directory, 0).initialize_location_for_checkpoint(1)
    location.files = files
    completed = FsCompletedCheckpointStorageLocation(files, chk, ByteStreamStateHandle("m", b""), chk)
    for attempt, what in [
        (in_files.initialize_base_locations_for_checkpoint, f"make the directory file://{directory}/shared"),
        (lambda: in_files.initialize_location_for_checkpoint(1), f"make the directory file://{chk}"),
        (lambda: in_memory.initialize_location_for_checkpoint(1), f"make the directory file://{chk}"),
        (location.dispose_on_failure, f"remove the directory file://{chk}"),
        (completed.dispose_storage_location, f"remove the directory file://{chk}"),
        (
            lambda: FsCheckpointMetadataOutputStream(files, f"{chk}/_metadata", chk),
            f"look for file://{chk}/_metadata",
        ),
    ]:
        with pytest.raises(CheckpointIOError, match=f"could not {what}: not allowed"):
            attempt()


# Pointers


def test_a_pointer_that_names_no_file_system_is_told_apart_from_a_missing_checkpoint(tmp_path: Path) -> None:
    storage = FsCheckpointStorage(LocalFileSystem(), str(tmp_path), 0)
    for pointer in ("nonsense://x/y", "https://host/checkpoint", "/"):
        with pytest.raises(StorageURLError) as raised:
            storage.resolve_checkpoint(pointer)
        assert not isinstance(raised.value, FileNotFoundError)
        assert pointer in str(raised.value)


def test_a_pointer_may_be_relative_to_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chkX").mkdir()
    (tmp_path / "chkX" / "_metadata").write_bytes(b"1")
    storage = FsCheckpointStorage(LocalFileSystem(), str(tmp_path), 0)
    for pointer in ("chkX", "chkX/"):
        assert storage.resolve_checkpoint(pointer).external_pointer == f"file://{tmp_path}/chkX"


def test_a_pointer_that_cannot_be_looked_at_is_told() -> None:
    class Forbidden(MemoryFileSystem):
        def size(self, path: str) -> int:
            raise PermissionError(13, "permission denied")

    storage = FsCheckpointStorage(Forbidden(), "/d", 0, open_files=lambda url: (Forbidden(), url))
    with pytest.raises(
        CheckpointIOError, match=r"process-memory:///d/chk-1 cannot be looked at.*permission denied"
    ):
        storage.resolve_checkpoint("/d/chk-1")


def test_metadata_that_is_a_directory_is_no_metadata(tmp_path: Path) -> None:
    (tmp_path / "_metadata").mkdir()
    storage = FsCheckpointStorage(LocalFileSystem(), str(tmp_path), 0)
    with pytest.raises(CheckpointIOError, match=f"file://{tmp_path}"):
        storage.resolve_checkpoint(str(tmp_path))


# References and names


def test_a_path_comes_back_from_its_reference() -> None:
    for url in ("file:///a", "s3://bucket/a b/ä€", "/"):
        assert decode_path_from_reference(encode_path_as_reference(url)) == url
    assert encode_path_as_reference("/a") == encode_path_as_reference("/a")
    assert encode_path_as_reference("/a") != encode_path_as_reference("/b")


@pytest.mark.parametrize(
    ("encoded", "what"),
    [
        (None, "default reference"),
        (b"\x05", "too short"),
        (bytes([0x05, 0x5F, 0x3F, 0x18]), "too short"),
        (b"\x05\x5f\x3f\x19/a", "starts with"),
        (b"\x05\x5f\x3f\x18\xff\xfe", "holds no text"),
    ],
)
def test_what_is_no_reference_to_a_path_is_refused(encoded: bytes | None, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        decode_path_from_reference(CheckpointStorageLocationReference(encoded))


def test_a_reference_of_no_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="no bytes"):
        CheckpointStorageLocationReference(b"")
    assert CheckpointStorageLocationReference.default().reference_bytes == b""
    assert CheckpointStorageLocationReference.default() is CheckpointStorageLocationReference.default()


def test_names_of_checkpoints_come_back_from_their_directories() -> None:
    for name in (
        CheckpointName(0),
        CheckpointName(7),
        CheckpointName(7, "0a"),
        CheckpointName(2**62, "x" * 64),
    ):
        assert CheckpointName.parse(name.directory) == name
        assert CheckpointName.of(name) is name
    assert CheckpointName.of(7) == CheckpointName(7)
    others = (
        "chk-",
        "chk--1",
        "chk-+1",
        "chk-x",
        "chk-1_ä/b",
        "shared",
        "chk-²",
        "chk-\u0663",
        "savepoint-1",
    )
    for directory in others:
        assert CheckpointName.parse(directory) is None
    for wrong in ("../..", "", "x" * 65):
        with pytest.raises(ValueError, match="letters and digits"):
            CheckpointName(1, wrong)
    assert [str(CheckpointName(7)), str(CheckpointName(7, "0a"))] == ["version 7", "version 7 (id 0a)"]


def test_a_storage_says_where_it_is() -> None:
    assert str(FsCheckpointStorage(LocalFileSystem(), "/data", 7)) == (
        "FsCheckpointStorage {file:///data, fileStateThreshold=7}"
    )
    assert "fileSystem=none" in str(MemoryBackendCheckpointStorage(None, "job", 7))
    assert "fileSystem=file" in str(MemoryBackendCheckpointStorage(LocalFileSystem(), "/data", 7))


def test_a_job_without_an_id_is_told_by_its_place() -> None:
    def memory(files: LocalFileSystem | None, directory: str) -> str:
        return MemoryBackendCheckpointStorage(files, directory, 1).job_id

    def file(directory: str) -> str:
        return FsCheckpointStorage(LocalFileSystem(), directory, 0).job_id

    assert file("/a") == file("/a") == memory(LocalFileSystem(), "/a")
    assert len({file("/a"), file("/b"), memory(None, "/a"), memory(None, "/b")}) == 4

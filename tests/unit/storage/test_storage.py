"""Tests of checkpoint storages: the contracts, errors and names."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_statestore.errors import CheckpointIOError, StorageURLError
from spark_statestore.files import LocalFileSystem
from spark_statestore.storage import (
    CheckpointName,
    CheckpointStorageLocationReference,
    FsCheckpointStorage,
    MemoryBackendCheckpointStorage,
    decode_path_from_reference,
    encode_path_as_reference,
)
from spark_statestore.storage.location_reference import REFERENCE_MAGIC_NUMBER
from tests.support.contracts.storages_by_kind import FsCheckpointStorageTests, MemoryCheckpointStorageTests
from tests.unit.file_system_fixtures import (
    LocalFiles,
    ProcessMemoryFiles,
)


class TestLocalStorage(LocalFiles, FsCheckpointStorageTests):
    pass


class TestStorageOfThisProcess(ProcessMemoryFiles, FsCheckpointStorageTests):
    pass


class TestMemoryStorage(LocalFiles, MemoryCheckpointStorageTests):
    keeps_metadata = False


class TestMemoryStorageWithADirectory(LocalFiles, MemoryCheckpointStorageTests):
    pass


class Forbidding(LocalFileSystem):
    """A file system that refuses to make directories."""

    def make_directory(self, path: str) -> None:
        raise PermissionError("not allowed")


def test_storage_errors_name_operation_and_path(tmp_path: Path) -> None:
    files, directory, chk = Forbidding(), str(tmp_path), f"{tmp_path}/chk-1"
    in_files = FsCheckpointStorage(files, directory, 0)
    in_memory = MemoryBackendCheckpointStorage(files, directory, 1)
    for attempt, operation in [
        (in_files.initialize_base_locations_for_checkpoint, f"make the directory file://{directory}/shared"),
        (lambda: in_files.initialize_location_for_checkpoint(1), f"make the directory file://{chk}"),
        (lambda: in_memory.initialize_location_for_checkpoint(1), f"make the directory file://{chk}"),
    ]:
        with pytest.raises(CheckpointIOError, match=f"could not {operation}: not allowed"):
            attempt()


def test_checkpoint_name_round_trip() -> None:
    for name in (
        CheckpointName(0),
        CheckpointName(7),
        CheckpointName(7, "0a"),
        CheckpointName(2**62, "x" * 64),
    ):
        assert CheckpointName.parse(name.directory) == name
        assert CheckpointName.from_name_or_number(name) is name
    assert CheckpointName.from_name_or_number(7) == CheckpointName(7)
    other_names = (
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
    for directory in other_names:
        assert CheckpointName.parse(directory) is None
    for wrong in ("../..", "", "x" * 65):
        with pytest.raises(ValueError, match="letters and digits"):
            CheckpointName(1, wrong)
    assert [str(CheckpointName(7)), str(CheckpointName(7, "0a"))] == ["version 7", "version 7 (id 0a)"]


# Names of local files that are no text have surrogates.
@given(st.text(st.characters(exclude_categories=[]), min_size=1), st.binary(min_size=1))
@example("file:///data/\udcff", REFERENCE_MAGIC_NUMBER)
@example("/", REFERENCE_MAGIC_NUMBER + b"\xff")
def test_reference_has_the_path_that_was_encoded_or_none(path: str, data: bytes) -> None:
    reference = encode_path_as_reference(path)
    assert not reference.is_default_reference
    assert decode_path_from_reference(reference) == path
    assert CheckpointStorageLocationReference(reference.reference_bytes) == reference
    for encoded in (data, REFERENCE_MAGIC_NUMBER + data, None):
        candidate = CheckpointStorageLocationReference(encoded)
        with contextlib.suppress(ValueError):
            assert encode_path_as_reference(decode_path_from_reference(candidate)) == candidate


def test_pointer_to_another_authority_is_not_resolved_on_this_file_system(tmp_path: Path) -> None:
    class WithAuthority(LocalFileSystem):
        scheme = "own"

        def url(self, path: str) -> str:
            return f"own://node{path}"

    storage = FsCheckpointStorage(WithAuthority(), str(tmp_path), 0)
    with storage.initialize_location_for_checkpoint(1).create_metadata_output_stream() as out:
        pointer = out.close_and_finalize_checkpoint().external_pointer
    assert pointer == f"own://node{tmp_path}/chk-1"
    assert storage.resolve_checkpoint(pointer).external_pointer == pointer
    with pytest.raises(StorageURLError, match="own://node2"):
        storage.resolve_checkpoint(f"own://node2{tmp_path}/chk-1")


def test_default_reference_has_no_bytes_and_no_path() -> None:
    default = CheckpointStorageLocationReference.default()
    assert default.is_default_reference
    assert (default.reference_bytes, default) == (b"", CheckpointStorageLocationReference())
    with pytest.raises(ValueError, match="without bytes"):
        CheckpointStorageLocationReference(b"")
    for encoded, why in ((None, "default"), (REFERENCE_MAGIC_NUMBER, "too short"), (b"x", "magic number")):
        with pytest.raises(ValueError, match=why):
            decode_path_from_reference(CheckpointStorageLocationReference(encoded))

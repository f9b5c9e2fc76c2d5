"""The retention index tracks checkpoints, and discards the expired ones and orphans."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_statestore.files import LocalFileSystem, MemoryFileSystem
from spark_statestore.storage import CheckpointName
from spark_statestore.storage.chains import start_chain
from spark_statestore.store.retention import RetentionIndex
from tests.unit.storage.handles import StubbornFiles, state_file, state_in


def tracked(directory: Path, files: LocalFileSystem, *numbers: int) -> RetentionIndex:
    """Write versions, each with metadata and a stream of its own, and return their index."""
    index = RetentionIndex(files, str(directory))
    for number in numbers:
        (directory / f"chk-{number}").mkdir()
        (directory / f"chk-{number}" / "_metadata").write_bytes(b"1")
        stream = state_file(directory, f"{number}-shared", files)
        index.track(CheckpointName(number), start_chain(number, state_in(stream)))
    return index


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("kind", ["metadata", "stream"])
def test_discard_before_retries_failed_deletions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    files = StubbornFiles()
    index = tracked(tmp_path, files, 1)
    if kind == "stream":
        (tmp_path / "chk-1" / "_metadata").unlink()
    removed = index.discard_before(2, 0)
    assert removed == (kind == "stream")
    assert caplog.text.count("the next cleanup retries") == 1
    assert index.is_tracked(str(tmp_path / "1-shared"))
    assert not index.is_tracked(str(tmp_path / "other"))
    files.stubborn = False
    assert index.discard_before(2, 0) == 2 - removed
    assert not index.is_tracked(str(tmp_path / "1-shared"))
    assert names(tmp_path) == []


def test_discard_before_keeps_the_streams_of_metadata_that_remains(tmp_path: Path) -> None:
    class Files(LocalFileSystem):
        def delete(self, path: str) -> None:
            if path.endswith("_metadata"):
                raise PermissionError(path)
            super().delete(path)

    index = tracked(tmp_path, Files(), 1)
    assert index.discard_before(2, 0) == 0
    assert names(tmp_path) == ["1-shared", "chk-1"]


def test_index_can_be_used_during_deletions(tmp_path: Path) -> None:
    class Nosy(LocalFileSystem):
        def delete(self, path: str) -> None:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(index.track_directory, CheckpointName(9), ["x"]).result(60)
            super().delete(path)

    index = tracked(tmp_path, Nosy(), 1)
    assert index.discard_before(2, 0) == 2


def test_unverified_has_only_replaceable_checkpoints_until_verified() -> None:
    index = RetentionIndex(MemoryFileSystem(), "/s")
    index.track(CheckpointName(1), start_chain(1, None))
    index.track(CheckpointName(2, "id"), start_chain(2, None), attempt_id="id")
    index.track(CheckpointName(3), start_chain(3, None), attempt_id="mine")
    assert index.unverified(2) == []
    assert index.unverified(3) == [(CheckpointName(3), "mine")]
    for _ in range(2):
        index.verify(CheckpointName(3))
    assert index.unverified(9) == []


def test_orphan_is_deleted_after_all_older_versions() -> None:
    files = MemoryFileSystem()
    index = RetentionIndex(files, "/s")
    for name in ("1-a", "1-b"):
        files.create(f"/s/shared/{name}", b"1")
        index.track_orphan(f"/s/shared/{name}", 5)
    assert all(index.is_tracked(f"/s/shared/{name}") for name in ("1-a", "1-b"))
    assert index.discard_before(4, 0) == 0
    assert len(list(files.list_files("/s"))) == 2
    assert index.discard_before(5, 0) == 2
    assert list(files.list_files("/s")) == []


def test_discard_before_deletes_metadata_first_and_unknown_files_too(tmp_path: Path) -> None:
    deleted: list[str] = []

    class Noting(LocalFileSystem):
        def delete(self, path: str) -> None:
            deleted.append(path.rpartition("/")[2])
            super().delete(path)

    index = RetentionIndex(Noting(), str(tmp_path))
    (tmp_path / "chk-1").mkdir()
    for name in ("ABC", "_metadata", "unknown"):
        (tmp_path / "chk-1" / name).write_bytes(b"1")
    index.track_directory(CheckpointName(1), ["ABC", "_metadata"])
    assert index.discard_before(2, 0) == 2
    assert deleted == ["_metadata", "ABC"]
    assert list(tmp_path.iterdir()) == []


def test_discard_before_keeps_held_versions_and_their_streams(tmp_path: Path) -> None:
    index = tracked(tmp_path, LocalFileSystem(), 1, 2, 3)
    orphan = state_file(tmp_path, "0-orphan")
    # Of a version before the third one: not of the second one, which is held.
    index.track_orphan(orphan.path, 3)
    assert index.discard_before(3, 0, {2}) == 3
    assert names(tmp_path) == ["2-shared", "3-shared", "chk-2", "chk-3"]
    assert index.discard_before(3, 0, {2}) == 0
    assert index.discard_before(3, 0) == 2
    assert names(tmp_path) == ["3-shared", "chk-3"]


def test_set_held_requires_one_scan_for_a_new_hold(tmp_path: Path) -> None:
    index = RetentionIndex(LocalFileSystem(), str(tmp_path))
    looks = []
    for holds in ([], [4], [4], [], [4], [4, 6]):
        index.is_complete = True
        index.set_held(holds)
        looks.append(not index.is_complete)
    assert looks == [False, True, False, False, True, True]

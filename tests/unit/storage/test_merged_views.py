"""Merged files beside other files and damaged ones: what is shown, refused, measured and cached."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from spark_statestore.errors import CorruptCheckpointError
from spark_statestore.files import LocalFileSystem, MemoryFileSystem
from spark_statestore.files.base import FileStatus
from spark_statestore.formats.merged_files import IndexEntry, MergedObject, PhysicalName
from spark_statestore.storage import CheckpointName, merged_index, physical_files
from spark_statestore.storage.merged_file_system import MergedFileSystem
from spark_statestore.storage.merged_files import MergedFiles
from spark_statestore.storage.physical_files import PhysicalFiles
from tests.unit.storage.merged import STATE, allow, attempt, metadata, names, path, publish


def test_file_that_another_process_published_since_the_listing_is_read(files: MemoryFileSystem) -> None:
    """As the metadata with changes to which a version in a file of its own refers."""
    driver, executor = MergedFiles(files, STATE), MergedFiles(files, STATE)
    view = MergedFileSystem(files, executor)
    publish(driver, (path("0/0", 1, 1), 1))
    assert view.size(path("0/0", 1, 1))
    publish(driver, (path("0/0", 2, 2), 2))
    assert view.read(path("0/0", 2, 2)) == bytes(metadata(2))
    with pytest.raises(FileNotFoundError):
        view.read(path("0/0", 3, 3))


def test_discarded_file_stays_discarded_when_another_one_is_looked_for(files: MemoryFileSystem) -> None:
    merged = MergedFiles(files, STATE)
    view = MergedFileSystem(files, merged)
    publish(merged, (path("0/0", 1, 1), 1))
    view.delete(path("0/0", 1, 1))
    with pytest.raises(FileNotFoundError):
        view.read(path("0/0", 2, 2))
    assert list(view.list_files(STATE)) == []
    merged.sweep()
    assert list(files.list_files(STATE)) == []


def test_files_that_another_process_has_deleted_are_forgotten_when_another_one_is_looked_for(
    files: MemoryFileSystem,
) -> None:
    driver, executor = MergedFiles(files, STATE), MergedFiles(files, STATE)
    publish(driver, (path("0/0", 1, 1), 1))
    assert executor.find(path("0/0", 1, 1)) is not None
    driver.discard(path("0/0", 1, 1))
    driver.sweep()
    publish(driver, (path("0/0", 2, 2), 2))
    assert MergedFileSystem(files, executor).size(path("0/0", 2, 2))
    assert executor.find(path("0/0", 1, 1)) is None
    assert executor.usage().physical_files == 1


def test_own_file_of_another_attempt_is_shown_beside_the_merged_one(files: MemoryFileSystem) -> None:
    files.create(path("0/0", 2), bytes(metadata(1)))
    merged = MergedFiles(files, STATE)
    publish(merged, (path("0/0", 2), 2))
    view = MergedFileSystem(files, merged)
    own_path = f"{path('0/0', 2)}.{attempt(1)}"
    assert view.read(path("0/0", 2)) == bytes(metadata(2))
    assert view.read(own_path) == bytes(metadata(1))
    assert {status.path for status in view.list_files(STATE)} == {path("0/0", 2), own_path}
    view.delete(path("0/0", 2))
    view.delete(own_path)
    assert not files.exists(path("0/0", 2))


def test_own_file_is_not_created_beside_a_merged_one(files: MemoryFileSystem) -> None:
    publish(MergedFiles(files, STATE), (path("0/0", 2), 1))
    view = MergedFileSystem(files, MergedFiles(files, STATE))
    with pytest.raises(FileExistsError):
        view.create(path("0/0", 2), bytes(metadata(2)))
    view.replace(path("0/0", 2), bytes(metadata(2)))
    assert names(files) == ["2-2-0", "2-2-1"]
    assert MergedFileSystem(files, MergedFiles(files, STATE)).read(path("0/0", 2)) == bytes(metadata(2))


@pytest.mark.parametrize(
    "place", ["/other/state/0/0/chk-1/_metadata", f"{STATE}/0/0/shared/1-x", f"{STATE}/_holds/held"]
)
def test_other_paths_are_not_merged(files: MemoryFileSystem, place: str) -> None:
    merged = MergedFiles(files, STATE)
    assert merged.find(place) is None
    with pytest.raises(ValueError, match="not the path of a version's metadata"):
        merged.add(place, attempt(1), metadata(1), allow)


def test_linked_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "state").mkdir()
    (tmp_path / "state/_merged").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="_merged is a link"):
        MergedFiles(LocalFileSystem(), str(tmp_path / "state")).find(f"{tmp_path}/state/0/0/chk-1/_metadata")


def test_publication_times_leave_out_rewritten_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merged_index, "_LITTLE", 0)
    state = str(tmp_path / "state")
    merged = MergedFiles(LocalFileSystem(), state)

    def paths(version: int) -> list[str]:
        return [f"{state}/0/{number}/chk-{version}_{attempt(number)}/_metadata" for number in range(10)]

    times = {}
    for version in (2, 3):
        publish(merged, *((logical, number) for number, logical in enumerate(paths(version))))
        times[version] = (tmp_path / "state" / "_merged" / f"{version}-{version}-0").stat().st_mtime
    assert MergedFiles(LocalFileSystem(), state).publication_times((2, 3, 4)) == pytest.approx(times)
    for logical in paths(2)[1:]:
        merged.discard(logical)
    merged.sweep()
    assert MergedFiles(LocalFileSystem(), state).publication_times((2, 3, 4)) == pytest.approx({3: times[3]})


@pytest.mark.parametrize("is_added", [True, False], ids=["added", "handed over"])
def test_file_that_is_not_published_cannot_be_made_durable(files: MemoryFileSystem, is_added: bool) -> None:
    merged = MergedFiles(files, STATE)
    view = MergedFileSystem(files, merged)
    where = path("0/0", 2, 1)
    with pytest.raises(FileNotFoundError):
        view.make_durable(where)
    if is_added:
        merged.add(where, attempt(1), metadata(1), allow)
    else:
        merged.hand_over(where, attempt(1), metadata(1).size)
    with pytest.raises(FileNotFoundError, match=r"0/0/chk-2_.* is in no file: it was added or handed over"):
        view.make_durable(where)
    publish(merged if is_added else MergedFiles(files, STATE), (where, 1))
    view.make_durable(where)


def test_physical_files_that_fit_no_cache_are_read_again(
    files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(physical_files, "_CACHED", 1)
    merged = MergedFiles(files, STATE)
    for version in (2, 3):
        publish(merged, (path("0/0", version, version), version))
    view = MergedFileSystem(files, MergedFiles(files, STATE))
    for version in (2, 3, 2):
        assert view.read(path("0/0", version, version)) == bytes(metadata(version))


def test_damaged_file_that_is_restored_does_not_supersede_later_attempts(files: MemoryFileSystem) -> None:
    for number in (8, 9):
        publish(MergedFiles(files, STATE), (path("0/0", 2), number))
    whole = {name: files.read(f"{STATE}/_merged/{name}") for name in names(files)}
    for name, data in whole.items():
        files.replace(f"{STATE}/_merged/{name}", data[:50])
    publish(MergedFiles(files, STATE), (path("0/0", 2), 1))
    for name, data in whole.items():
        files.replace(f"{STATE}/_merged/{name}", data)
    assert MergedFileSystem(files, MergedFiles(files, STATE)).read(path("0/0", 2)) == bytes(metadata(1))


def test_damaged_file_that_is_restored_may_have_attempts_after_those_of_writes_in_place(
    files: MemoryFileSystem,
) -> None:
    version = path("0/0", 2)
    publish(MergedFiles(files, STATE), (version, 7))
    MergedFiles(files, STATE).write([(version, attempt(8), bytes(metadata(8)))], allow)
    # The query was rolled back.
    publish(MergedFiles(files, STATE), (version, 9))
    newest = f"{STATE}/_merged/{names(files)[-1]}"
    whole = files.read(newest)
    files.replace(newest, whole[:50])
    publish(MergedFiles(files, STATE), (version, 1))
    files.replace(newest, whole)
    assert MergedFileSystem(files, MergedFiles(files, STATE)).read(version) == bytes(metadata(1))


def test_version_that_would_not_be_found_beside_a_damaged_file_is_not_published(
    files: MemoryFileSystem,
) -> None:
    publish(MergedFiles(files, STATE), (path("0/0", 2), 1), (path("0/1", 3), 2))
    files.replace(f"{STATE}/_merged/2-3-0", b"damaged")
    merged = MergedFiles(files, STATE)
    lost = r"^version 3 of operator 0, partition 0 may be in a damaged file .*_merged/2-3-0"
    with pytest.raises(CorruptCheckpointError, match=lost):
        publish(merged, (path("0/0", 3), 3))
    assert (names(files), merged.has_unpublished()) == (["2-3-0"], False)
    # Checkpoint ids tell versions apart.
    publish(merged, (path("0/0", 3, 4), 4))


def test_version_that_was_published_again_since_the_listing_is_found_beside_a_damaged_file(
    files: MemoryFileSystem,
) -> None:
    publish(MergedFiles(files, STATE), (path("0/0", 2), 1))
    files.replace(f"{STATE}/_merged/2-2-0", b"damaged")
    executor = MergedFiles(files, STATE)
    assert executor.is_in_doubt(path("0/0", 2))
    with pytest.raises(CorruptCheckpointError, match="2-2-0"):
        executor.find(path("0/0", 2))
    MergedFiles(files, STATE).publish_alone(path("0/0", 2), attempt(2), bytes(metadata(2)), allow)
    assert MergedFileSystem(files, executor).read(path("0/0", 2), 3, 5) == bytes(metadata(2))[3:8]


@pytest.mark.parametrize(
    "order", list(itertools.permutations(["1-2-0-copy", "2-2-0", "2-2-1"])), ids=" ".join
)
def test_superseded_attempt_that_was_copied_goes_before_the_one_that_counts(order: tuple[str, ...]) -> None:
    """A run lists the files, in some order, after the run that made the copy was killed."""
    entries = {name: [IndexEntry("0/0/chk-2/_metadata", attempt(1), 0, 40, 9)] for name in order}
    entries["2-2-1"] = [IndexEntry("0/0/chk-2/_metadata", attempt(2), 1, 40, 9)]
    index = merged_index.MergedIndex()
    for name in order:
        physical_name = PhysicalName.parse(name)
        assert physical_name is not None
        index.take_up(physical_name, FileStatus(name, 99, None), entries[name])
    for number in (1, 2):
        logical = index.find("0/0", CheckpointName(2), attempt(number))
        assert logical is not None
        index.remove(logical)
    for _ in order:
        for physical in index.empty():
            assert physical.name is not None
            del index.physical[physical.name]
            # Another run finds the attempt that counts while one is left that it supersedes.
            assert set(map(str, index.physical)) != {"2-2-0"}
    assert index.physical == {}


def after_creation(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[PhysicalName, int | None], int | None]
) -> None:
    """Have a function run after each creation of a file, as another thread may; it returns the size."""
    create = PhysicalFiles.create

    def create_and_answer(
        physical_files: PhysicalFiles, name: PhysicalName, objects: Sequence[MergedObject]
    ) -> int | None:
        return answer(name, create(physical_files, name, objects))

    monkeypatch.setattr(PhysicalFiles, "create", create_and_answer)


@pytest.mark.parametrize("is_answered", [True, False], ids=["answered", "answer lost"])
def test_file_that_is_listed_before_its_publication_has_ended_is_not_deleted(
    files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch, is_answered: bool
) -> None:
    merged = MergedFiles(files, STATE)

    def sweep(name: PhysicalName, size: int | None) -> int | None:
        merged.look_for_others(time.monotonic())
        merged.sweep()
        return size if is_answered or str(name) != "2-2-0" else None

    after_creation(monkeypatch, sweep)
    publish(merged, (path("0/0", 2, 1), 1))
    assert MergedFileSystem(files, merged).read(path("0/0", 2, 1)) == bytes(metadata(1))
    assert MergedFiles(files, STATE).find(path("0/0", 2, 1)) is not None
    merged.sweep()
    assert len(names(files)) == 1


@pytest.mark.parametrize("has_ids", [True, False], ids=["v2", "v1"])
def test_copy_that_is_listed_while_it_is_written_is_not_deleted(
    files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch, has_ids: bool
) -> None:
    monkeypatch.setattr(merged_index, "_LITTLE", 0)
    merged = MergedFiles(files, STATE)

    def list_files(_: PhysicalName, size: int | None) -> int | None:
        merged.look_for_others(time.monotonic())
        return size

    def version(number: int, store: str, own: int) -> str:
        return path(store, number, own if has_ids else None)

    for number in (2, 3):
        publish(merged, *((version(number, f"0/{store}", own), own) for store, own in enumerate((1, 2, 3))))
    for store, own in ((1, 2), (2, 3)):
        merged.discard(version(2, f"0/{store}", own))
    after_creation(monkeypatch, list_files)
    merged.sweep()
    assert names(files) == ["2-2-1-copy", "3-3-0"]
    merged.sweep()
    view = MergedFileSystem(files, merged)
    assert view.read(version(2, "0/0", 1)) == bytes(metadata(1))
    for store, own in enumerate((1, 2, 3)):
        if store == 0:
            merged.discard(version(2, "0/0", 1))
        merged.discard(version(3, f"0/{store}", own))
    merged.sweep()
    assert names(files) == []

"""Merged files: names, ranks, damage, rewriting, and the views of several runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from spark_statestore.errors import CheckpointIOError, CorruptCheckpointError
from spark_statestore.files import MemoryFileSystem
from spark_statestore.files.base import Buffer, FileStatus
from spark_statestore.files.retry import RetryingFileSystem
from spark_statestore.storage import CheckpointName, merged_index
from spark_statestore.storage.merged_file_system import MergedFileSystem
from spark_statestore.storage.merged_files import MergedFiles
from spark_statestore.storage.merged_index import LogicalFile, MergedIndex, PhysicalFile
from tests.unit.storage.merged import STATE, allow, attempt, metadata, names, path, publish


def creating(
    files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch, do: Callable[[Callable[[], None]], None]
) -> None:
    """Have a function create each file from now on; it is given the function that does."""
    create = files.create_of_parts

    def replaced(where: str, parts: Sequence[Buffer]) -> None:
        do(lambda: create(where, parts))

    monkeypatch.setattr(files, "create_of_parts", replaced)


def test_nothing_is_stored_before_the_publication(files: MemoryFileSystem) -> None:
    merged = MergedFiles(files, STATE)
    where = path("0/0", 2, 1)
    merged.add(where, attempt(1), metadata(1), allow)
    file = merged.find(where)
    assert file is not None
    assert merged.read(file) == bytes(metadata(1))
    assert (names(files), merged.locate(file)) == ([], None)
    assert merged.publish([attempt(1), attempt(2)], allow)[0] == [attempt(2)]
    assert names(files) == ["2-2-0"]
    assert MergedFiles(files, STATE).find(where) is not None


def test_each_store_finds_its_own_version_in_one_file(files: MemoryFileSystem) -> None:
    publish(MergedFiles(files, STATE), (path("0/0", 2, 1), 1), (path("0/1/left", 2, 2), 2))
    assert names(files) == ["2-2-0"]
    view = MergedFileSystem(files, MergedFiles(files, STATE))
    assert view.read(path("0/0", 2, 1)) == bytes(metadata(1))
    assert view.read(path("0/1/left", 2, 2), 3, 5) == bytes(metadata(2))[3:8]
    assert view.size(path("0/0", 2, 1)) == metadata(1).size
    assert view.locate(path("0/1/left", 2, 2)) == (f"{STATE}/_merged/2-2-0", 40 + metadata(1).size)
    assert [status.path for status in view.list_files(f"{STATE}/0/1")] == [path("0/1/left", 2, 2)]
    assert {status.path for status in view.list_files(STATE)} == {path("0/0", 2, 1), path("0/1/left", 2, 2)}
    with pytest.raises(FileNotFoundError):
        view.read(path("0/0", 3, 1))


def test_index_of_other_versions_is_not_read(files: MemoryFileSystem) -> None:
    merged = MergedFiles(files, STATE)
    for version in (1, 2, 3):
        publish(merged, (path("0/0", version, version), version))
    files.replace(f"{STATE}/_merged/1-1-0", b"damaged")
    merged = MergedFiles(files, STATE)
    view = MergedFileSystem(files, merged)
    assert view.read(path("0/0", 3, 3)) == bytes(metadata(3))
    lost = r"^version 1 \(id .*\) of operator 0, partition 0 may be in a damaged file .*_merged/1-1-0"
    with pytest.raises(CorruptCheckpointError, match=lost):
        view.read(path("0/0", 1, 1))
    with pytest.raises(FileNotFoundError):
        view.read(path("0/0", 4, 4))
    # The versions in other files are listed.
    assert {status.path for status in view.list_files(STATE)} == {path("0/0", 2, 2), path("0/0", 3, 3)}


def test_damaged_file_of_an_attempt_is_superseded(files: MemoryFileSystem) -> None:
    publish(MergedFiles(files, STATE), (path("0/0", 2), 1))
    files.replace(f"{STATE}/_merged/2-2-0", files.read(f"{STATE}/_merged/2-2-0")[:50])
    flags: list[bool] = []
    merged = MergedFiles(files, STATE)
    merged.add(path("0/0", 2), attempt(2), metadata(2), allow)
    merged.publish([], lambda logical, is_known: flags.append(is_known))
    assert (flags, names(files)) == ([True], ["2-2-0", "2-2-1"])
    assert MergedFileSystem(files, MergedFiles(files, STATE)).read(path("0/0", 2)) == bytes(metadata(2))


def test_damaged_file_may_have_a_later_attempt(files: MemoryFileSystem) -> None:
    for number in (1, 2):
        publish(MergedFiles(files, STATE), (path("0/0", 2), number), (path("0/0", 3, number), number))
    files.replace(f"{STATE}/_merged/2-3-1", b"damaged")
    merged = MergedFiles(files, STATE)
    lost = r"^version 2 of operator 0, partition 0 may be in a damaged file .*_merged/2-3-1"
    with pytest.raises(CorruptCheckpointError, match=lost):
        merged.find(path("0/0", 2))
    # With ids there is no doubt.
    assert merged.find(path("0/0", 3, 1)) is not None


def test_last_attempt_counts_and_the_one_before_is_kept(files: MemoryFileSystem) -> None:
    publish(MergedFiles(files, STATE), (path("0/0", 2), 1), (path("0/1", 2), 2))
    # Another run does the batch again.
    publish(MergedFiles(files, STATE), (path("0/0", 2), 3), (path("0/1", 2), 4))
    assert names(files) == ["2-2-0", "2-2-1"]
    view = MergedFileSystem(files, MergedFiles(files, STATE))
    assert view.read(path("0/0", 2)) == bytes(metadata(3))
    assert view.read(f"{path('0/0', 2)}.{attempt(1)}") == bytes(metadata(1))
    assert view.read(f"{path('0/0', 2)}.{attempt(3)}") == bytes(metadata(3))


def test_runs_that_do_not_know_of_each_other_take_different_names(files: MemoryFileSystem) -> None:
    first, second = MergedFiles(files, STATE), MergedFiles(files, STATE)
    for merged in (first, second):
        assert merged.find(path("0/0", 2)) is None
    publish(first, (path("0/0", 2), 9))
    flags: list[bool] = []
    second.add(path("0/0", 2), attempt(2), metadata(2), allow)
    second.publish([attempt(2)], lambda logical, is_known: flags.append(is_known))
    # It looks into the commit log before each publication: at first as no other was just before, then as it
    # met the other.
    assert flags == [False, True]
    assert names(files) == ["2-2-0", "2-2-1"]
    assert MergedFileSystem(files, MergedFiles(files, STATE)).read(path("0/0", 2)) == bytes(metadata(2))
    assert [
        merged.is_newest(file) for merged in (first, second) if (file := merged.find(path("0/0", 2)))
    ] == [
        False,
        True,
    ]
    # The first one has just published, but meets the other.
    second.add(path("0/0", 3), attempt(3), metadata(3), allow)
    second.publish([], allow)
    flags.clear()
    first.add(path("0/0", 3), attempt(4), metadata(4), allow)
    first.publish([], lambda logical, is_known: flags.append(is_known))
    assert flags == [True]
    assert names(files) == ["2-2-0", "2-2-1", "3-3-0", "3-3-1"]


def test_refused_publication_leaves_nothing(files: MemoryFileSystem) -> None:
    merged = MergedFiles(files, STATE)

    def refuse(logical: LogicalFile, is_known: bool) -> None:
        raise FileExistsError(logical.path)

    merged.add(path("0/0", 2), attempt(1), metadata(1), refuse)
    with pytest.raises(FileExistsError):
        merged.publish([attempt(1)], refuse)
    assert (names(files), merged.find(path("0/0", 2))) == ([], None)
    assert merged.publish([attempt(1)], allow)[0] == [attempt(1)]


def test_publication_that_fails_after_the_write_is_found_at_once(
    files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run finds the attempt that a new run finds, not first the one before it."""
    merged = MergedFiles(files, STATE)
    publish(merged, (path("0/0", 2), 1))

    def create_and_fail(create: Callable[[], None]) -> None:
        create()
        raise OSError("the answer is lost")

    creating(files, monkeypatch, create_and_fail)
    merged.add(path("0/0", 2), attempt(2), metadata(2), allow)
    with pytest.raises(OSError, match="lost"):
        merged.publish([attempt(2)], allow)
    for view in (merged, MergedFiles(files, STATE)):
        file = view.find(path("0/0", 2))
        assert file is not None
        assert file.attempt_id == attempt(2)


def test_publication_is_found_if_the_directory_was_listed_meanwhile(
    files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged = MergedFiles(files, STATE)
    publish(merged, (path("0/0", 2), 1))

    def list_and_create(create: Callable[[], None]) -> None:
        merged.forget()
        assert merged.find(path("0/1", 3)) is None
        create()

    creating(files, monkeypatch, list_and_create)
    publish(merged, (path("0/1", 3), 2))
    assert MergedFileSystem(files, merged).read(path("0/1", 3)) == bytes(metadata(2))


def test_repeated_request_counts_once(files: MemoryFileSystem) -> None:
    merged = MergedFiles(files, STATE)
    publish(merged, (path("0/0", 2), 1), (path("0/0", 2), 1))
    publish(merged, (path("0/0", 2), 1))
    assert [status.path for status in merged.list_files(STATE)] == [path("0/0", 2)]
    merged.sweep()
    assert names(files) == ["2-2-1"]


def test_large_file_is_published_before_the_batch_ends(files: MemoryFileSystem) -> None:
    merged = MergedFiles(files, STATE)
    for number in range(3):
        merged.add(path(f"0/{number}", 2, number), attempt(number), metadata(number, 3 << 20), allow)
    assert names(files) == ["2-2-0"]
    assert merged.publish([attempt(number) for number in range(3)], allow)[0] == []
    assert names(files) == ["2-2-0", "2-2-1"]


def test_file_is_deleted_once_all_in_it_is_discarded(files: MemoryFileSystem) -> None:
    merged = MergedFiles(files, STATE)
    publish(merged, (path("0/0", 2, 1), 1), (path("0/1", 2, 2), 2))
    assert merged.discard(path("0/0", 2, 1))
    assert not merged.discard(path("0/0", 2, 1))
    merged.sweep()
    assert names(files) == ["2-2-0"]
    # Discards are not recorded: another run finds the version again.
    assert MergedFiles(files, STATE).find(path("0/0", 2, 1)) is not None
    merged.discard(path("0/1", 2, 2))
    assert names(files) == ["2-2-0"]
    merged.sweep()
    assert names(files) == []


def test_superseded_attempt_goes_before_the_one_that_counts(files: MemoryFileSystem) -> None:
    merged = MergedFiles(files, STATE)
    publish(merged, (path("0/0", 2), 1), (path("0/1", 2), 2))
    publish(merged, (path("0/0", 2), 3))
    for discarded in (f"{path('0/0', 2)}.{attempt(1)}", path("0/0", 2)):
        assert merged.discard(discarded)
    merged.sweep()
    # Without the second file the first attempt would count again.
    assert names(files) == ["2-2-0", "2-2-1"]
    merged.discard(path("0/1", 2))
    merged.sweep()
    assert names(files) == []


def test_sparse_files_are_rewritten(files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merged_index, "_LITTLE", 0)
    merged = MergedFiles(files, STATE)
    stores = [f"0/{number}" for number in range(10)]
    for version in range(1, 5):
        publish(
            merged,
            *((path(store, version, version * 100 + i), version * 100 + i) for i, store in enumerate(stores)),
        )
    for version in (1, 2, 3):
        for i, store in enumerate(stores[1:], 1):
            merged.discard(path(store, version, version * 100 + i))
    merged.sweep()
    assert names(files) == ["1-3-0-copy", "4-4-0"]
    for view in (merged, MergedFiles(files, STATE)):
        for version in (1, 2, 3):
            file = view.find(path("0/0", version, version * 100))
            assert file is not None
            assert view.read(file) == bytes(metadata(version * 100))


def test_version_of_the_batch_is_not_rewritten(
    files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merged_index, "_LITTLE", 0)
    merged = MergedFiles(files, STATE)
    publish(merged, *((path(f"0/{number}", 1, number), number) for number in range(10)))
    for number in range(1, 10):
        merged.discard(path(f"0/{number}", 1, number))
    merged.sweep()
    assert names(files) == ["1-1-0"]


@pytest.fixture
def sparse(files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> MergedFiles:
    """A file whose versions are discarded, except for one, and a file with a later version."""
    monkeypatch.setattr(merged_index, "_LITTLE", 0)
    merged = MergedFiles(files, STATE)
    publish(merged, (path("0/0", 1, 1), 1), (path("0/1", 1, 2), 2), (path("0/2", 1, 3), 3))
    publish(merged, (path("0/0", 2, 4), 4))
    merged.discard(path("0/1", 1, 2))
    merged.discard(path("0/2", 1, 3))
    return merged


def test_copy_that_a_crash_left_is_deleted(files: MemoryFileSystem, sparse: MergedFiles) -> None:
    before = files.read(f"{STATE}/_merged/1-1-0")
    sparse.sweep()
    # It was killed before it deleted the file that it had rewritten.
    files.create(f"{STATE}/_merged/1-1-0", before)
    after = MergedFiles(files, STATE)
    file = after.find(path("0/0", 1, 1))
    assert file is not None
    assert after.locate(file) == (f"{STATE}/_merged/1-1-1-copy", 40)
    for number in (1, 2):
        after.discard(path(f"0/{number}", 1, number + 1))
    after.sweep()
    assert names(files) == ["1-1-1-copy", "2-2-0"]


def test_copy_counts_for_a_run_that_lists_before_its_sources_are_deleted(
    files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merged_index, "_LITTLE", 0)
    merged, reader = MergedFiles(files, STATE), MergedFiles(files, STATE)
    for version in (1, 2, 3):
        publish(merged, *((path(f"0/{i}", version, version * 10 + i), version * 10 + i) for i in range(10)))
    for version, store in ((1, 0), (2, 1)):
        for i in set(range(10)) - {store}:
            merged.discard(path(f"0/{i}", version, version * 10 + i))
    delete = files.delete_files

    def delete_after_listing(paths: Sequence[str]) -> None:
        reader.list_files(STATE)
        delete(paths)

    with monkeypatch.context() as patch:
        patch.setattr(files, "delete_files", delete_after_listing)
        merged.sweep()
    assert names(files) == ["1-2-0-copy", "3-3-0"]
    reader.look_for_others(time.monotonic())
    assert MergedFileSystem(files, reader).read(path("0/1", 2, 21)) == bytes(metadata(21))
    # What else is in the copy expires.
    reader.discard(path("0/0", 1, 10))
    publish(reader, (path("0/0", 4, 40), 40))
    reader.sweep()
    assert MergedFiles(files, STATE).find(path("0/1", 2, 21)) is not None


def test_copy_has_a_higher_number_than_any_other_copy() -> None:
    index = MergedIndex()
    assert index.next_name([1, 9], is_copy=True).number == 0
    index.physical[index.next_name([1, 9], is_copy=True)] = PhysicalFile()
    assert index.next_name([2, 5], is_copy=True).number == 1
    assert index.next_name([2, 5]).number == 0


def test_reader_follows_a_rewrite(files: MemoryFileSystem, sparse: MergedFiles) -> None:
    reader = MergedFileSystem(files, MergedFiles(files, STATE))
    assert reader.size(path("0/0", 1, 1)) == metadata(1).size
    sparse.sweep()
    assert names(files) == ["1-1-1-copy", "2-2-0"]
    assert reader.read(path("0/0", 1, 1)) == bytes(metadata(1))


def test_file_that_was_rewritten_after_the_listing_is_read_from_its_copy(
    files: MemoryFileSystem, sparse: MergedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    list_files = files.list_files

    def listed(directory: str) -> Iterator[FileStatus]:
        statuses = list(list_files(directory))
        monkeypatch.setattr(files, "list_files", list_files)
        sparse.sweep()
        return iter(statuses)

    monkeypatch.setattr(files, "list_files", listed)
    reader = MergedFileSystem(files, MergedFiles(files, STATE))
    assert {status.path for status in reader.list_files(STATE)} == {path("0/0", 1, 1), path("0/0", 2, 4)}
    assert names(files) == ["1-1-1-copy", "2-2-0"]


def test_file_that_is_listed_and_never_there_fails_a_listing(
    files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(MergedFiles(files, STATE), (path("0/0", 1, 1), 1))
    listed = list(files.list_files(f"{STATE}/_merged"))
    files.delete(f"{STATE}/_merged/1-1-0")
    monkeypatch.setattr(files, "list_files", lambda directory: iter(listed))
    with pytest.raises(
        OSError, match=r"_merged: 1-1-0 is listed and cannot be found: .* nothing was changed"
    ) as error:
        MergedFiles(files, STATE).list_files(STATE)
    assert not isinstance(error.value, FileNotFoundError)


def test_listing_is_renewed_if_it_is_older_than_a_time(
    files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    listings: list[str] = []
    list_files = files.list_files
    monkeypatch.setattr(files, "list_files", lambda path: listings.append(path) or list_files(path))
    reader = MergedFiles(files, STATE)
    assert reader.is_empty()
    publish(MergedFiles(files, STATE), (path("0/0", 1, 1), 1))
    del listings[:]
    now = time.monotonic()
    for _ in range(3):
        reader.look_for_others(since=now)
    assert len(listings) == 1
    assert reader.find(path("0/0", 1, 1)) is not None


def test_file_that_is_published_during_a_listing_is_found_by_the_next_one(
    files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    published_at: list[float] = []
    list_files = files.list_files

    def list_too_early(directory: str) -> Iterator[FileStatus]:
        listed = list(list_files(directory))
        monkeypatch.setattr(files, "list_files", list_files)
        publish(MergedFiles(files, STATE), (path("0/0", 1, 1), 1))
        published_at.append(time.monotonic())
        return iter(listed)

    monkeypatch.setattr(files, "list_files", list_too_early)
    reader = MergedFiles(files, STATE)
    assert reader.find(path("0/0", 1, 1)) is None
    reader.look_for_others(since=published_at[0])
    assert reader.find(path("0/0", 1, 1)) is not None


def test_damaged_file_that_was_restored_is_read(files: MemoryFileSystem) -> None:
    publish(MergedFiles(files, STATE), (path("0/0", 4, 1), 1))
    whole = files.read(f"{STATE}/_merged/4-4-0")
    files.replace(f"{STATE}/_merged/4-4-0", whole[:-5])
    reader = MergedFiles(files, STATE)
    assert reader.damage_in(range(4)) is None
    assert reader.damage_in(range(5, 9)) is None
    assert "4-4-0" in str(reader.damage_in(range(5)))
    assert "4-4-0" in str(reader.damage_in(range(5, 9), [4]))
    files.replace(f"{STATE}/_merged/4-4-0", whole)
    assert reader.damage_in(range(9)) is None
    assert reader.find(path("0/0", 4, 1)) is not None


FIRST = ["0/0/chk-1/_metadata", f"0/0/chk-1/_metadata.{attempt(1)}"]
PARTITION = [*FIRST, "0/0/chk-12/_metadata", "0/0/left/chk-1/_metadata"]


@pytest.mark.parametrize(
    ("directory", "paths"),
    [
        ("", [*PARTITION, "0/1/chk-1/_metadata", "1/0/chk-1/_metadata"]),
        ("0", [*PARTITION, "0/1/chk-1/_metadata"]),
        ("0/0", PARTITION),
        ("0/0/left", ["0/0/left/chk-1/_metadata"]),
        ("0/0/chk-1", FIRST),
        ("0/0/chk-2", []),
        ("0/0/shared", []),
        ("0/2", []),
        ("_merged", []),
    ],
)
def test_index_lists_the_files_below_a_directory(directory: str, paths: list[str]) -> None:
    index = MergedIndex()
    for store, version in (("0/0", 1), ("0/0", 12), ("0/0/left", 1), ("0/1", 1), ("1/0", 1)):
        index.insert(LogicalFile(store, CheckpointName(version), attempt(1), 0, 1, index.pending))
    index.insert(LogicalFile("0/0", CheckpointName(1), attempt(2), 1, 1, index.pending))
    assert sorted(logical for logical, _ in index.below(directory)) == paths


class Unconditional(MemoryFileSystem):
    """A service that ignores the condition of a request."""

    def create(self, path: str, data: Buffer) -> None:
        self.replace(path, data)


@pytest.mark.parametrize("merges", [True, False], ids=["a merged file", "a version without an id"])
def test_storage_without_exclusive_creation_is_refused(merges: bool) -> None:
    files = RetryingFileSystem(Unconditional())
    merged = MergedFiles(files, STATE)
    refused = r"replaces a file that is created exclusively.*If-None-Match.*commit='task'"
    where = path("0/0", 2)
    view = MergedFileSystem(files, merged)
    with pytest.raises(CheckpointIOError, match=refused):
        publish(merged, (where, 1)) if merges else view.create_of_parts(where, metadata(1).parts)
    # No other writer chooses the name of a version with an id.
    MergedFileSystem(files, MergedFiles(files, STATE)).create_of_parts(path("0/1", 2, 2), metadata(2).parts)


def test_time_of_a_discard_does_not_depend_on_the_number_of_stores(files: MemoryFileSystem) -> None:
    trial = 0

    def seconds(stores: int) -> float:
        nonlocal trial
        trial += 1
        state = f"{STATE}{trial}"
        merged = MergedFiles(files, state)
        view = MergedFileSystem(files, merged)
        paths = [path(f"0/{number}", 1, number).replace(STATE, state) for number in range(stores)]
        for number, where in enumerate(paths):
            merged.add(where, attempt(number), metadata(number), allow)
        merged.publish([], allow)
        began = time.process_time()
        for where in paths:
            view.delete(where)
            view.delete_directory(where.rpartition("/")[0])
        return time.process_time() - began

    # The least of several, as other threads of this process take time, too.
    many, few = (min(seconds(stores) for _ in range(3)) / stores for stores in (6_000, 300))
    assert many < 5 * few

"""Tests of `write_state` in the checkpoint of a query."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_statestore import (
    CorruptCheckpointError,
    IllegalStateError,
    OptionError,
    QueryRunningError,
    RowEncodingError,
    WrittenState,
    gc,
    read_state,
    rescale,
    rollback,
    savepoint,
    verify,
    write_state,
)
from spark_statestore.options import StorageOptions
from spark_statestore.query import QueryCheckpoint, query_checkpoint
from spark_statestore.query import gc as collection
from spark_statestore.query.lease import Lease
from spark_statestore.savepoints.savepoint_holds import held_in_place
from spark_statestore.storage import CheckpointName
from spark_statestore.storage.merged_files import MergedFiles
from spark_statestore.store.commit import PendingCheckpoint
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.holds import HOLDS_DIRECTORY, CleanupHolds
from spark_statestore.store.metadata import StoreId
from tests.unit.query.stored_query import StoredQuery
from tests.unit.writing.test_write import WORDS, counts, table


@pytest.fixture(params=[1, 2])
def query(request: pytest.FixtureRequest, tmp_path: Path) -> StoredQuery:
    query = StoredQuery(tmp_path / "query", request.param, partitions=3)
    query.run(**WORDS)
    query.run(**{"word 1": 100})
    return query


@pytest.mark.parametrize("merges", [False, True], ids=["files-alone", "merged-files"])
def test_state_of_format_1_is_written_in_place_and_put_back(tmp_path: Path, merges: bool) -> None:
    query = StoredQuery(tmp_path / "query", 1, partitions=3, merges=merges)
    query.run(**WORDS)
    query.run(**{"word 1": 100})
    saved = savepoint(query.url, str(tmp_path / "savepoints"), "pointer").path
    before = query.files()
    states = [WORDS | {"word 1": 100}]
    for rows in ({"word 1": 7, "new": 1}, {"word 2": 8}):
        result = write_state(query.url, None, table(rows), in_place=True, stopped=True)
        assert (result.batch, result.added, result.changed) == (1, "new" in rows, 1)
        states.append(states[-1] | rows)
        assert counts(query.url) == states[-1]
    assert not verify(query.url).problems
    assert read_state(query.url, batch=0).num_rows == len(WORDS)
    assert counts(saved) == states[0]
    # A query with its state inside of metadata reads it, too.
    store = StoreDirectory(
        StoreId(0, 0),
        query.stores[0].url,
        StorageOptions(storage="memory", checkpoints_dir="given"),
        merged_of=MergedFiles,
    )
    assert store.metadata(CheckpointName(2)).handle.base_version == 2
    names = sorted(query.files().keys() - before.keys())
    assert names == [f"state/_merged/2-2-0-written-{number}" for number in (1, 2)]
    # The files of before are as they were, and stay.
    assert before.items() <= query.files().items()
    assert not gc(query.url, dry_run=True, older_than=0, stopped=True).orphans
    (query.directory / names[1]).unlink()
    assert counts(query.url) == states[1]
    assert rollback(query.url, 0, stopped=True)
    assert counts(query.url) == WORDS


def test_state_is_written_in_place_and_put_back(tmp_path: Path) -> None:
    query = StoredQuery(tmp_path / "query", 2, partitions=3)
    query.run(**WORDS)
    query.run(**{"word 1": 100})
    commit = query.directory / "commits/1"
    checksum = query.directory / "commits/.1.crc"
    checksum.write_bytes(b"of the entry as it was")
    before = query.files()
    result = write_state(query.url, None, table({"word 1": 7, "new": 1}), in_place=True, stopped=True)
    assert result == WrittenState(batch=1, added=1, changed=1, removed=0)
    assert counts(query.url) == WORDS | {"word 1": 7, "new": 1}
    assert not verify(query.url).problems
    assert read_state(query.url, batch=0).num_rows == len(WORDS)
    assert not checksum.exists()
    changed = {name for name, data in before.items() if query.files().get(name) != data}
    assert changed == {"commits/1"}
    (backup,) = (query.directory / "rolled-back").glob("*/in-place/commits/1")
    assert not gc(query.url, dry_run=True, older_than=0, stopped=True).orphans
    shutil.copy(backup, commit)
    assert counts(query.url) == WORDS | {"word 1": 100}
    assert not verify(query.url).problems


def test_state_is_written_in_place_in_few_cases(query: StoredQuery, tmp_path: Path) -> None:
    rows = table({"word 1": 7})
    for target, in_place in ((None, False), (str(tmp_path / "target"), True)):
        with pytest.raises(OptionError, match="state that is written in place has None"):
            write_state(query.url, target, rows, in_place=in_place)
    before = query.files()
    with pytest.raises(OptionError, match="at the newest batch, 1, but the batch is 0"):
        write_state(query.url, None, rows, in_place=True, stopped=True, batch=0)
    with pytest.raises(QueryRunningError, match="It seems to run"):
        write_state(query.url, None, rows, in_place=True)
    with pytest.raises(RowEncodingError, match="rows 0 and 1 of the changes have the same key"):
        write_state(query.url, None, pa.concat_tables([rows, rows]), in_place=True, stopped=True)
    assert query.files() == before
    saved = savepoint(query.url, str(tmp_path / "savepoints"), "canonical").path
    with pytest.raises(OptionError, match="is a savepoint, which is not changed"):
        write_state(saved, None, rows, in_place=True, stopped=True)
    assert counts(saved) == WORDS | {"word 1": 100}


@pytest.mark.parametrize("form", [1, 2])
def test_failed_write_in_place_leaves_nothing(tmp_path: Path, form: int) -> None:
    query = StoredQuery(tmp_path / "query", form, partitions=1)
    # More than what is inside of metadata.
    words = WORDS | {f"{number} {os.urandom(500).hex()}": number for number in range(100)}
    query.run(**words)
    before = query.files()

    def progress(completed: int, total: int) -> None:
        if completed == total:
            # As of a write in place by another process.
            query.put("commits/0", before["commits/0"].decode() + " ")

    with pytest.raises(QueryRunningError, match="another process changes it, which has written commits/0"):
        write_state(query.url, None, table({"word 1": 7}), in_place=True, stopped=True, progress=progress)
    assert {**query.files(), "commits/0": b""} == {**before, "commits/0": b""}
    assert counts(query.url) == words


def test_writes_in_place_at_once_exclude_each_other(tmp_path: Path) -> None:
    query = StoredQuery(tmp_path / "query", 1, partitions=2)
    query.run(**WORDS)

    def progress(completed: int, total: int) -> None:
        if completed == total:
            write_state(query.url, None, table({"word 1": 8}), in_place=True, stopped=True)

    with pytest.raises(QueryRunningError, match="has written 1-1-0-written-1"):
        write_state(query.url, None, table({"word 1": 7}), in_place=True, stopped=True, progress=progress)
    assert counts(query.url) == WORDS | {"word 1": 8}


def at_the_end(do: Callable[[], object]) -> Callable[[int, int], None]:
    """Return a callback of progress that does something once all stores are written, and none published."""

    def progress(completed: int, total: int) -> None:
        if completed == total:
            do()

    return progress


def large_query(directory: Path, form: int, **options: Any) -> tuple[StoredQuery, dict[str, int]]:
    """Return a query whose state is in files, and its counts."""
    query = StoredQuery(directory, form, partitions=2, **options)
    query.run(**WORDS)
    query.run(**{f"{number} {os.urandom(500).hex()}": number for number in range(100)})
    return query, query.state()


def write_seven(query: StoredQuery, **arguments: Any) -> None:
    write_state(query.url, None, table({"word 1": 7}), in_place=True, stopped=True, **arguments)


in_both_formats = pytest.mark.parametrize("form", [1, 2])


@in_both_formats
@pytest.mark.parametrize(
    ("merges", "options"),
    [(False, {"stopped": True}), (True, {"stopped": True, "purge": True}), (False, {"older_than": -10})],
    ids=["stopped", "purge-of-merged-files", "any-age"],
)
def test_collection_during_a_write_in_place_removes_nothing_of_it(
    tmp_path: Path, form: int, merges: bool, options: dict[str, Any]
) -> None:
    query, words = large_query(tmp_path / "query", form, merges=merges)
    write_seven(query, progress=at_the_end(lambda: gc(query.url, **options)))
    assert not verify(query.url).problems
    assert counts(query.url) == words | {"word 1": 7}
    gc(query.url, **options)
    assert counts(query.url) == words | {"word 1": 7}


@in_both_formats
def test_collection_that_began_before_a_write_in_place_removes_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: int
) -> None:
    query, words = large_query(tmp_path / "query", form)
    begin = collection._committed_attempts

    def begin_and_write(*arguments: Any) -> Any:
        decided = begin(*arguments)
        write_seven(query)
        return decided

    monkeypatch.setattr(collection, "_committed_attempts", begin_and_write)
    gc(query.url, stopped=True)
    assert counts(query.url) == words | {"word 1": 7}


@in_both_formats
@pytest.mark.parametrize("scanned", ["whole", "streams"])
def test_write_in_place_that_ends_after_a_scan_of_a_collection_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: int, scanned: str
) -> None:
    # As of a store that is larger than the default.
    monkeypatch.setattr(query_checkpoint, "StorageOptions", partial(StorageOptions, file_state_threshold=999))
    query, words = large_query(tmp_path / "query", form)
    start, middle, end = (threading.Event() for _ in range(3))
    scans = threading.Barrier(query.partitions + 1)
    begin, scan = collection._committed_attempts, collection._Collector._scan

    def begin_and_wait(*arguments: Any) -> Any:
        decided = begin(*arguments)
        start.set()
        assert middle.wait(30)
        return decided

    def scan_and_wait(collector: collection._Collector) -> dict[str, str]:
        orphans = scan(collector)
        if not end.is_set():
            scans.wait(30)
            assert end.wait(30)
        return orphans

    went_on = threading.Lock()

    def go_on() -> None:
        if went_on.acquire(blocking=False):
            middle.set()
            scans.wait(30)

    describe = PendingCheckpoint._metadata

    def go_on_and_describe(pending: PendingCheckpoint, *arguments: Any) -> Any:
        go_on()
        return describe(pending, *arguments)

    if scanned == "streams":
        monkeypatch.setattr(PendingCheckpoint, "_metadata", go_on_and_describe)
    monkeypatch.setattr(collection, "_committed_attempts", begin_and_wait)
    monkeypatch.setattr(collection._Collector, "_scan", scan_and_wait)
    with ThreadPoolExecutor(1) as pool:
        collecting = pool.submit(gc, query.url, stopped=True)
        assert start.wait(30)
        write_seven(query, progress=at_the_end(go_on))
        end.set()
        assert collecting.result().orphans == ()
    assert counts(query.url) == words | {"word 1": 7}


@in_both_formats
@pytest.mark.parametrize("lost", ["_holds", "shared", "all"])
def test_write_in_place_without_what_was_removed_meanwhile_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: int, lost: str
) -> None:
    options = partial(StorageOptions, file_state_threshold=1000)
    monkeypatch.setattr(query_checkpoint, "StorageOptions", options)
    query, words = large_query(tmp_path / "query", form)
    before = query.files()

    def remove() -> None:
        for name in query.files().keys() - before.keys():
            if lost == "all" or f"/{lost}/" in name:
                (query.directory / name).unlink()

    with pytest.raises(
        IllegalStateError, match=r"another process has removed file://.* has its state of before"
    ):
        write_seven(query, progress=at_the_end(remove))
    assert query.files() == before
    assert counts(query.url) == words


@in_both_formats
def test_rollback_during_a_write_in_place_leaves_nothing_of_it(tmp_path: Path, form: int) -> None:
    query, _ = large_query(tmp_path / "query", form)
    names = {name for name in query.files() if name.startswith("state/")}
    with pytest.raises(QueryRunningError, match="another process changes it, which has moved commits/1"):
        write_seven(query, progress=at_the_end(lambda: rollback(query.url, 0, stopped=True)))
    assert {name for name in query.files() if name.startswith("state/")} == names
    assert counts(query.url) == WORDS


CHANGES: dict[str, Callable[[StoredQuery], object]] = {
    "write": lambda query: write_seven(query),
    "rollback": lambda query: rollback(query.url, 0, stopped=True),
    "rescale": lambda query: rescale(query.url, None, 3, in_place=True, stopped=True),
}


@pytest.mark.parametrize("first", CHANGES)
@pytest.mark.parametrize("second", CHANGES)
def test_change_that_begins_after_the_last_check_of_another_one_does_not_undo_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, second: str
) -> None:
    query = StoredQuery(tmp_path / "query", 2, partitions=2)
    query.run(**WORDS)
    query.run(**{"word 1": 100})
    renew = Lease.renew
    with ThreadPoolExecutor(1) as pool:
        later: list[Future[object]] = []

        def renew_beside_the_other(lease: Lease) -> None:
            if not later:
                later.append(pool.submit(CHANGES[second], query))
                wait(later, timeout=1)
            renew(lease)

        monkeypatch.setattr(Lease, "renew", renew_beside_the_other)
        CHANGES[first](query)
        with pytest.raises(QueryRunningError):
            later[0].result()
    changed = WORDS if first == "rollback" else {"word 1": 7 if first == "write" else 100}
    assert counts(query.url) == WORDS | changed
    assert QueryCheckpoint(query.url).newest_partitions() == (3 if first == "rescale" else 2)
    assert not verify(query.url).problems
    assert not list(query.directory.glob("offsets/.lease-*"))


@pytest.mark.parametrize("after_rollback", [False, True])
def test_damaged_write_in_place_is_not_taken_for_the_state_of_before(
    tmp_path: Path, after_rollback: bool
) -> None:
    query = StoredQuery(tmp_path / "query", 1, partitions=2, merges=True)
    for number in range(3):
        query.run(**WORDS, a=number)
    if after_rollback:
        # A sweep has copied the version, which the rollback makes the newest one.
        merged = query.stores[0].merged
        assert merged is not None
        merged.purge(path for path in (query.stores[0].metadata_path(CheckpointName(3)),))
        rollback(query.url, 1, stopped=True)
        os.rename(tmp_path / "query/state/_merged/2-2-0", tmp_path / "query/state/_merged/2-2-0-copy")
    write_state(query.url, None, table({"word 1": 7}), in_place=True, stopped=True)
    assert counts(query.url)["word 1"] == 7
    (file,) = (tmp_path / "query/state/_merged").glob("*-written-1")
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(CorruptCheckpointError):
        read_state(query.url)


def test_write_in_place_that_was_killed_keeps_cleanups_from_nothing(query: StoredQuery) -> None:
    checkpoint = QueryCheckpoint(query.url)
    with held_in_place(checkpoint, 1) as state_hold:
        files, state = checkpoint.open_state()
        cleanups = CleanupHolds(files, f"{state}/{HOLDS_DIRECTORY}")
        # As a killed process leaves the hold.
        assert state_hold.exists()
        assert cleanups.versions_to_keep(2) == frozenset()
        assert cleanups.versions_to_keep(2) == frozenset()

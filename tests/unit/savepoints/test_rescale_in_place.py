"""Tests of rescales in place without Spark: what is refused, and what a failure leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spark_statestore import rescale, savepoint
from spark_statestore.errors import (
    CheckpointIOError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    ForeignCheckpointError,
    IllegalStateError,
    OptionError,
    QueryRunningError,
)
from spark_statestore.options import PROVIDER_KEY, StorageOptions
from spark_statestore.query import QueryCheckpoint, journal, query_checkpoint
from spark_statestore.query import gc as collection
from spark_statestore.query.gc import gc
from spark_statestore.query.rollback import rollback
from spark_statestore.query.verify import verify
from spark_statestore.savepoints import rescale_in_place as in_place
from spark_statestore.savepoints.rescale_in_place import settle_partitions
from tests.support.trees import files_below
from tests.unit.savepoints.written_query import SMALL, WrittenQuery, content, row_key, united


@pytest.fixture
def query(tmp_path: Path) -> WrittenQuery:
    return two_batches(tmp_path / "checkpoint")


def two_batches(directory: Path, *, with_ids: bool = True) -> WrittenQuery:
    query = WrittenQuery(str(directory), with_ids, operators=SMALL, key=row_key)
    query.run(put={b"large": bytes(700)})
    query.run(put={b"batch": b"1"})
    return query


def in_its_place(query: WrittenQuery, partitions: int = 3, **arguments: Any) -> int:
    return rescale(query.url, None, partitions, in_place=True, stopped=True, **arguments)


def test_rescale_with_the_same_number_writes_nothing(query: WrittenQuery) -> None:
    before = files_below(Path(query.url))
    assert in_its_place(query, 2) == 1
    assert files_below(Path(query.url)) == before


def test_failed_rescale_leaves_no_file(query: WrittenQuery, monkeypatch: pytest.MonkeyPatch) -> None:
    before = files_below(Path(query.url))

    def fail(*arguments: Any) -> None:
        raise RuntimeError("no journal")

    monkeypatch.setattr(in_place.Change, "make", fail)
    with pytest.raises(RuntimeError, match="no journal"):
        in_its_place(query)
    assert files_below(Path(query.url)) == before


def test_rescale_of_a_running_query_changes_nothing(
    query: WrittenQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = united(content(query.checkpoint))
    write = in_place.write_store

    def write_and_run(*arguments: Any) -> None:
        write(*arguments)
        if query.batch == 1:
            query.run(put={b"batch": b"2"})

    monkeypatch.setattr(in_place, "write_store", write_and_run)
    with pytest.raises(
        QueryRunningError, match=r"runs: it has written commits/2, offsets/2, .*nothing was changed"
    ):
        in_its_place(query)
    present = content(query.checkpoint)
    assert len(present) == 2
    assert united(present) == rows | {key: b"2" for key, value in rows.items() if value == b"1"}


def test_query_that_writes_its_next_batch_first_keeps_its_partitions(
    query: WrittenQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = journal.Journal.encode

    def late(record: journal.Journal) -> bytes:
        query.write(f"offsets/{record.entry}", b"v1\n{}\n-")
        return encode(record)

    monkeypatch.setattr(journal.Journal, "encode", late)
    with pytest.raises(QueryRunningError, match="has just written offsets/2"):
        in_its_place(query)
    assert len(content(query.checkpoint)) == 2


def test_metadata_of_a_planned_run_has_the_new_partitions(query: WrittenQuery) -> None:
    described = json.loads(query.checkpoint.read("state/0/_metadata/metadata").split(b"\n")[1])
    for number in (0, 2):
        query.write(f"state/0/_metadata/v2/{number}", f"v2\n{json.dumps(described)}".encode())
    query.checkpoint.files.delete(query.checkpoint.path("state/0/_metadata/metadata"))
    query.write("offsets/2", query.checkpoint.offsets(1).encode())
    in_its_place(query)
    partitions = {number: query.checkpoint.operator(0, number).partitions for number in (0, 1, 2)}
    assert partitions == {0: 2, 1: 3, 2: 3}
    assert query.checkpoint.offsets(2).shuffle_partitions == 3
    assert query.checkpoint.offsets(0).shuffle_partitions == 2


def test_query_without_a_committed_batch_has_the_number_from_its_first_one(tmp_path: Path) -> None:
    query = WrittenQuery(str(tmp_path / "c"), True, operators=SMALL, key=row_key)
    options = StorageOptions(partitions="5")
    assert settle_partitions(query.url, options, None, True, lambda count, total: None) == 5
    query.begin()
    assert settle_partitions(query.url, options, None, True, lambda count, total: None) == 5
    assert query.checkpoint.offsets(0).shuffle_partitions == 5
    assert query.checkpoint.operators()[0].partitions == 5


def of_format_1(directory: Path) -> WrittenQuery:
    return two_batches(directory, with_ids=False)


def of_another_store(directory: Path) -> WrittenQuery:
    query = of_format_1(directory)
    entry = query.checkpoint.offsets(1).with_conf(PROVIDER_KEY, "org.example.HDFSBacked")
    query.write("offsets/1", entry.encode())
    return query


def of_a_savepoint(directory: Path) -> WrittenQuery:
    query = two_batches(directory)
    path = savepoint(query.url, str(directory.parent), "canonical").path
    query.url = path.removeprefix("file://")
    return query


@pytest.mark.parametrize(
    ("make", "partitions", "error", "message"),
    [
        (two_batches, 0, OptionError, "must be from 1 to 32768"),
        (two_batches, 32_769, OptionError, "must be from 1 to 32768"),
        (of_format_1, 3, OptionError, "has checkpoint format v1"),
        (
            of_another_store,
            3,
            ForeignCheckpointError,
            r"written by org\.example\.HDFSBacked.*spark-statestore convert",
        ),
        (of_a_savepoint, 3, OptionError, "is a savepoint, which is not changed"),
    ],
)
def test_rescale_in_place_refuses_before_it_writes(
    tmp_path: Path,
    make: Callable[[Path], WrittenQuery],
    partitions: int,
    error: type[Exception],
    message: str,
) -> None:
    query = make(tmp_path / "checkpoint")
    before = files_below(Path(query.url))
    with pytest.raises(error, match=message):
        in_its_place(query, partitions)
    assert files_below(Path(query.url)) == before


def test_rescale_in_place_takes_format_1_to_2(tmp_path: Path) -> None:
    query = of_format_1(tmp_path / "checkpoint")
    rows = united(content(query.checkpoint))
    assert in_its_place(query, checkpoint_format=2) == 1
    assert united(content(query.checkpoint)) == rows
    assert [len(ids) for ids in (query.checkpoint.commit(1).state_ids or {}).values()] == [3]
    assert query.checkpoint.commit(0).state_ids is None


def test_arguments_that_contradict_each_other_are_refused(query: WrittenQuery, tmp_path: Path) -> None:
    before = files_below(Path(query.url))
    for new, arguments in (
        (None, {}),
        (str(tmp_path / "new"), {"in_place": True}),
        (None, {"in_place": True, "batch": 0}),
    ):
        with pytest.raises(OptionError, match="needs a new location, or in_place=True"):
            rescale(query.url, new, 3, stopped=True, **arguments)
    assert files_below(Path(query.url)) == before


def test_batches_of_format_1_before_a_rescale_keep_their_partitions(tmp_path: Path) -> None:
    query = of_format_1(tmp_path / "checkpoint")
    rows = [content(query.checkpoint, batch) for batch in range(2)]
    for count in (5, 1):
        in_its_place(query, count, checkpoint_format=2)
        assert content(query.checkpoint, 0) == rows[0]
        assert verify(query.url, batch=0).ok
        assert united(content(query.checkpoint)) == united(rows[1])
    rollback(query.url, 0, stopped=True)
    assert content(query.checkpoint) == rows[0]
    assert query.checkpoint.operators()[0].partitions == 2


def test_late_process_leaves_the_entry_of_a_query_that_has_gone_on(
    query: WrittenQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = journal._complete

    def late(checkpoint: QueryCheckpoint, record: journal.Journal) -> None:
        # Another process completes the change, and the query plans its next batch.
        complete(checkpoint, record)
        query.write("offsets/2", checkpoint.offsets(1).encode())
        complete(checkpoint, record)

    monkeypatch.setattr(journal, "_complete", late)
    with pytest.raises(IllegalStateError, match="next start, was faster"):
        in_its_place(query)
    assert query.checkpoint.logged("offsets") == {0, 1, 2}
    assert len(content(query.checkpoint)) == 3


@pytest.mark.parametrize(
    "meanwhile",
    [lambda query: rollback(query.url, 0, stopped=True), lambda query: in_its_place(query, 4)],
    ids=["rollback", "rescale"],
)
def test_other_operation_during_a_rescale_makes_it_fail(
    query: WrittenQuery, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[WrittenQuery], object]
) -> None:
    make = journal.Change.make

    def late(change: journal.Change) -> None:
        monkeypatch.setattr(journal.Change, "make", make)
        meanwhile(query)
        make(change)

    monkeypatch.setattr(journal.Change, "make", late)
    message = "another process changes it, which has just written (offsets|commits)/1"
    with pytest.raises(QueryRunningError, match=message):
        in_its_place(query)
    checkpoint = query.checkpoint
    newest = checkpoint.newest_batch()
    assert max(checkpoint.logged("offsets")) == newest
    ids = checkpoint.commit(newest).state_ids or {}
    assert {len(partitions) for partitions in ids.values()} == {checkpoint.offsets(newest).shuffle_partitions}
    assert content(checkpoint)


of_both_kinds = pytest.mark.parametrize("stopped", [False, True])
of_fewer_and_more = pytest.mark.parametrize("count", [1, 3])


def collect(query: WrittenQuery, stopped: bool, *, holds_are_lost: bool = False) -> None:
    if holds_are_lost:
        for hold in (Path(query.url) / "state/_holds").iterdir():
            hold.unlink()
    gc(query.url, stopped=stopped, older_than=-10)


@of_both_kinds
@of_fewer_and_more
def test_collection_during_a_rescale_removes_nothing_of_it(
    query: WrittenQuery, stopped: bool, count: int
) -> None:
    before = united(content(query.checkpoint))
    in_its_place(query, count, progress=lambda *_: collect(query, stopped))
    collect(query, stopped)
    assert len(content(query.checkpoint)) == count
    assert united(content(query.checkpoint)) == before


@of_both_kinds
@pytest.mark.parametrize("journal_is_left", [False, True])
def test_collection_that_began_before_a_rescale_removes_nothing_of_it(
    query: WrittenQuery, monkeypatch: pytest.MonkeyPatch, stopped: bool, journal_is_left: bool
) -> None:
    before = united(content(query.checkpoint))
    stores, complete = collection._stores, journal._complete

    def fail(*arguments: Any) -> None:
        raise CheckpointIOError("the storage is gone")

    def rescale_first(checkpoint: QueryCheckpoint) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(journal, "_complete", fail if journal_is_left else complete)
            with pytest.raises(CheckpointIOError) if journal_is_left else nullcontext():
                in_its_place(query)
        return stores(checkpoint)

    monkeypatch.setattr(collection, "_stores", rescale_first)
    with pytest.raises(IllegalStateError) if journal_is_left else nullcontext():
        collect(query, stopped)
    assert journal.complete_change(query.checkpoint) == journal_is_left
    assert len(content(query.checkpoint)) == 3
    assert united(content(query.checkpoint)) == before


@pytest.mark.parametrize(
    ("lost", "inline"),
    [("_holds/2-in-place-*", 9999), ("0/*/chk-2_*/_metadata", 9999), ("0/*/shared/2-*", 0)],
)
def test_rescale_without_what_was_removed_meanwhile_changes_nothing(
    query: WrittenQuery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str, inline: int
) -> None:
    options = partial(StorageOptions, file_state_threshold=inline)
    monkeypatch.setattr(query_checkpoint, "StorageOptions", options)
    before = files_below(Path(query.url))

    def remove(completed: int, total: int) -> None:
        if completed == total:
            paths = (tmp_path / "checkpoint/state").glob(lost)
            next(path for path in paths if str(path.relative_to(query.url)) not in before).unlink()

    with pytest.raises(IllegalStateError, match=r"has removed file://.*; the query has its state of before"):
        in_its_place(query, progress=remove)
    assert files_below(Path(query.url)) == before


@of_both_kinds
@of_fewer_and_more
def test_rescale_whose_state_is_removed_meanwhile_is_undone(
    query: WrittenQuery, monkeypatch: pytest.MonkeyPatch, stopped: bool, count: int
) -> None:
    before = content(query.checkpoint)
    make = journal.Change.make

    def late(change: journal.Change) -> None:
        monkeypatch.setattr(journal.Change, "make", make)
        collect(query, stopped, holds_are_lost=True)
        make(change)

    monkeypatch.setattr(journal.Change, "make", late)
    with pytest.raises(IllegalStateError, match="the query has its state of before"):
        in_its_place(query, count)
    assert content(query.checkpoint) == before
    assert query.checkpoint.operators()[0].partitions == query.checkpoint.offsets(1).shuffle_partitions == 2


def test_damaged_journal_is_refused(query: WrittenQuery) -> None:
    for data in (
        b"spark-statestore: the journal",
        b'spark-statestore: the journal\n{"version":2,"files":{}}',
    ):
        query.write("offsets/2", data)
        with pytest.raises(CorruptCheckpointError, match="offsets/2 is not the journal of a change"):
            in_its_place(query)
        with pytest.raises(IllegalStateError, match="is not complete"):
            content(query.checkpoint)


def test_missing_checkpoint_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError):
        rescale(str(tmp_path / "none"), None, 3, in_place=True, stopped=True)
    assert list(tmp_path.iterdir()) == []


def test_partitions_of_past_batches_alone_are_collected(tmp_path: Path) -> None:
    url = f"{tmp_path}/checkpoint"
    query = WrittenQuery(url, True, operators=SMALL, key=row_key, retained_batches=2)
    query.run(put={b"large": bytes(700)})
    query.run(put={b"batch": b"1"})
    for count in (5, 2):
        rescale(url, None, count, in_place=True, stopped=True)
    query.restart()
    directories = {path.name for path in (tmp_path / "checkpoint" / "state" / "0").iterdir()} - {"_metadata"}
    assert directories == set("01234")
    assert not any("/state/0/4/" in orphan.url for orphan in gc(url).orphans), "the batch may be needed"
    for _ in range(4):
        query.run(put={b"batch": b"2"}, whole=True)
    for dry_run in (True, False):
        reasons = {orphan.reason for orphan in gc(url, older_than=0, dry_run=dry_run).orphans}
        assert "its partition is gone, and its batch is not in Spark's logs any more" in reasons
    files = [path for path in (tmp_path / "checkpoint" / "state").rglob("*") if path.is_file()]
    assert {path.relative_to(tmp_path / "checkpoint" / "state" / "0").parts[0] for path in files} == {
        "0",
        "1",
        "_metadata",
    }
    assert content(query.checkpoint) == query.rows

"""What Spark's commit log has accepted is replaced by nobody, and whom it has left behind cleans up no more."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from spark_statestore.checkpoint.storage import CheckpointName
from spark_statestore.checkpoint.versions import VersionStore
from spark_statestore.errors import CheckpointExistsError, CheckpointIOError
from spark_statestore.testing.faults import Fault, FaultInjectingFileSystem
from tests.checkpoint.stores import SMALL_FILES, STORE, attempt, commit, named, rows_of, snapshot

ONE, TWO, THREE, FOUR = (CheckpointName(version) for version in (1, 2, 3, 4))
LARGE = b"x" * 2000


class Query:
    """A checkpoint location with one store."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.commits = directory / "commits"
        self.commits.mkdir()

    def instance(self, commits: str | None = None) -> VersionStore:
        state = f"{self.directory}/state/{STORE.operator}/{STORE.partition}"
        return VersionStore(STORE, state, SMALL_FILES, commits=commits or str(self.commits))

    def accept(self, name: CheckpointName) -> None:
        """Note the batch that made a version, as Spark does."""
        note = {"nextBatchWatermarkMs": 0}
        if name.id is not None:
            others = [[attempt()] for _ in range(STORE.partition)]
            note["stateUniqueIds"] = {str(STORE.operator): [*others, [name.id]]}
        batch = self.commits / str(name.version - 1)
        batch.write_text(f"v1\n{json.dumps(note)}")
        # Hadoop's checksum, and what a writer of the next entry has left.
        (self.commits / f".{batch.name}.crc").write_bytes(b"crc")
        (self.commits / f".{name.version + 7}.5f.tmp").write_bytes(b"")

    def set_back_behind(self, version: int) -> None:
        for path in self.commits.iterdir():
            if path.name.isdigit() and int(path.name) >= version:
                path.unlink()


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path)


def test_a_late_attempt_replaces_no_version_that_was_accepted(query: Query) -> None:
    first = commit(query.instance(), ONE, {b"a": b"1"})
    commit(query.instance(), TWO, {b"b": b"in time"}, parent=first.handle, by="00000000000000aa")
    query.accept(TWO)
    late = query.instance()
    with pytest.raises(CheckpointExistsError) as raised:
        commit(late, TWO, {b"b": b"late"}, parent=first.handle, by="00000000000000bb")
    assert rows_of(query.instance(), TWO) == {b"a": b"1", b"b": b"in time"}
    told = str(raised.value)
    for part in (
        "operator 0, partition 3",
        "version 2",
        "attempt 00000000000000aa",
        "attempt, 00000000000000bb,",
        "batch 1 is done",
        str(query.commits),
        "two queries run with one checkpointLocation",
    ):
        assert part in told


def test_it_replaces_none_either_when_only_later_batches_are_noted(query: Query) -> None:
    commit(query.instance(), TWO, {b"a": b"1"})
    query.accept(CheckpointName(140))
    with pytest.raises(CheckpointExistsError):
        commit(query.instance(), TWO, {b"a": b"2"})


def test_a_batch_that_is_not_done_is_committed_anew(query: Query) -> None:
    commit(query.instance(), ONE, {b"a": b"1"})
    query.accept(ONE)
    for text in (b"2", b"3"):
        commit(query.instance(), TWO, {b"a": text})
        assert rows_of(query.instance(), TWO) == {b"a": text}
    query.accept(TWO)
    query.set_back_behind(1)
    commit(query.instance(), TWO, {b"a": b"4"})
    assert rows_of(query.instance(), TWO) == {b"a": b"4"}


def test_an_attempt_that_is_asked_for_again_is_answered_although_it_was_accepted(query: Query) -> None:
    store, by = query.instance(), attempt()
    first = commit(store, ONE, {b"a": b"1"}, by=by)
    query.accept(ONE)
    assert commit(store, ONE, {b"a": b"1"}, by=by).handle == first.handle


def test_with_ids_a_late_attempt_is_in_nobodys_way(query: Query) -> None:
    accepted, late = (CheckpointName(1, attempt()) for _ in range(2))
    commit(query.instance(), accepted, {b"a": b"1"})
    query.accept(accepted)
    commit(query.instance(), late, {b"a": b"2"})
    assert rows_of(query.instance(), accepted) == {b"a": b"1"}


def test_where_the_log_cannot_be_reached_the_last_attempt_counts_and_the_log_file_says_so(
    query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    commit(query.instance(), ONE, {b"a": b"1"})
    query.accept(ONE)
    store = query.instance("nosuchscheme://host/commits")
    with caplog.at_level(logging.WARNING):
        commit(store, ONE, {b"a": b"2"})
        commit(store, ONE, {b"a": b"3"})
    assert rows_of(query.instance(), ONE) == {b"a": b"3"}
    (said,) = [record.getMessage() for record in caplog.records]
    assert "commit log cannot be read" in said
    assert "nosuchscheme" in said


def test_where_the_log_cannot_be_listed_nothing_is_replaced(query: Query) -> None:
    fs = FaultInjectingFileSystem()
    commit(query.instance(), ONE, {b"a": b"1"})
    store = query.instance(fs.url("commits"))
    fs.inject(Fault("fail", 1))
    with pytest.raises(CheckpointIOError, match="injected fault"):
        commit(store, ONE, {b"a": b"2"})
    assert rows_of(query.instance(), ONE) == {b"a": b"1"}
    commit(store, ONE, {b"a": b"3"})
    assert rows_of(query.instance(), ONE) == {b"a": b"3"}


@pytest.mark.parametrize("with_ids", [False, True], ids=["v1", "v2"])
def test_an_instance_of_before_a_roll_back_discards_nothing(query: Query, with_ids: bool) -> None:
    names = [CheckpointName(v, attempt() if with_ids else None) for v in range(1, 5)]
    store = query.instance()
    bys = {}
    for name in names:
        bys[name] = name.id or attempt()
        commit(store, name, {b"a": LARGE}, by=bys[name])
        query.accept(name)
    newest = names[-1]
    query.set_back_behind(1)
    assert store.cleanup(newest, bys[newest], 3, 0) == 0
    assert rows_of(query.instance(), names[0]) == {b"a": LARGE}
    # Of what counts still it may.
    query.accept(newest)
    assert store.cleanup(newest, bys[newest], 3, 0) > 0


def test_nor_does_it_when_the_query_has_come_as_far_again(query: Query) -> None:
    """With ids the old attempt is still there under its name, and knows nothing of the new ones' chain."""
    old = query.instance()
    names = [CheckpointName(v, attempt()) for v in (1, 2, 3)]
    first = commit(old, names[0], {b"a": LARGE})
    query.accept(names[0])
    assert old.cleanup(names[0], str(names[0].id), 1, 0) == 0
    for name in names[1:]:
        commit(old, name, {b"b": LARGE})
        query.accept(name)
    query.set_back_behind(1)
    new, handle = query.instance(), first.handle
    again = [CheckpointName(v, attempt()) for v in (2, 3)]
    for name in again:
        handle = commit(new, name, {b"c": LARGE}, parent=handle).handle
        query.accept(name)
    assert old.cleanup(names[2], str(names[2].id), 3, 0) == 0
    assert rows_of(query.instance(), again[1]) == {b"a": LARGE, b"c": LARGE}


def test_an_instance_that_was_left_behind_long_ago_discards_nothing(query: Query) -> None:
    store, by = query.instance(), attempt()
    commit(store, ONE, {b"a": LARGE})
    commit(store, FOUR, {b"a": LARGE}, by=by)
    query.accept(CheckpointName(400))
    assert store.cleanup(FOUR, by, 3, 0) == 0
    assert rows_of(query.instance(), ONE) == {b"a": LARGE}


def test_a_gap_in_the_log_stops_no_clean_up(query: Query) -> None:
    """Where Spark notes batches now and then."""
    store, by = query.instance(), attempt()
    commit(store, ONE, {b"a": LARGE})
    commit(store, FOUR, {b"a": LARGE}, by=by)
    query.accept(ONE)
    query.accept(CheckpointName(6))
    assert store.cleanup(FOUR, by, 3, 0) > 0


def test_a_log_entry_that_cannot_be_read_stops_a_clean_up(query: Query) -> None:
    names = [CheckpointName(v, attempt()) for v in (1, 2)]
    store = query.instance()
    for name in names:
        commit(store, name, {b"a": LARGE})
        query.accept(name)
    (query.commits / "1").write_text("v2")
    assert store.cleanup(names[1], str(names[1].id), 2, 0) == 0
    query.accept(names[1])
    assert store.cleanup(names[1], str(names[1].id), 2, 0) > 0


def test_a_snapshot_that_is_older_than_what_others_keep_is_not_used(
    query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    store = query.instance()
    handle = commit(store, ONE, {b"a": b"1"}).handle
    handle = commit(store, TWO, {b"b": b"2"}, parent=handle).handle
    base = snapshot(store, 2, {b"a": b"1", b"b": b"2"})
    handle = commit(store, THREE, {b"c": b"3"}, parent=handle).handle
    for oldest, taken in ((3, False), (2, True)):
        pending = store.begin(FOUR, attempt(), named())
        with caplog.at_level(logging.WARNING):
            done = pending.publish(handle, None, base, oldest)
        assert (base.entries[0] in done.handle.entries) == taken
    assert [r.getMessage().count("numRetained") for r in caplog.records] == [1]

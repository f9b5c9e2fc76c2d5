"""Commits and cleanups respect Spark's commit log: no committed version is replaced or discarded."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from spark_statestore.errors import CheckpointExistsError, CheckpointIOError
from spark_statestore.storage import CheckpointName
from spark_statestore.store.cleanup import discard_versions
from spark_statestore.store.commit import begin_checkpoint
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.testing.faults import FaultInjectingFileSystem
from spark_statestore.testing.faults_plan import Fault
from tests.unit.store.stores import SMALL_FILES, STORE, attempt_id, commit, named, rows_of, snapshot

ONE, TWO, THREE, FOUR = (CheckpointName(version) for version in (1, 2, 3, 4))
LARGE = b"x" * 2000


class Query:
    """A checkpoint location with one store."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.commits = directory / "commits"
        self.commits.mkdir()

    def instance(self, commits: str | None = None) -> StoreDirectory:
        state = f"{self.directory}/state/{STORE.operator}/{STORE.partition}"
        return StoreDirectory(STORE, state, SMALL_FILES, commits=commits or str(self.commits))

    def log_commit(self, name: CheckpointName) -> None:
        """Write the commit log entry of the batch that made a version, as Spark does."""
        entry = {"nextBatchWatermarkMs": 0}
        if name.id is not None:
            other_ids = [[attempt_id()] for _ in range(STORE.partition)]
            entry["stateUniqueIds"] = {str(STORE.operator): [*other_ids, [name.id]]}
        batch = self.commits / str(name.version - 1)
        batch.write_text(f"v1\n{json.dumps(entry)}")
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


def test_commit_refuses_to_replace_a_committed_version(query: Query) -> None:
    first = commit(query.instance(), ONE, {b"a": b"1"})
    commit(query.instance(), TWO, {b"b": b"in time"}, parent=first.handle, by="00000000000000aa")
    query.log_commit(TWO)
    late = query.instance()
    with pytest.raises(CheckpointExistsError) as raised:
        commit(late, TWO, {b"b": b"late"}, parent=first.handle, by="00000000000000bb")
    assert rows_of(query.instance(), TWO) == {b"a": b"1", b"b": b"in time"}
    text = str(raised.value)
    for part in (
        "operator 0, partition 3",
        "version 2",
        "attempt 00000000000000aa",
        "attempt, 00000000000000bb,",
        "contains batch 1",
        str(query.commits),
        "two queries run with one checkpointLocation",
    ):
        assert part in text


def test_commit_refuses_to_replace_if_the_log_has_a_later_batch(query: Query) -> None:
    commit(query.instance(), TWO, {b"a": b"1"})
    query.log_commit(CheckpointName(140))
    with pytest.raises(CheckpointExistsError):
        commit(query.instance(), TWO, {b"a": b"2"})


def test_commit_replaces_a_version_of_an_uncommitted_batch(query: Query) -> None:
    commit(query.instance(), ONE, {b"a": b"1"})
    query.log_commit(ONE)
    for text in (b"2", b"3"):
        commit(query.instance(), TWO, {b"a": text})
        assert rows_of(query.instance(), TWO) == {b"a": text}
    query.log_commit(TWO)
    query.set_back_behind(1)
    commit(query.instance(), TWO, {b"a": b"4"})
    assert rows_of(query.instance(), TWO) == {b"a": b"4"}


def test_repeated_commit_of_a_committed_attempt_succeeds(query: Query) -> None:
    store, by = query.instance(), attempt_id()
    first = commit(store, ONE, {b"a": b"1"}, by=by)
    query.log_commit(ONE)
    assert commit(store, ONE, {b"a": b"1"}, by=by).handle == first.handle


def test_commit_replaces_and_warns_if_the_log_cannot_be_opened(
    query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    commit(query.instance(), ONE, {b"a": b"1"})
    query.log_commit(ONE)
    store = query.instance("nosuchscheme://host/commits")
    with caplog.at_level(logging.WARNING):
        commit(store, ONE, {b"a": b"2"})
        commit(store, ONE, {b"a": b"3"})
    assert rows_of(query.instance(), ONE) == {b"a": b"3"}
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "commit log cannot be read" in warning
    assert "nosuchscheme" in warning


def test_commit_replaces_nothing_if_the_log_cannot_be_listed(query: Query) -> None:
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
def test_cleanup_of_an_instance_from_before_a_rollback_discards_nothing(query: Query, with_ids: bool) -> None:
    store = query.instance()
    attempts = [attempt_id() for _ in range(4)]
    names = [CheckpointName(version, by if with_ids else None) for version, by in enumerate(attempts, 1)]
    for name, by in zip(names, attempts, strict=True):
        commit(store, name, {b"a": LARGE}, by=by)
        query.log_commit(name)
    query.set_back_behind(1)
    assert discard_versions(store, names[3], attempts[3], 3, 0) == 0
    assert rows_of(query.instance(), names[0]) == {b"a": LARGE}
    # Of what counts still it may.
    query.log_commit(names[3])
    assert discard_versions(store, names[3], attempts[3], 3, 0) > 0


def test_cleanup_of_a_replaced_history_discards_nothing(query: Query) -> None:
    """With ids the old attempt is still there under its name, and knows nothing of the new ones' chain."""
    old = query.instance()
    names = [CheckpointName(v, attempt_id()) for v in (1, 2, 3)]
    first = commit(old, names[0], {b"a": LARGE})
    query.log_commit(names[0])
    assert discard_versions(old, names[0], str(names[0].id), 1, 0) == 0
    for name in names[1:]:
        commit(old, name, {b"b": LARGE})
        query.log_commit(name)
    query.set_back_behind(1)
    new, handle = query.instance(), first.handle
    again = [CheckpointName(v, attempt_id()) for v in (2, 3)]
    for name in again:
        handle = commit(new, name, {b"c": LARGE}, parent=handle).handle
        query.log_commit(name)
    assert discard_versions(old, names[2], str(names[2].id), 3, 0) == 0
    assert rows_of(query.instance(), again[1]) == {b"a": LARGE, b"c": LARGE}


@pytest.mark.parametrize(
    ("logged", "discards"),
    [
        pytest.param([400], False, id="later batches only"),
        # The commit log has some batches only.
        pytest.param([1, 6], True, id="a gap"),
    ],
)
def test_cleanup_goes_by_the_range_of_the_log(query: Query, logged: list[int], discards: bool) -> None:
    store, by = query.instance(), attempt_id()
    commit(store, ONE, {b"a": LARGE})
    commit(store, FOUR, {b"a": LARGE}, by=by)
    for version in logged:
        query.log_commit(CheckpointName(version))
    assert (discard_versions(store, FOUR, by, 3, 0) > 0) == discards
    assert rows_of(query.instance(), FOUR) == {b"a": LARGE}


def test_cleanup_discards_nothing_if_the_log_entry_is_damaged(query: Query) -> None:
    names = [CheckpointName(v, attempt_id()) for v in (1, 2)]
    store = query.instance()
    for name in names:
        commit(store, name, {b"a": LARGE})
        query.log_commit(name)
    (query.commits / "1").write_text("v2")
    assert discard_versions(store, names[1], str(names[1].id), 2, 0) == 0
    query.log_commit(names[1])
    assert discard_versions(store, names[1], str(names[1].id), 2, 0) > 0


def test_commit_ignores_a_snapshot_older_than_others_retain(
    query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    store = query.instance()
    handle = commit(store, ONE, {b"a": b"1"}).handle
    handle = commit(store, TWO, {b"b": b"2"}, parent=handle).handle
    base = snapshot(store, 2, {b"a": b"1", b"b": b"2"})
    handle = commit(store, THREE, {b"c": b"3"}, parent=handle).handle
    for oldest, is_used in ((3, False), (2, True)):
        pending = begin_checkpoint(store, FOUR, attempt_id(), named())
        with caplog.at_level(logging.WARNING):
            committed = pending.publish(handle, None, base, oldest)
        assert (base.entries[0] in committed.handle.entries) == is_used
    assert [r.getMessage().count("minBatchesToRetain") for r in caplog.records] == [1]

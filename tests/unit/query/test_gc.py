"""Tests of `gc`: orphans are removed, files that are or may be needed are kept."""

from __future__ import annotations

import gc as garbage
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from spark_statestore import savepoint
from spark_statestore.errors import CheckpointNotFoundError, CorruptCheckpointError, QueryRunningError
from spark_statestore.query import QueryCheckpoint
from spark_statestore.query.gc import DAY, _Collector, gc
from spark_statestore.query.verify import verify
from spark_statestore.savepoints.savepoint_holds import held_while, hold_of
from spark_statestore.storage import CheckpointName
from spark_statestore.storage.incremental_handle import IncrementalStateHandle
from spark_statestore.store.metadata import CheckpointMetadata
from tests.support.effort import EFFORT
from tests.unit.query.stored_query import Attempt, StoredQuery
from tests.unit.store.stores import load

LARGE = {f"{'w' * (number % 2)}{number}": number for number in range(100)}


def age(query: StoredQuery, seconds: float = 2 * DAY) -> None:
    """Make everything that is there older."""
    then = time.time() - seconds
    for path in query.directory.rglob("*"):
        os.utime(path, (then, then))


def collected(query: StoredQuery, **options: bool | float) -> list[str]:
    """Return the collected files by path in the checkpoint, after an equal dry run."""
    before = query.files()
    planned = gc(query.url, dry_run=True, **options)
    assert query.files() == before
    report = gc(query.url, **options)
    assert (report.orphans, report.young) == (planned.orphans, planned.young)
    assert report.bytes == sum(len(before[path]) for path in before.keys() - query.files().keys())
    assert not report.skipped
    start = f"file://{query.directory}/"
    paths = [orphan.url.removeprefix(start) for orphan in report.orphans]
    assert set(paths) == before.keys() - query.files().keys()
    return paths


def kill_in_commit(query: StoredQuery, partition: int = 0, counts: Mapping[str, int] = LARGE) -> None:
    """A commit that dies when its stream is written and its metadata is not."""
    before = query.files()
    query.commit(partition, counts)
    for path in query.files().keys() - before.keys():
        if path.endswith("_metadata"):
            (query.directory / path).unlink()


def run_after_a_lost_attempt(query: StoredQuery, lost: Mapping[str, int] = LARGE) -> Attempt:
    """Run a batch in which the first partition is committed twice, and return the attempt that lost."""
    query.begin()
    attempt = query.commit(0, lost)
    query.finish([query.commit(partition, LARGE) for partition in (0, 1)], LARGE)
    return attempt


@pytest.fixture(params=[1, 2])
def query(tmp_path: Path, request: pytest.FixtureRequest) -> StoredQuery:
    return StoredQuery(tmp_path / "checkpoint", request.param)


@pytest.fixture
def query_1(tmp_path: Path) -> StoredQuery:
    """A query in checkpoint format v1, where a version has one name for all attempts."""
    return StoredQuery(tmp_path / "checkpoint", 1)


@pytest.fixture
def query_2(tmp_path: Path) -> StoredQuery:
    return StoredQuery(tmp_path / "checkpoint")


def test_gc_keeps_referenced_files_and_files_that_are_not_a_stores(query: StoredQuery) -> None:
    query.run(**LARGE)
    query.run(word=1)
    query.run({0: query.snapshot(0)}, **LARGE)
    other_files = ["notes.txt", "0/0/shared/notes.txt", "0/_stateSchema/default/0_x"]
    for name in (*(f"state/{name}" for name in other_files), "shared/1-x"):
        query.put(name, "kept")
    age(query)
    assert collected(query) == collected(query, stopped=True) == []


def test_gc_removes_an_old_stream_that_no_commit_can_use(query: StoredQuery) -> None:
    query.run(word=1)
    kill_in_commit(query)
    query.run(word=2)
    age(query)
    # It might be a snapshot that the next commit takes up.
    assert collected(query) == []
    for count in (3, 4):
        query.run({0: query.snapshot(0)}, word=count)
    age(query, 3600)
    report = gc(query.url)
    assert (report.orphans, report.young) == ((), 1)
    (stream,) = collected(query, older_than=1800)
    assert stream.startswith("state/0/0/shared/2-")
    assert verify(query.url).ok


def test_gc_of_a_stopped_query_removes_every_unreferenced_stream(query: StoredQuery) -> None:
    query.run(word=1)
    query.snapshot(1)
    kill_in_commit(query)
    (first, second) = collected(query, stopped=True)
    assert first.startswith("state/0/0/shared/2-")
    assert second.startswith("state/0/1/shared/1-")
    assert verify(query.url).ok


def test_gc_removes_a_superseded_attempt(query_2: StoredQuery) -> None:
    lost = run_after_a_lost_attempt(query_2)
    (query_2.directory / f"state/0/0/chk-1_{lost.id}/.inprogress.0").write_bytes(b"part")
    age(query_2)
    paths = collected(query_2)
    # What makes it found goes first.
    assert paths[0] == f"state/0/0/chk-1_{lost.id}/_metadata"
    assert [path.startswith("state/0/0/shared/1-") for path in paths] == [False, False, True]
    assert not (query_2.directory / paths[0]).parent.exists()
    assert verify(query_2.url).ok


def test_gc_keeps_attempts_of_an_uncommitted_batch(query_2: StoredQuery) -> None:
    query_2.run(word=1)
    query_2.begin()
    attempts = [query_2.commit(partition, LARGE) for partition in (0, 1)]
    age(query_2)
    assert collected(query_2) == []
    query_2.finish(attempts, LARGE)
    assert verify(query_2.url).ok
    query_2.begin()
    query_2.commit(0, {})
    assert len(collected(query_2, stopped=True)) == 1


def test_gc_of_a_stopped_query_keeps_what_covers_damage_of_its_newest_batch(query_2: StoredQuery) -> None:
    """The uncommitted batch has taken up a snapshot of that batch's state, whose own changes are damaged."""
    query = query_2
    query.run(**LARGE)
    query.run(**{f"x{number}": number for number in range(60)})
    newest = query.counted[-1][0].committed.handle
    query.begin()
    attempt = query.commit(0, {"bob": 2}, query.snapshot(0))
    assert attempt.committed.handle.base_version == newest.version
    stream = newest.entries[-1].state.delegate_state_handle
    (path,) = [path for path in query.directory.rglob("*") if str(path) == stream.stream_state_handle_id[7:]]
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert [problem.covered for problem in verify(query.url, batch=len(query.states) - 1).problems] == [True]
    assert collected(query, stopped=True) == []
    assert verify(query.url, batch=len(query.states) - 1).ok
    # Once Spark has committed another attempt at its batch, it covers nothing any more.
    query.finish([query.commit(partition, {"bob": 2}) for partition in range(2)], {"bob": 2})
    age(query)
    assert any(attempt.id in path for path in collected(query, stopped=True))


def test_gc_keeps_versions_without_log_entries(query: StoredQuery) -> None:
    for number in range(4):
        query.run(ann=number)
    # Purged entries, and entries that an old copy of the log lacks.
    query.forget(1)
    for batch in (2, 3):
        (query.directory / f"commits/{batch}").unlink()
    (query.directory / "commits/.2.crc").unlink()
    assert collected(query, stopped=True) == []


def test_gc_keeps_replaced_attempts_in_format_v1(query_1: StoredQuery) -> None:
    run_after_a_lost_attempt(query_1)
    query_1.run(word=1)
    age(query_1)
    assert len(list(query_1.directory.glob("state/0/0/chk-1/_metadata.*"))) == 2
    assert collected(query_1, stopped=True) == []


def test_gc_keeps_a_held_version(query_2: StoredQuery) -> None:
    for _ in range(2):
        run_after_a_lost_attempt(query_2)
    query_2.put("state/_holds/1-savepoint-abcdef-0123456789ab", "")
    age(query_2)
    paths = collected(query_2)
    assert any("chk-2_" in path for path in paths)
    assert not [path for path in paths if "/chk-1_" in path or "/1-" in path]


def test_gc_keeps_an_attempt_that_a_version_references(query_2: StoredQuery) -> None:
    lost = run_after_a_lost_attempt(query_2, {"ann": 1})
    counted = query_2.counted[-1]
    query_2.counted[-1] = [lost, counted[1]]
    query_2.run(word=1)
    query_2.counted[-2] = counted
    assert collected(query_2, stopped=True) == []


def test_gc_removes_the_hold_of_a_killed_copy(query_2: StoredQuery, tmp_path: Path) -> None:
    query_2.run(**LARGE)
    pointer = savepoint(query_2.url, str(tmp_path / "savepoints"), "pointer")
    with held_while(QueryCheckpoint(query_2.url), 0, "file:///holder"):
        assert collected(query_2, stopped=True, older_than=0) == []
        age(query_2)
        (hold,) = collected(query_2, stopped=True)
        assert hold.startswith("state/_holds/1-in-use-")
    # That of a savepoint stays.
    assert hold_of(pointer) is not None
    assert verify(pointer.path).ok


def test_gc_keeps_rolled_back_versions(query_2: StoredQuery) -> None:
    query = query_2
    query.run(**LARGE)
    query.run(word=1)
    aside = query.directory / "rolled-back/20260101T000000Z/commits"
    aside.mkdir(parents=True)
    (query.directory / "commits/1").rename(aside / "1")
    query.states.pop()
    query.counted.pop()
    assert collected(query, stopped=True) == []
    moved = (aside / "1").rename(query.directory / "aside")
    query.put("state/_holds/2-savepoint-abcdef-0123456789ab", "")
    assert collected(query, stopped=True) == []
    (query.directory / "state/_holds/2-savepoint-abcdef-0123456789ab").unlink()
    moved.rename(aside / "1")
    query.run(word=2)
    age(query)
    assert collected(query, stopped=True) == []
    (aside / "1").unlink()
    assert len(collected(query)) == 2


def test_gc_removes_partial_files_and_unpublished_versions(query: StoredQuery) -> None:
    query.run(word=1)
    version = query.directory / "state/0/0/chk-7"
    version.mkdir()
    staging = next(query.directory.glob("state/0/0/chk-1*"))
    for path in (staging, version, query.directory / "state/0/1/shared"):
        (path / ".inprogress.0").write_bytes(b"part")
    assert gc(query.url).young == 3
    age(query)
    assert len(collected(query)) == 3
    assert not version.exists()


@pytest.mark.parametrize(
    "damage", ["missing", "unreadable", "of the version before", "of the other partition"]
)
def test_gc_skips_a_store_without_metadata_of_the_newest_version(query: StoredQuery, damage: str) -> None:
    """A version restored from a backup needs all of its files."""
    query.run(word=1)
    query.run(**LARGE)
    (path,) = query.directory.glob("state/0/0/chk-2*/_metadata")
    (before,) = query.directory.glob("state/0/0/chk-1*/_metadata")
    (other_partition,) = query.directory.glob("state/0/1/chk-2*/_metadata")
    for partition in (0, 1):
        kill_in_commit(query, partition)
    data = path.read_bytes()
    match damage:
        case "missing":
            path.unlink()
        case "unreadable":
            path.write_bytes(b"broken")
        case "of the version before":
            path.write_bytes(before.read_bytes())
        case "of the other partition":
            path.write_bytes(other_partition.read_bytes())
    report = gc(query.url, stopped=True)
    assert ["/0/1/" in orphan.url for orphan in report.orphans] == [True]
    assert [problem.what for problem in report.skipped] == ["operator 0, partition 0, store default"]
    path.write_bytes(data)
    assert verify(query.url).ok


def test_gc_skips_a_store_with_metadata_under_another_attempts_name(query_1: StoredQuery) -> None:
    run_after_a_lost_attempt(query_1, {"ann": 1})
    assert gc(query_1.url, stopped=True).skipped == ()
    first, second = query_1.directory.glob("state/0/0/chk-1/_metadata.*")
    first.write_bytes(second.read_bytes())
    assert len(gc(query_1.url, stopped=True).skipped) == 1


def test_gc_removes_nothing_if_logs_are_unreadable(query_2: StoredQuery, tmp_path: Path) -> None:
    query_2.run(word=1)
    query_2.run(word=2)
    kill_in_commit(query_2)
    (query_2.directory / "commits/0").write_bytes(b"broken")
    before = query_2.files()
    with pytest.raises(CorruptCheckpointError):
        gc(query_2.url, stopped=True)
    assert query_2.files() == before
    with pytest.raises(CheckpointNotFoundError):
        gc(str(tmp_path / "nothing"))


def while_looking(monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> list[dict[str, str]]:
    """Run a function after the first scan of the first store, and record the result of each scan."""
    looks: list[dict[str, str]] = []
    look = _Collector._scan

    def look_and_do(self: _Collector) -> dict[str, str]:
        files = look(self)
        if self._store.partition == 0:
            looks.append(files)
            if len(looks) == 1:
                do()
        return files

    monkeypatch.setattr(_Collector, "_scan", look_and_do)
    return looks


@pytest.mark.parametrize("merges", [False, True], ids=["own files", "merged files"])
def test_gc_keeps_files_referenced_since_the_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merges: bool
) -> None:
    query = StoredQuery(tmp_path / "checkpoint", 1, merges=merges)
    query.run(word=1)
    query.run(word=2)
    query.begin()
    waiting = query.snapshot(0)

    def commit() -> None:
        query.commit(0, {"ann": 3}, waiting)
        if merges:
            query.stores[0].publish_merged([])

    looks = while_looking(monkeypatch, commit)
    assert gc(query.url, stopped=True).orphans == ()
    assert [len(files) for files in looks] == [1, 0]


def test_gc_refuses_stopped_for_a_running_query(query: StoredQuery, monkeypatch: pytest.MonkeyPatch) -> None:
    query.run(word=1)
    query.run(word=2)
    waiting = query.snapshot(0)
    while_looking(monkeypatch, lambda: query.run({0: waiting}, word=3))
    with pytest.raises(QueryRunningError, match="runs"):
        gc(query.url, stopped=True)
    assert verify(query.url).ok


class RunningQuery(RuleBasedStateMachine):
    """A query that runs, crashes and cleans up, with orphans collected at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.temporary = TemporaryDirectory(prefix="gc-")
        self.number = 0

    @initialize(checkpoint_format=st.sampled_from([1, 2]))
    def start(self, checkpoint_format: int) -> None:
        self.query = StoredQuery(Path(self.temporary.name, "checkpoint"), checkpoint_format)
        self.waiting: dict[int, IncrementalStateHandle] = {}
        self.run(large=True, take_up=False)

    def changed(self, large: bool) -> dict[str, int]:
        self.number += 1
        return dict.fromkeys(LARGE, self.number) if large else {"ann": self.number, "carl": self.number}

    @rule(large=st.booleans(), take_up=st.booleans())
    def run(self, large: bool, take_up: bool) -> None:
        bases = self.waiting if take_up else {}
        self.query.run(bases, **self.changed(large))
        if take_up:
            for partition, base in bases.items():
                # A snapshot that is newer than the one the chain started from was taken up.
                metadata = self.query.stores[partition].metadata(
                    self.name(len(self.query.states) - 1, partition)
                )
                assert metadata.handle.base_version >= base.version
            self.waiting = {}

    @rule(large=st.booleans(), partition=st.integers(0, 1))
    def run_with_a_lost_attempt(self, large: bool, partition: int) -> None:
        counts = self.changed(large)
        self.query.begin()
        self.query.commit(partition, self.changed(large))
        self.query.finish([self.query.commit(p, counts) for p in (0, 1)], counts)

    @rule(partition=st.integers(0, 1))
    def die_in_a_commit(self, partition: int) -> None:
        kill_in_commit(self.query, partition, self.changed(large=True))
        self.restart()

    def restart(self) -> None:
        self.query.stores = [self.query.open(0), self.query.open(1)]
        self.waiting = {}

    @rule(partition=st.integers(0, 1))
    def snapshot(self, partition: int) -> None:
        self.waiting[partition] = self.query.snapshot(partition)

    @rule(keep=st.integers(1, 3))
    def forget(self, keep: int) -> None:
        self.query.forget(max(0, len(self.query.states) - keep))

    @rule()
    def collect(self) -> None:
        # However old it is.
        report = gc(self.query.url, older_than=-DAY)
        assert not report.skipped

    @rule()
    def collect_while_stopped(self) -> None:
        self.restart()
        gc(self.query.url, stopped=True)
        assert gc(self.query.url, stopped=True).orphans == ()

    def name(self, batch: int, partition: int) -> CheckpointName:
        attempt_id = self.query.counted[batch][partition]
        return CheckpointName(batch + 1, attempt_id.id if self.query.format == 2 else None)

    @invariant()
    def every_batch_is_whole(self) -> None:
        if not hasattr(self, "query"):
            return
        for batch in range(len(self.query.states)):
            for partition in (0, 1):
                rows = load(self.query.open(partition), self.name(batch, partition))["default"]
                assert rows == self.query.partition_rows(partition, self.query.states[batch])

    def teardown(self) -> None:
        self.temporary.cleanup()


TestRunningQuery = RunningQuery.TestCase
TestRunningQuery.settings = settings(max_examples=12 * EFFORT, stateful_step_count=12)


@pytest.mark.parametrize("skew", [3 * DAY, -3 * DAY])
def test_gc_compares_ages_with_the_clock_of_the_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    query = StoredQuery(tmp_path / "checkpoint")
    query.run(**LARGE)
    with held_while(QueryCheckpoint(query.url), 0, "file:///holder"):
        query.put("state/0/0/chk-9_00000000000000aa/.inprogress.x", "young")
        clock = time.time
        monkeypatch.setattr(time, "time", lambda: clock() + skew)
        assert gc(query.url, dry_run=True).orphans == ()
        age(query, 2 * DAY + skew)
        reasons = [orphan.reason for orphan in gc(query.url).orphans]
        assert {"its version was not published", "the process that held it has ended"} <= set(reasons)


def test_gc_keeps_no_metadata_of_finished_stores(tmp_path: Path) -> None:
    query = StoredQuery(tmp_path / "checkpoint", partitions=4)
    for count in range(5):
        query.run(**{f"word{number}": count for number in range(40)})
    # What earlier tests have left does not count.
    garbage.collect()
    earlier_ids = set(map(id, metadata_in_memory()))
    leaks: list[CheckpointMetadata] = []

    def report(count: int, total: int) -> None:
        if count == total:
            leaks.extend(metadata for metadata in metadata_in_memory() if id(metadata) not in earlier_ids)

    gc(query.url, dry_run=True, progress=report)
    assert leaks == []


def metadata_in_memory() -> list[CheckpointMetadata]:
    return [candidate for candidate in garbage.get_objects() if isinstance(candidate, CheckpointMetadata)]

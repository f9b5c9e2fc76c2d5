"""Tests of holds against cleanups before, during and after them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_statestore.errors import (
    CheckpointIOError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    SavepointError,
)
from spark_statestore.query import QueryCheckpoint
from spark_statestore.savepoints.savepoint_holds import Hold, hold, list_holds
from spark_statestore.store.holds import holds_directory_of
from spark_statestore.store.metadata import StoreId
from spark_statestore.testing.faults import FaultInjectingFileSystem
from spark_statestore.testing.faults_plan import Fault
from tests.support.trees import files_below
from tests.unit.savepoints.written_query import LARGE, STORES, WrittenQuery, content, go_on, query_after

HOLDER = "file:///savepoints/x"

both_formats = pytest.mark.parametrize("with_ids", [False, True], ids=["v1", "v2"])


def test_cleanup_retains_streams_of_a_late_attempt(tmp_path: Path) -> None:
    query = query_after(str(tmp_path), 3)
    store = STORES[0]
    late = query.open(store)
    late.handle, late.attempt_id = query.instances[store].handle, query.instances[store].attempt_id
    query.run(whole=True)
    query.run()
    # Now this instance knows that its attempts count, and what they use.
    query.clean_up(4, store)
    query.batch = 2
    query.commit_store(store, {b"batch": b"3"}, instance=late)
    query.batch = 4
    new_hold = hold(query.checkpoint, 3, "mine", HOLDER)
    assert new_hold.attempts[store] == late.attempt_id
    expected = content(query.checkpoint, 3)
    for _ in range(3):
        query.run(whole=True)
    query.clean_up(1)
    # It is made of older versions' changes, and the attempt whose name it took was not.
    assert content(query.checkpoint, 3) == expected


def test_hold_retains_a_replaced_attempt_in_format_v1(tmp_path: Path) -> None:
    query = WrittenQuery(str(tmp_path))
    query.run(put={b"large": LARGE})
    query.run()
    new_hold = hold(query.checkpoint, 1, "mine", HOLDER)
    # The query is set back, and the batch has other rows this time.
    query.checkpoint.files.delete(query.checkpoint.path("commits/1"))
    query.set_back(0)
    query.run(put={b"another": b"1"})
    go_on(query, 4)
    query.restart()
    query.clean_up(1)
    view = QueryCheckpoint(str(tmp_path), attempts=new_hold.attempts)
    assert all(rows == {b"large": LARGE, b"batch": b"1"} for rows in content(view, 1).values())
    assert all(b"another" in rows for rows in content(query.checkpoint, 1).values())


@both_formats
def test_hold_refuses_a_version_that_may_be_discarded(tmp_path: Path, with_ids: bool) -> None:
    query = query_after(str(tmp_path), 6, with_ids)
    # Version 3 exists, but cleanups retain one version before the newest, since the query was started again
    # with another option.
    query.clean_up(4, STORES[0])
    query.restart()
    query.clean_up(1, STORES[0])
    before = files_below(tmp_path)
    for batch in (0, 2, 3):
        with pytest.raises(SavepointError, match=r"cannot be held: .* the state of batch 4 and later ones"):
            hold(query.checkpoint, batch, "mine", HOLDER)
    with pytest.raises(CheckpointNotFoundError, match="has no batch 6: it has the batches 0 to 5"):
        hold(query.checkpoint, 6, "mine", HOLDER)
    # From now on cleanups list holds.
    assert files_below(tmp_path).keys() - before.keys() == {"state/_holds/held"}


def test_hold_accepts_any_version_before_the_first_cleanup(tmp_path: Path) -> None:
    query = query_after(str(tmp_path), 4)
    assert [hold(query.checkpoint, batch, "mine", HOLDER).version for batch in range(4)] == [1, 2, 3, 4]


def test_hold_ignores_the_horizon_of_cleanups_of_last_week(tmp_path: Path) -> None:
    query = query_after(str(tmp_path), 3)
    query.clean_up(1)
    # Started again, the query retains more.
    query.restart()
    for _ in range(5):
        query.run()
        query.clean_up(100)
    with pytest.raises(SavepointError, match="the state of batch 6 and later ones"):
        hold(query.checkpoint, 3, "mine", HOLDER)
    age(query, "horizon-1", 8)
    query.clean_up(100)
    expected = content(query.checkpoint, 3)
    assert hold(query.checkpoint, 3, "mine", HOLDER).version == 4
    go_on(query)
    assert content(query.checkpoint, 3) == expected


@pytest.mark.parametrize("restarts", [True, False])
def test_cleanup_renews_the_horizon_that_it_relies_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    query = query_after(str(tmp_path), 6)
    query.clean_up(1, STORES[0])
    age(query, "horizon-1", 8)
    if restarts:
        query.restart()
    else:
        monotonic = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: monotonic() + 25 * 3600)
    query.clean_up(1, STORES[0])
    with pytest.raises(SavepointError, match="the state of batch 4 and later ones"):
        hold(query.checkpoint, 3, "mine", HOLDER)


def age(query: WrittenQuery, name: str, days: float) -> None:
    then = time.time() - days * 24 * 3600
    os.utime(query.checkpoint.path(f"state/_holds/{name}"), (then, then))


def roll_back_by_hand(query: WrittenQuery, *batches: int) -> None:
    for batch in batches:
        query.write(f"rolled-back/20260101T000000Z/commits/{batch}", b"")
        query.checkpoint.files.delete(query.checkpoint.path(f"commits/{batch}"))


def test_hold_counts_rolled_back_batches(tmp_path: Path) -> None:
    query = query_after(str(tmp_path), 6)
    query.clean_up(3)
    roll_back_by_hand(query, 4, 5)
    assert hold(query.checkpoint, 2, "mine", HOLDER).version == 3
    with pytest.raises(SavepointError, match="the state of batch 2 and later"):
        hold(query.checkpoint, 1, "mine", HOLDER)


def test_hold_refuses_the_newest_batch_if_a_cleanup_may_not_know_of_the_rollback(tmp_path: Path) -> None:
    query = query_after(str(tmp_path), 6)
    query.clean_up(1, STORES[0])
    roll_back_by_hand(query, 4, 5)
    with pytest.raises(SavepointError, match=r"after 3 were rolled back.* canonical .* batch 4 once"):
        hold(query.checkpoint, 3, "mine", HOLDER)
    query.set_back(3)
    query.run()
    assert hold(query.checkpoint, 4, "mine", HOLDER).version == 5


@pytest.mark.parametrize("part", ["metadata", "shared"])
def test_hold_refuses_an_incomplete_version(tmp_path: Path, part: str) -> None:
    query = WrittenQuery(str(tmp_path))
    query.run(put={b"large": LARGE})
    query.run()
    (victim,) = (
        (tmp_path / "state/0/1/shared").glob("1-*")
        if part == "shared"
        else (tmp_path / "state/0/1/chk-2").iterdir()
    )
    victim.unlink()
    error = CorruptCheckpointError if part == "shared" else CheckpointNotFoundError
    with pytest.raises(error, match="operator 0, partition 1, store default, version 2"):
        hold(query.checkpoint, 1, "mine", HOLDER)
    assert list_holds(query.checkpoint) == []


def test_store_outside_of_a_query_has_no_holds() -> None:
    assert holds_directory_of("/c/state/0/3", StoreId(0, 3)) == "/c/state/_holds"
    assert holds_directory_of("/c/state/0/3/left/", StoreId(0, 3, "left")) == "/c/state/_holds"
    assert holds_directory_of("/c/state/0/3", StoreId(0, 3, "left")) is None
    assert holds_directory_of("/c/state/0/4", StoreId(0, 3)) is None


def test_cleanup_without_holds_writes_and_lists_nothing(tmp_path: Path) -> None:
    fs = FaultInjectingFileSystem()
    query = query_after(fs.url("checkpoint"), 3)
    store = STORES[0]
    query.clean_up(1, store)
    query.run(whole=True)
    query.run()
    fs.inject()
    assert query.clean_up(1, store) > 0
    calls = [(call.operation, call.path.partition("checkpoint/state/")[2]) for call in fs.calls]
    assert [path for operation, path in calls if operation == "cat_file" and "_holds" in path] == [
        "_holds/held"
    ]
    assert {operation for operation, _ in calls} == {"cat_file", "rm_file", "rmdir"}


@pytest.mark.parametrize("marked", ["", "by another store", "by this store"])
def test_cleanup_discards_nothing_if_holds_cannot_be_listed(marked: str) -> None:
    fs = FaultInjectingFileSystem()
    query = WrittenQuery(fs.url("checkpoint"))
    for _ in range(4):
        query.run(whole=True)
    if marked:
        query.clean_up(1, STORES[marked == "by this store"])
    # In a trial run: the calls that list holds or write the horizon marker.
    fs.inject()
    query.clean_up(1, STORES[1])
    looks = [call.number for call in fs.calls if "_holds" in call.path and call.operation != "makedirs"]
    # A missing directory is listed, and looked for.
    assert len(looks) == (1 if marked else 4)
    for at in looks:
        query.run(whole=True)
        if marked != "by this store":
            query.restart()
        if not marked:
            for marker in [path for path in fs.wrapped.find("") if "horizon-" in path]:
                fs.wrapped.rm(marker)
        chosen = set(fs.wrapped.find(""))
        fs.inject(Fault("fail", at))
        with pytest.raises(CheckpointIOError, match="no retained version was changed"):
            query.clean_up(1, STORES[1])
        fs.inject()
        assert chosen <= set(fs.wrapped.find(""))


class Meeting:
    """A cleanup and a concurrent hold, either of which may be delayed between any two storage calls."""

    def __init__(self, with_ids: bool, batch: int, marked: str) -> None:
        self.fs = FaultInjectingFileSystem()
        self.batch = batch
        # One store cleans up; the other one, or itself, has done so before.
        operators = {0: ("stateStoreSave", 2, ("default",))}
        self.query = WrittenQuery(self.fs.url("checkpoint"), with_ids, operators=operators)
        rows_by_batch = []
        for whole in (False, True, False, False):
            self.query.run(put={b"large": LARGE + bytes([len(rows_by_batch)])}, whole=whole)
            rows_by_batch.append(dict(self.query.rows))
        if marked:
            self.query.clean_up(2, STORES[marked == "by another store"])
        self.rows = rows_by_batch[batch]
        self.new_hold: Hold | None = None
        self.refused = ""

    def clean_up(self) -> None:
        self.query.clean_up(2, STORES[0])

    def hold(self) -> None:
        try:
            self.new_hold = hold(self.query.checkpoint, self.batch, "mine", HOLDER)
        except (SavepointError, CheckpointNotFoundError, CorruptCheckpointError) as error:
            self.refused = str(error)

    def check(self) -> None:
        assert (self.new_hold is None) == bool(self.refused)
        for _ in range(2):
            self.query.run(whole=True)
        self.query.clean_up(2)
        if self.new_hold is not None:
            assert content(self.query.checkpoint, self.batch) == self.rows
        else:
            assert list_holds(self.query.checkpoint) == []


def meet(
    fs: FaultInjectingFileSystem, first: Callable[[], None], second: Callable[[], None], at: int, until: int
) -> None:
    """Suspend the first at a call, and the second at a call of its own until the first has ended."""
    stopped, go_on = threading.Event(), threading.Event()
    failed: list[BaseException] = []

    def run_second() -> None:
        try:
            second()
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)
        finally:
            stopped.set()

    thread = threading.Thread(target=run_second)

    def wait() -> None:
        if threading.current_thread() is thread:
            stopped.set()
            assert go_on.wait(30)

    def come() -> None:
        fs.inject_more(Fault("run", at + until, function=wait))
        thread.start()
        assert stopped.wait(30)

    fs.inject(Fault("run", at, function=come))
    first()
    go_on.set()
    if thread.ident is not None:
        thread.join(30)
    else:
        second()
    fs.inject()
    if failed:
        raise failed[0]


def calls_of(meeting: Meeting, do: Callable[[], None]) -> int:
    meeting.fs.inject()
    do()
    return len(meeting.fs.calls)


@pytest.mark.parametrize("marked", ["", "by another store", "by this store"])
@pytest.mark.parametrize("batch", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_hold_and_concurrent_cleanup_are_consistent(batch: int, marked: str) -> None:
    cleaning = calls_of(meeting := Meeting(True, batch, marked), meeting.clean_up)
    holding = calls_of(meeting := Meeting(True, batch, marked), meeting.hold)
    outcomes = set()
    for at in range(1, cleaning + 1):
        for until in (1, holding // 2, holding + 1):
            meeting = Meeting(True, batch, marked)
            meet(meeting.fs, meeting.clean_up, meeting.hold, at, until)
            meeting.check()
            outcomes.add(meeting.new_hold is not None)
    for at in range(1, holding + 1):
        meeting = Meeting(True, batch, marked)
        meet(meeting.fs, meeting.hold, meeting.clean_up, at, cleaning + 1)
        meeting.check()
        outcomes.add(meeting.new_hold is not None)
    # Of the oldest batch the state may be on its way out, of the next one it is not yet.
    assert outcomes == ({True} if batch else {False} if marked else {False, True})

"""Pins keep a batch's state from clean-ups, whenever they come."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_statestore.checkpoint.metadata import StoreId
from spark_statestore.checkpoint.pins import pins_directory_of
from spark_statestore.errors import (
    CheckpointIOError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    SavepointError,
)
from spark_statestore.savepoint.pins import Pin, list_pins, pin
from spark_statestore.testing.faults import Fault, FaultInjectingFileSystem
from tests.savepoint.written import LARGE, STORES, WrittenQuery, content
from tests.trees import files_below

HOLDER = "file:///savepoints/x"

both_formats = pytest.mark.parametrize("with_ids", [False, True], ids=["v1", "v2"])


def names(pins: list[Pin]) -> list[str]:
    return [pin.name for pin in pins]


@both_formats
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_pinned_version_stays_with_all_that_it_is_made_of(
    tmp_path: Path, with_ids: bool, elsewhere: bool
) -> None:
    directory = str(tmp_path / "state") if elsewhere else None
    query = WrittenQuery(str(tmp_path / "checkpoint"), with_ids, directory)
    # A base in a file of its own, and changes inside of other versions' metadata.
    query.run(put={b"large": LARGE})
    for _ in range(3):
        query.run()
    wanted = {store: dict(rows) for store, rows in query.rows.items()}
    pinned = pin(query.checkpoint, 3, "mine", HOLDER)
    assert pinned.version == 4
    assert (names(list_pins(query.checkpoint)), pinned.holder()) == (["4-mine"], HOLDER)
    for _ in range(4):
        query.run(whole=True)
        query.clean_up(1)
    # Also for somebody who knows nothing of what is there.
    query.restart()
    query.clean_up(1)
    assert content(query.checkpoint, 3) == wanted
    with pytest.raises(CheckpointNotFoundError):
        content(query.checkpoint, 5)
    pinned.remove()
    query.run()
    assert query.clean_up(1) > 0
    with pytest.raises(CheckpointNotFoundError):
        content(query.checkpoint, 3)
    query.restart()
    assert query.clean_up(1) == 0


def test_a_clean_up_finds_out_what_a_version_uses_that_others_pinned_and_wrote(tmp_path: Path) -> None:
    query = WrittenQuery(str(tmp_path))
    for _ in range(3):
        query.run()
    store = STORES[0]
    mine = query.instances[store]
    query.clean_up(2)
    # Another executor runs the same batch again, and its attempt counts: its state is in a file of its own.
    other = query.open(store)
    metadata = other.store.load(mine.name)
    query.batch -= 1
    other.handle, other.attempt = metadata.handle, metadata.parent_attempt
    query.commit_store(store, {b"large": LARGE}, instance=other, whole=True)
    query.batch += 1
    pinned = pin(query.checkpoint, 2, "mine", HOLDER)
    assert pinned.attempts[store] == other.attempt
    wanted = content(query.checkpoint, 2)
    assert wanted[store][b"large"] == LARGE
    for _ in range(4):
        query.run(whole=True)
    query.clean_up(1)
    assert content(query.checkpoint, 2) == wanted


def test_a_clean_up_finds_out_what_an_attempt_uses_that_came_late(tmp_path: Path) -> None:
    query = WrittenQuery(str(tmp_path))
    for _ in range(3):
        query.run()
    store = STORES[0]
    late = query.open(store)
    late.handle, late.attempt = query.instances[store].handle, query.instances[store].attempt
    query.run(whole=True)
    query.run()
    # Now this instance knows that its attempts count, and what they use.
    query.clean_up(4, store)
    query.batch = 2
    query.commit_store(store, {b"batch": b"3"}, instance=late)
    query.batch = 4
    pinned = pin(query.checkpoint, 3, "mine", HOLDER)
    assert pinned.attempts[store] == late.attempt
    wanted = content(query.checkpoint, 3)
    for _ in range(3):
        query.run(whole=True)
    query.clean_up(1)
    # It is made of older versions' changes, and the attempt whose name it took was not.
    assert content(query.checkpoint, 3) == wanted


def test_in_format_v1_the_attempt_that_was_pinned_stays_when_another_takes_its_name(tmp_path: Path) -> None:
    query = WrittenQuery(str(tmp_path))
    query.run(put={b"large": LARGE})
    query.run()
    pinned = pin(query.checkpoint, 1, "mine", HOLDER)
    # The query is set back, and the batch has other rows this time.
    query.checkpoint.files.delete(query.checkpoint.path("commits/1"))
    query.batch, query.rows = 0, content(query.checkpoint, 0)
    query.restart()
    query.run(put={b"another": b"1"})
    for _ in range(4):
        query.run(whole=True)
        query.clean_up(1)
    query.restart()
    query.clean_up(1)
    for store, attempt in pinned.attempts.items():
        assert query.checkpoint.open(store).metadata(query.checkpoint.stores(1)[0].name, attempt).version == 2
    from spark_statestore.checkpoint.query import QueryCheckpoint

    view = QueryCheckpoint(str(tmp_path), attempts=pinned.attempts)
    assert all(rows == {b"large": LARGE, b"batch": b"1"} for rows in content(view, 1).values())
    assert all(b"another" in rows for rows in content(query.checkpoint, 1).values())


@both_formats
def test_what_is_too_late_to_pin_is_not_pinned(tmp_path: Path, with_ids: bool) -> None:
    query = WrittenQuery(str(tmp_path), with_ids)
    for _ in range(6):
        query.run()
    # Version 3 is there, but clean-ups keep one version before the newest.
    query.clean_up(1, STORES[0])
    before = files_below(tmp_path)
    for batch in (0, 2, 3):
        with pytest.raises(SavepointError, match=r"cannot be pinned: .* the state of batch 4 and later ones"):
            pin(query.checkpoint, batch, "mine", HOLDER)
    with pytest.raises(CheckpointNotFoundError, match="has no batch 6: it has the batches 0 to 5"):
        pin(query.checkpoint, 6, "mine", HOLDER)
    # From now on clean-ups look for pins.
    assert files_below(tmp_path).keys() - before.keys() == {"state/_pins/pinned"}


def test_nothing_was_discarded_yet_so_that_all_can_be_pinned(tmp_path: Path) -> None:
    query = WrittenQuery(str(tmp_path))
    for _ in range(4):
        query.run()
    assert [pin(query.checkpoint, batch, "mine", HOLDER).version for batch in range(4)] == [1, 2, 3, 4]


def test_what_was_rolled_back_counts_among_the_batches_that_clean_ups_know(tmp_path: Path) -> None:
    query = WrittenQuery(str(tmp_path))
    for _ in range(6):
        query.run()
    query.clean_up(3)
    for batch in (4, 5):
        query.write(f"rolled-back/20260101T000000Z/commits/{batch}", b"")
        query.checkpoint.files.delete(query.checkpoint.path(f"commits/{batch}"))
    assert pin(query.checkpoint, 2, "mine", HOLDER).version == 3
    with pytest.raises(SavepointError, match="batch 2 and later"):
        pin(query.checkpoint, 1, "mine", HOLDER)


@pytest.mark.parametrize("of", ["metadata", "shared"])
def test_what_is_incomplete_is_not_pinned(tmp_path: Path, of: str) -> None:
    query = WrittenQuery(str(tmp_path))
    query.run(put={b"large": LARGE})
    query.run()
    (victim,) = (
        (tmp_path / "state/0/1/shared").glob("1-*")
        if of == "shared"
        else (tmp_path / "state/0/1/chk-2").iterdir()
    )
    victim.unlink()
    error = CorruptCheckpointError if of == "shared" else CheckpointNotFoundError
    with pytest.raises(error, match="operator 0, partition 1, store default, version 2"):
        pin(query.checkpoint, 1, "mine", HOLDER)
    assert list_pins(query.checkpoint) == []


def test_a_store_outside_of_a_query_has_no_pins() -> None:
    assert pins_directory_of("/c/state/0/3", StoreId(0, 3)) == "/c/state/_pins"
    assert pins_directory_of("/c/state/0/3/left/", StoreId(0, 3, "left")) == "/c/state/_pins"
    assert pins_directory_of("/c/state/0/3", StoreId(0, 3, "left")) is None
    assert pins_directory_of("/c/state/0/4", StoreId(0, 3)) is None


def test_without_pins_nothing_is_written_or_listed(tmp_path: Path) -> None:
    fs = FaultInjectingFileSystem()
    query = WrittenQuery(fs.url("checkpoint"))
    for _ in range(3):
        query.run()
    store = STORES[0]
    query.clean_up(1, store)
    query.run(whole=True)
    query.run()
    fs.inject()
    assert query.clean_up(1, store) > 0
    calls = [(call.operation, call.path.partition("checkpoint/state/")[2]) for call in fs.calls]
    assert [path for operation, path in calls if operation == "cat_file" and "_pins" in path] == [
        "_pins/pinned"
    ]
    assert {operation for operation, _ in calls} == {"cat_file", "rm_file", "rmdir"}


@pytest.mark.parametrize("marked", ["", "by another store", "by this store"])
def test_where_pins_cannot_be_seen_nothing_is_discarded(marked: str) -> None:
    fs = FaultInjectingFileSystem()
    query = WrittenQuery(fs.url("checkpoint"))
    for _ in range(4):
        query.run(whole=True)
    if marked:
        query.clean_up(1, STORES[marked == "by this store"])
    # In a trial run: the calls that look for pins or leave the mark.
    fs.inject()
    query.clean_up(1, STORES[1])
    looks = [call.number for call in fs.calls if "_pins" in call.path and call.operation != "makedirs"]
    assert len(looks) == (1 if marked else 3)
    for at in looks:
        query.run(whole=True)
        if marked != "by this store":
            query.restart()
        if not marked:
            for mark in [path for path in fs.wrapped.find("") if "keeps-" in path]:
                fs.wrapped.rm(mark)
        chosen = set(fs.wrapped.find(""))
        fs.inject(Fault("fail", at))
        with pytest.raises(CheckpointIOError, match="nothing that is needed was removed"):
            query.clean_up(1, STORES[1])
        fs.inject()
        assert chosen <= set(fs.wrapped.find(""))


class Meeting:
    """A clean-up and a pin at once, each of which may be held up between any two calls to storage."""

    def __init__(self, with_ids: bool, batch: int, marked: str) -> None:
        self.fs = FaultInjectingFileSystem()
        self.batch = batch
        # One store cleans up; the other one, or itself, has done so before.
        operators = {0: ("stateStoreSave", 2, ("default",))}
        self.query = WrittenQuery(self.fs.url("checkpoint"), with_ids, operators=operators)
        wanted = []
        for whole in (False, True, False, False):
            self.query.run(put={b"large": LARGE + bytes([len(wanted)])}, whole=whole)
            wanted.append(dict(self.query.rows))
        if marked:
            self.query.clean_up(2, STORES[marked == "by another store"])
        self.wanted = wanted[batch]
        self.pinned: Pin | None = None
        self.refused = ""

    def clean_up(self) -> None:
        self.query.clean_up(2, STORES[0])

    def pin(self) -> None:
        try:
            self.pinned = pin(self.query.checkpoint, self.batch, "mine", HOLDER)
        except (SavepointError, CheckpointNotFoundError, CorruptCheckpointError) as error:
            self.refused = str(error)

    def check(self) -> None:
        assert (self.pinned is None) == bool(self.refused)
        for _ in range(2):
            self.query.run(whole=True)
        self.query.clean_up(2)
        if self.pinned is not None:
            assert content(self.query.checkpoint, self.batch) == self.wanted
        else:
            assert list_pins(self.query.checkpoint) == []


def meet(
    fs: FaultInjectingFileSystem, first: Callable[[], None], second: Callable[[], None], at: int, until: int
) -> None:
    """Hold the first one up at a call; the second one comes and is held up at a call itself until the first has ended."""
    stopped, go_on = threading.Event(), threading.Event()
    failed: list[BaseException] = []

    def other() -> None:
        try:
            second()
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)
        finally:
            stopped.set()

    thread = threading.Thread(target=other)

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
@pytest.mark.parametrize("batch", [0, 1])
def test_a_pin_and_a_clean_up_never_miss_each_other(batch: int, marked: str) -> None:
    cleaning = calls_of(one := Meeting(True, batch, marked), one.clean_up)
    pinning = calls_of(one := Meeting(True, batch, marked), one.pin)
    outcomes = set()
    for at in range(1, cleaning + 1):
        for until in (1, pinning // 2, pinning + 1):
            meeting = Meeting(True, batch, marked)
            meet(meeting.fs, meeting.clean_up, meeting.pin, at, until)
            meeting.check()
            outcomes.add(meeting.pinned is not None)
    for at in range(1, pinning + 1):
        meeting = Meeting(True, batch, marked)
        meet(meeting.fs, meeting.pin, meeting.clean_up, at, cleaning + 1)
        meeting.check()
        outcomes.add(meeting.pinned is not None)
    # Of the oldest batch the state may be on its way out, of the next one it is not yet.
    assert outcomes == ({True} if batch else {False} if marked else {False, True})

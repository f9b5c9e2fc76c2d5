"""Two instances commit one version concurrently, paused between any two calls to storage.

Files appear atomically here, as on object stores and on local disks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from spark_statestore.storage import CheckpointName
from spark_statestore.store.commit import Committed
from spark_statestore.testing.faults_plan import Fault
from tests.unit.store.fault_bench import LARGE, MODELS, Bench, Rows
from tests.unit.store.stores import attempt_id, commit, rows_of

ONE, TWO, THREE = (CheckpointName(version) for version in (1, 2, 3))
WAIT = 30


class Race:
    """A bench with a first version, and two instances that commit on top of it."""

    def __init__(self, rows: Rows, *, replacing: bool) -> None:
        self.bench = Bench(MODELS["objects"])
        self.bench.commit(1, {b"a": b"1"})
        if replacing:
            self.bench.commit(2, {b"old": b"2"}, on=1, store=self.bench.instance())
            self.bench.commit(3, {b"e": b"3"}, on=2, store=self.bench.instance())
        self.rows = [{b"writer": b"%d" % number} | rows for number in range(2)]
        self.stores = [self.bench.instance() for _ in range(2)]
        self.attempts = [attempt_id() for _ in range(2)]
        self.done: list[Committed | None] = [None, None]

    def commit(self, number: int) -> None:
        self.done[number] = commit(
            self.stores[number],
            TWO,
            self.rows[number],
            parent=self.bench.handles[ONE],
            by=self.attempts[number],
        )

    def run(self, pause_first: int, pause_second: int) -> None:
        """Suspend the first at a call, run the second up to a call, then finish both in this order."""
        fs = self.bench.fs
        reached, may_end = threading.Event(), threading.Event()
        failed: list[BaseException] = []

        def second() -> None:
            try:
                self.commit(1)
            except BaseException as error:  # noqa: BLE001 - raised below
                failed.append(error)
            finally:
                reached.set()

        thread = threading.Thread(target=second)

        def wait() -> None:
            # If the second one makes fewer calls, it is the first one that comes here.
            if threading.current_thread() is thread:
                reached.set()
                assert may_end.wait(WAIT)

        def start() -> None:
            # Until it waits, all calls are the second one's.
            fs.inject_more(Fault("run", pause_first + pause_second, function=wait))
            thread.start()
            assert reached.wait(WAIT)

        fs.inject(Fault("run", pause_first, function=start))
        try:
            self.commit(0)
        finally:
            may_end.set()
            thread.join(WAIT)
        if failed:
            raise failed[0]

    def check(self) -> None:
        fresh = self.bench.instance()
        base = self.bench.promised[ONE]
        assert rows_of(fresh, TWO) in [base | rows for rows in self.rows]
        # The version that builds on what was there before.
        if THREE in self.bench.promised:
            assert rows_of(fresh, THREE) == self.bench.promised[THREE]
        # Each continues from its own version, whichever of them is found.
        for number, done in enumerate(self.done):
            assert done is not None
            four = CheckpointName(4 + number)
            commit(self.stores[number], four, {b"f": b"4"}, parent=done.handle)
            assert rows_of(self.bench.instance(), four) == base | self.rows[number] | {b"f": b"4"}
        # And what is left over goes in the end.
        self.bench.store = self.bench.instance()
        self.bench.tidy()


def calls_of(build: Callable[[], Race]) -> int:
    race = build()
    race.bench.fs.inject()
    race.commit(0)
    calls = len(race.bench.fs.calls)
    race.bench.remove()
    return calls


@pytest.mark.parametrize("replacing", [False, True], ids=["new", "replacing"])
@pytest.mark.parametrize("rows", [{}, LARGE], ids=["small", "large"])
def test_concurrent_commits_of_one_version_publish_one_and_keep_both(rows: Rows, replacing: bool) -> None:
    def build() -> Race:
        return Race(rows, replacing=replacing)

    calls = calls_of(build)
    for first in range(1, calls + 1):
        # A commit that finds another one makes a few more.
        for second in range(1, calls + 8, 2 if replacing else 1):
            race = build()
            try:
                race.run(first, second)
                race.check()
            except BaseException as error:
                error.add_note(f"first paused at {first}, second at {second}")
                error.add_note("; ".join(str(call) for call in race.bench.fs.calls))
                error.add_note(", ".join(race.bench.files()))
                raise
            race.bench.remove()

"""Two instances commit one version concurrently, paused between any two calls to storage.

Files appear atomically here, as on object stores and on local disks.
"""

from __future__ import annotations

import pytest

from spark_statestore.storage import CheckpointName
from spark_statestore.store.commit import Committed
from tests.unit.store.fault_bench import LARGE, MODELS, Bench, Rows
from tests.unit.store.interleaving import Pair, interleavings
from tests.unit.store.stores import commit, rows_of

ONE, TWO, THREE = (CheckpointName(version) for version in (1, 2, 3))


class Race(Pair[Bench]):
    """Two instances that commit on top of a first version."""

    def __init__(self, rows: Rows, *, replacing: bool) -> None:
        bench = Bench(MODELS["objects"])
        super().__init__(bench, lambda: self.commit(0), lambda: self.commit(1))
        bench.commit(1, {b"a": b"1"})
        if replacing:
            bench.commit(2, {b"old": b"2"}, on=1, store=bench.instance())
            bench.commit(3, {b"e": b"3"}, on=2, store=bench.instance())
        self.rows = [{b"writer": b"%d" % number} | rows for number in range(2)]
        self.stores = [bench.instance() for _ in range(2)]
        self.commits: dict[int, Committed] = {}

    def commit(self, number: int) -> None:
        parent = self.world.handles[ONE]
        self.commits[number] = commit(self.stores[number], TWO, self.rows[number], parent=parent)

    def check(self) -> None:
        assert not self.failed
        bench, fresh = self.world, self.world.instance()
        base = bench.promised[ONE]
        assert rows_of(fresh, TWO) in [base | rows for rows in self.rows]
        # The version that builds on what was there before.
        if THREE in bench.promised:
            assert rows_of(fresh, THREE) == bench.promised[THREE]
        # Each continues from its own version, whichever of them is found.
        for number, committed in self.commits.items():
            four = CheckpointName(4 + number)
            commit(self.stores[number], four, {b"f": b"4"}, parent=committed.handle)
            assert rows_of(bench.instance(), four) == base | self.rows[number] | {b"f": b"4"}
        # And what is left over goes in the end.
        bench.store = bench.instance()
        bench.tidy()


@pytest.mark.parametrize("replacing", [False, True], ids=["new", "replacing"])
@pytest.mark.parametrize("rows", [{}, LARGE], ids=["small", "large"])
def test_concurrent_commits_of_one_version_publish_one_and_keep_both(rows: Rows, replacing: bool) -> None:
    for race, _, _ in interleavings(lambda: Race(rows, replacing=replacing), 2 if replacing else 1):
        race.check()

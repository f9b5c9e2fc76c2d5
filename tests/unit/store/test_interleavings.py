"""Commits and cleanups of several instances, interleaved at every call to storage.

Each counterexample that tests/model finds for a missing precaution is replayed here on the real store.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_statestore.errors import CheckpointExistsError
from spark_statestore.storage import METADATA_FILE_NAME, CheckpointName
from spark_statestore.store.cleanup import discard_versions
from spark_statestore.store.commit import Committed
from spark_statestore.testing.faults import FaultInjectingFileSystem
from tests.unit.store.fault_bench import MODELS, Bench
from tests.unit.store.interleaving import LARGE, Pair, Rows, World, interleavings
from tests.unit.store.stores import attempt_id, commit, rows_of, snapshot

RETAINED = 1
ONE, TWO, THREE = (CheckpointName(version) for version in (1, 2, 3))

FS = FaultInjectingFileSystem()

both_formats = pytest.mark.parametrize("with_ids", [False, True], ids=["v1", "v2"])
both_sizes = pytest.mark.parametrize("put", [{b"n": b"1"}, {b"n": LARGE}], ids=["small", "large"])


def went_well(build: Callable[[], Pair], since: int = 1) -> None:
    """Let two operations meet in every way."""
    met = False
    for pair, _, _ in interleavings(build):
        assert not pair.failed
        pair.world.check(since)
        met = True
    assert met


# A slow executor


def slow_task(put: Rows, with_ids: bool) -> Pair:
    """Build a pair: a suspended task of batch 1, and the query that continues without it."""
    world = World(with_ids, FS)
    world.batch(world.instance(), 1, {b"a": LARGE})
    slow = world.instance()
    slow.load(world.names[1])

    def continue_query() -> None:
        store = world.instance()
        for version in (2, 3):
            world.batch(store, version, {b"new": b"%d" % version})

    return Pair(world, lambda: world.commit(slow, 2, put), continue_query)


@both_sizes
@both_formats
def test_resumed_task_of_a_committed_batch_changes_nothing(put: Rows, with_ids: bool) -> None:
    outcomes = []
    for pair, first, _ in interleavings(lambda: slow_task(put, with_ids)):
        world = pair.world
        late = rows_of(world.instance(), world.names[2]) != world.rows_at_commit[2]
        if late:
            # The remaining window: it was suspended between the check of the commit log and the write.
            stopped = pair.calls[first - 1]
            assert not with_ids
            assert (stopped.operation, stopped.path.rpartition("/")[2]) == ("pipe_file", METADATA_FILE_NAME)
            world.rows_at_commit[2] = world.rows[CheckpointName(2)]
        assert set(pair.failed) <= {"first"}
        assert all(isinstance(error, CheckpointExistsError) for error in pair.failed.values())
        outcomes.append("late" if late else "refused" if pair.failed else "in time")
        world.check()
    assert "in time" in outcomes
    assert ("refused" in outcomes) == (not with_ids)
    assert outcomes.count("late") <= len(outcomes) // 5


# Cleanups of another instance


def old_instance(world: World, *, knows_all: bool) -> Callable[[], int]:
    """Return the cleanup of an instance whose last version is 3."""
    old = world.instance()
    name = world.names[3]
    old.load(name)
    by = world.attempts[name]
    if knows_all:
        discard_versions(old, name, by, 1, 0)
    return lambda: discard_versions(old, name, by, 3 - RETAINED, 0)


def three_batches(with_ids: bool, *, whole: int = 0) -> World:
    world = World(with_ids, FS)
    store = world.instance()
    for version, put in enumerate(({b"a": LARGE}, {b"b": b"2"}, {b"c": LARGE}), 1):
        world.batch(store, version, put, whole=version == whole)
    return world


def slow_snapshot(with_ids: bool) -> Pair:
    """A commit uses a snapshot that was begun before it grew old, while another executor cleans up."""
    world = World(with_ids, FS)
    store = world.instance()
    world.batch(store, 1, {b"a": LARGE})
    world.batch(store, 2, {b"b": b"2"})
    base = snapshot(store, 2, world.rows_at_commit[2])
    for version in (3, 4):
        world.batch(store, version, {b"c": b"%d" % version})
    other_instance = world.instance()
    name = world.names[4]
    other_instance.load(name)
    newest_by = world.attempts[name]

    def commits() -> None:
        by = attempt_id()
        world.commit(store, 5, {b"d": b"5"}, base=base, retained=RETAINED, by=by)
        world.log_commit(CheckpointName(5, by if with_ids else None))

    return Pair(world, lambda: discard_versions(other_instance, name, newest_by, 4 - RETAINED, 0), commits)


@both_formats
def test_cleanup_of_another_instance_discards_no_snapshot_in_use(with_ids: bool) -> None:
    went_well(lambda: slow_snapshot(with_ids), since=4 - RETAINED)


@both_sizes
@both_formats
@pytest.mark.parametrize("knows_all", [False, True], ids=["lists", "knows"])
def test_cleanup_of_an_old_instance_spares_a_concurrent_commit(
    put: Rows, with_ids: bool, knows_all: bool
) -> None:
    def build() -> Pair:
        world = three_batches(with_ids, whole=3)
        cleans = old_instance(world, knows_all=knows_all)
        new = world.instance()

        def commits() -> None:
            for version in (4, 5):
                world.batch(new, version, put)

        return Pair(world, cleans, commits)

    went_well(build, since=3 - RETAINED)


@both_sizes
def test_cleanup_of_an_old_instance_spares_a_retried_commit(put: Rows) -> None:
    """In checkpoint format v1 two attempts take the name of one version in turn."""

    def build() -> Pair:
        world = three_batches(False, whole=3)
        cleans = old_instance(world, knows_all=True)
        world.commit(world.instance(), 4, {b"failed": LARGE})

        def commits() -> None:
            new = world.instance()
            new.load(world.names[3])
            for version in (4, 5):
                world.batch(new, version, put)

        return Pair(world, cleans, commits)

    went_well(build, since=3 - RETAINED)


@both_formats
def test_concurrent_cleanups_keep_retained_versions(with_ids: bool) -> None:
    def build() -> Pair:
        world = three_batches(with_ids, whole=3)
        cleans = old_instance(world, knows_all=False)
        new = world.instance()
        for version in (4, 5):
            world.batch(new, version, {b"n": LARGE}, whole=version == 5)
        newest = world.names[5]
        return Pair(
            world, cleans, lambda: discard_versions(new, newest, world.attempts[newest], 5 - RETAINED, 0)
        )

    went_well(build, since=5 - RETAINED)


@both_formats
def test_retained_version_can_be_read_during_a_cleanup(with_ids: bool) -> None:
    def build() -> Pair:
        world = three_batches(with_ids, whole=3)
        reader = world.instance()

        def reads() -> None:
            for version in (2, 3):
                assert rows_of(reader, world.names[version]) == world.rows_at_commit[version]

        return Pair(world, old_instance(world, knows_all=False), reads)

    went_well(build, since=3 - RETAINED)


@both_sizes
def test_version_can_be_read_while_another_attempt_replaces_it(put: Rows) -> None:
    def build() -> Pair:
        world = three_batches(False)
        world.commit(world.instance(), 4, {b"old": LARGE}, by="00000000000000aa")
        name = CheckpointName(4)
        reader, old = world.instance(), world.rows[name]

        def reads() -> None:
            assert rows_of(reader, name) in (old, world.rows_at_commit[3] | put)

        return Pair(world, reads, lambda: world.commit(world.instance(), 4, put))

    went_well(build)


# Two commits of one version


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
@pytest.mark.parametrize(
    "rows",
    [pytest.param({}, id="small"), pytest.param({b"large": LARGE}, id="large", marks=pytest.mark.slow)],
)
def test_concurrent_commits_of_one_version_publish_one_and_keep_both(rows: Rows, replacing: bool) -> None:
    for race, _, _ in interleavings(lambda: Race(rows, replacing=replacing), 2 if replacing else 1):
        race.check()

"""Slow executors, and maintenance of an old instance beside a new one, stopped at every call.

Where the model of tests/model found what goes wrong when a precaution is left out, the meeting is here.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_statestore.checkpoint.storage import METADATA_FILE_NAME, CheckpointName
from spark_statestore.errors import CheckpointExistsError
from spark_statestore.testing.faults import FaultInjectingFileSystem
from tests.checkpoint.interleaving import LARGE, Pair, Rows, World, meetings
from tests.checkpoint.stores import attempt, rows_of, snapshot

RETAINED = 1

FS = FaultInjectingFileSystem()

both_formats = pytest.mark.parametrize("with_ids", [False, True], ids=["v1", "v2"])
both_sizes = pytest.mark.parametrize("put", [{b"n": b"1"}, {b"n": LARGE}], ids=["small", "large"])


def went_well(build: Callable[[], Pair], since: int = 1) -> int:
    """Let two operations meet in every way; returns in how many."""
    met = 0
    for pair, _, _ in meetings(build):
        assert not pair.failed
        pair.world.check(since)
        met += 1
    assert met
    return met


# A slow executor


def slow_task(put: Rows, with_ids: bool) -> Pair:
    """A task of batch 1 that sleeps while the query goes on without it."""
    world = World(with_ids, FS)
    world.batch(world.instance(), 1, {b"a": LARGE})
    slow = world.instance()
    slow.load(world.names[1])

    def goes_on() -> None:
        store = world.instance()
        for version in (2, 3):
            world.batch(store, version, {b"new": b"%d" % version})

    return Pair(world, lambda: world.commit(slow, 2, put), goes_on)


@both_sizes
@both_formats
def test_a_task_that_wakes_when_its_partition_has_moved_on_changes_nothing(put: Rows, with_ids: bool) -> None:
    outcomes = []
    for pair, first, _ in meetings(lambda: slow_task(put, with_ids)):
        world = pair.world
        late = rows_of(world.instance(), world.names[2]) != world.found[2]
        if late:
            # The window that is left: it had asked whether it is too late, and slept before it acted on the answer.
            stopped = pair.calls[first - 1]
            assert not with_ids
            assert (stopped.operation, stopped.path.rpartition("/")[2]) == ("pipe_file", METADATA_FILE_NAME)
            world.found[2] = world.rows[CheckpointName(2)]
        assert set(pair.failed) <= {"first"}
        assert all(isinstance(error, CheckpointExistsError) for error in pair.failed.values())
        outcomes.append("late" if late else "refused" if pair.failed else "in time")
        world.check()
    assert "in time" in outcomes
    assert ("refused" in outcomes) == (not with_ids)
    assert outcomes.count("late") <= len(outcomes) // 5


# Clean-ups of another instance


def old_instance(world: World, *, knows_all: bool) -> Callable[[], int]:
    """Clean-ups of an instance that was told of version 3 last."""
    old = world.instance()
    name = world.names[3]
    old.load(name)
    by = world.attempts[name]
    if knows_all:
        old.cleanup(name, by, 1, 0)
    return lambda: old.cleanup(name, by, 3 - RETAINED, 0)


def three_batches(with_ids: bool, *, whole: int = 0) -> World:
    world = World(with_ids, FS)
    store = world.instance()
    for version, put in enumerate(({b"a": LARGE}, {b"b": b"2"}, {b"c": LARGE}), 1):
        world.batch(store, version, put, whole=version == whole)
    return world


def slow_snapshot(with_ids: bool, retained: int | None) -> Pair:
    """A commit takes up a snapshot that was begun when it was not old yet, while another executor cleans up."""
    world = World(with_ids, FS)
    store = world.instance()
    world.batch(store, 1, {b"a": LARGE})
    world.batch(store, 2, {b"b": b"2"})
    base = snapshot(store, 2, world.found[2])
    for version in (3, 4):
        world.batch(store, version, {b"c": b"%d" % version})
    other = world.instance()
    name = world.names[4]
    other.load(name)
    newest_by = world.attempts[name]

    def commits() -> None:
        by = attempt()
        world.commit(store, 5, {b"d": b"5"}, base=base, retained=retained, by=by)
        world.accept(CheckpointName(5, by if with_ids else None))

    return Pair(world, lambda: other.cleanup(name, newest_by, 4 - RETAINED, 0), commits)


@both_formats
def test_a_clean_up_elsewhere_takes_no_snapshot_from_the_commit_that_takes_it_up(with_ids: bool) -> None:
    went_well(lambda: slow_snapshot(with_ids, RETAINED), since=4 - RETAINED)


def test_without_a_bound_on_its_age_the_snapshot_could_be_taken_away() -> None:
    lost = 0
    for pair, _, _ in meetings(lambda: slow_snapshot(False, None), 2):
        try:
            pair.world.check(5)
        except Exception:  # noqa: BLE001 - whatever is said of it
            lost += 1
    assert lost


@both_sizes
@both_formats
@pytest.mark.parametrize("knows_all", [False, True], ids=["lists", "knows"])
def test_an_old_instance_cleans_up_beside_a_new_one_that_commits(
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
def test_an_old_instance_cleans_up_beside_one_that_commits_a_failed_batch_anew(put: Rows) -> None:
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
def test_two_instances_clean_up_at_once(with_ids: bool) -> None:
    def build() -> Pair:
        world = three_batches(with_ids, whole=3)
        cleans = old_instance(world, knows_all=False)
        new = world.instance()
        for version in (4, 5):
            world.batch(new, version, {b"n": LARGE}, whole=version == 5)
        newest = world.names[5]
        return Pair(world, cleans, lambda: new.cleanup(newest, world.attempts[newest], 5 - RETAINED, 0))

    went_well(build, since=5 - RETAINED)


@both_formats
def test_a_version_that_is_kept_can_be_read_while_others_are_discarded(with_ids: bool) -> None:
    def build() -> Pair:
        world = three_batches(with_ids, whole=3)
        reader = world.instance()

        def reads() -> None:
            for version in (2, 3):
                assert rows_of(reader, world.names[version]) == world.found[version]

        return Pair(world, old_instance(world, knows_all=False), reads)

    went_well(build, since=3 - RETAINED)


@both_sizes
def test_a_version_can_be_read_while_another_attempt_takes_its_name(put: Rows) -> None:
    def build() -> Pair:
        world = three_batches(False)
        world.commit(world.instance(), 4, {b"old": LARGE}, by="00000000000000aa")
        name = CheckpointName(4)
        reader, old = world.instance(), world.rows[name]

        def reads() -> None:
            assert rows_of(reader, name) in (old, world.found[3] | put)

        return Pair(world, reads, lambda: world.commit(world.instance(), 4, put))

    went_well(build)

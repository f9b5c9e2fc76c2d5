"""Bench that runs store operations with a fault at every storage call, and checks the guarantees."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import pytest

from spark_statestore.errors import CheckpointNotFoundError, CorruptCheckpointError, StateStoreError
from spark_statestore.options import StorageOptions
from spark_statestore.storage import CheckpointName
from spark_statestore.storage.incremental_handle import IncrementalStateHandle
from spark_statestore.store.cleanup import discard_versions
from spark_statestore.store.commit import begin_checkpoint, begin_snapshot
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.testing.faults import FaultInjectingFileSystem
from spark_statestore.testing.faults_plan import Call, CrashedError, Fault, FaultKind
from tests.support.effort import EFFORT
from tests.support.figures import count
from tests.unit.files.local_disk import LocalDisk
from tests.unit.store.stores import attempt_id, commit, message, named, open_store, rows_of

Rows = dict[bytes, bytes]

KINDS: tuple[FaultKind, ...] = ("fail", "fail_after", "tear", "lose_unsynced")
TEARABLE = {"write", "pipe_file", "rm"}
READ_ONLY = {"cat_file", "read", "info", "find", "ls", "list"}
ABSENT = "absent"
TORN = "torn"
LAST = 9

LARGE = {b"large": b"x" * 2000}
# More than what is collected before it is written, so that there is a file before the end.
HUGE = {b"huge": b"y" * (1 << 20)}


@dataclass(frozen=True)
class Model:
    """Behaviour of a storage in a crash, and whether this package syncs."""

    fs: FaultInjectingFileSystem | LocalDisk
    fsync: bool
    # Whether a file can be seen before it is finished.
    shows_parts: bool
    kinds: tuple[FaultKind, ...] = KINDS
    outlives_crashes: bool = True

    def options(self, storage: str = "filesystem") -> StorageOptions:
        return StorageOptions(
            storage=storage,
            checkpoints_dir="given",
            file_state_threshold=512,
            compression=None,
            fsync=self.fsync,
        )


MODELS = {
    "objects": Model(FaultInjectingFileSystem(), False, False),
    "disk": Model(FaultInjectingFileSystem(durability="synced"), True, True, (*KINDS, "kill")),
    "disk-with-empty-files": Model(
        FaultInjectingFileSystem(durability="synced", empty_names=True), True, True, ("lose_unsynced",)
    ),
    # Not synced, so only for processes that survive.
    "unsynced-disk": Model(
        FaultInjectingFileSystem(durability="synced"),
        False,
        True,
        ("fail", "tear", "kill"),
        outlives_crashes=False,
    ),
}


def faults_at(calls: Iterable[Call], kinds: Iterable[FaultKind]) -> Iterator[Fault]:
    """Yield a fault of every kind at every call, except kinds that are equal to `fail` there."""
    kinds = tuple(kinds)
    for call in calls:
        for kind in kinds:
            if kind == "tear" and call.operation not in TEARABLE:
                continue
            if kind == "fail_after" and call.operation in READ_ONLY:
                continue
            yield Fault(kind, call.number)


_numbers = itertools.count()


@dataclass
class Bench:
    """One store, what it acknowledged, and what a cut-off operation may have left."""

    model: Model
    storage: str = "filesystem"
    ids: bool = False
    promised: dict[CheckpointName, Rows] = field(default_factory=dict)
    possible: dict[CheckpointName, tuple[Rows | str, ...]] = field(default_factory=dict)
    handles: dict[CheckpointName, IncrementalStateHandle] = field(default_factory=dict)
    names: dict[int, CheckpointName] = field(default_factory=dict)
    attempts: dict[CheckpointName, str] = field(default_factory=dict)
    # A snapshot that waits for its commit, in the process that wrote it.
    base: IncrementalStateHandle | None = None

    def __post_init__(self) -> None:
        self.fs = self.model.fs
        self.fs.restart()
        self.directory = f"{next(_numbers)}/0/3"
        self.store = self.instance()

    def instance(self) -> StoreDirectory:
        return open_store(self.fs.url(self.directory), self.model.options(self.storage))

    def commit(
        self, version: int, put: Rows, *, on: int | None = None, base: IncrementalStateHandle | None = None,
        by: str | None = None, store: StoreDirectory | None = None,
    ) -> None:  # fmt: skip
        """Commit a version, and record the outcomes that a crash may have, and the promised one."""
        by = by or attempt_id()
        name = CheckpointName(version, by if self.ids else None)
        parent = None if on is None else self.names[on]
        rows = put if parent is None else self.promised[parent] | put
        before = self.promised.pop(name, None)
        outcomes: tuple[Rows | str, ...] = (before or ABSENT, rows)
        if self.model.shows_parts and before is None:
            # Known by its checksum, and no obstacle to the next attempt.
            outcomes += (TORN,)
        self.possible[name] = outcomes + self.possible.get(name, ())
        committed = commit(
            store or self.store, name, put, parent=parent and self.handles[parent], base=base, by=by
        )
        del self.possible[name]
        self.promised[name] = rows
        self.handles[name] = committed.handle
        self.names[version] = name
        self.attempts[name] = by
        self.next_directory = committed.next_directory

    def prepare_next(self) -> None:
        """Prepare the directory of the version after the last commit, as a backend does after its answer."""
        with contextlib.suppress(OSError):
            self.store.files.prepare(self.next_directory)

    def cleanup(self, retain_from: int, newest: int, most: int = 0) -> None:
        """Discard older versions, which may then exist or not."""
        for name in [name for name in self.promised if name.version < retain_from]:
            self.possible[name] = (self.promised.pop(name), ABSENT)
        name = self.names[newest]
        discard_versions(self.store, name, self.attempts[name], retain_from, most)

    def allow_torn_leftovers(self, since: int) -> None:
        """Accept partial versions after a crash.

        Removals of a cleanup may be undone while those of the next one are not.
        """
        for name, outcomes in self.possible.items():
            if name.version < since:
                self.possible[name] = (*outcomes, TORN)

    def outcome(self, name: CheckpointName, store: StoreDirectory) -> Rows | str:
        try:
            return rows_of(store, name)
        except CheckpointNotFoundError:
            return ABSENT
        except CorruptCheckpointError:
            return TORN

    def check(self, since: int = 0) -> None:
        """Check that promised versions are complete, and the others complete or absent."""
        fresh = self.instance()
        for name, rows in self.promised.items():
            if name.version < since:
                continue
            outcome = self.outcome(name, fresh)
            assert outcome == rows, f"{name}: {brief(outcome)} instead of {brief(rows)}"
        for name, outcomes in self.possible.items():
            outcome = self.outcome(name, fresh)
            assert outcome in outcomes, (
                f"{name}: {brief(outcome)} is none of {[brief(candidate) for candidate in outcomes]}"
            )

    def tidy(self) -> None:
        """Commit and clean up until all earlier versions are below the horizon.

        Check that no file of them is left.
        """
        self.commit(LAST, {b"last": b"z" * 600})
        self.cleanup(LAST, LAST)
        self.check(since=LAST)
        last = self.names[LAST].directory
        remaining = [path for path in self.files() if not path.startswith((f"{last}/", f"shared/{LAST}-"))]
        assert remaining == []

    def files(self) -> list[str]:
        path = self.fs.url(self.directory).removeprefix("faulty://")
        start = f"/{path.lstrip('/')}/"
        return sorted(name.removeprefix(start) for name in self.fs.wrapped.find(path))

    def remove(self) -> None:
        self.fs.restart()
        root = self.fs.url(self.directory.partition("/")[0]).removeprefix("faulty://")
        if self.fs.wrapped.exists(root):
            self.fs.wrapped.rm(root, recursive=True)


def some(faults: Iterable[Fault], stride: int, first: int = 0) -> Iterator[tuple[int, Fault]]:
    """Yield numbered faults: all in soak, else one of `stride`, beginning with the first one."""
    return ((n, fault) for n, fault in enumerate(faults) if EFFORT > 1 or n % stride == first)


def brief(outcome: Rows | str) -> str:
    return outcome if isinstance(outcome, str) else str({k.decode(): v[:8] for k, v in outcome.items()})


@dataclass(frozen=True)
class Operation:
    """An operation to interrupt."""

    # Creates the state before the operation.
    prepare: Callable[[Bench], None]
    # The operation; called again, it is a retry.
    operate: Callable[[Bench], None]
    ids: bool = False
    storage: str = "filesystem"
    # Whether it removes its own files; the next instance removes those that remain.
    abandons_files: bool = False

    def bench(self, model: Model) -> Bench:
        bench = Bench(model, self.storage, self.ids)
        self.prepare(bench)
        return bench

    def calls(self, model: Model) -> list[Call]:
        """Return the calls of the operation without a fault; check its result."""
        bench = self.bench(model)
        bench.fs.inject()
        self.operate(bench)
        calls = bench.fs.calls
        if model.outlives_crashes:
            bench.fs.crash()
        bench.fs.restart()
        bench.check()
        assert not [name for name in bench.possible if name.version > 3]
        bench.store = bench.instance()
        bench.tidy()
        bench.remove()
        return calls

    def faults(self, model: Model, *, survives: bool) -> Iterator[Fault]:
        ended = ("kill", "lose_unsynced") if survives else ()
        return faults_at(self.calls(model), [kind for kind in model.kinds if kind not in ended])

    def run(self, model: Model, fault: Fault, *, survives: bool, power_fails: bool = False) -> None:
        """Interrupt the operation with a fault, repeat it, and check the guarantees.

        The process may survive the error, instead of ending with the machine. The machine may lose power
        after the operation was repeated.
        """
        count(f"store, {'local' if isinstance(model.fs, LocalDisk) else 'fsspec'} files: {fault.kind}")
        if power_fails or fault.kind == "kill":
            count(f"store, then {'a loss of power' if model.outlives_crashes else 'another process'}")
        bench = self.bench(model)
        bench.fs.inject(fault)
        raised, calls = "", []
        try:
            try:
                self.operate(bench)
            except StateStoreError as error:
                raised = f"{type(error).__name__}: {error}"
            except CrashedError as error:
                raised = str(error)
                survives = False
            finally:
                calls = bench.fs.calls
            if not survives and fault.kind != "kill":
                bench.fs.crash()
            bench.fs.restart()
            bench.check()
            if not survives:
                bench.store, bench.base = bench.instance(), None
            self.operate(bench)
            bench.check(since=3)
            if power_fails or (fault.kind == "kill" and model.outlives_crashes):
                # The result may be that of the dead process.
                bench.allow_torn_leftovers(since=3)
                bench.fs.crash()
                bench.fs.restart()
                bench.check(since=3)
                bench.store = bench.instance()
            if self.abandons_files:
                bench.store = bench.instance()
            bench.tidy()
        except BaseException as error:
            error.add_note(f"fault: {fault}; process survives: {survives}; error: {raised or 'nothing'}")
            start = bench.fs.url(bench.directory).removeprefix("faulty://") + "/"
            error.add_note("calls: " + "; ".join(str(call).replace(start, "") for call in calls))
            error.add_note("files: " + ", ".join(bench.files()))
            raise
        bench.remove()


# States before the operation


def three_versions(bench: Bench) -> None:
    bench.commit(1, {b"a": b"1"} | LARGE)
    bench.commit(2, {b"b": b"2"}, on=1)
    bench.commit(3, {b"c": b"3" * 600}, on=2)
    # From here on this instance scans for no orphans.
    bench.cleanup(1, 3)


def three_versions_and_a_prepared_directory(bench: Bench) -> None:
    three_versions(bench)
    bench.prepare_next()


def a_version_that_others_build_on(bench: Bench) -> None:
    three_versions(bench)
    other_instance = bench.instance()
    bench.commit(4, {b"old": b"4"}, on=3, store=other_instance)
    bench.commit(5, {b"e": b"5"}, on=4, store=other_instance)


def two_chains(bench: Bench, orphan: bool = True) -> None:
    bench.commit(1, {b"a": b"1"} | LARGE)
    bench.commit(2, {b"b": b"2" * 600}, on=1)
    bench.commit(3, {b"c": b"3"} | LARGE)
    bench.commit(4, {b"d": b"4"}, on=3)
    if orphan:
        zombie = begin_snapshot(bench.instance(), 2, named())
        zombie.write(0, message(LARGE))
        zombie.finish()


def a_replaced_version_in_the_old_chain(bench: Bench) -> None:
    bench.commit(1, {b"a": b"1"} | LARGE)
    bench.commit(2, {b"old": b"2"} | LARGE, on=1, store=bench.instance())
    bench.commit(2, {b"new": b"2"} | LARGE, on=1)
    bench.commit(3, {b"c": b"3"} | LARGE)
    bench.commit(4, {b"d": b"4"}, on=3)


def a_run_in_the_newest_version(bench: Bench) -> None:
    bench.commit(1, {b"a": b"1"} | LARGE)
    bench.commit(2, {b"b": b"2" * 600}, on=1)
    bench.commit(3, {b"c": b"3" * 600}, on=2)
    commits_with_a_base(bench, since=1)


def two_chains_known(bench: Bench) -> None:
    two_chains(bench, orphan=False)
    bench.cleanup(1, 4)


# Operations to interrupt


def commits(put: Rows) -> Callable[[Bench], None]:
    return lambda bench: bench.commit(4, put, on=3)


def commits_as_one_attempt(put: Rows) -> Callable[[Bench], None]:
    # The shim repeats a request whose connection broke.
    return lambda bench: bench.commit(4, put, on=3, by="00000000000000aa")


def commits_a_full_snapshot(bench: Bench) -> None:
    bench.commit(4, {b"d": b"4"} | LARGE)


def commits_with_a_base(bench: Bench, since: int | None = None) -> None:
    if bench.base is None:
        rows = bench.promised[bench.names[3]]
        if since is not None:
            rows = dict(rows.items() - bench.promised[bench.names[since]].items())
        pending = begin_snapshot(bench.store, 3, named(), since)
        pending.write(0, message(rows))
        bench.base = pending.finish()
    bench.commit(4, {b"d": b"4"}, on=3, base=bench.base)
    assert since in [entry.since for entry in bench.handles[bench.names[4]]]


def commits_and_prepares(bench: Bench) -> None:
    bench.commit(4, SMALL, on=3, by="00000000000000aa")
    bench.prepare_next()


def abandons(put: Rows) -> Callable[[Bench], None]:
    def operate(bench: Bench) -> None:
        by = attempt_id()
        pending = begin_checkpoint(bench.store, CheckpointName(4, by if bench.ids else None), by, named())
        pending.write(0, message(put))
        pending.write(0, message({b"d": b"4"}))
        pending.abandon()

    return operate


def abandons_a_snapshot(bench: Bench) -> None:
    pending = begin_snapshot(bench.store, 3, named())
    pending.write(0, message(HUGE))
    pending.abandon()


def loads(bench: Bench) -> None:
    name = bench.names[3]
    assert rows_of(bench.store, name) == bench.promised[name]


def loads_a_missing_version(bench: Bench) -> None:
    try:
        bench.store.load(CheckpointName(7))
    except CheckpointNotFoundError as error:
        assert "has the versions 1 to 3" in str(error)  # noqa: PT017 - or another error of this package
    else:
        raise AssertionError("found a missing version")


def cleans(most: int = 0, retain_from: int = 3) -> Callable[[Bench], None]:
    return lambda bench: bench.cleanup(retain_from, 4, most)


def opens_another_instance_and_cleans(bench: Bench) -> None:
    bench.store = bench.instance()
    bench.store.load(bench.names[4])
    bench.cleanup(3, 4)


SMALL = {b"d": b"4"}

OPERATIONS = {
    "small-commit": Operation(three_versions, commits(SMALL)),
    "small-commit-in-memory-storage": Operation(three_versions, commits(LARGE), storage="memory"),
    "small-commit-retried": Operation(three_versions, commits_as_one_attempt(SMALL)),
    "commit-in-prepared-directory-and-prepare": Operation(
        three_versions_and_a_prepared_directory, commits_and_prepares
    ),
    "commit-with-id-and-prepare": Operation(three_versions, commits_and_prepares, ids=True),
    "large-commit-with-id": Operation(three_versions, commits(LARGE), ids=True),
    "large-commit-retried": Operation(three_versions, commits_as_one_attempt(LARGE)),
    "huge-commit": Operation(three_versions, commits(HUGE | LARGE)),
    "full-snapshot-commit": Operation(three_versions, commits_a_full_snapshot),
    "empty-commit": Operation(three_versions, commits({})),
    "replacing-commit": Operation(a_version_that_others_build_on, commits(SMALL)),
    "large-replacing-commit": Operation(a_version_that_others_build_on, commits(LARGE)),
    "replacing-commit-retried": Operation(a_version_that_others_build_on, commits_as_one_attempt(SMALL)),
    "commit-with-base": Operation(three_versions, commits_with_a_base),
    "commit-with-run-and-id": Operation(
        three_versions, lambda bench: commits_with_a_base(bench, 1), ids=True
    ),
    "abandoned-commit": Operation(three_versions, abandons(SMALL), abandons_files=True),
    "abandoned-huge-commit-with-id": Operation(three_versions, abandons(HUGE), ids=True, abandons_files=True),
    "abandoned-snapshot": Operation(three_versions, abandons_a_snapshot, abandons_files=True),
    "load": Operation(three_versions, loads),
    "load-of-missing-version": Operation(three_versions, loads_a_missing_version),
    "cleanup": Operation(two_chains, cleans()),
    "cleanup-limited-to-one-version": Operation(two_chains, cleans(1)),
    "cleanup-after-scan": Operation(two_chains_known, cleans()),
    "cleanup-with-ids": Operation(two_chains, cleans(), ids=True),
    "cleanup-by-another-instance": Operation(two_chains, opens_another_instance_and_cleans),
    "cleanup-of-merged-deltas": Operation(a_run_in_the_newest_version, cleans(retain_from=4)),
    "cleanup-of-replaced-version": Operation(a_replaced_version_in_the_old_chain, cleans()),
}

_FIRST_TIER = {
    "small-commit",
    "small-commit-in-memory-storage",
    "commit-in-prepared-directory-and-prepare",
    "large-commit-with-id",
    "large-commit-retried",
    "replacing-commit",
    "commit-with-base",
    "commit-with-run-and-id",
    "abandoned-commit",
    "abandoned-snapshot",
    "load",
    "cleanup",
    "cleanup-by-another-instance",
}

every_operation = pytest.mark.parametrize(
    "operation",
    [pytest.param(name, marks=[] if name in _FIRST_TIER else [pytest.mark.slow]) for name in OPERATIONS],
)
"""Runs a test with each of `OPERATIONS`, one of each kind in the first tier."""

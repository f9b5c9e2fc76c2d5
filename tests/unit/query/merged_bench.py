"""Bench that runs a query's batches in merged files with a fault at a storage call, and checks guarantees."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from spark_statestore.errors import CheckpointNotFoundError, CorruptCheckpointError, StateStoreError
from spark_statestore.files import FileSystem, join, open_file_system
from spark_statestore.files.base import has_file
from spark_statestore.query.logs import CommitEntry
from spark_statestore.query.query_checkpoint import QueryCheckpoint
from spark_statestore.query.verify import Verifier
from spark_statestore.storage import CheckpointName
from spark_statestore.storage.incremental_handle import IncrementalStateHandle
from spark_statestore.storage.merged_files import MergedFiles
from spark_statestore.store.cleanup import discard_versions
from spark_statestore.store.commit import begin_checkpoint
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.metadata import StoreId
from spark_statestore.testing.faults_plan import CrashedError, Fault
from spark_statestore.testing.stores import attempt_id, message, named, rows_of, snapshot
from tests.support.effort import EFFORT
from tests.support.figures import count
from tests.unit.files.local_disk import LocalDisk
from tests.unit.store.fault_bench import ABSENT, TORN, Model, Rows, faults_at

PARTITIONS = 3

OPERATOR = (
    b'v1\n{"operatorInfo":{"operatorId":0,"operatorName":"dedupe"},'
    b'"stateStoreInfo":[{"storeName":"default","numColsPrefixKey":0,"numPartitions":%d}]}' % PARTITIONS
)

_numbers = itertools.count()


@dataclass
class Version:
    """A store's version as the process that wrote or loaded it has it.

    `path` and `metadata` are handed over, if the version is `merged` on a cluster.
    """

    name: CheckpointName
    by: str
    handle: IncrementalStateHandle
    path: str = ""
    metadata: bytes | None = None
    merged: bool = False


@dataclass(frozen=True)
class Batch:
    """A batch that was begun: its value, the accepted attempts, and the rows after it by partition."""

    number: int
    put: bytes
    attempts: list[str]
    names: list[CheckpointName]
    rows: list[Rows]


@dataclass
class Process:
    """A backend: one of an executor, or the driver's, which in a local session is the executor's too."""

    bench: MergedBench
    reports_discards: bool = False
    merged: MergedFiles | None = None

    def open(self, partition: int) -> StoreDirectory:
        root = self.bench.root
        url = f"{root}/state/0/{partition}"
        return StoreDirectory(
            StoreId(0, partition),
            url,
            self.bench.model.options(),
            commits=f"{root}/commits",
            merged_of=self._merged_of,
        )

    def _merged_of(self, files: FileSystem, state_directory: str) -> MergedFiles:
        if self.merged is None:
            self.merged = MergedFiles(files, state_directory)
            self.merged.reports_discards = self.reports_discards
        return self.merged


@dataclass
class MergedBench:
    """A query of three stores, its commit log's promises, and what a cut off batch may have left."""

    model: Model
    ids: bool
    cluster: bool
    committed: list[list[Rows]] = field(default_factory=list)
    """The rows of each committed batch, by partition."""
    names: list[list[CheckpointName]] = field(default_factory=list)
    attempted: list[tuple[list[CheckpointName], list[Rows]]] = field(default_factory=list)
    """Batches that were begun and are not in the commit log, with what they were to be."""
    retained_from: int = 0
    alone: set[CheckpointName] = field(default_factory=set)
    """Versions with ids that executors have written in files of their own, which are there or not."""
    offsets: int = 0
    """The number of batches that the offset log has."""

    def __post_init__(self) -> None:
        self.fs = self.model.fs
        self.fs.restart()
        self.root = self.fs.url(f"merged-{next(_numbers)}")
        self.restart()

    def restart(self) -> None:
        """Begin another run of the query, in new processes."""
        self.driver = Process(self)
        executors = (
            [Process(self, reports_discards=True) for _ in range(2)] if self.cluster else [self.driver]
        )
        self.stores = [executors[p % len(executors)].open(p) for p in range(PARTITIONS)]
        self.executors = executors
        self.publisher = self.driver.open(0)
        self.versions: list[Version] | None = None
        self.before: list[Version] | None = None

    def load(self) -> list[Version]:
        """Return the newest committed version of each store, loaded unless this run has it in memory."""
        if self.versions is None:
            self.versions = []
            for store, name in zip(self.stores, self.names[-1], strict=True):
                metadata = store.load(name)
                self.versions.append(Version(name, metadata.attempt_id, metadata.handle))
        return self.versions

    def batch(self, put: bytes, *, whole: bool = False, but: int | None = None) -> None:
        """Run the next batch: tasks commit, the driver publishes, Spark writes the entry of its commit log.

        It puts a value. With `whole`, all stores but that of the partition `but` write snapshots.
        """
        batch = self.begin(put)
        versions = []
        for p, store in enumerate(self.stores):
            base = snapshot(store, batch.number, self.committed[-1][p]) if whole and p != but else None
            versions.append(self.commit(batch, p, store, base))
        self.publish(versions)
        self.finish(batch, versions)

    def begin(self, put: bytes) -> Batch:
        """Begin the next batch, which puts a value in every store."""
        number = len(self.committed)
        self.before = self.load() if number else None
        attempts = [attempt_id() for _ in range(PARTITIONS)]
        names = [CheckpointName(number + 1, by if self.ids else None) for by in attempts]
        rows = [
            (self.committed[-1][p] if number else {}) | {b"batch": put, b"%d-%d" % (number, p): put}
            for p in range(PARTITIONS)
        ]
        self.attempted.append((names, rows))
        return Batch(number, put, attempts, names, rows)

    def commit(
        self,
        batch: Batch,
        p: int,
        store: StoreDirectory,
        base: IncrementalStateHandle | None = None,
        *,
        by: str | None = None,
    ) -> Version:
        """Commit a partition's version as its task does.

        `by` is the attempt, by default the one that Spark accepts.
        """
        by = by or batch.attempts[p]
        name = CheckpointName(batch.number + 1, by if self.ids else None)
        merge = self.before is not None
        pending = begin_checkpoint(store, name, by, named(), merge=merge, hand_over=merge and self.cluster)
        pending.write(0, message({b"batch": batch.put, b"%d-%d" % (batch.number, p): batch.put}))
        parent = self.before[p] if self.before is not None else None
        checkpoint = pending.publish(parent and parent.handle, parent and parent.by, base)
        return Version(
            name,
            by,
            checkpoint.handle,
            f"0/{p}/{name.directory}/_metadata",
            checkpoint.metadata,
            checkpoint.merged,
        )

    def publish(self, versions: list[Version]) -> None:
        """Publish what is merged, as the barrier does, with the reports of what executors have discarded."""
        discarded = [
            path
            for executor in self.executors
            if executor.reports_discards and executor.merged
            for path in executor.merged.take_discarded()
        ]
        handed_over = [
            (version.path, version.metadata) for version in versions if version.metadata is not None
        ]
        attempts = [version.by for version in versions if version.merged]
        missing, _ = self.publisher.publish_merged(attempts, handed_over, discarded)
        assert not missing

    def finish(self, batch: Batch, versions: list[Version]) -> None:
        """Commit the batch, and delete what was discarded."""
        self.enter(batch.number, batch.names)
        self.attempted.pop()
        self.committed.append(batch.rows)
        self.names.append(batch.names)
        self.versions = versions
        self.publisher.sweep_merged()

    def enter(self, number: int, names: list[CheckpointName]) -> None:
        """Write the entry of the commit log, which may meet a fault as well."""
        entry: dict[str, Any] = {"nextBatchWatermarkMs": 0}
        if self.ids:
            entry["stateUniqueIds"] = {"0": [[name.id] for name in names]}
        files, directory = open_file_system(f"{self.root}/commits", fsync=self.model.fsync)
        files.make_directory(directory)
        files.create(join(directory, str(number)), f"v1\n{json.dumps(entry)}".encode())

    def recover(self) -> None:
        """Count a cut off batch as committed if the commit log has it, as Spark's next start does."""
        if self.attempted:
            names, rows = self.attempted[-1]
            number = names[0].version - 1
            if number == len(self.committed) and self.has_entry(number):
                self.attempted.pop()
                self.committed.append(rows)
                self.names.append(names)
        self.restart()

    def has_entry(self, number: int) -> bool:
        """Return True if the commit log has a batch; a part of an entry, which Spark refuses, is removed."""
        files, directory = open_file_system(f"{self.root}/commits", fsync=self.model.fsync)
        path = join(directory, str(number))
        if not has_file(files, path):
            return False
        try:
            CommitEntry.decode(files.read(path), path)
        except CorruptCheckpointError:
            assert self.model.shows_parts
            files.delete_files([path])
            return False
        return True

    def clean(self, retain_from: int) -> None:
        """Discard older versions in every store, and delete what no version needs."""
        self.retained_from = max(self.retained_from, retain_from - 1)
        for store, version in zip(self.stores, self.load(), strict=True):
            discard_versions(store, version.name, version.by, retain_from, 0)
        self.publisher.sweep_merged()

    def check(self, *, every: bool = EFFORT > 1) -> None:
        """Check that the promised batches are complete, and that one which was cut off is complete or absent.

        All retained checkpoints are verified, or the newest one.
        """
        fresh = Process(self)
        stores = [fresh.open(p) for p in range(PARTITIONS)]

        def rows_or_error(p: int, name: CheckpointName) -> Rows | str:
            try:
                return rows_of(stores[p], name)
            except CheckpointNotFoundError:
                return ABSENT
            except CorruptCheckpointError:
                return TORN

        for number in range(self.retained_from, len(self.committed)):
            for p, name in enumerate(self.names[number]):
                assert rows_or_error(p, name) == self.committed[number][p], f"batch {number}, partition {p}"
        for names, _ in self.attempted:
            version = names[0].version
            if version == 1 or (not self.ids and version <= len(self.committed)):
                continue
            merged = [p for p, name in enumerate(names) if name not in self.alone]
            there = [rows_or_error(p, names[p]) for p in merged]
            gone = all(outcome in (ABSENT, TORN) for outcome in there)
            # In format v1 it may be that of any attempt at the version.
            wholes = [
                [rows[p] for p in merged]
                for attempt_names, rows in self.attempted
                if (attempt_names == names if self.ids else attempt_names[0].version == version)
            ]
            assert gone or there in wholes, f"version {version} is there in part: {there}"
        self.verify(every=every)

    def verify(self, *, every: bool) -> None:
        """Verify every retained checkpoint, or the newest one, with Spark's own files beside the state."""
        self.write_spark_files()
        verifier = Verifier(QueryCheckpoint(self.root))
        batches = range(self.retained_from, len(self.committed))
        for number in batches if every else batches[-1:]:
            report = verifier.verify(number)
            assert report.ok, "; ".join(
                f"{problem.what}, {problem.kind}: {problem.message}" for problem in report.problems
            )
            assert report.stores == PARTITIONS

    def write_spark_files(self) -> None:
        """Write what Spark has written before its commit log gets a batch; no fault interrupts this."""
        files, root = open_file_system(self.root, fsync=self.model.fsync)
        new: dict[str, bytes] = {}
        if not self.offsets:
            new |= {"metadata": json.dumps({"id": "merged"}).encode(), "state/0/_metadata/metadata": OPERATOR}
        for number in range(self.offsets, len(self.committed)):
            new[f"offsets/{number}"] = b'v1\n{"batchWatermarkMs":0}\n-'
        for name, data in new.items():
            files.make_directory(join(root, name).rpartition("/")[0])
            files.create(join(root, name), data)
        self.offsets = len(self.committed)

    def tidy(self) -> None:
        """Run on until nothing of before is needed; check that no physical file of before is left."""
        self.batch(b"whole", whole=True)
        last = len(self.committed)
        self.batch(b"last")
        self.clean(last)
        self.batch(b"very last")
        self.check()
        path = f"{self.root}/state/_merged".removeprefix("faulty://")
        names = [file.rpartition("/")[2] for file in self.fs.wrapped.find(path)]
        old = [name for name in names if int(name.split("-")[1]) < last]
        # Nobody knows whose a torn file is, so nobody deletes it.
        assert self.model.shows_parts or not old, old

    def remove(self) -> None:
        self.fs.restart()
        self.fs.wrapped.rm(self.root.removeprefix("faulty://"), recursive=True)


@dataclass(frozen=True)
class Operation:
    """An operation to interrupt."""

    prepare: Callable[[MergedBench], None]
    """Creates the state before it."""
    operate: Callable[[MergedBench], None]
    """The operation; called again, it is what the next run of the query does."""

    def faults(self, model: Model, *, ids: bool, cluster: bool, survives: bool) -> Iterator[Fault]:
        """Yield each fault at each call of the operation, which without a fault is checked."""
        bench = MergedBench(model, ids, cluster)
        self.prepare(bench)
        bench.fs.inject()
        self.operate(bench)
        calls = bench.fs.calls
        bench.check()
        bench.tidy()
        bench.remove()
        ended = ("kill", "lose_unsynced") if survives else ()
        return faults_at(calls, [kind for kind in model.kinds if kind not in ended])

    def run(self, model: Model, fault: Fault, *, ids: bool, cluster: bool, survives: bool) -> None:
        """Interrupt the operation with a fault, begin another run of the query, and check the guarantees.

        The processes survive the error, or end with the machine.
        """
        count(f"merged files, {'local' if isinstance(model.fs, LocalDisk) else 'fsspec'} files: {fault.kind}")
        bench = MergedBench(model, ids, cluster)
        self.prepare(bench)
        bench.fs.inject(fault)
        raised, calls = "", []
        try:
            try:
                self.operate(bench)
            except (StateStoreError, OSError) as error:
                raised = f"{type(error).__name__}: {error}"
            except CrashedError as error:
                raised, survives = str(error), False
            finally:
                calls = bench.fs.calls
            if not survives and fault.kind != "kill":
                bench.fs.crash()
            bench.fs.restart()
            bench.recover()
            bench.check(every=True)
            self.operate(bench)
            bench.check()
            bench.tidy()
        except BaseException as error:
            error.add_note(f"fault: {fault}; processes survive: {survives}; error: {raised or 'nothing'}")
            start = bench.root.removeprefix("faulty://") + "/"
            error.add_note("calls: " + "; ".join(str(call).replace(start, "") for call in calls))
            raise
        bench.remove()


# States before the operation


def three_batches(bench: MergedBench) -> None:
    for number in range(3):
        bench.batch(b"%d" % number)


def an_unfinished_batch(bench: MergedBench) -> None:
    """The driver ended between the barrier and the commit log's entry."""
    three_batches(bench)
    enter, bench.enter = bench.enter, end  # type: ignore[method-assign]
    with contextlib.suppress(StateStoreError):
        bench.batch(b"unfinished")
    bench.enter = enter  # type: ignore[method-assign]
    bench.restart()


def end(number: int, names: list[CheckpointName]) -> None:
    raise StateStoreError("the driver ended")


def versions_to_discard(bench: MergedBench) -> None:
    three_batches(bench)
    bench.batch(b"whole", whole=True)
    bench.batch(b"after")


def versions_to_discard_in_two_stores(bench: MergedBench) -> None:
    three_batches(bench)
    three_batches(bench)
    bench.batch(b"whole", whole=True, but=0)
    bench.batch(b"after")


# Operations to interrupt


def loads(bench: MergedBench) -> None:
    bench.restart()
    for version, store, rows in zip(bench.load(), bench.stores, bench.committed[-1], strict=True):
        assert rows_of(store, version.name) == rows


def cleans_and_runs_a_batch(bench: MergedBench) -> None:
    bench.clean(len(bench.committed))
    bench.batch(b"next")


OPERATIONS = {
    "batch": Operation(three_batches, lambda bench: bench.batch(b"next")),
    "batch-with-snapshots": Operation(three_batches, lambda bench: bench.batch(b"next", whole=True)),
    "batch-again": Operation(an_unfinished_batch, lambda bench: bench.batch(b"next")),
    "load": Operation(three_batches, loads),
    "cleanup": Operation(versions_to_discard, lambda bench: bench.clean(len(bench.committed))),
    "cleanup-and-batch": Operation(versions_to_discard, cleans_and_runs_a_batch),
    "rewrite": Operation(versions_to_discard_in_two_stores, cleans_and_runs_a_batch),
}

"""Two operations on real stores are interleaved at every pair of storage calls."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from spark_statestore.errors import StateStoreError
from spark_statestore.options import StorageOptions
from spark_statestore.storage import CheckpointName
from spark_statestore.storage.incremental_handle import IncrementalStateHandle
from spark_statestore.store.commit import Committed, begin_checkpoint
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.testing.faults import FaultInjectingFileSystem
from spark_statestore.testing.faults_plan import Call, Fault
from tests.support.effort import EFFORT
from tests.unit.store.stores import STORE, attempt_id, message, named, rows_of

Rows = dict[bytes, bytes]
WAIT = 30
LARGE = b"x" * 2000
OPTIONS = StorageOptions(checkpoints_dir="given", file_state_threshold=512, compression=None)

_numbers = itertools.count()


@dataclass
class World:
    """One store of one query in checkpoint format v1 or v2, and the versions that its driver committed.

    Files appear complete in the file system, as on object stores and on local disks.
    """

    with_ids: bool
    fs: FaultInjectingFileSystem
    rows: dict[CheckpointName, Rows] = field(default_factory=dict)
    names: dict[int, CheckpointName] = field(default_factory=dict)
    attempts: dict[CheckpointName, str] = field(default_factory=dict)
    handles: dict[str, IncrementalStateHandle] = field(default_factory=dict)
    # Rows of each version when it was committed.
    rows_at_commit: dict[int, Rows] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.fs.restart()
        self.directory = f"world-{next(_numbers)}"

    def instance(self) -> StoreDirectory:
        state = self.fs.url(f"{self.directory}/state/{STORE.operator}/{STORE.partition}")
        return StoreDirectory(STORE, state, OPTIONS, commits=self.fs.url(f"{self.directory}/commits"))

    def commit(
        self,
        store: StoreDirectory,
        version: int,
        put: Rows,
        *,
        base: IncrementalStateHandle | None = None,
        retained: int | None = None,
        by: str | None = None,
        whole: bool = False,
    ) -> Committed:
        """Commit an attempt at a version, on top of the committed one before."""
        by = by or attempt_id()
        name = CheckpointName(version, by if self.with_ids else None)
        parent = None if whole or version == 1 else self.handles[self.attempts[self.names[version - 1]]]
        rows = put if version == 1 else self.rows[self.names[version - 1]] | put
        pending = begin_checkpoint(store, name, by, named())
        pending.write(0, message(rows if parent is None else put))
        oldest = 0 if retained is None else version - 1 - retained
        committed = pending.publish(parent, None, base, oldest)
        self.handles[by] = committed.handle
        self.rows[name], self.attempts[name] = rows, by
        return committed

    def log_commit(self, name: CheckpointName) -> None:
        """Commit a batch on the driver: write its entry in the commit log."""
        entry: dict[str, object] = {"nextBatchWatermarkMs": 0}
        if name.id is not None:
            entry["stateUniqueIds"] = {str(STORE.operator): [[name.id]] * (STORE.partition + 1)}
        path = self.fs.url(f"{self.directory}/commits/{name.version - 1}").removeprefix("faulty://")
        self.fs.pipe_file(path, b"v1\n" + json.dumps(entry).encode())
        self.names[name.version] = name
        self.rows_at_commit[name.version] = rows_of(self.instance(), name)

    def batch(self, store: StoreDirectory, version: int, put: Rows, *, whole: bool = False) -> None:
        """Run a batch of the query."""
        by = attempt_id()
        self.commit(store, version, put, by=by, whole=whole)
        self.log_commit(CheckpointName(version, by if self.with_ids else None))

    def check(self, since: int = 1) -> None:
        """Check that committed versions have not changed."""
        for version, rows in self.rows_at_commit.items():
            if version >= since:
                assert rows_of(self.instance(), self.names[version]) == rows, version

    def remove(self) -> None:
        """Remove all files."""
        self.fs.restart()
        root = self.fs.url(self.directory).removeprefix("faulty://")
        self.fs.wrapped.rm(root, recursive=True)


class Removable(Protocol):
    """Storage of two operations."""

    fs: Any

    def remove(self) -> None:
        """Remove all files."""


W = TypeVar("W", bound=Removable)


@dataclass
class Pair(Generic[W]):
    """Two concurrent operations on the stores of a world: an error of this package is a valid outcome."""

    world: W
    first: Callable[[], object]
    second: Callable[[], object]
    failed: dict[str, StateStoreError] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)

    def run(self, pause_first: int, pause_second: int) -> bool:
        """Suspend the first at a call, run the second up to a call, then finish both in this order.

        Return False if the first one makes fewer calls.
        """
        fs = self.world.fs
        reached, may_end, met = threading.Event(), threading.Event(), threading.Event()
        broken: list[BaseException] = []

        def run_second() -> None:
            try:
                self._try("second", self.second)
            except BaseException as error:  # noqa: BLE001 - raised below
                broken.append(error)
            finally:
                reached.set()

        thread = threading.Thread(target=run_second)

        def wait() -> None:
            # If the second one makes fewer calls, it is the first one that comes here.
            if threading.current_thread() is thread:
                reached.set()
                assert may_end.wait(WAIT)

        def start() -> None:
            met.set()
            # Until it waits, all calls are the second one's.
            fs.inject_more(Fault("run", pause_first + pause_second, function=wait))
            thread.start()
            assert reached.wait(WAIT)

        fs.inject(Fault("run", pause_first, function=start))
        try:
            self._try("first", self.first)
        finally:
            may_end.set()
            if met.is_set():
                thread.join(WAIT)
            self.calls = fs.calls
            fs.restart()
        if broken:
            raise broken[0]
        return met.is_set()

    def _try(self, name: str, operation: Callable[[], object]) -> None:
        try:
            operation()
        except StateStoreError as error:
            self.failed[name] = error


P = TypeVar("P", bound=Pair)


def interleavings(build: Callable[[], P], step: int = 7) -> Iterator[tuple[P, int, int]]:
    """Yield all interleavings in which each operation is suspended once, and the calls at which.

    The second one is suspended at one of `step` calls, a different one for each call of the first; at all
    calls in soak.
    """
    step = 1 if EFFORT > 1 else step
    alone = build()
    alone.world.fs.inject()
    alone.second()
    calls = len(alone.world.fs.calls)
    alone.world.remove()
    for first in itertools.count(1):
        # After the other one it may make more calls than alone.
        for second in range(1 + first % step, calls + 8, step):
            pair = build()
            try:
                if not pair.run(first, second):
                    return
                yield pair, first, second
            except BaseException as error:
                error.add_note(f"first stopped at {first}, second at {second}")
                error.add_note("; ".join(str(call) for call in pair.calls))
                raise
            finally:
                pair.world.remove()

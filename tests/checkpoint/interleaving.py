"""Two operations on real stores, stopped between any two calls to storage."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from spark_statestore.checkpoint.pending import Committed
from spark_statestore.checkpoint.storage import CheckpointName
from spark_statestore.checkpoint.versions import VersionStore
from spark_statestore.errors import StateStoreError
from spark_statestore.options import StorageOptions
from spark_statestore.state.handles import IncrementalStateHandle
from spark_statestore.testing.faults import Call, Fault, FaultInjectingFileSystem
from tests.checkpoint.stores import STORE, attempt, message, named, rows_of
from tests.effort import EFFORT

Rows = dict[bytes, bytes]
WAIT = 30
LARGE = b"x" * 2000
OPTIONS = StorageOptions(checkpoints_dir="given", file_state_threshold=512, compression=None)

_numbers = itertools.count()


@dataclass
class World:
    """One store of one query, and what its driver believes.

    Attributes
    ----------
    with_ids
        Whether it has Spark's checkpoint format v2.
    fs
        Where it lies. Files appear whole, as on object stores and on local disks.
    """

    with_ids: bool
    fs: FaultInjectingFileSystem
    rows: dict[CheckpointName, Rows] = field(default_factory=dict)
    names: dict[int, CheckpointName] = field(default_factory=dict)
    attempts: dict[CheckpointName, str] = field(default_factory=dict)
    handles: dict[str, IncrementalStateHandle] = field(default_factory=dict)
    # What was found under each version's name when it was accepted.
    found: dict[int, Rows] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.fs.restart()
        self.place = f"world-{next(_numbers)}"

    def instance(self) -> VersionStore:
        state = self.fs.url(f"{self.place}/state/{STORE.operator}/{STORE.partition}")
        return VersionStore(STORE, state, OPTIONS, commits=self.fs.url(f"{self.place}/commits"))

    def commit(
        self,
        store: VersionStore,
        version: int,
        put: Rows,
        *,
        base: IncrementalStateHandle | None = None,
        retained: int | None = None,
        by: str | None = None,
        whole: bool = False,
    ) -> Committed:
        """One attempt at a version, on what the driver has accepted as the one before."""
        by = by or attempt()
        name = CheckpointName(version, by if self.with_ids else None)
        parent = None if whole or version == 1 else self.handles[self.attempts[self.names[version - 1]]]
        rows = put if version == 1 else self.rows[self.names[version - 1]] | put
        pending = store.begin(name, by, named())
        pending.write(0, message(rows if parent is None else put))
        oldest = 0 if retained is None else version - 1 - retained
        done = pending.publish(parent, None, base, oldest)
        self.handles[by] = done.handle
        self.rows[name], self.attempts[name] = rows, by
        return done

    def accept(self, name: CheckpointName) -> None:
        """What the driver does when all tasks of a batch are done."""
        note: dict[str, object] = {"nextBatchWatermarkMs": 0}
        if name.id is not None:
            note["stateUniqueIds"] = {str(STORE.operator): [[name.id]] * (STORE.partition + 1)}
        path = self.fs.url(f"{self.place}/commits/{name.version - 1}").removeprefix("faulty://")
        self.fs.pipe_file(path, b"v1\n" + json.dumps(note).encode())
        self.names[name.version] = name
        self.found[name.version] = rows_of(self.instance(), name)

    def batch(self, store: VersionStore, version: int, put: Rows, *, whole: bool = False) -> None:
        """A batch of the query."""
        by = attempt()
        self.commit(store, version, put, by=by, whole=whole)
        self.accept(CheckpointName(version, by if self.with_ids else None))

    def check(self, since: int = 1) -> None:
        """Every version that was accepted is there as it was found then."""
        for version, rows in self.found.items():
            if version >= since:
                assert rows_of(self.instance(), self.names[version]) == rows, version

    def remove(self) -> None:
        """Make room."""
        self.fs.restart()
        root = self.fs.url(self.place).removeprefix("faulty://")
        self.fs.wrapped.rm(root, recursive=True)


@dataclass
class Pair:
    """Two operations that meet.

    Attributes
    ----------
    world
        Where they meet.
    first, second
        What they do. An error of this package is an outcome like others.
    """

    world: World
    first: Callable[[], object]
    second: Callable[[], object]
    failed: dict[str, StateStoreError] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)

    def run(self, pause_first: int, pause_second: int) -> bool:
        """The first one waits at a call until the second one waits at a call, and then goes on to its end.

        Returns
        -------
        bool
            Whether the first one made so many calls.
        """
        fs = self.world.fs
        reached, may_end, met = threading.Event(), threading.Event(), threading.Event()
        broken: list[BaseException] = []

        def other() -> None:
            try:
                self._try("second", self.second)
            except BaseException as error:  # noqa: BLE001 - raised below
                broken.append(error)
            finally:
                reached.set()

        thread = threading.Thread(target=other)

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

    def _try(self, which: str, operation: Callable[[], object]) -> None:
        try:
            operation()
        except StateStoreError as error:
            self.failed[which] = error


def meetings(build: Callable[[], Pair], step: int = 7) -> Iterator[tuple[Pair, int, int]]:
    """Every way in which two operations can meet: the first stopped once, the second stopped once.

    Parameters
    ----------
    step
        To look at every so many calls of the second one, other ones for each of the first, unless there is time.
    """
    step = 1 if EFFORT > 1 else step
    alone = build()
    alone.world.fs.inject()
    alone.second()
    calls = len(alone.world.fs.calls)
    alone.world.remove()
    for first in itertools.count(1):
        # Who finds something may make more calls than alone.
        for second in range(1 + first % step, calls + 4, step):
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

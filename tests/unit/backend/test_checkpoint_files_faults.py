"""Faults and power losses at every call of the requests with which Spark's driver keeps its logs.

The requests are those of a query's batches. After a fault the driver starts again as Spark does: it reads
what is there, and writes what is missing.
"""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import pytest

from spark_statestore.backend.checkpoint_files import FILE_HANDLERS
from spark_statestore.backend.protocol import FrameSocket, Kind
from spark_statestore.backend.supervision import Permit
from spark_statestore.errors import (
    CheckpointError,
    CheckpointExistsError,
    CheckpointIOError,
    CheckpointNotFoundError,
)
from spark_statestore.files.request_context import RequestContext
from spark_statestore.testing.faults import FaultInjectingFileSystem
from spark_statestore.testing.faults_plan import CrashedError, Fault
from tests.support.figures import count
from tests.unit.files.local_disk import LOSSES, LocalDisk, local_disk
from tests.unit.store.fault_bench import KINDS, faults_at, some

STRIDE = 7
BATCHES = 5
WARM = 2
"""Batches before the first fault."""

_numbers = itertools.count()


@dataclass(frozen=True)
class Step:
    """A file that the driver writes, or removes if there are no data."""

    name: str
    data: bytes | None
    overwrite: bool = False


def steps() -> list[list[Step]]:
    """Return the steps of each batch."""
    batches = []
    for batch in range(BATCHES):
        files = [Step(f"offsets/{batch}", b"v1\noffset %d" % batch), Step(f"sources/0/{batch}", b"v1\nfile")]
        if batch == 0:
            files[:0] = [Step("metadata", b'{"id":"x"}'), Step("state/0/_metadata/metadata", b"v1\n{}")]
        if batch % 3 == 2:
            files.append(Step(f"sources/0/{batch}.compact", b"v1\n" + b"file\n" * 300))
        files.append(Step("latest", b"batch %d" % batch, overwrite=True))
        files.append(Step(f"commits/{batch}", b"v1\n{}"))
        if batch > 1:
            files += [Step(f"{log}/{batch - 2}", None) for log in ("offsets", "commits")]
        batches.append(files)
    return batches


def ask(op: str, path: str, data: bytes | None = None, **fields: Any) -> bytes:
    """Handle a request in this process; return the content that it answers."""
    driver_end, backend_end = socket.socketpair()
    with driver_end, backend_end:
        driver, backend = FrameSocket(driver_end), FrameSocket(backend_end)
        if data is not None:
            driver.send(Kind.OBJECT, data)
        driver.send(Kind.END)
        request = {"path": path, "isFile": True, "repeated": False, "start": 0, "size": 1 << 20} | fields
        FILE_HANDLERS[op](request, backend, Permit(threading.BoundedSemaphore(1), RequestContext(60)))
        content = b""
        while (frame := driver.receive()) is not None and frame.kind is not Kind.END:
            if frame.kind is Kind.OBJECT:
                content = bytes(memoryview(frame.payload))
        return content


@dataclass
class Driver:
    """Writes the files of one checkpoint, and remembers what was acknowledged."""

    fs: LocalDisk | FaultInjectingFileSystem
    fsync: bool
    acknowledged: dict[str, bytes] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    cut_off: Step | None = None
    # Files that this run of the driver has written or read.
    files_of_run: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.fs.restart()
        self.root = self.fs.url(f"{next(_numbers)}/checkpoint")

    def ask(self, op: str, name: str, data: bytes | None = None, **fields: Any) -> bytes:
        options = {"options": {"fsync": str(self.fsync).lower()}} | fields
        return ask(op, f"{self.root}/{name}", data, **options)

    def read(self, name: str, **fields: Any) -> bytes | None:
        try:
            return self.ask("readFile", name, **fields)
        except CheckpointNotFoundError:
            return None

    def run(self, batches: list[list[Step]], most: int | None = None) -> None:
        """Write what is missing, as a query that starts, or goes on; end after a number of written files."""
        writes = 0
        for step in itertools.chain(*batches):
            if step.name in self.removed | self.files_of_run:
                continue
            if writes == most:
                break
            self.cut_off = step
            if step.data is None:
                log, _, name = step.name.rpartition("/")
                self.ask("deleteFiles", log, names=[name])
                self.acknowledged.pop(step.name, None)
                self.removed.add(step.name)
            else:
                writes += self.write(step)
                self.acknowledged[step.name] = step.data
                self.files_of_run.add(step.name)
            self.cut_off = None

    def write(self, step: Step) -> bool:
        """Write a file that is not there; return whether it was written."""
        content = None if step.overwrite else self.read(step.name)
        if content is None:
            self.ask("createFile", step.name, step.data, overwrite=step.overwrite)
        assert content in (None, step.data), f"{step.name} has {content!r}"
        return content is None and not step.overwrite

    def repeat(self) -> None:
        """Ask again for what was cut off, as the shim does after the backend ended."""
        step = self.cut_off
        if step is not None and step.data is not None:
            self.ask("createFile", step.name, step.data, overwrite=step.overwrite, repeated=True)
            self.acknowledged[step.name] = step.data
            self.files_of_run.add(step.name)

    def check(self) -> None:
        """Check that acknowledged files are whole, and the one that was cut off is old, new, or absent."""
        # Reading with fsync would sync what it finds.
        plain: dict[str, Any] = {"options": {}}
        for name, data in self.acknowledged.items():
            content = self.read(name, **plain)
            allowed = [data]
            if self.cut_off is not None and self.cut_off.name == name:
                allowed.append(self.cut_off.data)
            assert content in allowed, f"{name} has {content!r}"
        step = self.cut_off
        if step is not None and step.name not in self.acknowledged:
            assert self.read(step.name, **plain) in (None, step.data), f"{step.name} is not whole"

    def restart(self) -> None:
        self.files_of_run.clear()

    def crash(self) -> None:
        self.fs.crash()
        self.fs.restart()


def run_with(driver: Driver, fault: Fault, *, repeats: bool, power_fails: bool) -> None:
    """Run all batches with a fault, then to the end, and check the files after each start and at the end."""
    batches = steps()
    where = "local files" if isinstance(driver.fs, LocalDisk) else "objects"
    count(f"the driver's requests, {where}, fsync {driver.fsync}: faults")
    driver.run(batches[:WARM])
    driver.fs.inject(fault)
    try:
        driver.run(batches[WARM:])
    except (CheckpointError, OSError, CrashedError):
        if fault.kind == "kill" and not power_fails and isinstance(driver.fs, LocalDisk):
            lost, driver.fs.loss = driver.fs.loss, None
            driver.crash()
            driver.fs.loss = lost
        elif power_fails or fault.kind in ("kill", "lose_unsynced"):
            driver.crash()
        driver.fs.restart()
        driver.check()
        if repeats:
            driver.repeat()
        else:
            driver.restart()
    driver.fs.restart()
    if driver.fsync:
        # The file that is written next relies on the files that were found.
        driver.run(batches, most=1)
        driver.crash()
        driver.check()
    driver.restart()
    driver.run(batches)
    driver.check()


def calls_of(driver: Driver) -> list[Any]:
    driver.run(steps()[:WARM])
    driver.fs.inject()
    driver.run(steps()[WARM:])
    return list(driver.fs.calls)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LocalDisk]:
    with local_disk(tmp_path) as disk:
        yield disk


each_restart = pytest.mark.parametrize(
    "repeats", [False, True], ids=["driver-restarts", "request-is-repeated"]
)


@each_restart
@pytest.mark.parametrize("storage", ["disk", "objects"])
def test_logs_are_whole_after_a_kill_or_failure(disk: LocalDisk, repeats: bool, storage: str) -> None:
    fs = disk if storage == "disk" else FaultInjectingFileSystem()
    faults = list(faults_at(calls_of(Driver(fs, False)), ("fail", "fail_after", "tear", "kill")))
    assert len(faults) > 80
    for _, fault in some(faults, STRIDE):
        run_with(Driver(fs, False), fault, repeats=repeats, power_fails=False)


@pytest.mark.parametrize("power_fails", [False, True], ids=["then-later", "at-once"])
@each_restart
def test_synced_logs_survive_a_power_loss(disk: LocalDisk, repeats: bool, power_fails: bool) -> None:
    """The power fails at the fault, or once the driver has gone on: what it had found is there then, too."""
    disk.loss = LOSSES["nothing"]
    faults = list(faults_at(calls_of(Driver(disk, True)), (*KINDS, "kill")))
    for number, fault in some(faults, STRIDE):
        loss = list(LOSSES)[number // STRIDE % len(LOSSES)] if fault.kind == "lose_unsynced" else "nothing"
        disk.loss = LOSSES[loss]
        run_with(Driver(disk, True), fault, repeats=repeats, power_fails=power_fails)


@pytest.mark.parametrize("storage", ["disk", "mount", "shown-when-closed", "objects"])
def test_one_of_two_drivers_writes_a_batch_and_the_other_is_told(disk: LocalDisk, storage: str) -> None:
    """The second driver writes between two calls of the first.

    Its query is another one, or its lease is over.
    """
    durability = "synced" if storage == "mount" else "finished"
    fs = disk if storage == "disk" else FaultInjectingFileSystem(durability=durability)
    options = {"fsync": "false" if storage == "objects" else "true"}
    for at in itertools.count(1):
        fs.restart()
        path = fs.url(f"{next(_numbers)}/offsets/7")
        refused: list[str] = []

        def create(driver: str, path: str = path, refused: list[str] = refused) -> None:
            try:
                ask("createFile", path, driver.encode(), overwrite=False, options=options)
            except CheckpointExistsError:
                refused.append(driver)

        fs.inject(Fault("run", at, function=lambda create=create: create("second")))
        create("first")
        if len(fs.calls) < at:
            break
        (loser,) = refused
        winner = {"first": b"second", "second": b"first"}[loser]
        assert ask("readFile", path, options={}) == winner
        count(f"two drivers at one file: {storage}")
    # The one that is asked before it begins has written by then.
    assert at > (1 if storage == "objects" else 3)


class _Unconditional(FaultInjectingFileSystem):
    """A service that ignores the condition of a request."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        super().pipe_file(path, value, **kwargs)


def test_storage_without_exclusive_creation_is_refused() -> None:
    url = _Unconditional().url("checkpoint/metadata")
    fsspec.register_implementation("faulty", _Unconditional, clobber=True)
    with pytest.raises(
        CheckpointIOError, match=r"metadata replaces a file.*If-None-Match.*spark_files='hadoop'"
    ):
        ask("createFile", url, b"{}", overwrite=False, options={})


def test_exclusive_creation_is_tested_once_and_later_if_a_test_fails() -> None:
    fs = FaultInjectingFileSystem()
    calls = []
    for batch in range(4):
        fs.inject(*([Fault("fail", 3)] if batch == 0 else []))
        ask("createFile", fs.url(f"offsets/{batch}"), b"v1", overwrite=False, options={})
        calls.append([call.operation for call in fs.calls].count("pipe_file"))
    assert calls == [2, 2, 1, 1]

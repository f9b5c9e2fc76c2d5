"""Tests of faults and power losses at every call of savepoints, restores, copies and rollbacks.

The query keeps its state; a savepoint or new checkpoint is complete or does not exist; the operation can be
repeated.
"""

from __future__ import annotations

import contextlib
import itertools
import struct
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_statestore.errors import (
    CheckpointNotFoundError,
    IllegalStateError,
    SavepointNotFoundError,
    StateStoreError,
)
from spark_statestore.files import open_file_system
from spark_statestore.options import StorageOptions
from spark_statestore.query import QueryCheckpoint, lease
from spark_statestore.query.journal import find_journal
from spark_statestore.query.running import ActivityCheck
from spark_statestore.query.savepoint import KINDS as KINDS_OF_SAVEPOINTS
from spark_statestore.query.store_snapshot import StoreSnapshot
from spark_statestore.savepoints.api import (
    Kind,
    clone,
    dispose_savepoint,
    list_savepoints,
    load_savepoint,
    restore,
    rollback,
    savepoint,
)
from spark_statestore.savepoints.create import held_if_possible
from spark_statestore.savepoints.rescale_in_place import rescale_in_place
from spark_statestore.savepoints.restore import copy_held
from spark_statestore.savepoints.savepoint_holds import list_holds
from spark_statestore.store.holds import is_temporary_hold
from spark_statestore.store.metadata import StoreId
from spark_statestore.testing.faults import FaultInjectingFileSystem
from spark_statestore.testing.faults_plan import CrashedError, Fault
from spark_statestore.writing import erase, verify_absent
from spark_statestore.writing.in_place import InPlaceWrite
from tests.support.effort import EFFORT
from tests.support.figures import count
from tests.unit.files.local_disk import LOSSES, LocalDisk, local_disk
from tests.unit.savepoints.written_query import LARGE, SMALL, Content, WrittenQuery, content, row_key, united
from tests.unit.store.fault_bench import KINDS, READ_ONLY, Model, faults_at, some

SYNCED = StorageOptions(file_state_threshold=512, compression=None, fsync=True)

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the lease of a killed process pass to the next one at once."""
    monkeypatch.setattr(lease, "LEASE_SECONDS", 0.02)


BATCH_KEYS = [row_key(StoreId(0, partition, "default"), b"batch") for partition in range(2)]


class Scene:
    """A query after two batches, and a savepoint of the last one."""

    def __init__(self, model: Model, kind: Kind, *, with_ids: bool = True) -> None:
        self.fs = model.fs
        self.fs.restart()
        self.model = model
        self.root = self.fs.url(f"scene-{next(_numbers)}")
        self.query = WrittenQuery(
            f"{self.root}/checkpoint", with_ids, operators=SMALL, options=SYNCED, key=row_key
        )
        self.contents: list[Content] = []
        for batch in range(2):
            self.query.run(put={b"large": LARGE, b"batch": b"%d" % batch})
            self.contents.append(dict(self.query.rows))
        self.target = f"{self.root}/savepoints"
        self.saved = savepoint(self.query.url, self.target, kind).path
        self.holds = len(list_holds(self.query.checkpoint))
        self.new = ""
        self.log = self.log_entries()

    def log_entries(self) -> dict[str, bytes]:
        """Return Spark's log entries by path."""
        checkpoint = self.query.checkpoint
        entries = {}
        for status in checkpoint.files.list_files(checkpoint.root):
            name = status.path[len(checkpoint.root) + 1 :]
            if name.startswith("rolled-back/"):
                name = name.split("/", 2)[2]
            is_log = name.startswith(("offsets/", "commits/", "sources/"))
            if is_log and not name.startswith("offsets/.lease-"):
                data = checkpoint.files.read(status.path)
                # Of a copy that is not whole there is the original.
                if len(data) >= len(entries.get(name, b"")):
                    entries[name] = data
        return entries

    def crash(self) -> None:
        self.fs.crash()
        self.fs.restart()

    def free(self) -> None:
        """Remove holds of processes that are dead, as a user does after their report."""
        copies = [entry.path for entry in list_savepoints(self.target) if entry.kind == "canonical"]
        for checkpoint in (self.query.checkpoint, *map(QueryCheckpoint, copies)):
            for hold in list_holds(checkpoint):
                if is_temporary_hold(hold.name):
                    hold.remove()

    def new_location(self) -> str:
        self.new = f"{self.root}/new-{next(_numbers)}"
        return self.new

    def remove(self) -> None:
        self.fs.restart()
        self.fs.wrapped.rm(self.root.removeprefix("faulty://"), recursive=True)


def rows_at(url: str) -> Content | None:
    """Return the rows of a checkpoint, None if there is none."""
    try:
        checkpoint = QueryCheckpoint(url)
        _ = checkpoint.query_id
    except CheckpointNotFoundError:
        return None
    return content(checkpoint)


def exists(path: str) -> bool:
    try:
        load_savepoint(path)
    except SavepointNotFoundError:
        return False
    return True


# Interrupted operations, and the checks that must pass afterwards


@dataclass(frozen=True)
class Operation:
    """An operation on a query or a savepoint; called again, it is a retry.

    `check` is given True if the operation returned; `kind` is that of the savepoint that is there.
    """

    operate: Callable[[Scene], object]
    check: Callable[[Scene, bool], None]
    kind: Kind = "canonical"
    with_ids: bool = True


def query_is_whole(scene: Scene) -> None:
    for batch, rows in enumerate(scene.contents):
        assert content(scene.query.checkpoint, batch) == rows, batch


def savepoints_are_whole(scene: Scene, at_least: int) -> None:
    savepoints = list_savepoints(scene.target)
    for entry in savepoints:
        assert content(entry.checkpoint()) == scene.contents[1], entry
    assert len(savepoints) >= at_least


def takes(kind: Kind) -> Operation:
    def check(scene: Scene, completed: bool) -> None:
        query_is_whole(scene)
        savepoints_are_whole(scene, 2 if completed else 1)

    return Operation(lambda scene: savepoint(scene.query.url, scene.target, kind), check, kind)


def disposes(kind: Kind) -> Operation:
    def check(scene: Scene, completed: bool) -> None:
        query_is_whole(scene)
        savepoints_are_whole(scene, 0)
        if completed:
            assert list_holds(scene.query.checkpoint) == []
            files, directory = open_file_system(scene.saved)
            assert list(files.list_files(directory)) == []

    def operate(scene: Scene) -> None:
        # An interrupted disposal is repeated.
        with contextlib.suppress(SavepointNotFoundError):
            dispose_savepoint(scene.saved)

    return Operation(operate, check, kind)


def restores(kind: Kind) -> Operation:
    def check(scene: Scene, completed: bool) -> None:
        query_is_whole(scene)
        savepoints_are_whole(scene, 1)
        assert rows_at(scene.new) in ([scene.contents[1]] if completed else [None, scene.contents[1]])

    return Operation(lambda scene: restore(scene.saved, scene.new_location()), check, kind)


def claims(kind: Kind) -> Operation:
    def operate(scene: Scene) -> None:
        if exists(scene.saved):
            restore(scene.saved, scene.new_location(), claim_mode="claim")

    def check(scene: Scene, completed: bool) -> None:
        query_is_whole(scene)
        # One of the two is there at any moment.
        if exists(scene.saved):
            savepoints_are_whole(scene, 1)
        else:
            assert rows_at(scene.new) == scene.contents[1]
        assert not completed or not exists(scene.saved) or scene.model.fsync

    return Operation(operate, check, kind)


def rolls_back(by: Callable[[str], object]) -> Operation:
    def operate(scene: Scene) -> None:
        by(scene.query.url)

    def check(scene: Scene, completed: bool) -> None:
        checkpoint = scene.query.checkpoint
        newest = checkpoint.newest_batch()
        assert not completed or newest == 0
        for batch in checkpoint.batches():
            assert content(checkpoint, batch) == scene.contents[batch]
        # Every log entry exists, in place or moved.
        assert scene.log_entries() == scene.log
        savepoints_are_whole(scene, 1)

    return Operation(operate, check)


def rescales_in_place() -> Operation:
    """Return the change of a query's two partitions to three, in its place."""

    def operate(scene: Scene) -> None:
        rescale_in_place(QueryCheckpoint(scene.query.url, fsync=True), 3, stopped=True)

    def check(scene: Scene, completed: bool) -> None:
        savepoints_are_whole(scene, 1)
        checkpoint = scene.query.checkpoint
        try:
            current = content(checkpoint, 1)
        except IllegalStateError:
            # All that reads the query is refused until the change is complete.
            assert not completed
            assert find_journal(checkpoint) is not None
            return
        assert content(checkpoint, 0) == scene.contents[0]
        assert united(current) == united(scene.contents[1])
        partitions = {
            checkpoint.offsets(1).shuffle_partitions,
            *(len(ids) for ids in (checkpoint.commit(1).state_ids or {}).values()),
            *(operator.partitions for operator in checkpoint.operators()),
        }
        assert partitions in ([{3}] if completed else [{2}, {3}])

    return Operation(operate, check)


def without_batch(content: StoreSnapshot) -> StoreSnapshot:
    def rows() -> Iterator[tuple[str, pa.Table]]:
        for name, table in content.rows():
            yield name, table.filter(pc.invert(pc.is_in(table["key"], pa.array(BATCH_KEYS))))

    return replace(content, rows=rows)


def rows_without_batch(content: Content) -> Content:
    return {
        store: {key: value for key, value in rows.items() if key not in BATCH_KEYS}
        for store, rows in content.items()
    }


def writes() -> Operation:
    """Return the write of a copy without a key, as `write_state` makes it."""

    def operate(scene: Scene) -> None:
        checkpoint = scene.query.checkpoint
        target = scene.new_location()
        with held_if_possible(checkpoint, 1, target):
            copy_held(
                checkpoint,
                1,
                target,
                str(uuid.uuid4()),
                checkpoints_dir=None,
                progress=None,
                change=without_batch,
            )

    def check(scene: Scene, completed: bool) -> None:
        query_is_whole(scene)
        savepoints_are_whole(scene, 1)
        expected = rows_without_batch(scene.contents[1])
        assert rows_at(scene.new) in ([expected] if completed else [None, expected])

    return Operation(operate, check)


def writes_in_place(kind: Kind = "canonical", *, with_ids: bool) -> Operation:
    """Return the write of a query's state without a key, as `write_state` does it in place."""

    def operate(scene: Scene) -> None:
        checkpoint = QueryCheckpoint(scene.query.url, fsync=True)
        InPlaceWrite(checkpoint, 1, 0, ActivityCheck(checkpoint)).write(without_batch)

    def check(scene: Scene, completed: bool) -> None:
        # Another one may have listed the merged files before.
        checkpoint = QueryCheckpoint(scene.query.url)
        assert content(checkpoint, 0) == scene.contents[0]
        before = scene.contents[1]
        expected = rows_without_batch(before)
        assert content(checkpoint, 1) in ([expected] if completed else [before, expected])
        savepoints_are_whole(scene, 1)

    return Operation(operate, check, kind, with_ids)


def erases() -> Operation:
    """Return the erasure of a key from a query and its savepoint."""
    condition = pc.field("key", "k").isin([struct.unpack("<qq", key)[1] for key in BATCH_KEYS])

    def operate(scene: Scene) -> None:
        erased = erase(scene.query.url, condition, stopped=True, savepoints=[scene.saved])
        assert erased.absence.ok

    def check(scene: Scene, completed: bool) -> None:
        checkpoint = scene.query.checkpoint
        for batch, before in enumerate(scene.contents):
            expected = rows_without_batch(before)
            assert content(checkpoint, batch) in ([expected] if completed else [before, expected]), batch
        before = scene.contents[1]
        expected = rows_without_batch(before)
        rows = content(load_savepoint(scene.saved).checkpoint())
        assert rows in ([expected] if completed else [before, expected])
        assert restore(scene.saved, scene.new_location()) == 1
        assert rows_at(scene.new) == rows
        if completed:
            # Also after a power loss: the files of before do not reappear.
            assert verify_absent(scene.query.url, condition).ok
            assert verify_absent(scene.saved, condition).ok

    return Operation(operate, check)


OPERATIONS = {
    "a-savepoint": takes("canonical"),
    "a-pointer": takes("pointer"),
    "disposal": disposes("canonical"),
    "disposal-of-a-pointer": disposes("pointer"),
    "a-restore": restores("canonical"),
    "a-restore-of-a-pointer": restores("pointer"),
    "a-claim": claims("canonical"),
    "a-claim-of-a-pointer": claims("pointer"),
    "a-clone": Operation(
        lambda scene: clone(scene.query.url, scene.new_location()), restores("canonical").check
    ),
    "a-write": writes(),
    "a-write-in-place": writes_in_place(with_ids=True),
    # The savepoint has the attempts of before.
    "a-write-in-place-without-ids": writes_in_place("pointer", with_ids=False),
    "an-erasure": erases(),
    "a-rescale-in-place": rescales_in_place(),
    "a-rollback": rolls_back(lambda url: rollback(url, 0, stopped=True)),
}


def faults(model: Model, operation: Operation) -> Iterator[Fault]:
    scene = Scene(model, operation.kind, with_ids=operation.with_ids)
    scene.fs.inject()
    operation.operate(scene)
    calls = scene.fs.calls
    scene.fs.inject()
    operation.check(scene, True)
    scene.remove()
    if EFFORT == 1:
        # What is read in vain changes nothing.
        calls = [call for call in calls if call.operation not in READ_ONLY or call.number % 5 == 0]
    return faults_at(calls, model.kinds)


def run(model: Model, operation: Operation, fault: Fault) -> None:
    count(f"savepoint, {'local' if isinstance(model.fs, LocalDisk) else 'fsspec'} files: {fault.kind}")
    scene = Scene(model, operation.kind, with_ids=operation.with_ids)
    scene.fs.inject(fault)
    completed = False
    message = ""
    calls: list[str] = []
    try:
        try:
            operation.operate(scene)
            completed = True
        except StateStoreError as error:
            message = str(error)
        except CrashedError as error:
            message = str(error)
        calls = [str(call) for call in scene.fs.calls[-20:]]
        scene.fs.restart()
        operation.check(scene, completed)
        if fault.kind == "fail" and not completed:
            # Only a process that dies leaves a hold.
            assert len(list_holds(scene.query.checkpoint)) <= scene.holds
        # What was done, or is done now, outlives what comes.
        if model.fsync:
            scene.crash()
            operation.check(scene, completed)
        scene.free()
        operation.operate(scene)
        operation.check(scene, True)
        if model.fsync:
            scene.crash()
            operation.check(scene, True)
    except BaseException as error:
        error.add_note(f"{fault}; error: {message or 'nothing'}")
        error.add_note("; ".join(calls))
        raise
    scene.remove()


# One of each kind is in the first tier: a write, a removal, a copy, a rollback.
EACH_OPERATION = [
    name
    if name in ("a-pointer", "disposal", "a-restore", "a-rollback")
    else pytest.param(name, marks=pytest.mark.slow)
    for name in OPERATIONS
]


@pytest.mark.parametrize("operation", EACH_OPERATION)
def test_interrupted_operation_on_an_object_store_is_atomic(operation: str) -> None:
    model = Model(FaultInjectingFileSystem(), False, False, (*KINDS[:3], "kill"))
    for _, fault in some(faults(model, OPERATIONS[operation]), 19):
        run(model, OPERATIONS[operation], fault)


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("with_ids", [False, True], ids=["v1", "v2"])
@pytest.mark.parametrize("kind", KINDS_OF_SAVEPOINTS)
def test_savepoint_of_a_query_without_fsync_survives_a_power_loss(
    tmp_path: Path, kind: Kind, with_ids: bool, loss: str
) -> None:
    with local_disk(tmp_path) as disk:
        query = WrittenQuery(disk.url("checkpoint"), with_ids, operators=SMALL)
        query.run(put={b"large": LARGE})
        if not with_ids:
            # Another attempt takes the name of one that the next version builds on.
            query.begin(put={b"small": b"1"})
            query.restart()
            query.log_commit(query.begin(put={b"small": b"1"}), {b"small": b"1"})
        query.run(put={b"small": b"2"})
        new_savepoint = savepoint(query.url, disk.url("savepoints"), kind)
        disk.loss = LOSSES[loss]
        disk.crash()
        disk.restart()
        assert content(load_savepoint(new_savepoint.path).checkpoint()) == query.rows
        assert restore(new_savepoint.path, disk.url("new")) == query.batch
        assert rows_at(disk.url("new")) == query.rows


@pytest.mark.parametrize("operation", EACH_OPERATION)
def test_operation_on_local_files_survives_a_power_loss(tmp_path: Path, operation: str) -> None:
    with local_disk(tmp_path) as disk:
        disk.loss = LOSSES["nothing"]
        model = Model(disk, True, False, (*KINDS, "kill"))
        for number, fault in some(faults(model, OPERATIONS[operation]), 41):
            losses = list(LOSSES) if EFFORT > 1 else [list(LOSSES)[number // 41 % len(LOSSES)]]
            for loss in losses if fault.kind == "lose_unsynced" else ["nothing"]:
                disk.loss = LOSSES[loss]
                run(model, OPERATIONS[operation], fault)

"""State machine of savepoints and a query that commits, fails, is rolled back and cleaned up."""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from spark_statestore.errors import SavepointError, SavepointNotFoundError, StateStoreError
from spark_statestore.options import StorageOptions
from spark_statestore.query import QueryCheckpoint
from spark_statestore.query.gc import gc
from spark_statestore.query.rollback import rollback
from spark_statestore.query.savepoint import KINDS, Kind
from spark_statestore.savepoints.api import dispose_savepoint, list_savepoints, load_savepoint, savepoint
from spark_statestore.savepoints.restore import clone, rescale, restore
from spark_statestore.savepoints.savepoint_holds import list_holds
from spark_statestore.testing.faults import FaultInjectingFileSystem
from spark_statestore.testing.faults_plan import CrashedError, Fault, FaultKind
from tests.support.effort import EFFORT
from tests.unit.files.local_disk import LOSSES, LocalDisk, installed
from tests.unit.savepoints.written_query import LARGE, SMALL, Content, WrittenQuery, content, row_key, united

T = TypeVar("T")

_puts = st.dictionaries(
    st.sampled_from("abc"), st.sampled_from(["", "1", "2", "large", "larger"]), max_size=2
)
_stores = st.lists(st.sampled_from([0, 1]), unique=True)


def _rows(put: dict[str, str]) -> dict[bytes, bytes]:
    return {key.encode(): value.encode() + LARGE * ("large" in value) for key, value in put.items()}


class SavepointMachine(RuleBasedStateMachine):
    """A query and its user. What is cut short, by an error or a crash, may be done or not, but never half."""

    options = StorageOptions(file_state_threshold=512, compression=None)

    def make_directory(self) -> str:
        self.scratch = tempfile.TemporaryDirectory()
        return f"file://{self.scratch.name}"

    def remove_directory(self) -> None:
        self.scratch.cleanup()

    def perform(self, operation: Callable[[], T]) -> T | None:
        """Do something that may be cut short; None if it was."""
        return operation()

    def __init__(self) -> None:
        super().__init__()
        self.root = self.make_directory()
        self.target = f"{self.root}/savepoints"
        # What each batch on the present timeline left, and each savepoint that lives.
        self.states: dict[int, Content] = {}
        self.living: dict[str, Content] = {}
        # The newest batch ever, and the oldest whose state no cleanup has discarded.
        self.highest = self.oldest = 0
        # The oldest one in Spark's logs.
        self.first = 0

    @initialize(
        keep=st.integers(1, 3),
        retained_batches=st.integers(1, 3),
        with_ids=st.booleans(),
        elsewhere=st.booleans(),
    )
    def start(self, keep: int, retained_batches: int, with_ids: bool, elsewhere: bool) -> None:
        self.keep = keep
        self.query = WrittenQuery(
            f"{self.root}/checkpoint",
            with_ids,
            # The option ``checkpointsDir``.
            f"{self.root}/state" if elsewhere else None,
            # Spark's logs may retain more batches than cleanups do.
            retained_batches=max(keep, retained_batches),
            options=self.options,
            operators=SMALL,
            key=row_key,
        )
        self.run_batch([0, 1], {"first": "large"}, False)

    @property
    def where(self) -> dict[str, Any]:
        return {"checkpoints_dir": self.query.checkpoints_dir}

    @property
    def retained(self) -> list[int]:
        return [batch for batch in self.states if batch >= self.first]

    # The query

    @rule(changed=_stores, put=_puts, whole=st.integers(0, 3).map(lambda n: n == 0))
    def run_batch(self, changed: list[int], put: dict[str, str], whole: bool) -> None:
        stores = tuple(self.query.stores[number] for number in changed)
        batch = self.query.run(*stores, put=_rows(put), whole=whole)
        self.states[batch] = dict(self.query.rows)
        self.highest = max(self.highest, batch)
        self.first = max(self.first, batch - self.query.retained_batches)

    @rule(put=_puts, restart=st.booleans())
    def fail_in_a_batch(self, put: dict[str, str], restart: bool) -> None:
        """Fail in a batch, which Spark repeats with the same driver or a new one.

        In format v1 it does so under the same names.
        """
        instances = {store: (i.name, i.attempt_id, i.handle) for store, i in self.query.instances.items()}
        self.query.begin(put=_rows(put | {"lost": "large"}))
        for store, (name, attempt_id, handle) in instances.items():
            instance = self.query.instances[store]
            instance.name, instance.attempt_id, instance.handle = name, attempt_id, handle
        if restart:
            self.query.restart()

    @precondition(lambda self: not self.query.with_ids)
    @rule(number=st.sampled_from([0, 1]))
    def commit_late(self, number: int) -> None:
        """Let a superseded task commit late: in format v1 its attempt replaces the newest version."""
        query, store = self.query, self.query.stores[number]
        batch = query.batch
        before = self.states.get(batch - 1)
        if before is None:
            return
        late_instance = query.open(store)
        late_instance.handle = None
        query.batch, rows = batch - 1, query.rows[store]
        query.commit_store(store, {}, instance=late_instance, whole=True)
        query.batch = batch
        assert query.rows[store] == rows
        # Spark loads what has the name now, wherever the next batch runs.
        query.restart()

    @rule()
    def restart(self) -> None:
        self.query.restart()

    @rule(number=st.sampled_from([0, 1, None]))
    def clean_up(self, number: int | None) -> None:
        stores = () if number is None else (self.query.stores[number],)
        self.oldest = max(self.oldest, self.query.batch - self.keep)
        self.perform(lambda: self.query.clean_up(self.keep, *stores))

    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        query = self.query
        batch = data.draw(st.sampled_from([b for b in self.retained if b >= self.oldest]))
        rollback(query.url, batch, stopped=True, **self.where)
        query.batch = batch
        self.states = {number: rows for number, rows in self.states.items() if number <= batch}
        query.rows = dict(self.states[batch])
        query.restart()

    # Its user

    @rule(kind=st.sampled_from(KINDS), data=st.data())
    def take(self, kind: Kind, data: st.DataObject) -> None:
        batch = data.draw(st.sampled_from([None, *self.retained]))
        number = self.query.batch if batch is None else batch
        expected = self.states[number]
        earlier = set(self.living)

        def take() -> object:
            try:
                return savepoint(self.query.url, self.target, kind, batch=batch, **self.where)
            except SavepointError:
                # Only versions that cleanups may be discarding are refused, after a rollback also the newest
                # one.
                if number >= max(self.oldest, self.highest - self.keep):
                    raise
                return True

        self.perform(take)
        for entry in list_savepoints(self.target):
            if entry.path not in earlier:
                self.living[entry.path] = dict(expected)
                self.check_one(entry.path)

    @precondition(lambda self: self.living)
    @rule(data=st.data(), kind=st.sampled_from(KINDS))
    def take_of_a_savepoint(self, data: st.DataObject, kind: Kind) -> None:
        path = data.draw(st.sampled_from(list(self.living)))
        earlier = set(self.living)
        self.perform(lambda: savepoint(path, self.target, kind))
        for entry in list_savepoints(self.target):
            if entry.path not in earlier:
                self.living[entry.path] = self.living[path]

    @precondition(lambda self: self.living)
    @rule(data=st.data())
    def dispose(self, data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(list(self.living)))
        outcome = self.perform(lambda: self.try_to_dispose(path))
        if outcome is None and load_or_none(path) is None:
            outcome = self.try_to_dispose(path, begun=True)
        if outcome == "disposed":
            del self.living[path]

    def try_to_dispose(self, path: str, *, begun: bool = False) -> str:
        needed = list_holds(QueryCheckpoint(path)) if load_or_none(path) else []
        try:
            dispose_savepoint(path)
        except SavepointNotFoundError:
            assert begun
        except StateStoreError as error:
            if not needed or "is needed by" not in str(error):
                raise
            return "needed"
        return "disposed"

    @precondition(lambda self: self.living)
    @rule(data=st.data(), claim=st.booleans())
    def restore(self, data: st.DataObject, claim: bool) -> None:
        path = data.draw(st.sampled_from(list(self.living)))
        if claim and load_savepoint(path).kind == "canonical" and list_holds(QueryCheckpoint(path)):
            return
        new = f"{self.root}/{uuid.uuid4()}"
        expected = self.living[path]
        batch = restore(path, new, claim_mode="claim" if claim else "no_claim")
        if claim:
            del self.living[path]
        assert content(QueryCheckpoint(new), batch) == expected

    @rule()
    def clone(self) -> None:
        new = f"{self.root}/{uuid.uuid4()}"
        batch = clone(self.query.url, new, **self.where)
        assert content(QueryCheckpoint(new, **self.where), batch) == self.states[self.query.batch]

    @rule(partitions=st.sampled_from([1, 3]))
    def rescale(self, partitions: int) -> None:
        new = f"{self.root}/{uuid.uuid4()}"
        batch = rescale(self.query.url, new, partitions, stopped=True, **self.where)
        rows = content(QueryCheckpoint(new, **self.where), batch)
        assert [store.partition for store in rows] == list(range(partitions))
        assert united(rows) == united(self.states[self.query.batch])

    @precondition(lambda self: self.query.with_ids)
    @rule(partitions=st.sampled_from([1, 3]))
    def rescale_in_place(self, partitions: int) -> None:
        """Change the partitions, check all that refers to the batch, and change them back."""
        for count in (partitions, 2):
            again = partial(rescale, self.query.url, None, count, in_place=True, stopped=True, **self.where)
            self.perform(again)
            again()
            rows = content(self.query.checkpoint)
            assert [store.partition for store in rows] == list(range(count))
            assert united(rows) == united(self.states[self.query.batch])
            for path in self.living:
                self.check_one(path)
            gc(self.query.url, stopped=True, **self.where)
        self.query.restart()

    # What must hold

    def check_one(self, path: str) -> None:
        assert content(load_savepoint(path).checkpoint()) == self.living[path], path

    @rule()
    def check(self) -> None:
        assert {entry.path for entry in list_savepoints(self.target)} == set(self.living)
        for path in self.living:
            self.check_one(path)
        for batch in self.retained:
            if batch >= self.oldest:
                assert content(self.query.checkpoint, batch) == self.states[batch]

    def teardown(self) -> None:
        try:
            if hasattr(self, "query"):
                self.query.restart()
                self.clean_up(None)
                self.check()
                self.let_all_go()
        finally:
            self.remove_directory()

    def let_all_go(self) -> None:
        """Without savepoints, nothing is kept that would not be kept without any."""
        # Those that were taken of others first.
        for _ in range(len(self.living)):
            if self.troubled:
                self.remove_left_holds()
            for path in sorted(self.living):
                if self.try_to_dispose(path) == "disposed":
                    del self.living[path]
        assert not self.living
        files = self.query.checkpoint.files
        assert not list(files.list_files(self.target.partition("://")[2])) or self.troubled
        if not self.troubled:
            assert list_holds(self.query.checkpoint) == []

    def remove_left_holds(self) -> None:
        """Remove holds whose holder is gone.

        What a dead process left is for its user to see and to remove.
        """
        for checkpoint in (self.query.checkpoint, *map(QueryCheckpoint, self.living)):
            for hold in list_holds(checkpoint):
                if hold.holder() not in self.living:
                    hold.remove()

    troubled = False


def load_or_none(path: str) -> object:
    try:
        return load_savepoint(path)
    except SavepointNotFoundError:
        return None


class CrashingMachine(SavepointMachine):
    """Storage fails, or the process that takes a savepoint, disposes of one or cleans up dies."""

    def make_directory(self) -> str:
        self.fs = FaultInjectingFileSystem()
        self.fault: Fault | None = None
        return self.fs.url("")

    def remove_directory(self) -> None:
        self.fs.restart()

    @rule(kind=st.sampled_from(["fail", "fail_after", "lose_unsynced"]), at=st.integers(1, 40))
    def trouble_ahead(self, kind: FaultKind, at: int) -> None:
        self.fault = Fault(kind, at)

    def perform(self, operation: Callable[[], T]) -> T | None:
        fault, self.fault = self.fault, None
        if fault is None:
            return operation()
        self.fs.inject(fault)
        self.troubled = True
        try:
            return operation()
        except StateStoreError:
            return None
        except CrashedError:
            self.fs.restart()
            self.query.restart()
            return None
        finally:
            self.fs.inject()


class PowerLossMachine(CrashingMachine):
    """Local files; processes are killed, and the machine loses power."""

    options = StorageOptions(file_state_threshold=512, compression=None, fsync=True)

    def make_directory(self) -> str:
        self.resources = contextlib.ExitStack()
        scratch = self.resources.enter_context(tempfile.TemporaryDirectory())
        self.fs = LocalDisk(Path(scratch))  # type: ignore[assignment]
        self.fs.loss = LOSSES["nothing"]  # type: ignore[attr-defined]
        self.resources.enter_context(installed(self.fs))  # type: ignore[arg-type]
        self.fault = None
        return f"file://{scratch}"

    def remove_directory(self) -> None:
        super().remove_directory()
        self.resources.close()

    @rule(at=st.integers(1, 60))
    def end_ahead(self, at: int) -> None:
        self.fault = Fault("kill", at)

    @rule(loss=st.sampled_from(list(LOSSES)))
    def lose_power(self, loss: str) -> None:
        self.fs.loss = LOSSES[loss]  # type: ignore[attr-defined]
        self.fs.crash()
        self.fs.restart()
        self.query.restart()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "examples"),
    [(SavepointMachine, 8), (CrashingMachine, 12), (PowerLossMachine, 12)],
)
def test_savepoints_keep_the_state_of_their_batch(machine: type[SavepointMachine], examples: int) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples * EFFORT, stateful_step_count=30)
    )

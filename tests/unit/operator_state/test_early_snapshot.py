"""Snapshots that a block takes before its end: written meanwhile, and counted with the block."""

from __future__ import annotations

import contextlib
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_statestore.errors import CheckpointExistsError, CheckpointIOError, IllegalStateError
from spark_statestore.files import FileOutput, LocalFileSystem
from spark_statestore.operator_state import (
    BatchOperatorState,
    ListStateDescriptor,
    MapStateDescriptor,
    QueryOperatorState,
)
from spark_statestore.operator_state.serializers import SerializerSnapshot, StateSerializer
from spark_statestore.operator_state.snapshot_strategy import SnapshotFuture
from tests.support.trees import files_below
from tests.unit.operator_state.backends import Point, PointSerializer


class Pickling(StateSerializer[Any]):
    """Keeps all that a value may be."""

    @property
    def snapshot(self) -> SerializerSnapshot:
        return {"serializer": "pickling"}

    def serialize(self, value: Any) -> bytes:
        return pickle.dumps(value)

    def deserialize(self, data: bytes) -> Any:
        return pickle.loads(data)


LIST = ListStateDescriptor("list", pa.list_(pa.int64()))
MAP = MapStateDescriptor("map", pa.string(), pa.binary())
# More than what stays inside of metadata.
LARGE = b"x" * 30_000


def opened(location: Path) -> QueryOperatorState:
    return QueryOperatorState(str(location), "own")


def change(store: BatchOperatorState, value: int) -> None:
    store.get_list_state(LIST).add([value])
    store.get_broadcast_state(MAP).put(str(value), LARGE)


def content(location: Path, batch: int | None = None) -> list[list[int]]:
    store = opened(location).read(batch)
    assert all(value == LARGE for value in store.get_broadcast_state(MAP).immutable_entries.values())
    return store.get_list_state(LIST).get()


@pytest.fixture
def state(tmp_path: Path) -> QueryOperatorState:
    """Return the state after batch 0."""
    state = opened(tmp_path)
    with state.batch(0) as store:
        change(store, 0)
    return state


def test_snapshot_is_written_while_the_block_goes_on_and_counts_at_its_end(
    state: QueryOperatorState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink_is_done = threading.Event()
    writers = []
    open_output = LocalFileSystem.open_output

    def open_after_the_sink(files: LocalFileSystem, path: str) -> FileOutput:
        writers.append(threading.current_thread())
        assert sink_is_done.wait(60)
        return open_output(files, path)

    monkeypatch.setattr(LocalFileSystem, "open_output", open_after_the_sink)
    with state.batch(1) as store:
        change(store, 1)
        store.snapshot()
        # State can be read.
        assert store.get_list_state(LIST).get() == [[0], [1]]
        assert store.get_broadcast_state(MAP).get("1") == LARGE
        assert store.get_list_state(ListStateDescriptor("new", pa.int64())).get() == []
        assert state.batches() == [0]
        sink_is_done.set()
    assert writers != [threading.current_thread()]
    assert state.batches() == [0, 1]
    assert content(tmp_path) == [[0], [1]]
    monkeypatch.undo()
    # The same object goes on with the state in memory, which can be changed again.
    with state.batch(2) as store:
        change(store, 2)
    assert content(tmp_path) == [[0], [1], [2]]


CHANGES: dict[str, Callable[[BatchOperatorState], Any]] = {
    "add": lambda store: store.get_list_state(LIST).add([1]),
    "add_all": lambda store: store.get_list_state(LIST).add_all([[1]]),
    "update": lambda store: store.get_list_state(LIST).update([]),
    "clear a list": lambda store: store.get_list_state(LIST).clear(),
    "change a new list": lambda store: store.get_list_state(ListStateDescriptor("n", pa.int8())).add(1),
    "change a union list": lambda store: store.get_union_list_state(ListStateDescriptor("u", pa.int8())).add(
        1
    ),
    "put": lambda store: store.get_broadcast_state(MAP).put("a", b""),
    "put_all": lambda store: store.get_broadcast_state(MAP).put_all({}),
    "remove": lambda store: store.get_broadcast_state(MAP).remove("a"),
    "clear a map": lambda store: store.get_broadcast_state(MAP).clear(),
    "another snapshot": lambda store: store.snapshot(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_change_after_the_snapshot_is_refused(state: QueryOperatorState, tmp_path: Path, name: str) -> None:
    match = "has its snapshot already" if name == "another snapshot" else "would lack the change"
    for accessed in (False, True):
        opened_again = opened(tmp_path)
        with opened_again.batch(1) as store:
            if accessed:
                change(store, 1)
            store.snapshot()
            with pytest.raises(IllegalStateError, match=match):
                CHANGES[name](store)
        assert content(tmp_path, 1) == ([[0], [1]] if accessed else [[0]])
        # In a block of its own it is a change as any other.
        with opened_again.batch(2) as store:
            CHANGES[name](store)


@pytest.mark.parametrize("kind", ["list", "map", "object"])
def test_value_changed_in_place_after_the_snapshot_fails_the_batch(
    state: QueryOperatorState, tmp_path: Path, kind: str
) -> None:
    points = ListStateDescriptor("points", PointSerializer())
    maps = MapStateDescriptor("maps", pa.string(), pa.struct([("n", pa.int64())]))
    with state.batch(1) as store:
        store.get_list_state(points).add(Point(1, 2))
        store.get_broadcast_state(maps).put("a", {"n": 1})
    before = files_below(tmp_path)

    def run(value: object) -> None:
        with state.batch(2) as store:
            store.snapshot()
            if kind == "list":
                store.get_list_state(LIST).get()[0][0] = value
            elif kind == "map":
                store.get_broadcast_state(maps).get("a")["n"] = value
            else:
                store.get_list_state(points).get()[0].x = value

    # An array cannot be compared with a number.
    for value in (99, np.array([0, 1])):
        with pytest.raises(IllegalStateError, match=r"value in .* was changed in place"):
            run(value)
    assert files_below(tmp_path) == before
    # A value that is put back is no change.
    run({"list": 0, "map": 1, "object": 1}[kind])
    assert state.batches() == [0, 1, 2]


@pytest.mark.parametrize(
    ("type_", "value", "equal"), [(pa.list_(pa.float64()), [0.0], -0.0), (None, [1], True)]
)
def test_equal_value_with_other_bytes_after_the_snapshot_fails_the_batch(
    tmp_path: Path, type_: pa.DataType | None, value: list[Any], equal: object
) -> None:
    values = ListStateDescriptor("values", type_ or Pickling())

    def run() -> None:
        with opened(tmp_path).batch(0) as store:
            store.get_list_state(values).add(value)
            store.snapshot()
            value[0] = equal

    with pytest.raises(IllegalStateError, match="was changed in place"):
        run()
    assert opened(tmp_path).batches() == []


def test_snapshot_keeps_a_list_that_a_value_has_twice(tmp_path: Path) -> None:
    values = ListStateDescriptor("values", Pickling())
    twice: list[Any] = [1]
    endless: list[Any] = [twice, {"also": twice}]
    endless.append(endless)
    with opened(tmp_path).batch(0) as store:
        store.get_list_state(values).add(endless)
        store.snapshot()
    [first] = opened(tmp_path).read().get_list_state(values).get()
    assert first[0] is first[1]["also"]
    assert first[2] is first


@pytest.mark.parametrize("method", ["add_all", "update"])
def test_iterable_that_takes_the_snapshot_changes_no_list(
    state: QueryOperatorState, tmp_path: Path, method: str
) -> None:
    numbers = ListStateDescriptor("numbers", pa.int64())
    with state.batch(1) as store:
        store.get_list_state(numbers).add(1)

        def elements() -> Iterator[int]:
            store.snapshot()
            yield 2

        with pytest.raises(IllegalStateError, match="would lack the change"):
            getattr(store.get_list_state(numbers), method)(elements())
        assert store.get_list_state(numbers).get() == [1]
    assert opened(tmp_path).read().get_list_state(numbers).get() == [1]


@pytest.mark.parametrize("kind", ["list", "map"])
def test_state_that_could_not_be_copied_after_the_snapshot_refuses_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    points = ListStateDescriptor("points", PointSerializer())
    named = MapStateDescriptor("named", pa.string(), PointSerializer())
    with opened(tmp_path).batch(0) as store:
        store.get_list_state(points).add(Point(1, 2))
        store.get_broadcast_state(named).put("a", Point(1, 2))

    def access() -> Any:
        return store.get_list_state(points) if kind == "list" else store.get_broadcast_state(named)

    def fail(*_: object) -> bytes:
        raise MemoryError

    with opened(tmp_path).batch(1) as store:
        store.snapshot()
        with monkeypatch.context() as patched:
            patched.setattr(PointSerializer, "serialize", fail)
            with pytest.raises(MemoryError):
                access()
        with pytest.raises(IllegalStateError, match="would lack the change"):
            access().clear()


@pytest.mark.parametrize("early", [False, True])
def test_interrupt_between_the_write_and_its_result_ends_the_batch(
    state: QueryOperatorState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    interrupted = threading.Event()

    def interrupt(*_: object) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    def run() -> None:
        with contextlib.suppress(KeyboardInterrupt), state.batch(1) as store:
            change(store, 1)
            if early:
                store.snapshot()
                wait_for_writers()
                raise KeyboardInterrupt

    monkeypatch.setattr(SnapshotFuture, "set_result", interrupt)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    driver = threading.Thread(target=run, daemon=True)
    driver.start()
    driver.join(30)
    assert interrupted.is_set()
    assert not driver.is_alive()
    monkeypatch.undo()
    with state.batch(1) as store:
        assert store.get_list_state(LIST).get() == [[0]]
        change(store, 1)
    assert content(tmp_path) == [[0], [1]]
    # The file of the interrupted attempt is removed, too.
    assert len(files_below(tmp_path)) == 4


def test_serializer_with_other_bytes_for_equal_values_is_no_change(tmp_path: Path) -> None:
    class Salted(PointSerializer):
        salt = 0

        def serialize(self, value: Point) -> bytes:
            Salted.salt += 1
            return super().serialize(value) + b" " * Salted.salt

    with opened(tmp_path).batch(0) as store:
        store.get_list_state(ListStateDescriptor("points", Salted())).add(Point(1, 2))
        store.snapshot()
    assert opened(tmp_path).batches() == [0]


@pytest.mark.parametrize("waits", [True, False])
def test_block_that_raises_leaves_nothing_of_its_snapshot(
    state: QueryOperatorState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    before = files_below(tmp_path)
    is_open, goes_on = threading.Event(), threading.Event()
    open_output = LocalFileSystem.open_output

    def open_slowly(files: LocalFileSystem, path: str) -> FileOutput:
        output = open_output(files, path)
        is_open.set()
        assert goes_on.wait(60)
        return output

    monkeypatch.setattr(LocalFileSystem, "open_output", open_slowly)

    def run() -> None:
        with state.batch(1) as store:
            change(store, 1)
            store.snapshot()
            assert is_open.wait(60)
            if waits:
                goes_on.set()
                wait_for_writers()
            else:
                # Only after the block has raised.
                threading.Timer(0.1, goes_on.set).start()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run()
    assert files_below(tmp_path) == before
    assert writers() == []
    monkeypatch.undo()
    with state.batch(1) as store:
        assert store.get_list_state(LIST).get() == [[0]]


def test_block_that_raises_leaves_the_published_part_of_another_driver(
    state: QueryOperatorState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_driver = opened(tmp_path)
    goes_on = threading.Event()
    open_output = LocalFileSystem.open_output

    def open_late(files: LocalFileSystem, path: str) -> FileOutput:
        if threading.current_thread() in writers():
            assert goes_on.wait(60)
        return open_output(files, path)

    monkeypatch.setattr(LocalFileSystem, "open_output", open_late)

    def run() -> None:
        with state.batch(1) as store:
            change(store, 1)
            store.snapshot()
            # There is no file of the first part yet, so both have one name.
            with other_driver.batch(1) as other_store:
                change(other_store, 7)
            goes_on.set()
            wait_for_writers()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run()
    assert content(tmp_path) == [[0], [7]]
    assert len(files_below(tmp_path)) == 4


def writers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("snapshot of batch")]


def wait_for_writers() -> None:
    for thread in writers():
        thread.join(60)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("operation", ["open_output", "create_of_parts"], ids=["state", "metadata"])
def test_snapshot_that_cannot_be_written_fails_the_batch_at_its_end(
    state: QueryOperatorState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, early: bool
) -> None:
    before = files_below(tmp_path)

    def refuse(*_: object) -> None:
        raise OSError("no space left")

    sunk = []

    def run() -> None:
        with state.batch(1) as store:
            change(store, 1)
            if early:
                store.snapshot()
                wait_for_writers()
            sunk.append(1)

    monkeypatch.setattr(LocalFileSystem, operation, refuse)
    with pytest.raises(CheckpointIOError, match="no space left"):
        run()
    monkeypatch.undo()
    assert sunk == [1]
    assert files_below(tmp_path) == before
    run()
    assert content(tmp_path) == [[0], [1]]


def test_snapshot_that_cannot_be_taken_can_be_taken_again(state: QueryOperatorState, tmp_path: Path) -> None:
    points = ListStateDescriptor("points", PointSerializer())
    with state.batch(1) as store:
        point = Point(1, 2)
        change(store, 1)
        store.get_list_state(points).add(point)
        point.x = object()
        with pytest.raises(TypeError, match="not JSON serializable") as raised:
            store.snapshot()
        assert raised.value.__notes__ == ["while list state 'points' was copied for a snapshot"]
        point.x = 7
        change(store, 2)
        store.get_list_state(points).add(Point(3, 4))
        store.snapshot()
    assert content(tmp_path) == [[0], [1], [2]]
    assert opened(tmp_path).read().get_list_state(points).get() == [Point(7, 2), Point(3, 4)]


@pytest.mark.parametrize(
    ("early", "error", "message"),
    [(False, CheckpointExistsError, "never replaced"), (True, CheckpointIOError, "could not publish")],
)
def test_late_driver_does_not_replace_a_published_batch(
    state: QueryOperatorState, tmp_path: Path, early: bool, error: type[Exception], message: str
) -> None:
    other_driver = opened(tmp_path)

    def be_late() -> None:
        with state.batch(1) as store:
            change(store, 1)
            if early:
                store.snapshot()
                wait_for_writers()
            # It takes what is written for that of a driver that has ended, and discards it.
            with other_driver.batch(1) as other_store:
                change(other_store, 7)
                if early:
                    other_store.snapshot()

    with pytest.raises(error, match=message) as raised:
        be_late()
    assert early or "another driver" in str(raised.value.__notes__)
    assert content(tmp_path) == [[0], [7]]
    assert len(files_below(tmp_path)) == 4

"""Snapshots of operator state: isolated, written later, written side by side, cancelled."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_statestore.checkpoint.files import LocalFileSystem, MemoryFileSystem
from spark_statestore.checkpoint.streams import (
    CheckpointedStateScope,
    CheckpointStreamFactory,
    FsCheckpointStateOutputStream,
    FsCheckpointStreamFactory,
    MemCheckpointStreamFactory,
)
from spark_statestore.errors import CheckpointIOError, StateTooLargeError
from spark_statestore.state.handles import ByteStreamStateHandle, Mode, RelativeFileStateHandle
from spark_statestore.state.handles.codec import HandleContext, decode_handle, encode_handle
from spark_statestore.state.operator import (
    DefaultOperatorStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
)
from spark_statestore.state.operator.format import ListMetaInfo, decode_header, encode_header
from spark_statestore.state.snapshot import DoneFuture, SnapshotResult
from tests.state.operator.backends import (
    FLAGS,
    MEMORY,
    NUMBERS,
    OFFSETS,
    RULES,
    UNION,
    backend_with,
    written,
)


def files_in(directory: Path) -> FsCheckpointStreamFactory:
    return FsCheckpointStreamFactory(LocalFileSystem(), str(directory), str(directory / "shared"), 0, 0)


class Counting(CheckpointStreamFactory):
    """Counts the streams, by scope."""

    def __init__(self) -> None:
        self.scopes: list[CheckpointedStateScope] = []

    def create_checkpoint_state_output_stream(self, scope: CheckpointedStateScope) -> Any:
        self.scopes.append(scope)
        return MEMORY.create_checkpoint_state_output_stream(scope)


class Stalling(CheckpointStreamFactory):
    """Streams to files that stall in their second write until they are let go, or in finishing."""

    def __init__(self, directory: Path, where: str = "write") -> None:
        self.directory, self.where = directory, where
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.streams: list[FsCheckpointStateOutputStream] = []

    def create_checkpoint_state_output_stream(self, scope: CheckpointedStateScope) -> Any:
        factory = self

        class Stream(FsCheckpointStateOutputStream):
            writes = 0

            def write(self, data: bytes) -> None:
                super().write(data)
                self.writes += 1
                if factory.where == "write" and self.writes == 2:
                    factory.stall()

            def close_and_get_handle(self) -> Any:
                handle = super().close_and_get_handle()
                if factory.where == "finish":
                    factory.stall()
                return handle

        self.streams.append(Stream(LocalFileSystem(), str(self.directory), 0, 0))
        return self.streams[-1]

    def stall(self) -> None:
        self.entered.set()
        assert self.go_on.wait(30)


def content(backend: DefaultOperatorStateBackend) -> dict[str, Any]:
    return {
        "numbers": backend.get_list_state(NUMBERS).get(),
        "offsets": backend.get_list_state(OFFSETS).get(),
        "union": backend.get_union_list_state(UNION).get(),
        "rules": dict(backend.get_broadcast_state(RULES).immutable_entries),
        "flags": dict(backend.get_broadcast_state(FLAGS).immutable_entries),
    }


def full() -> dict[str, Any]:
    return {
        "numbers": [1, 2, 3],
        "offsets": [{"topic": "a", "parts": [1]}, {"topic": "b", "parts": [2]}],
        "union": ["u"],
        "rules": {"r": [1], "s": [2]},
        "flags": {1: True},
    }


def test_without_a_state_there_is_no_stream_and_no_handle() -> None:
    factory = Counting()
    future = DefaultOperatorStateBackend().snapshot(1, 0, factory)
    assert isinstance(future, DoneFuture)
    assert future.result() is SnapshotResult.empty()
    assert factory.scopes == []


def test_everything_goes_to_one_exclusive_stream(tmp_path: Path) -> None:
    factory = Counting()
    assert written(backend_with(**full()), factory) is not None
    assert factory.scopes == [CheckpointedStateScope.EXCLUSIVE]
    handle = written(backend_with(**full()), files_in(tmp_path))
    assert isinstance(handle.delegate_state_handle, RelativeFileStateHandle)
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [handle.state_size]


def test_states_that_are_empty_survive() -> None:
    handle = written(backend_with(numbers=[], union=[], rules={}))
    states = handle.state_name_to_partition_offsets
    assert {name: (len(meta.offsets), meta.distribution_mode) for name, meta in states.items()} == {
        "numbers": (0, Mode.SPLIT_DISTRIBUTE),
        "union": (0, Mode.UNION),
        "rules": (1, Mode.BROADCAST),
    }
    restored = DefaultOperatorStateBackend([handle])
    assert [*restored.registered_state_names, *restored.registered_broadcast_state_names] == list(states)


def test_a_handle_can_be_stored_and_read(tmp_path: Path) -> None:
    backend = backend_with(**full())
    context = HandleContext(LocalFileSystem(), str(tmp_path))
    for factory in (MEMORY, files_in(tmp_path)):
        handle = decode_handle(encode_handle(written(backend, factory), context), context)
        assert content(DefaultOperatorStateBackend([handle])) == full()


def test_18_what_happens_after_a_snapshot_was_taken_is_not_in_it() -> None:
    backend = backend_with(**full())
    future = backend.snapshot(1, 0, MEMORY)
    backend.get_list_state(OFFSETS).get()[0]["parts"].append(99)
    backend.get_list_state(OFFSETS).get()[1]["topic"] = "changed"
    backend.get_list_state(NUMBERS).add(4)
    backend.get_union_list_state(UNION).clear()
    rules = backend.get_broadcast_state(RULES)
    rules.get("r").append(99)
    rules.put("t", [3])
    rules.remove("s")
    backend.get_broadcast_state(FLAGS).clear()
    backend.get_list_state(ListStateDescriptor("late", pa.int64())).add(1)
    backend.get_broadcast_state(MapStateDescriptor("late too", pa.int64(), pa.int8())).put(1, 1)
    future.run()
    restored = DefaultOperatorStateBackend([future.result().job_manager_owned])
    assert "late" not in restored.registered_state_names
    assert "late too" not in restored.registered_broadcast_state_names
    assert content(restored) == full()


def test_what_is_restored_shares_nothing_with_what_was_written() -> None:
    handle = written(backend_with(**full()))
    first, second = DefaultOperatorStateBackend([handle]), DefaultOperatorStateBackend([handle])
    first.get_list_state(OFFSETS).get()[0]["parts"].append(99)
    first.get_broadcast_state(RULES).get("r").append(99)
    assert content(second) == full()


def test_a_synchronous_snapshot_is_complete_when_it_is_given() -> None:
    backend = DefaultOperatorStateBackend(asynchronous=False)
    backend.get_list_state(NUMBERS).add(1)
    future = backend.snapshot(1, 0, MEMORY)
    assert future.done()
    future.run()
    restored = DefaultOperatorStateBackend([future.result().job_manager_owned])
    assert restored.get_list_state(NUMBERS).get() == [1]


def test_snapshots_are_written_side_by_side_while_the_state_changes(tmp_path: Path) -> None:
    backend = DefaultOperatorStateBackend()
    state = backend.get_list_state(OFFSETS)
    rules = backend.get_broadcast_state(RULES)
    expected, futures = [], []
    with ThreadPoolExecutor(4) as executor:
        for number in range(60):
            state.add({"topic": str(number), "parts": [number]})
            for element in state.get():
                element["parts"].append(number)
            rules.put(str(number % 7), [number])
            rules.remove(str((number + 3) % 7))
            expected.append(([dict(e, parts=list(e["parts"])) for e in state.get()], dict(rules.items())))
            futures.append(backend.snapshot(number, 0, files_in(tmp_path) if number % 2 else MEMORY))
            executor.submit(futures[-1].run)
        handles = [future.result(30).job_manager_owned for future in futures]
    for handle, (elements, entries) in zip(handles, expected, strict=True):
        restored = DefaultOperatorStateBackend([handle])
        assert restored.get_list_state(OFFSETS).get() == elements
        assert restored.get_broadcast_state(RULES).immutable_entries == entries


@pytest.mark.parametrize("end", ["cancel", "close", "dispose"])
@pytest.mark.parametrize("where", ["write", "finish"])
def test_18_cancelling_closes_the_stream_and_raises_and_leaves_no_file(
    tmp_path: Path, where: str, end: str
) -> None:
    backend = backend_with(**full())
    factory = Stalling(tmp_path, where)
    future = backend.snapshot(1, 0, factory)
    thread = threading.Thread(target=future.run)
    thread.start()
    assert factory.entered.wait(30)
    assert len(list(tmp_path.iterdir())) == 1
    {"cancel": future.cancel, "close": backend.close, "dispose": backend.dispose}[end]()
    with pytest.raises(CancelledError):
        future.result(0)
    factory.go_on.set()
    thread.join()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(CheckpointIOError, match="closed"):
        factory.streams[0].write(b"more")


def test_a_snapshot_that_is_cancelled_in_its_last_write_is_not_finished(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Cancelling(Stalling):
        def stall(self) -> None:
            assert future.cancel()

    factory = Cancelling(tmp_path)
    future = backend_with(numbers=[1]).snapshot(1, 0, factory)
    with caplog.at_level(logging.DEBUG, "spark_statestore"):
        future.run()
    assert future.cancelled()
    assert "for checkpoint 1 was closed before it was complete" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_snapshot_that_was_never_run_opens_no_stream_when_it_is_cancelled() -> None:
    factory = Counting()
    future = backend_with(**full()).snapshot(1, 0, factory)
    assert future.cancel()
    future.run()
    assert factory.scopes == []


def test_a_cancelled_snapshot_does_not_disturb_the_others(tmp_path: Path) -> None:
    backend = backend_with(**full())
    first, second = (backend.snapshot(number, 0, files_in(tmp_path)) for number in (1, 2))
    first.cancel()
    second.run()
    assert content(DefaultOperatorStateBackend([second.result().job_manager_owned])) == full()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_storage_that_fails_fails_the_snapshot_alone(tmp_path: Path) -> None:
    backend = backend_with(**full())
    for factory, error in (
        (files_in(tmp_path / "missing"), CheckpointIOError),
        (MemCheckpointStreamFactory(10), StateTooLargeError),
    ):
        future = backend.snapshot(1, 0, factory)
        future.run()
        with pytest.raises(error):
            future.result()
    assert content(DefaultOperatorStateBackend([written(backend)])) == full()


@pytest.mark.parametrize("name", ["list", "broadcast"])
def test_an_element_that_fails_to_be_written_names_its_state_and_leaves_no_file(
    tmp_path: Path, name: str
) -> None:
    backend = DefaultOperatorStateBackend()
    value: dict[str, Any] = {"a": 1}
    if name == "list":
        backend.get_list_state(ListStateDescriptor("odd", pa.struct([("a", pa.int8())]))).add(value)
    else:
        state = MapStateDescriptor("odd", pa.int8(), pa.struct([("a", pa.int8())]))
        backend.get_broadcast_state(state).put(1, value)
    value["a"] = "no number"
    future = backend.snapshot(8, 0, files_in(tmp_path))
    future.run()
    with pytest.raises(TypeError, match="no number") as raised:
        future.result()
    assert raised.value.__notes__ == [f"while {name} state 'odd' of checkpoint 8 was written"]
    assert list(tmp_path.iterdir()) == []


def test_a_factory_whose_stream_gives_no_handle_gives_the_empty_result() -> None:
    class Nothing(CheckpointStreamFactory):
        def create_checkpoint_state_output_stream(self, scope: CheckpointedStateScope) -> Any:
            stream = MEMORY.create_checkpoint_state_output_stream(scope)
            stream.close_and_get_handle = lambda: None
            return stream

    future = backend_with(numbers=[1]).snapshot(1, 0, Nothing())
    future.run()
    assert future.result() is SnapshotResult.empty()


def test_long_names_and_more_states_than_16_bits_can_count() -> None:
    backend = DefaultOperatorStateBackend()
    long = "n" * 70_000
    backend.get_list_state(ListStateDescriptor(long, pa.int8())).add(1)
    backend.get_list_state(ListStateDescriptor("\ud800 ünï", pa.int8())).add(2)
    restored = DefaultOperatorStateBackend([written(backend)])
    assert restored.get_list_state(ListStateDescriptor(long, pa.int8())).get() == [1]
    assert restored.get_list_state(ListStateDescriptor("\ud800 ünï", pa.int8())).get() == [2]
    many = [ListMetaInfo(str(n), Mode.UNION, ({"serializer": "bytes"},)) for n in range((1 << 16) + 1)]
    assert decode_header(encode_header(many, []), "") == (many, [])


def test_what_is_stored_is_not_pickled() -> None:
    handle = written(backend_with(**full()))
    data = handle.as_bytes_if_in_memory()
    assert b"\x80\x04" not in data
    assert b"\x80\x05" not in data
    assert b"numbers" in data


def test_snapshots_cancelled_at_any_moment_leave_a_whole_file_or_none() -> None:
    files = MemoryFileSystem()
    factory = FsCheckpointStreamFactory(files, "/chk", "/shared", 0, 0)
    backend = backend_with(numbers=list(range(50)), rules={"r": [1]})
    kept = []
    with ThreadPoolExecutor(2) as executor:
        for number in range(300):
            future = backend.snapshot(number, 0, factory)
            running = executor.submit(future.run)
            time.sleep(number * 1e-6)
            if not future.cancel():
                kept.append(future.result().job_manager_owned)
            running.result(30)
    assert {s.path for s in files.list_files("/chk")} == {h.delegate_state_handle.path for h in kept}
    assert 0 < len(kept) < 300
    for handle in kept[:5]:
        assert DefaultOperatorStateBackend([handle]).get_list_state(NUMBERS).get() == list(range(50))


def test_inline_state_travels_in_the_handle() -> None:
    assert isinstance(written(backend_with(numbers=[1])).delegate_state_handle, ByteStreamStateHandle)

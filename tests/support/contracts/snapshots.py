"""Contract of snapshots in two parts, written to the streams of a file system."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from spark_statestore.errors import CheckpointIOError
from spark_statestore.files import FileSystem
from spark_statestore.operator_state import (
    DefaultOperatorStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
)
from spark_statestore.operator_state.snapshot_strategy import CheckpointOptions, SnapshotFuture
from spark_statestore.storage import CheckpointStorageLocationReference
from spark_statestore.storage.fs_streams import FsCheckpointStreamFactory
from spark_statestore.storage.operator_handles import OperatorStateHandle
from spark_statestore.storage.streams import (
    CheckpointedStateScope,
    CheckpointStateOutputStream,
    CheckpointStreamFactory,
)
from tests.support.contracts.on_files import OnFiles

__all__ = ["SnapshotTests"]

LIST = ListStateDescriptor("list", pa.list_(pa.int64()))
MAP = MapStateDescriptor("map", pa.int64(), pa.binary())


@dataclass
class Hooked(CheckpointStreamFactory):
    """Streams of another factory; `hook` is called before each write, and before the handle is returned."""

    factory: CheckpointStreamFactory
    hook: Callable[[int], None]
    calls: int = 0
    open: list[CheckpointStateOutputStream] = field(default_factory=list)

    def create_checkpoint_state_output_stream(
        self, scope: CheckpointedStateScope
    ) -> CheckpointStateOutputStream:
        stream: Any = self.factory.create_checkpoint_state_output_stream(scope)
        self.open.append(stream)
        write, finish, close = stream.write, stream.close_and_get_handle, stream.close

        def called() -> None:
            self.calls += 1
            self.hook(self.calls)

        def closed() -> None:
            close()
            self.open.clear()

        stream.write = lambda data: (called(), write(data))[1]
        stream.close_and_get_handle = lambda: (called(), finish())[1]
        stream.close = closed
        return stream


class SnapshotTests(OnFiles):
    """The contract of `Snapshotable.snapshot`; subclasses override ``files`` and ``directory``."""

    @pytest.fixture
    def backend(self) -> DefaultOperatorStateBackend:
        """Return a backend whose snapshot takes several writes."""
        backend = DefaultOperatorStateBackend()
        backend.get_list_state(LIST).update([[n] for n in range(5)])
        backend.get_broadcast_state(MAP).put_all({n: bytes(1 << 19) for n in range(5)})
        return backend

    @pytest.fixture
    def streams(self, files: FileSystem, directory: str) -> Callable[[Callable[[int], None]], Hooked]:
        files.make_directory(directory)
        factory = FsCheckpointStreamFactory(files, directory, directory, 0, 1000)
        return lambda hook: Hooked(factory, hook)

    @staticmethod
    def snapshot(
        backend: DefaultOperatorStateBackend, streams: CheckpointStreamFactory
    ) -> SnapshotFuture[OperatorStateHandle]:
        options = CheckpointOptions(CheckpointStorageLocationReference.default())
        return backend.snapshot(1, 0, streams, options)

    @staticmethod
    def contents(backend: DefaultOperatorStateBackend) -> tuple[list[list[int]], dict[int, bytes]]:
        elements = backend.get_list_state(LIST).get()
        return [list(element) for element in elements], dict(backend.get_broadcast_state(MAP).items())

    def test_changes_while_it_is_written_are_not_in_the_snapshot(
        self, backend: DefaultOperatorStateBackend, streams: Callable[..., Hooked], stored: Callable[..., Any]
    ) -> None:
        before = self.contents(backend)

        def change(_: int) -> None:
            elements, entries = backend.get_list_state(LIST), backend.get_broadcast_state(MAP)
            for element in elements.get():
                element.append(99)
            elements.add([7])
            entries.put(9, b"new")
            entries.put(0, b"other")
            entries.remove(4)

        factory = streams(change)
        future = self.snapshot(backend, factory)
        change(0)
        assert stored() == []
        future.run()
        assert factory.calls > 4
        result = future.result()
        assert self.contents(DefaultOperatorStateBackend([result.job_manager_owned_snapshot])) == before
        assert result.task_local_snapshot is None
        (file,) = stored()
        assert file
        result.discard_state()
        assert stored() == []

    def test_cancelled_snapshot_leaves_nothing(
        self, backend: DefaultOperatorStateBackend, streams: Callable[..., Hooked], stored: Callable[..., Any]
    ) -> None:
        factory = streams(lambda _: None)
        self.snapshot(backend, factory).run()
        writes = factory.calls
        before = stored()
        # Zero cancels it before it is written; the last write is followed by the request for the handle.
        for at in range(writes + 1):
            futures: list[SnapshotFuture[OperatorStateHandle]] = []

            def cancel(call: int, at: int = at, futures: list[Any] = futures) -> None:
                assert call <= at
                if call == at:
                    assert futures[0].cancel()

            factory = streams(cancel)
            futures.append(self.snapshot(backend, factory))
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(futures[0].result)
                if at == 0:
                    cancel(0)
                futures[0].run()
                with pytest.raises(CancelledError):
                    waiting.result()
            assert futures[0].cancelled()
            assert wait(futures, timeout=1).done == set(futures)
            assert factory.open == []
            assert stored() == before, at

    def test_disposal_cancels_a_snapshot_that_is_being_written(
        self, backend: DefaultOperatorStateBackend, streams: Callable[..., Hooked], stored: Callable[..., Any]
    ) -> None:
        reached, goes_on = threading.Event(), threading.Event()

        def hold(call: int) -> None:
            if call == 3:
                reached.set()
                assert goes_on.wait(60)

        factory = streams(hold)
        future = self.snapshot(backend, factory)
        thread = threading.Thread(target=future.run)
        thread.start()
        assert reached.wait(60)
        backend.dispose()
        assert not future.done()
        goes_on.set()
        with pytest.raises(CancelledError):
            future.result(60)
        thread.join()
        assert (factory.open, factory.calls, stored()) == ([], 3, [])

    def test_failure_reaches_all_who_wait_and_leaves_nothing(
        self, backend: DefaultOperatorStateBackend, streams: Callable[..., Hooked], stored: Callable[..., Any]
    ) -> None:
        whole = streams(lambda _: None)
        future = self.snapshot(backend, whole)
        for _ in range(2):
            future.run()
        assert not future.cancel()
        future.result().discard_state()
        for at in range(1, whole.calls + 1):

            def fail(call: int, at: int = at) -> None:
                if call == at:
                    raise CheckpointIOError("the disk is full")

            factory = streams(fail)
            future = self.snapshot(backend, factory)
            with ThreadPoolExecutor(3) as pool:
                waiting = [pool.submit(future.result) for _ in range(3)]
                future.run()
                for each in waiting:
                    with pytest.raises(CheckpointIOError, match="the disk is full"):
                        each.result()
            assert not future.cancel()
            assert (factory.open, factory.calls, stored()) == ([], at, [])

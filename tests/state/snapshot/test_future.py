"""Snapshots that are run later: once, cancelled before, meanwhile or afterwards, or not at all."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from spark_statestore.errors import CheckpointIOError, IllegalStateError
from spark_statestore.state.handles import ByteStreamStateHandle
from spark_statestore.state.snapshot import (
    AsyncSnapshotCallable,
    CloseableRegistry,
    DoneFuture,
    SnapshotFuture,
    SnapshotResult,
)


class Handle(ByteStreamStateHandle):
    """A handle that notes whether it was discarded."""

    discarded = False
    failure = ""

    def discard_state(self) -> None:
        self.discarded = True
        if self.failure:
            raise OSError(self.failure)


class Stream:
    """Something open; an event tells when it was closed."""

    def __init__(self, failure: str = "") -> None:
        self.closed = threading.Event()
        self.failure = failure

    def close(self) -> None:
        self.closed.set()
        if self.failure:
            raise OSError(self.failure)


class Task(AsyncSnapshotCallable[object]):
    """A snapshot whose body is a function of the task."""

    def __init__(self, body: Callable[[Task], object]) -> None:
        super().__init__()
        self.body = body
        self.runs = 0
        self.cleaned = 0
        self.clean_failure = ""
        self.logged: list[float] = []

    def call_internal(self) -> object:
        self.runs += 1
        return self.body(self)

    def clean_up_provided_resources(self) -> None:
        self.cleaned += 1
        if self.clean_failure:
            raise OSError(self.clean_failure)

    def log_async_snapshot_complete(self, started: float) -> None:
        self.logged.append(started)


class Running:
    """A snapshot that another thread runs, and that waits inside for its stream to be closed."""

    def __init__(self, outcome: Callable[[], object], registry: CloseableRegistry | None = None) -> None:
        self.stream = Stream()
        self.entered = threading.Event()
        self.leave = threading.Event()
        self.outcome = outcome
        self.task = Task(self.body)
        self.future = self.task.to_async_snapshot_future_task(registry)
        self.thread = threading.Thread(target=self.future.run)
        self.thread.start()
        assert self.entered.wait(30)

    def body(self, task: Task) -> object:
        task.closeables.register_closeable(self.stream)
        self.entered.set()
        assert self.leave.wait(30)
        return self.outcome()

    def finish(self) -> None:
        self.leave.set()
        self.thread.join()


def failing(error: BaseException) -> Callable[..., object]:
    def fail(*_: object) -> object:
        raise error

    return fail


def test_somebody_has_to_run_it() -> None:
    task = Task(lambda _: 7)
    future = task.to_async_snapshot_future_task()
    with pytest.raises(TimeoutError):
        future.result(timeout=0.01)
    assert not future.done()
    future.run()
    assert future.done()
    assert not future.cancelled()
    assert future.result() == 7
    assert future.exception() is None
    assert (task.runs, task.cleaned, len(task.logged)) == (1, 1, 1)


def test_it_runs_once_however_often_it_is_run() -> None:
    task = Task(lambda _: 7)
    future = SnapshotFuture(task)
    future.run()
    future.run()
    assert (task.runs, task.cleaned) == (1, 1)
    with pytest.raises(IllegalStateError, match="once only"):
        task.call()


def test_an_executor_can_run_it() -> None:
    calls: list[object] = []
    future = SnapshotFuture(Task(lambda _: threading.current_thread().name))
    future.add_done_callback(calls.append)
    with ThreadPoolExecutor(1, "writer") as executor:
        assert executor.submit(future.run).result(30) is None
        assert future.result(30).startswith("writer")
    assert calls == [future]


def test_an_error_goes_to_whoever_asks() -> None:
    task = Task(failing(ValueError("no")))
    future = SnapshotFuture(task)
    future.run()
    with pytest.raises(ValueError, match="no"):
        future.result()
    assert isinstance(future.exception(), ValueError)
    assert not future.cancelled()
    assert not future.cancel()
    assert (task.cleaned, task.logged) == (1, [])


def test_an_interrupt_reaches_the_thread_as_well() -> None:
    future = SnapshotFuture(Task(failing(KeyboardInterrupt())))
    with pytest.raises(KeyboardInterrupt):
        future.run()
    assert isinstance(future.exception(), KeyboardInterrupt)


def test_cancelled_before_it_ran_it_never_runs_but_is_cleaned_up() -> None:
    registry, calls = CloseableRegistry(), []
    task = Task(lambda _: 7)
    future = task.to_async_snapshot_future_task(registry)
    future.add_done_callback(calls.append)
    assert future.cancel()
    assert future.cancel()
    future.run()
    assert future.cancelled()
    assert (task.runs, task.cleaned, calls) == (0, 1, [future])
    assert not registry.unregister_closeable(future)
    with pytest.raises(CancelledError):
        future.result()
    with pytest.raises(CancelledError):
        future.exception()
    assert concurrent.futures.wait([future], timeout=30).done == {future}


def test_cancelled_while_it_runs_its_streams_are_closed_and_waiters_go_on() -> None:
    running = Running(lambda: 7)
    waiting: list[str] = []

    def wait() -> None:
        try:
            running.future.result(30)
        except CancelledError:
            waiting.append("cancelled")

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert running.future.cancel()
    assert running.stream.closed.is_set()
    waiter.join()
    assert waiting == ["cancelled"]
    assert running.future.cancelled()
    assert not running.future.running()
    assert running.task.cleaned == 0
    running.finish()
    assert (running.task.cleaned, running.task.runs) == (1, 1)
    with pytest.raises(CancelledError):
        running.future.exception()


def test_an_error_after_the_cancellation_is_a_cancellation(caplog: pytest.LogCaptureFixture) -> None:
    running = Running(failing(CheckpointIOError("the stream is closed")))
    running.future.cancel()
    with caplog.at_level(logging.DEBUG, "spark_statestore"):
        running.finish()
    with pytest.raises(CancelledError):
        running.future.result()
    assert "the stream is closed" in caplog.text


def test_after_the_cancellation_no_stream_can_be_opened() -> None:
    late = Stream()

    def open_late() -> None:
        running.task.closeables.register_closeable(late)

    running = Running(open_late)
    running.future.cancel()
    running.finish()
    assert late.closed.is_set()
    assert running.future.cancelled()


def test_a_cancelled_snapshot_discards_the_handle_that_it_still_gave() -> None:
    handle = Handle("h", b"1")
    running = Running(lambda: SnapshotResult.of(handle))
    running.future.cancel()
    running.finish()
    assert handle.discarded
    with pytest.raises(CancelledError):
        running.future.result()


def test_a_handle_that_cannot_be_discarded_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    handle = Handle("left-behind", b"1")
    handle.failure = "storage is gone"
    running = Running(lambda: handle)
    running.future.cancel()
    running.finish()
    assert "left-behind" in caplog.text
    assert "storage is gone" in caplog.text


def test_a_complete_snapshot_cannot_be_cancelled_and_keeps_its_handle() -> None:
    handle = Handle("h", b"1")
    future = SnapshotFuture(Task(lambda _: handle))
    future.run()
    assert not future.cancel()
    future.close()
    assert future.result() is handle
    assert not handle.discarded


def test_closing_the_registry_cancels_what_runs_and_what_does_not() -> None:
    registry = CloseableRegistry()
    running = Running(lambda: 7, registry)
    waiting = Task(lambda _: 7)
    other = waiting.to_async_snapshot_future_task(registry)
    registry.close()
    assert running.stream.closed.is_set()
    running.finish()
    assert running.future.cancelled()
    assert other.cancelled()
    assert (waiting.runs, waiting.cleaned) == (0, 1)


def test_a_closed_registry_takes_no_snapshot() -> None:
    registry, task = CloseableRegistry(), Task(lambda _: 7)
    registry.close()
    with pytest.raises(CheckpointIOError, match="closed at once"):
        task.to_async_snapshot_future_task(registry)
    assert (task.runs, task.cleaned) == (0, 1)


def test_a_registry_forgets_a_snapshot_that_is_over() -> None:
    registry = CloseableRegistry()
    for body in (lambda _: 7, failing(ValueError())):
        future = SnapshotFuture(Task(body), registry)
        future.run()
        assert not registry.unregister_closeable(future)


def test_a_stream_that_cannot_be_closed_is_an_error_of_the_registry_and_logged_by_cancel(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = CloseableRegistry()
    running = Running(lambda: 7, registry)
    running.stream.failure = "stuck"
    with pytest.raises(OSError, match="stuck"):
        registry.close()
    assert running.future.cancelled()
    running.finish()
    other = Running(lambda: 7)
    other.stream.failure = "stuck too"
    assert other.future.cancel()
    assert other.future.cancelled()
    assert "stuck too" in caplog.text
    other.finish()


def test_streams_that_were_left_open_are_closed_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    stream = Stream("stuck")
    task = Task(lambda task: task.closeables.register_closeable(stream))
    task.clean_failure = "dirty"
    future = SnapshotFuture(task)
    future.run()
    # The snapshot is written, so it counts, whatever the clean-up says.
    assert future.exception() is None
    assert stream.closed.is_set()
    assert task.cleaned == 1
    assert "stuck" in caplog.text
    assert "dirty" in caplog.text


def test_a_done_future_has_its_value_and_nothing_to_run() -> None:
    calls: list[object] = []
    future = DoneFuture(7)
    future.add_done_callback(calls.append)
    future.run()
    assert not future.cancel()
    assert not future.cancelled()
    assert future.done()
    assert future.result() == 7
    assert isinstance(future, SnapshotFuture)
    assert calls == [future]


def test_asyncio_can_wait_for_it() -> None:
    async def wait() -> object:
        future = SnapshotFuture(Task(lambda _: 7))
        asyncio.get_running_loop().run_in_executor(None, future.run)
        running = Running(lambda: 8)
        wrapped = asyncio.wrap_future(running.future)
        running.future.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wrapped
        running.finish()
        return await asyncio.wrap_future(future)

    assert asyncio.run(wait()) == 7


def test_run_and_cancel_at_once_have_one_outcome() -> None:
    for number in range(300):
        handle = Handle("h", b"")
        task = Task(lambda _, handle=handle: handle)
        future = SnapshotFuture(task, CloseableRegistry())
        barrier = threading.Barrier(3)

        def run(future: SnapshotFuture[object] = future, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            future.run()

        def cancel(
            future: SnapshotFuture[object] = future, barrier: threading.Barrier = barrier, wait: int = number
        ) -> None:
            barrier.wait()
            time.sleep(wait * 1e-7)
            future.cancel()

        threads = [threading.Thread(target=target) for target in (run, run, cancel)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert future.done()
        assert task.cleaned == 1
        assert task.runs <= 1
        assert handle.discarded == (future.cancelled() and task.runs == 1)
    gc.collect()

"""Tests of request contexts: progress, cancellation and its callbacks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from spark_statestore.files.request_context import RequestContext, check_cancelled, enter, heartbeat


@contextmanager
def within(context: RequestContext) -> Iterator[RequestContext]:
    """Run the calling thread within a request context."""
    before = enter(context)
    try:
        yield context
    finally:
        enter(before)


def later(seconds: float) -> float:
    return time.monotonic() + seconds


def test_request_is_cancelled_after_its_limit() -> None:
    context, cancelled = RequestContext(5.0), []
    assert not context.cancel_if_hung(later(4.0), lambda: cancelled.append("early"))
    assert context.cancel_if_hung(later(6.0), lambda: cancelled.append("late"))
    assert not context.cancel_if_hung(later(60.0), lambda: cancelled.append("again"))
    assert cancelled == ["late"]
    with pytest.raises(ConnectionAbortedError):
        context.suspend()


def test_suspended_request_is_not_cancelled() -> None:
    context = RequestContext(5.0)
    context.suspend()
    assert not context.cancel_if_hung(later(1000.0), lambda: None)
    context.heartbeat()
    assert context.cancel_if_hung(later(6.0), lambda: None)


def test_extend_deadline_excludes_time_while_the_process_was_stopped() -> None:
    context = RequestContext(5.0)
    context.extend_deadline(100.0)
    assert not context.cancel_if_hung(later(104.0), lambda: None)
    assert context.cancel_if_hung(later(106.0), lambda: None)


def test_request_with_heartbeats_is_not_cancelled() -> None:
    context = RequestContext(0.5)
    with within(context):
        time.sleep(0.51)
        heartbeat()
    assert not context.cancel_if_hung(time.monotonic(), lambda: None)
    heartbeat()
    check_cancelled()


def test_cancellation_runs_the_callbacks_once() -> None:
    context, released = RequestContext(1.0), []
    context.on_cancel(lambda: released.append(1))
    context.cancel_if_hung(later(2.0), lambda: None)
    assert released == [1]
    with pytest.raises(ConnectionAbortedError):
        context.on_cancel(lambda: None)


def test_check_cancelled_raises_after_cancellation_or_disconnection() -> None:
    present = [True]
    context = RequestContext(1.0, lambda: present[0])
    with within(context):
        check_cancelled()
        present[0] = False
        with pytest.raises(ConnectionAbortedError):
            check_cancelled()
        present[0] = True
        context.cancel_if_hung(later(2.0), lambda: None)
        with pytest.raises(ConnectionAbortedError):
            check_cancelled()

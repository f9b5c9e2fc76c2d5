"""Tracking of a request's progress on storage, and cancellation of hung requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["RequestContext", "count_retry", "enter", "heartbeat", "check_cancelled", "take_retries"]

_current = threading.local()
_retries_lock = threading.Lock()
_retries = 0


class RequestContext:
    """Tracks a request's progress so that hung storage calls can be cancelled.

    Time counts during storage calls, not while the request waits for its client or for admission. A cancelled
    request may still return from the hung call; it must not change anything then.

    Parameters
    ----------
    limit
        Longest time without progress in seconds.
    is_connected
        Returns whether the client is still connected.
    """

    def __init__(self, limit: float, is_connected: Callable[[], bool] = lambda: True) -> None:
        self.limit = limit
        self._is_connected = is_connected
        self._lock = threading.Lock()
        self._busy_since: float | None = time.monotonic()
        self._cancelled = False
        self._on_cancel: list[Callable[[], None]] = []

    def heartbeat(self) -> None:
        """Record progress of a storage call."""
        with self._lock:
            self._busy_since = time.monotonic()

    def suspend(self) -> None:
        """Stop the clock until the next heartbeat, while the request does not wait for storage.

        Raises
        ------
        ConnectionAbortedError
            If the request is cancelled, as all that follow.
        """
        with self._lock:
            self._require_active()
            self._busy_since = None

    def extend_deadline(self, seconds: float) -> None:
        """Exclude time during which the whole process was stopped."""
        with self._lock:
            if self._busy_since is not None:
                self._busy_since += seconds

    def on_cancel(self, release: Callable[[], None]) -> None:
        """Register a callback for cancellation, which releases what the hung request holds."""
        with self._lock:
            self._require_active()
            self._on_cancel.append(release)

    def check_cancelled(self) -> None:
        """Raise an error if the request is cancelled or its client has disconnected."""
        self._require_active(self._is_connected)

    def _require_active(self, is_connected: Callable[[], bool] = lambda: True) -> None:
        if self._cancelled or not is_connected():
            raise ConnectionAbortedError(
                "the request was cancelled or its client has disconnected; nothing is published for it"
            )

    def cancel_if_hung(self, now: float, before_cancel: Callable[[], None]) -> bool:
        """Cancel the request if it made no progress within its limit; return whether it was cancelled.

        Parameters
        ----------
        before_cancel
            Called before the request can observe its cancellation.
        """
        with self._lock:
            if self._cancelled or self._busy_since is None or now - self._busy_since <= self.limit:
                return False
            before_cancel()
            self._cancelled = True
            release, self._on_cancel = self._on_cancel, []
        for callback in release:
            callback()
        return True


def enter(context: RequestContext | None) -> RequestContext | None:
    """Set the request context of this thread.

    Returns
    -------
    RequestContext or None
        The previous context.
    """
    before: RequestContext | None = getattr(_current, "context", None)
    _current.context = context
    return before


def heartbeat() -> None:
    """Record progress of this thread's request, if there is one."""
    context: RequestContext | None = getattr(_current, "context", None)
    if context is not None:
        context.heartbeat()


def check_cancelled() -> None:
    """Raise an error if this thread's request is cancelled; call it before publishing anything.

    Raises
    ------
    ConnectionAbortedError
        If the request is cancelled, or its client has disconnected.
    """
    context: RequestContext | None = getattr(_current, "context", None)
    if context is not None:
        context.check_cancelled()


def count_retry() -> None:
    """Count a retry of a storage call."""
    global _retries
    with _retries_lock:
        _retries += 1


def take_retries() -> int:
    """Return the number of retries of storage calls in this process since the last call, and reset it."""
    global _retries
    with _retries_lock:
        number, _retries = _retries, 0
    return number

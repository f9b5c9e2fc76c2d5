"""One request's work on storage: when it last got on, and whether anybody still waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Work", "count_retry", "enter", "got_on", "require_wanted", "take_retries"]

_current = threading.local()
_retries_lock = threading.Lock()
_retries = 0


class Work:
    """What one thread does for somebody who waits for it, so that a call that hangs is noticed.

    Time counts while the work is with storage, not while it waits for its asker or for its turn. Work that was
    given up may still come back from the call that it hung in; from then on it must change nothing.

    Parameters
    ----------
    limit
        Seconds that it may go without getting on.
    is_wanted
        Whether its asker is still there.
    """

    def __init__(self, limit: float, is_wanted: Callable[[], bool] = lambda: True) -> None:
        self.limit = limit
        self._is_wanted = is_wanted
        self._lock = threading.Lock()
        self._busy_since: float | None = time.monotonic()
        self._given_up = False
        self._on_give_up: list[Callable[[], None]] = []

    def get_on(self) -> None:
        """Note that it is with storage, and that something has just come of it."""
        with self._lock:
            self._busy_since = time.monotonic()

    def pause(self) -> None:
        """Note that it is not storage that it waits for from now on.

        Raises
        ------
        ConnectionAbortedError
            If it was given up.
        """
        with self._lock:
            if self._given_up:
                raise _abandoned()
            self._busy_since = None

    def forgive(self, seconds: float) -> None:
        """Leave time out in which the whole process was stopped."""
        with self._lock:
            if self._busy_since is not None:
                self._busy_since += seconds

    def release_on_give_up(self, release: Callable[[], None]) -> None:
        """Have something called if it is given up: what it holds would else be held for as long as it hangs.

        Raises
        ------
        ConnectionAbortedError
            If it was given up already.
        """
        with self._lock:
            if self._given_up:
                raise _abandoned()
            self._on_give_up.append(release)

    def require_wanted(self) -> None:
        """Fail if nobody waits for it any more.

        Raises
        ------
        ConnectionAbortedError
            If it was given up, or its asker has gone.
        """
        if self._given_up or not self._is_wanted():
            raise _abandoned()

    def give_up_if_hung(self, now: float, take_over: Callable[[], None]) -> bool:
        """Give it up if it has not got on for longer than its limit.

        Parameters
        ----------
        take_over
            Called before the work can notice.
        """
        with self._lock:
            if self._given_up or self._busy_since is None or now - self._busy_since <= self.limit:
                return False
            take_over()
            self._given_up = True
            release, self._on_give_up = self._on_give_up, []
        for one in release:
            one()
        return True


def enter(work: Work | None) -> Work | None:
    """Have what this thread does from now on belong to a work, or to none.

    Returns
    -------
    Work or None
        What it belonged to before.
    """
    before: Work | None = getattr(_current, "work", None)
    _current.work = work
    return before


def got_on() -> None:
    """Note that this thread's work has got on, if it does any: for what makes many calls of storage."""
    work: Work | None = getattr(_current, "work", None)
    if work is not None:
        work.get_on()


def require_wanted() -> None:
    """Fail if nobody waits for this thread's work any more; to be called before others can see what it does.

    Raises
    ------
    ConnectionAbortedError
        If it was given up, or its asker has gone.
    """
    work: Work | None = getattr(_current, "work", None)
    if work is not None:
        work.require_wanted()


def count_retry() -> None:
    """Count a call of storage that is made again."""
    global _retries
    with _retries_lock:
        _retries += 1


def take_retries() -> int:
    """Calls of storage that this process made again since this was asked last."""
    global _retries
    with _retries_lock:
        taken, _retries = _retries, 0
    return taken


def _abandoned() -> ConnectionAbortedError:
    return ConnectionAbortedError("nobody waits for this request any more; nothing is published for it")

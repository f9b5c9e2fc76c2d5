"""How many large requests are at work at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

from spark_statestore.checkpoint.files.work import Work

__all__ = ["LARGE_BYTES", "Gate"]

LARGE_BYTES = 4 << 20
"""Bytes of state in memory from which on a request must have a place."""

_PLACES = 8


class Gate:
    """Lets so many large requests in at once; others wait, and with them the tasks that sent them.

    When storage is slow, what commits hold in memory would else grow with the number of tasks: each holds up to
    the option ``fileStateThreshold``. A request has at most one place, so none waits for another that waits.

    Parameters
    ----------
    places
        How many.
    """

    def __init__(self, places: int = _PLACES) -> None:
        self._places = threading.BoundedSemaphore(places)

    def visit(self, work: Work) -> Visit:
        """What a request may enter with; as a context manager it leaves at the end."""
        return Visit(self._places, work)


class Visit:
    """One request's place, once it has one."""

    def __init__(self, places: threading.BoundedSemaphore, work: Work) -> None:
        self._places = places
        self._work = work
        self._leave: Callable[[], None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def enter(self) -> None:
        """Wait for a place, unless there is one already.

        Raises
        ------
        ConnectionAbortedError
            If the request is given up.
        """
        if self._leave is not None:
            return
        # Others hold it up, not storage.
        self._work.pause()
        self._places.acquire()
        self._leave = leave = _once(self._places.release)
        # Who hangs would keep its place.
        try:
            self._work.release_on_give_up(leave)
        except ConnectionAbortedError:
            leave()
            raise
        self._work.get_on()

    def leave(self) -> None:
        """Give the place up, if there is one."""
        if self._leave is not None:
            self._leave()


def _once(function: Callable[[], None]) -> Callable[[], None]:
    lock = threading.Lock()

    def call() -> None:
        if lock.acquire(blocking=False):
            function()

    return call

"""Savepoints in the memory of this process."""

from __future__ import annotations

import threading
from typing import TypeVar

from spark_statestore.savepoint.stores.base import StateStore, not_found

__all__ = ["HeapStateStore"]

T = TypeVar("T")


class HeapStateStore(StateStore[T]):
    """Keeps states as long as this process lives. Paths are numbers, from ``"1"``.

    Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._states: dict[int, T] = {}
        self._last = 0
        self._lock = threading.Lock()

    def put_state(self, state: T) -> str:
        if state is None:
            raise TypeError("a HeapStateStore keeps a state, got None")
        with self._lock:
            self._last += 1
            self._states[self._last] = state
            return str(self._last)

    def get_state(self, path: str) -> T:
        with self._lock:
            return self._states[self._number(path)]

    def dispose_state(self, path: str) -> None:
        with self._lock:
            del self._states[self._number(path)]

    def get_all(self) -> list[T]:
        """Every state, oldest first."""
        with self._lock:
            return list(self._states.values())

    def clear_all(self) -> list[T]:
        """Forget every state; returns them, oldest first. No number is used again."""
        with self._lock:
            states = list(self._states.values())
            self._states.clear()
            return states

    def _number(self, path: str) -> int:
        if not (path.isascii() and path.isdigit()):
            raise not_found(
                path,
                "savepoints in memory have numbers for paths. If it was written to files, open it with the store of "
                "its directory.",
            )
        if int(path) not in self._states:
            raise not_found(
                path,
                "it was disposed of, or belongs to a process that has ended, and its savepoints in memory with it. "
                "Configure savepoints.state.backend=filesystem and a directory to keep them beyond that.",
            )
        return int(path)

"""Interface of savepoint stores, and the store in memory."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from spark_statestore.errors import SavepointNotFoundError

__all__ = ["HeapStateStore", "StateStore", "not_found"]

T = TypeVar("T")


def not_found(path: str, why: str) -> SavepointNotFoundError:
    """Build the error for a path without a savepoint, with the path as its `filename`."""
    error = SavepointNotFoundError(f"no savepoint exists under the path {path!r}: {why}")
    error.filename = path
    return error


class StateStore(ABC, Generic[T]):
    """Store of states, each under a path of its own.

    A state exists from `put_state` until `begin_disposal`. Its other files can be removed between that and
    `end_disposal`: a process that is killed there leaves a state that does not exist and can be disposed of again.
    """

    @abstractmethod
    def put_state(self, state: T) -> str:
        """Store a state and return its path.

        Raises
        ------
        TypeError
            If the state is None.
        CheckpointIOError
            If it cannot be written.
        """

    @abstractmethod
    def get_state(self, path: str) -> T:
        """Return the state under a path.

        Raises
        ------
        SavepointNotFoundError
            If there is none.
        CheckpointIOError, CorruptCheckpointError, UnsupportedFormatError
            If it cannot be read.
        """

    @abstractmethod
    def get_all(self) -> list[T]:
        """Return every state; skip those that cannot be read, with a warning.

        Raises
        ------
        CheckpointIOError
            If they cannot be listed.
        """

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Return whether a state is under a path."""

    @abstractmethod
    def is_being_disposed(self, path: str) -> bool:
        """Return whether the disposal of a state has begun and not ended."""

    @abstractmethod
    def find(self, path: str) -> T:
        """Return the state under a path as `get_state`, or one whose disposal was interrupted."""

    @abstractmethod
    def begin_disposal(self, path: str) -> T:
        """Remove a state from the store, durably, and return it; resume a disposal that was interrupted.

        Raises
        ------
        SavepointNotFoundError
            If there is none.
        CheckpointIOError
            If it cannot be removed.
        """

    @abstractmethod
    def cancel_disposal(self, state: T) -> None:
        """Put a state back whose disposal has begun."""

    @abstractmethod
    def end_disposal(self, path: str) -> None:
        """Forget a state whose disposal has begun."""

    def dispose_state(self, path: str) -> None:
        """Remove a state; raise as `begin_disposal`."""
        self.begin_disposal(path)
        self.end_disposal(path)


class HeapStateStore(StateStore[T]):
    """Store in the memory of this process. Safe to use from several threads.

    Parameters
    ----------
    path_of
        Returns the path of a state; by default paths are numbers, from ``"1"``.
    """

    def __init__(self, path_of: Callable[[T], str] | None = None) -> None:
        self._path_of = path_of
        self._states: dict[str, T] = {}
        self._disposing: dict[str, T] = {}
        self._last = 0
        self._lock = threading.Lock()

    def put_state(self, state: T) -> str:
        if state is None:
            raise TypeError("HeapStateStore.put_state needs a state, got None")
        with self._lock:
            if self._path_of is None:
                self._last += 1
            path = str(self._last) if self._path_of is None else self._path_of(state)
            self._states[path] = state
            return path

    def get_state(self, path: str) -> T:
        with self._lock:
            return self._get(path, self._states)

    def get_all(self) -> list[T]:
        """Return every state, oldest first."""
        with self._lock:
            return list(self._states.values())

    def exists(self, path: str) -> bool:
        with self._lock:
            return path in self._states

    def is_being_disposed(self, path: str) -> bool:
        with self._lock:
            return path in self._disposing

    def find(self, path: str) -> T:
        with self._lock:
            return self._get(path, self._disposing | self._states)

    def begin_disposal(self, path: str) -> T:
        with self._lock:
            state = self._get(path, self._disposing | self._states)
            self._states.pop(path, None)
            self._disposing[path] = state
            return state

    def cancel_disposal(self, state: T) -> None:
        with self._lock:
            path = next(path for path, known in self._disposing.items() if known == state)
            self._states[path] = self._disposing.pop(path)

    def end_disposal(self, path: str) -> None:
        with self._lock:
            self._disposing.pop(path, None)

    def _get(self, path: str, states: dict[str, T]) -> T:
        if path not in states:
            raise not_found(
                path,
                "it was disposed of, or was in the memory of a process that has ended. Use a target directory in a "
                "file system to keep savepoints.",
            )
        return states[path]

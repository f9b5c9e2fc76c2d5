"""What keeps things under a path that it chooses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from spark_statestore.errors import SavepointNotFoundError

__all__ = ["StateStore", "not_found"]

T = TypeVar("T")


class StateStore(ABC, Generic[T]):
    """Keeps states, each under a path that the store chooses."""

    def start(self) -> None:
        """Begin; nothing to do for most stores."""

    def stop(self) -> None:
        """End; nothing to do for most stores."""

    @abstractmethod
    def put_state(self, state: T) -> str:
        """Keep a state.

        Returns
        -------
        str
            The path to find it by.

        Raises
        ------
        TypeError
            If there is no state.
        CheckpointIOError
            If it cannot be written; then nothing is left of it.
        """

    @abstractmethod
    def get_state(self, path: str) -> T:
        """Find a state.

        Raises
        ------
        SavepointNotFoundError
            If there is none under the path.
        CheckpointIOError
            If it cannot be read.
        """

    @abstractmethod
    def dispose_state(self, path: str) -> None:
        """Forget a state.

        Raises
        ------
        SavepointNotFoundError
            If there is none under the path.
        CheckpointIOError
            If it cannot be removed.
        """


def not_found(path: str, why: str) -> SavepointNotFoundError:
    """The error for a path with nothing under it, which it carries as `filename`."""
    error = SavepointNotFoundError(f"there is no savepoint under the path {path!r}: {why}")
    error.filename = path
    return error

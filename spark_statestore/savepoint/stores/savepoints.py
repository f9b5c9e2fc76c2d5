"""Savepoints, in memory or in files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from spark_statestore.checkpoint.completed.checkpoint import CompletedCheckpoint
from spark_statestore.savepoint.stores.base import StateStore
from spark_statestore.savepoint.stores.heap import HeapStateStore
from spark_statestore.state.objects import try_all

__all__ = ["SavepointStore", "discard_savepoint"]

T = TypeVar("T")


def discard_savepoint(savepoint: CompletedCheckpoint) -> None:
    """Remove a savepoint with its state.

    Raises
    ------
    OSError
        If something is left.
    """
    savepoint.mark_as_discarded()
    savepoint.discard()


class SavepointStore(StateStore[T]):
    """Keeps savepoints in another store.

    Savepoints in memory are discarded, with their state, when it stops: nobody could find them
    afterwards. Those in files stay.

    Parameters
    ----------
    store
        Keeps them.
    discard
        Removes the state of one, see `discard_savepoint`.
    """

    def __init__(self, store: StateStore[T], discard: Callable[[T], None]) -> None:
        self._store = store
        self._discard = discard

    @property
    def state_store(self) -> StateStore[T]:
        """The store that keeps them."""
        return self._store

    def start(self) -> None:
        self._store.start()

    def stop(self) -> None:
        """End; savepoints in memory are discarded.

        Raises
        ------
        OSError
            If the state of one could not be removed. All were tried, and later failures are notes
            of the first one.
        """
        kept_here = self._store.clear_all() if isinstance(self._store, HeapStateStore) else ()
        try_all([*(partial(self._discard, savepoint) for savepoint in kept_here), self._store.stop])

    def put_state(self, state: T) -> str:
        return self._store.put_state(state)

    def get_state(self, path: str) -> T:
        return self._store.get_state(path)

    def dispose_state(self, path: str) -> None:
        self._store.dispose_state(path)

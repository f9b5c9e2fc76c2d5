"""Several things at a time, where that saves waiting for a storage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from spark_statestore.checkpoint.files import FileSystem

__all__ = ["at_once"]

# Each may have a store in memory as a whole.
_AT_ONCE: Final = 8

_LOCAL: Final = "file"

T = TypeVar("T")
R = TypeVar("R")


def at_once(do: Callable[[T], R], items: Iterable[T], *storages: FileSystem) -> Iterator[R]:
    """Do something with many: one after the other on local files, else several at a time.

    Parameters
    ----------
    do
        What to do with one.
    items
        The many. On local files the next one is asked for when one is done.
    storages
        Where it is done.

    Yields
    ------
    object
        What `do` gives for each, in their order.
    """
    if all(files.scheme == _LOCAL for files in storages):
        yield from map(do, items)
        return
    workers = ThreadPoolExecutor(_AT_ONCE)
    try:
        yield from workers.map(do, items)
    finally:
        workers.shutdown(cancel_futures=True)

"""The same work for many stores: mostly waiting for storage, so in several threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Final, TypeVar

__all__ = ["Progress", "for_each"]

Progress = Callable[[int, int], None]
"""Told how much is done, and of how much."""

_THREADS: Final = 8

Item = TypeVar("Item")
Result = TypeVar("Result")


def for_each(
    do: Callable[[Item], Result], items: Iterable[Item], progress: Progress | None = None
) -> list[Result]:
    """Do something with each item.

    Parameters
    ----------
    progress
        Called from this thread, before the first item and after each.

    Returns
    -------
    list
        What came of each item, in the order of the items.

    Raises
    ------
    Exception
        What it raised for one of them, once those under way have ended; no other is begun then.
    """
    todo: Sequence[Item] = list(items)
    if progress is not None:
        progress(0, len(todo))
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="stores") as pool:
        futures: list[Future[Result]] = [pool.submit(do, item) for item in todo]
        try:
            for done, future in enumerate(as_completed(futures), 1):
                future.result()
                if progress is not None:
                    progress(done, len(todo))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [future.result() for future in futures]

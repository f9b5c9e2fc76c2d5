"""Thread pools for work on many stores, most of which waits for storage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Final, TypeVar

from spark_statestore.files import FileSystem

Progress = Callable[[int, int], None]
"""Called with the number of items done and their total."""

_THREADS: Final = 8
_LOCAL: Final = "file"

Item = TypeVar("Item")
Result = TypeVar("Result")


def parallel_map(
    do: Callable[[Item], Result], items: Iterable[Item], progress: Progress | None = None
) -> list[Result]:
    """Call a function for each item in several threads, and return the results in the order of the items.

    The first exception is raised once running calls are completed, and no other is started. `progress` is
    called from this thread, before the first item and after each.
    """
    todo: Sequence[Item] = list(items)
    if progress is not None:
        progress(0, len(todo))
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="stores") as pool:
        futures = [_submit(pool, do, item) for item in todo]
        try:
            for count, future in enumerate(as_completed(futures), 1):
                future.result()
                if progress is not None:
                    progress(count, len(todo))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [future.result() for future in futures]


def parallel_iter(
    do: Callable[[Item], Result], items: Iterable[Item], *storages: FileSystem
) -> Iterator[Result]:
    """Yield the result for each item, in order; in several threads if a storage is remote.

    An item may hold a whole store in memory, so local files, which gain nothing from threads, have one at a
    time: the next item is taken once the previous one is done.
    """
    if all(files.scheme == _LOCAL for files in storages):
        yield from map(do, items)
        return
    workers = ThreadPoolExecutor(_THREADS)
    try:
        yield from workers.map(do, items)
    finally:
        workers.shutdown(cancel_futures=True)


def _submit(pool: ThreadPoolExecutor, do: Callable[[Item], Result], item: Item) -> Future[Result]:
    """Call a function for an item in a pool.

    It is called in this thread if the interpreter ends and starts no other threads.
    """
    try:
        return pool.submit(do, item)
    except RuntimeError:
        future: Future[Result] = Future()
        try:
            future.set_result(do(item))
        except Exception as error:  # noqa: BLE001 - raised by the caller, as of a thread
            future.set_exception(error)
        return future

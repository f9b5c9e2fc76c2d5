"""Stores measured side by side, each in its own JVM.

In a shared JVM one store would burden another: with garbage that the collector traverses during the other's
batch, and with calls compiled for several classes of stores, where an executor has one.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks import contest, session


class StoreApart:
    """A benchmark's object in the JVM of its store; its methods are those of the object, and `settle`."""

    def __init__(self, pool: ProcessPoolExecutor, number: int) -> None:
        self._pool = pool
        self._number = number

    def settle(self) -> None:
        """Wait for the store's background work."""
        self._pool.submit(session.call, _settle).result()

    def __getattr__(self, method: str) -> Any:
        return partial(self._ask, method)

    def _ask(self, method: str, *arguments: object) -> Any:
        return self._pool.submit(session.call, _ask, self._number, method, arguments).result()


class Apart:
    """Opener of stores; those of one name share a JVM.

    Parameters
    ----------
    scratch
        Directory for the JVMs' temporary files.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._pools: dict[str, ProcessPoolExecutor] = {}
        self._stack = ExitStack()

    def open(self, kind: str, path: Path | str, name: str, *arguments: object, **settings: str) -> StoreApart:
        """Create an object of a class in the benchmark's jar, such as ``StoreBenchmark``.

        Parameters
        ----------
        kind
            The class. It takes the provider, the state's directory, the settings, and further arguments.
        path
            The state's directory.
        name
            The store, as in `contest.PROVIDERS` or `contest.UNFORKED`.
        **settings
            See `contest.confs`.
        """
        pool = self._pools.get(name) or self._start(name)
        opened = pool.submit(session.call, _open, kind, str(path), name, arguments, settings)
        return StoreApart(pool, opened.result())

    def close(self) -> None:
        """End the JVMs."""
        self._stack.close()

    def _start(self, name: str) -> ProcessPoolExecutor:
        pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        self._pools[name] = self._stack.enter_context(pool)
        scratch = self._scratch / f"jvm-{len(self._pools)}"
        scratch.mkdir(parents=True)
        pool.submit(session.call, _begin, scratch).result()
        return pool


@contextmanager
def stores_apart(scratch: Path) -> Iterator[Apart]:
    """Open stores for the duration of the block."""
    opener = Apart(scratch)
    try:
        yield opener
    finally:
        opener.close()


# The following functions run in the process of a store.
_spark: Any = None
_opened: list[Any] = []


def _begin(scratch: Path) -> None:
    global _spark
    running = ExitStack()
    _spark = running.enter_context(session.running(scratch))
    atexit.register(running.close)


def _open(kind: str, path: str, name: str, arguments: tuple[object, ...], settings: dict[str, str]) -> int:
    provider, confs = contest.confs(_spark, name, **settings)
    _opened.append(getattr(contest.bench(_spark), kind)(provider, f"file:{path}", confs, *arguments))
    return len(_opened) - 1


def _ask(number: int, method: str, arguments: tuple[object, ...]) -> Any:
    answer = getattr(_opened[number], method)(*arguments)
    # Lists stay in the JVM.
    return answer if answer is None or isinstance(answer, int | str) else list(answer)


def _settle() -> None:
    contest.bench(_spark).StoreBenchmark.settle()

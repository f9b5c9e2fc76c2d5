"""The stores that requests use, and the merged files of their runs, each as one object for all requests."""

from __future__ import annotations

import functools
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final
from weakref import WeakValueDictionary

from spark_statestore.files import FileSystem, MemoryFileSystem
from spark_statestore.options import StorageOptions
from spark_statestore.storage.merged_files import MergedFiles
from spark_statestore.storage.task_local_state_store import TaskLocalStateStore
from spark_statestore.store.directory import MergedFilesOf, StoreDirectory
from spark_statestore.store.metadata import StoreId

# Stores whose retention index is cached; the next cleanup of an evicted one lists its directory again.
_CACHED_STORES: Final = 20_000

# Ended runs that are remembered. What late tasks of others add stays in memory until the process ends.
_ENDED_RUNS: Final = 10_000

# Seconds between the checks for physical files in memory that were not read for a while.
_RELEASE_SECONDS: Final = 10.0


class OpenStores:
    """The stores that requests use, and the merged files of their runs. Thread-safe.

    There is never a second object for a store or a run while the first one is in use: it would not have what
    the first one has in memory alone. A store is in use by its requests, and cached after them; the merged
    files of a run are in use by its stores, and kept after them while something in them is not published.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stores: WeakValueDictionary[str, StoreDirectory] = WeakValueDictionary()
        self._cached: OrderedDict[str, StoreDirectory] = OrderedDict()
        # By the URL of the state directory and the run.
        self._merged: WeakValueDictionary[tuple[str, str], MergedFiles] = WeakValueDictionary()
        self._unpublished: set[MergedFiles] = set()
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._release_at = 0.0

    def get(self, node: dict[str, Any]) -> StoreDirectory:
        """Return the store that a request names, opened if it is not."""
        self._release_memory()
        key = node["instance"]
        with self._lock:
            if (store := self._stores.get(key)) is not None:
                self._cache(key, store)
                return store
        store = open_store(node, merged_of=functools.partial(self._merged_of, node.get("run", "")))
        if store.options.is_on_driver:
            return store
        with self._lock:
            store = self._stores.setdefault(key, store)
            self._cache(key, store)
        return store

    def keep_unpublished(self, node: dict[str, Any], store: StoreDirectory) -> None:
        """Keep the merged files of a store's run from now on if something in them is not published.

        Otherwise they are no longer kept for that.
        """
        if (merged := store.merged) is None:
            return
        with self._lock:
            if merged.has_unpublished() and node.get("run", "") not in self._ended:
                self._unpublished.add(merged)
            else:
                self._unpublished.discard(merged)

    def close(self, instances: Iterable[str], runs: Iterable[str]) -> None:
        """Drop stores that are closed, and what is kept of runs that have ended.

        A late request opens its store again.
        """
        runs = frozenset(runs)
        with self._lock:
            for run in runs:
                self._ended[run] = None
            while len(self._ended) > _ENDED_RUNS:
                self._ended.popitem(last=False)
            ended = {merged for (_, run), merged in self._merged.items() if run in runs}
            self._unpublished -= ended
            for key in [key for key, store in self._cached.items() if store.merged in ended]:
                del self._cached[key]
            for key in instances:
                self._cached.pop(key, None)
            used = {store.merged for store in self._cached.values()} | self._unpublished
            unused = [merged for merged in self._merged.values() if merged not in used]
        for merged in unused:
            # Before the collection of garbage. A late request lists again.
            merged.forget()

    def _cache(self, key: str, store: StoreDirectory) -> None:
        self._cached[key] = store
        self._cached.move_to_end(key)
        if len(self._cached) > _CACHED_STORES:
            self._cached.popitem(last=False)

    def _merged_of(self, run: str, files: FileSystem, state_directory: str) -> MergedFiles:
        """Return the merged files of a query, as a run of it sees them."""
        key = (files.url(state_directory), run)
        with self._lock:
            if (merged := self._merged.get(key)) is None:
                merged = self._merged[key] = MergedFiles(files, state_directory)
            return merged

    def _release_memory(self) -> None:
        with self._lock:
            if time.monotonic() < self._release_at:
                return
            self._release_at = time.monotonic() + _RELEASE_SECONDS
            merged_files = list(self._merged.values())
        for merged in merged_files:
            merged.release_memory()


def open_store(
    node: dict[str, Any],
    objects: MemoryFileSystem | None = None,
    driver_range: list[int] | None = None,
    merged_of: MergedFilesOf | None = None,
) -> StoreDirectory:
    """Open a store as a request describes it; see `StoreDirectory` for parameters and errors."""
    options = StorageOptions.parse(node["options"])
    store = StoreDirectory(
        StoreId(node["operator"], node["partition"], node["name"]),
        node["root"],
        options,
        objects,
        (driver_range[0], driver_range[1]) if driver_range else None,
        node.get("commits"),
        merged_of,
    )
    store.local_state = TaskLocalStateStore.from_options(
        options, store.url, store.is_local, node.get("localDirectory")
    )
    return store

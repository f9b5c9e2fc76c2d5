"""Stored state of running queries is verified in the background, while the state in memory can replace it."""

from __future__ import annotations

import logging
import queue
import threading
import time
import weakref
from typing import Final

from spark_statestore.errors import CheckpointIOError, CorruptCheckpointError
from spark_statestore.storage import CheckpointName
from spark_statestore.storage.incremental_handle import ChainEntry
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.reader import stream_error

_logger = logging.getLogger(__name__)

BYTES_PER_SECOND: Final = 16 << 20
"""Bytes that the scrub of one process reads in a second: a little of what a disk or a connection can."""


class Scrub:
    """Verification of the newest versions of stores, one stream after the other. Thread-safe.

    A damaged or missing stream is recorded in `StoreDirectory.damaged`; the next commit then writes
    everything. A storage that fails or does not answer shows no damage: the next scrub tries it again.

    Parameters
    ----------
    bytes_per_second
        Bound of what it reads.
    """

    def __init__(self, bytes_per_second: int = BYTES_PER_SECOND) -> None:
        self._bytes_per_second = bytes_per_second
        self._waiting: queue.SimpleQueue[weakref.ref[StoreDirectory]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_running = False

    def submit(self, store: StoreDirectory) -> None:
        """Scrub a store in the background, and again after its interval, see `StoreDirectory.scrub_at`."""
        store.scrub_at = time.monotonic() + store.options.scrub_interval
        with self._lock:
            self._waiting.put(weakref.ref(store))
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="scrub", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._waiting.empty():
                    self._is_running = False
                    return
                store = self._waiting.get()()
            if store is not None:
                try:
                    self.scrub(store)
                except Exception:
                    _logger.exception("%s could not be scrubbed; the next scrub tries it again", store.store)
            del store

    def scrub(self, store: StoreDirectory) -> None:
        """Verify the streams of the version that was committed last, and record the damaged ones."""
        for entry in _streams_of(store):
            began = time.monotonic()
            error = _error_of(store, entry)
            # A stream that a later version does not use may have been deleted meanwhile.
            if error is not None and entry in _streams_of(store):
                _logger.warning(
                    "A scrub of a running query found damage: %s The next commit writes the whole state from "
                    "memory, so that the query needs no repair.",
                    error,
                )
                store.damaged |= {entry.state.stream_state_handle_id}
            took = time.monotonic() - began
            time.sleep(max(0.0, entry.state.state_size / self._bytes_per_second - took))


def _streams_of(store: StoreDirectory) -> tuple[ChainEntry, ...]:
    newest = store.newest_handle
    return () if newest is None else newest[1].entries


def _error_of(store: StoreDirectory, entry: ChainEntry) -> CorruptCheckpointError | None:
    try:
        return stream_error(store, CheckpointName(entry.version), entry)
    except CheckpointIOError as error:
        _logger.info("a stream is not scrubbed: %s", error)
        return None

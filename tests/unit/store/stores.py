"""Version stores for tests, with rows as dicts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from spark_statestore.files import MemoryFileSystem
from spark_statestore.formats.change_batches import CHANGE_SCHEMA
from spark_statestore.options import StorageOptions
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.metadata import StoreId
from spark_statestore.testing.stores import attempt_id, commit, load, message, named, rows_of, snapshot

__all__ = [
    "SMALL_FILES",
    "STORE",
    "Change",
    "attempt_id",
    "change_batch",
    "commit",
    "load",
    "message",
    "named",
    "open_store",
    "rows_of",
    "snapshot",
]

STORE = StoreId(0, 3)
# A kind, a key and its value.
Change = tuple[int, bytes, bytes | None]

SMALL_FILES = StorageOptions(file_state_threshold=512, compression=None)


def open_store(
    directory: Path | str,
    options: StorageOptions = SMALL_FILES,
    memory: MemoryFileSystem | None = None,
    store: StoreId = STORE,
) -> StoreDirectory:
    """One instance of the store in a directory."""
    return StoreDirectory(store, str(directory), options, memory or MemoryFileSystem())


def change_batch(changes: Sequence[Change]) -> pa.RecordBatch:
    """Return a batch of changes."""
    arrays = [
        pa.array([change[column] for change in changes], field.type)
        for column, field in enumerate(CHANGE_SCHEMA)
    ]
    return pa.record_batch(arrays, schema=CHANGE_SCHEMA)

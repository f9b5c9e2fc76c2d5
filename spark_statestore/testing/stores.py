"""Helpers that commit and load rows of version stores in tests."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping

import pyarrow as pa

from spark_statestore.formats.change_batches import CHANGE_SCHEMA
from spark_statestore.storage import CheckpointName
from spark_statestore.storage.incremental_handle import IncrementalStateHandle
from spark_statestore.store.changelog import DELETE, MERGE, PUT
from spark_statestore.store.commit import Committed, begin_checkpoint, begin_snapshot
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.healing import read_healed, readable_metadata
from spark_statestore.store.metadata import CheckpointMetadata, ColumnFamily
from spark_statestore.store.reader import read_version

Rows = Mapping[bytes, bytes]
"""Keys and their values; several values of a key are joined."""


def attempt_id() -> str:
    """Return a new attempt id."""
    return secrets.token_hex(8)


def message(put: Rows, removed: Iterable[bytes] = (), appended: Rows | None = None) -> pa.Buffer:
    """Return a batch of changes as the shim sends it."""
    changes: list[tuple[int, bytes, bytes | None]] = [(PUT, key, value) for key, value in put.items()]
    changes += [(DELETE, key, None) for key in removed]
    changes += [(MERGE, key, value) for key, value in (appended or {}).items()]
    arrays = [
        pa.array([change[column] for change in changes], field.type)
        for column, field in enumerate(CHANGE_SCHEMA)
    ]
    return pa.record_batch(arrays, schema=CHANGE_SCHEMA).serialize()


def named(*names: str, rows: int = 0) -> tuple[ColumnFamily, ...]:
    """Return column families with these names."""
    return tuple(ColumnFamily(name, rows, "{}", "{}", "hash", 0) for name in names or ("default",))


def commit(
    store: StoreDirectory,
    name: CheckpointName,
    put: Rows,
    removed: Iterable[bytes] = (),
    *,
    parent: IncrementalStateHandle | None = None,
    base: IncrementalStateHandle | None = None,
    by: str | None = None,
) -> Committed:
    """Commit one version of a store with a single column family."""
    by = by or name.id or attempt_id()
    pending = begin_checkpoint(store, name, by, named())
    removed = list(removed)
    if put or removed:
        pending.write(0, message(put, removed))
    return pending.publish(parent, None, base)


def snapshot(
    store: StoreDirectory, version: int, rows: Rows, since: int | None = None
) -> IncrementalStateHandle:
    """Upload a snapshot for use as the base of a later commit, or a run of the changes since a version."""
    pending = begin_snapshot(store, version, named(), since)
    pending.write(0, message(rows))
    return pending.finish()


def load(
    store: StoreDirectory, name: CheckpointName, attempt_id: str | None = None, *, healed: bool = False
) -> dict[str, dict[bytes, bytes]]:
    """Return the rows of a version by column family, if `healed` from other streams than damaged ones.

    With an attempt id, the version is not loaded into the store.
    """
    if attempt_id is None:
        metadata = store.load(name)
    else:
        metadata = (readable_metadata if healed else StoreDirectory.metadata)(store, name, attempt_id)
    rows: dict[str, dict[bytes, bytes]] = {state.name: {} for state in metadata.column_families}

    def read(metadata: CheckpointMetadata) -> list[tuple[str, pa.RecordBatch]]:
        # Read everything first: the checksum is verified at the end.
        return list(read_version(store, name, metadata))

    for state, batch in read_healed(store, name, metadata, read) if healed else read(metadata):
        for change in batch.to_pylist():
            key, value = change["key"], change["value"]
            if change["op"] == PUT:
                rows[state][key] = value
            elif change["op"] == MERGE:
                rows[state][key] = rows[state].get(key, b"") + value
            else:
                del rows[state][key]
    return rows


def rows_of(store: StoreDirectory, name: CheckpointName) -> dict[bytes, bytes]:
    """Return the rows of a version of a store with a single column family."""
    return load(store, name)["default"]

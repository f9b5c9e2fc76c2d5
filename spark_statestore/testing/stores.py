"""Version stores in tests: rows in, rows out."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping

import pyarrow as pa

from spark_statestore.checkpoint.metadata import NamedState
from spark_statestore.checkpoint.pending import Committed
from spark_statestore.checkpoint.storage import CheckpointName
from spark_statestore.checkpoint.versions import VersionStore
from spark_statestore.state.changes import APPEND, CHANGE_SCHEMA, PUT, REMOVE
from spark_statestore.state.handles import IncrementalStateHandle

__all__ = ["Rows", "attempt", "commit", "load", "message", "named", "rows_of", "snapshot"]

Rows = Mapping[bytes, bytes]
"""Keys and their values; several values of a key are joined."""


def attempt() -> str:
    """A new name for a commit attempt."""
    return secrets.token_hex(8)


def message(put: Rows, removed: Iterable[bytes] = (), appended: Rows | None = None) -> pa.Buffer:
    """A batch of changes, as the shim sends it."""
    changes: list[tuple[int, bytes, bytes | None]] = [(PUT, key, value) for key, value in put.items()]
    changes += [(REMOVE, key, None) for key in removed]
    changes += [(APPEND, key, value) for key, value in (appended or {}).items()]
    arrays = [
        pa.array([change[column] for change in changes], field.type)
        for column, field in enumerate(CHANGE_SCHEMA)
    ]
    return pa.record_batch(arrays, schema=CHANGE_SCHEMA).serialize()


def named(*names: str, rows: int = 0) -> tuple[NamedState, ...]:
    """Descriptions of named states."""
    return tuple(NamedState(name, rows, "{}", "{}", "hash", 0) for name in names or ("default",))


def commit(
    store: VersionStore,
    name: CheckpointName,
    put: Rows,
    removed: Iterable[bytes] = (),
    *,
    parent: IncrementalStateHandle | None = None,
    base: IncrementalStateHandle | None = None,
    by: str | None = None,
) -> Committed:
    """Commit one version of a store with a single named state."""
    by = by or name.id or attempt()
    pending = store.begin(name, by, named())
    removed = list(removed)
    if put or removed:
        pending.write(0, message(put, removed))
    return pending.publish(parent, None, base)


def snapshot(store: VersionStore, version: int, rows: Rows) -> IncrementalStateHandle:
    """Write a full snapshot that waits to be the base of a commit."""
    pending = store.begin_snapshot(version, named())
    pending.write(0, message(rows))
    return pending.finish()


def load(
    store: VersionStore, name: CheckpointName, attempt: str | None = None
) -> dict[str, dict[bytes, bytes]]:
    """The rows of a version, by named state; those of an attempt are only looked at."""
    metadata = store.load(name) if attempt is None else store.metadata(name, attempt)
    rows: dict[str, dict[bytes, bytes]] = {state.name: {} for state in metadata.states}
    # Nothing of it may be used before all of it was checked.
    for state, batch in list(store.read(name, metadata)):
        for change in batch.to_pylist():
            key, value = change["key"], change["value"]
            if change["op"] == PUT:
                rows[state][key] = value
            elif change["op"] == APPEND:
                rows[state][key] += value
            else:
                del rows[state][key]
    return rows


def rows_of(store: VersionStore, name: CheckpointName) -> dict[bytes, bytes]:
    """The rows of a version of a store with a single named state."""
    return load(store, name)["default"]

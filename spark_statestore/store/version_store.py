"""`VersionStore`, the versions of one state store: load, read, commit, snapshot and cleanup."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from spark_statestore.storage import CheckpointName
from spark_statestore.store.cleanup import discard_versions
from spark_statestore.store.commit import (
    PendingCheckpoint,
    PendingSnapshot,
    begin_checkpoint,
    begin_snapshot,
)
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.metadata import CheckpointMetadata, ColumnFamily
from spark_statestore.store.reader import read_version

__all__ = ["VersionStore"]


class VersionStore(StoreDirectory):
    """A store's directory with all operations on its versions; see `StoreDirectory` for parameters and errors.

    `load` and `metadata` come from `StoreDirectory`.
    """

    def begin(
        self,
        name: CheckpointName,
        attempt_id: str,
        column_families: tuple[ColumnFamily, ...],
        *,
        merge: bool = False,
        hand_over: bool = False,
    ) -> PendingCheckpoint:
        """Begin a checkpoint, see `begin_checkpoint`."""
        return begin_checkpoint(self, name, attempt_id, column_families, merge=merge, hand_over=hand_over)

    def begin_snapshot(
        self, version: int, column_families: tuple[ColumnFamily, ...], since: int | None = None
    ) -> PendingSnapshot:
        """Begin a full snapshot or a run of an existing version, see `begin_snapshot`."""
        return begin_snapshot(self, version, column_families, since)

    def read(
        self, name: CheckpointName, metadata: CheckpointMetadata
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Read the changes that make up a version, see `read_version`."""
        return read_version(self, name, metadata)

    def cleanup(self, newest: CheckpointName, attempt_id: str, retain_from: int, most: int) -> int:
        """Discard old versions, see `discard_versions`."""
        return discard_versions(self, newest, attempt_id, retain_from, most)

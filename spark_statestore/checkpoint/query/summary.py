"""Rows, sizes and chains of a query's stores, read from metadata alone."""

from __future__ import annotations

from dataclasses import dataclass

from spark_statestore.checkpoint.metadata import StoreId
from spark_statestore.checkpoint.query.checkpoint import QueryCheckpoint, StoreVersion
from spark_statestore.checkpoint.query.layout import files_of_stores
from spark_statestore.checkpoint.query.workers import Progress, for_each
from spark_statestore.checkpoint.storage import METADATA_FILE_NAME

__all__ = ["StoreSummary", "StoredFiles", "stored_files", "summarise"]


@dataclass(frozen=True, slots=True)
class StoreSummary:
    """One store as a batch left it.

    Attributes
    ----------
    operator, partition, store
        The store.
    version
        The version.
    attempt
        The attempt that wrote it.
    rows
        Keys of all column families, without those that Spark keeps for itself.
    bytes
        Of the streams that a load reads.
    chain
        Number of those streams.
    base
        The version of the full snapshot that they start with.
    created_ms
        When it was committed, in milliseconds since 1970.
    """

    operator: int
    partition: int
    store: str
    version: int
    attempt: str
    rows: int
    bytes: int
    chain: int
    base: int
    created_ms: int


def summarise(
    checkpoint: QueryCheckpoint, batch: int | None = None, progress: Progress | None = None
) -> list[StoreSummary]:
    """Every store as a batch left it, by operator, partition and name.

    Parameters
    ----------
    batch
        By default the newest one.
    progress
        Told how many stores are done, and of how many.

    Raises
    ------
    CheckpointNotFoundError
        If there is no such batch.
    CheckpointError
        If the metadata of a store cannot be read, see `VersionStore.metadata`.
    """

    def one(version: StoreVersion) -> StoreSummary:
        metadata = checkpoint.open(version.store).metadata(version.name, version.attempt)
        return StoreSummary(
            operator=version.store.operator,
            partition=version.store.partition,
            store=version.store.name,
            version=metadata.version,
            attempt=metadata.attempt,
            rows=sum(state.rows for state in metadata.states if not state.internal),
            bytes=metadata.handle.state_size,
            chain=len(metadata.handle),
            base=metadata.handle.base_version,
            created_ms=metadata.created_ms,
        )

    return for_each(one, checkpoint.stores(batch), progress)


@dataclass(slots=True)
class StoredFiles:
    """What lies in a store's directory.

    Attributes
    ----------
    versions
        Versions that have metadata; attempts at one are counted once.
    files, bytes
        Of all of them.
    """

    versions: int = 0
    files: int = 0
    bytes: int = 0


def stored_files(checkpoint: QueryCheckpoint) -> dict[StoreId, StoredFiles]:
    """What lies in the directory of each store, from one listing.

    Raises
    ------
    CheckpointIOError
        If the state directory cannot be listed.
    """
    found: dict[StoreId, StoredFiles] = {}
    versions: dict[StoreId, set[str]] = {}
    for store, directory, file, status in files_of_stores(checkpoint):
        stored = found.setdefault(store, StoredFiles())
        stored.files += 1
        stored.bytes += status.size
        if file == METADATA_FILE_NAME:
            versions.setdefault(store, set()).add(directory.partition("_")[0])
    for store, names in versions.items():
        found[store].versions = len(names)
    return found

"""Summaries of a query's stores from metadata alone: rows, sizes and changelog chains."""

from __future__ import annotations

from dataclasses import dataclass

from spark_statestore.errors import CheckpointError, ForeignCheckpointError, StorageAccessError
from spark_statestore.query.layout import files_of_stores
from spark_statestore.query.parallel import Progress, parallel_map
from spark_statestore.query.query_checkpoint import QueryCheckpoint, StoreVersion
from spark_statestore.storage import METADATA_FILE_NAME
from spark_statestore.store.metadata import StoreId


@dataclass(frozen=True, slots=True)
class StoreSummary:
    """Summary of a store's version.

    Attributes
    ----------
    operator, partition, store
        The store.
    version
        The version.
    attempt_id
        The attempt that wrote it.
    rows
        Number of keys in all column families, except Spark's internal ones.
    bytes
        Size of the streams that a load reads.
    chain_length
        Number of those streams.
    base_version
        Version of the full snapshot that they start with.
    created_ms
        Time of the commit in milliseconds since 1970.
    host
        Name of the machine that wrote the version: that of the executor which has the state.
    """

    operator: int
    partition: int
    store: str
    version: int
    attempt_id: str
    rows: int
    bytes: int
    chain_length: int
    base_version: int
    created_ms: int
    host: str


def summarize(checkpoint: QueryCheckpoint, batch: int | None = None) -> list[StoreSummary]:
    """Return the summary of every store at a batch, by default the newest one."""
    return parallel_map(lambda version: _summary(checkpoint, version), checkpoint.stores(batch))


def summarize_each(
    checkpoint: QueryCheckpoint, batch: int | None = None, progress: Progress | None = None
) -> dict[StoreId, StoreSummary | CheckpointError]:
    """Return summaries by store, with the error for a store whose metadata cannot be read.

    Errors that concern every store, of another provider or of access to storage, are raised.
    """

    def summarize_store(version: StoreVersion) -> StoreSummary | CheckpointError:
        try:
            return _summary(checkpoint, version)
        except (ForeignCheckpointError, StorageAccessError):
            raise
        except CheckpointError as error:
            return error

    versions = checkpoint.stores(batch)
    return dict(
        zip(
            (version.store for version in versions),
            parallel_map(summarize_store, versions, progress),
            strict=True,
        )
    )


def _summary(checkpoint: QueryCheckpoint, version: StoreVersion) -> StoreSummary:
    metadata = checkpoint.open(version.store).metadata(version.name, version.attempt_id)
    return StoreSummary(
        operator=version.store.operator,
        partition=version.store.partition,
        store=version.store.name,
        version=metadata.version,
        attempt_id=metadata.attempt_id,
        rows=sum(state.rows for state in metadata.column_families if not state.internal),
        bytes=metadata.handle.state_size,
        chain_length=len(metadata.handle),
        base_version=metadata.handle.base_version,
        created_ms=metadata.created_ms,
        host=metadata.host,
    )


@dataclass(slots=True)
class StoredFiles:
    """Files in a store's directory.

    Attributes
    ----------
    versions
        Number of versions with metadata; several attempts at a version count once.
    files, bytes
        Number and size of all files.
    """

    versions: int = 0
    files: int = 0
    bytes: int = 0


def stored_files(checkpoint: QueryCheckpoint) -> dict[StoreId, StoredFiles]:
    """Return the files in each store's directory, from one listing."""
    by_store: dict[StoreId, StoredFiles] = {}
    versions: dict[StoreId, set[str]] = {}
    for store, directory, file, status in files_of_stores(checkpoint):
        stored = by_store.setdefault(store, StoredFiles())
        stored.files += 1
        stored.bytes += status.size
        if file == METADATA_FILE_NAME:
            versions.setdefault(store, set()).add(directory.partition("_")[0])
    for store, names in versions.items():
        by_store[store].versions = len(names)
    return by_store

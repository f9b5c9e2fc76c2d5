"""Lookup of savepoints by URL, and of the checkpoint that a savepoint or a checkpoint location has."""

from __future__ import annotations

from typing import Final

from spark_statestore.errors import (
    CheckpointError,
    CorruptCheckpointError,
    SavepointError,
    SavepointNotFoundError,
    restore_from_backup,
)
from spark_statestore.files import FileSystem, open_file_system, parent_of
from spark_statestore.query.query_checkpoint import QueryCheckpoint
from spark_statestore.query.savepoint import Savepoint
from spark_statestore.query.state_store import FileSystemStateStore, HeapStateStore, StateStore, locate

# By URL of the directory.
_IN_MEMORY: Final[dict[str, HeapStateStore]] = {}


def load_savepoint(path: str) -> Savepoint:
    """Load the metadata of a savepoint.

    Parameters
    ----------
    path
        URL of its directory, or of the file ``_metadata`` in it.

    Raises
    ------
    SavepointNotFoundError
        If there is none.
    CorruptCheckpointError, UnsupportedFormatError, CheckpointIOError
        If it cannot be read.
    StorageError
        If the file system cannot be used.
    """
    store, at = store_of(path)
    return store.get_state(at)


def list_savepoints(target: str) -> list[Savepoint]:
    """Return the savepoints in a directory, oldest first. Unreadable ones are skipped with a warning.

    Parameters
    ----------
    target
        URL of the savepoints' directory.

    Raises
    ------
    CheckpointIOError, StorageError
        If the directory cannot be listed.
    """
    return sorted(
        savepoint_store(target).get_all(), key=lambda savepoint: (savepoint.created_ms, savepoint.path)
    )


def savepoint_store(target: str) -> StateStore:
    """Return the store of the savepoints in a directory: on the heap for ``memory://``, else in files."""
    files, root = open_file_system(target)
    return _store_at(files, root)


def store_of(path: str) -> tuple[StateStore, str]:
    """Return the store of a savepoint, and the savepoint's path in it.

    `path` is the URL of the savepoint's directory or metadata.
    """
    files, directory = locate(path)
    store = _store_at(files, parent_of(directory))
    return store, files.url(directory) if isinstance(store, HeapStateStore) else path


def _store_at(files: FileSystem, root: str) -> StateStore:
    url = files.url(root.rstrip("/"))
    if files.scheme == "memory":
        # Its files end with the process too.
        return _IN_MEMORY.setdefault(url, HeapStateStore())
    return FileSystemStateStore(url)


def open_checkpoint(path: str, *, checkpoints_dir: str | None = None) -> QueryCheckpoint:
    """Open a checkpoint location, or a savepoint of either kind, for reading."""
    try:
        savepoint = load_savepoint(path)
    except SavepointNotFoundError:
        checkpoint = QueryCheckpoint(path, checkpoints_dir=checkpoints_dir)
        store, at = store_of(path)
        if store.is_being_disposed(at):
            # Its remaining files may look like the checkpoint of another query.
            require_savepoint(checkpoint)
        return checkpoint
    checkpoint = savepoint.checkpoint()
    require_own_files(savepoint, checkpoint)
    return checkpoint


def require_own_files(savepoint: Savepoint, checkpoint: QueryCheckpoint) -> None:
    """Raise if a savepoint's metadata and its files belong to different queries."""
    try:
        query_id = checkpoint.query_id
    except CheckpointError:
        # The next read raises the specific error.
        return
    if query_id != savepoint.query_id:
        raise CorruptCheckpointError(
            f"{savepoint} is of the query {savepoint.query_id}, but its files are of the query {query_id}: "
            "files "
            "were moved or mixed up. " + restore_from_backup("the right ones", "use another savepoint")
        )


def is_or_was_savepoint(checkpoint: QueryCheckpoint) -> bool:
    """Return True if a checkpoint is a savepoint, or one that is being disposed of."""
    store, path = store_of(checkpoint.url)
    return store.exists(path) or store.is_being_disposed(path)


def is_savepoint_there(checkpoint: QueryCheckpoint) -> bool:
    """Return True if a checkpoint is a savepoint whose disposal has not begun."""
    store, path = store_of(checkpoint.url)
    return store.exists(path)


def require_savepoint(checkpoint: QueryCheckpoint) -> None:
    """Raise if a savepoint was disposed of during a read, which may then be incomplete."""
    if not is_savepoint_there(checkpoint):
        raise SavepointError(
            f"the savepoint {checkpoint.url} is being disposed of. Use another one, or take a new one."
        )

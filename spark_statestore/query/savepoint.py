"""Savepoints of a streaming query: metadata, its encoding, and lookup."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from spark_statestore._version import __version__
from spark_statestore.errors import (
    CheckpointError,
    CorruptCheckpointError,
    SavepointError,
    SavepointNotFoundError,
)
from spark_statestore.files import FileSystem, join, open_file_system, parent_of
from spark_statestore.formats.metadata import (
    MetadataKind,
    decode_object,
    encode_object,
    reading,
    require_attempt_id,
    require_count,
)
from spark_statestore.query.query_checkpoint import STATE, QueryCheckpoint
from spark_statestore.storage import SAVEPOINT_DIR_PREFIX
from spark_statestore.storage.file_system_state_store import FileSystemStateStore, locate
from spark_statestore.storage.state_store import HeapStateStore, StateStore
from spark_statestore.store.metadata import StoreId

__all__ = [
    "KINDS",
    "Kind",
    "Savepoint",
    "decode_savepoint",
    "encode_savepoint",
    "is_or_was_savepoint",
    "list_savepoints",
    "load_savepoint",
    "new_name",
    "open_checkpoint",
    "require_own_files",
    "require_savepoint",
    "savepoint_store",
    "store_of",
]

Kind = Literal["canonical", "pointer"]

KINDS: Final[tuple[Kind, ...]] = ("canonical", "pointer")

# By URL of the directory.
_IN_MEMORY: Final[dict[str, HeapStateStore[Savepoint]]] = {}

_PART_OF_A_PATH: Final = re.compile(r"[0-9A-Za-z-]{1,128}")

_NAME: Final = re.compile(rf"{SAVEPOINT_DIR_PREFIX}[0-9a-f]{{1,6}}-[0-9a-f]{{12}}")


@dataclass(frozen=True)
class Savepoint:
    """A savepoint of a streaming query, which exists until its user disposes of it.

    Attributes
    ----------
    path
        URL of its directory.
    kind
        ``canonical``: self-contained, can be copied and moved. ``pointer``: it has Spark's small files; the state
        is in the source checkpoint, retained by a hold.
    query_id
        The query's id.
    batch
        The newest committed batch.
    created_ms
        Creation time in milliseconds since 1970.
    source
        URL of the source checkpoint.
    state_url
        URL of the state, with a subdirectory for each operator.
    name
        Its name; a pointer's hold has the same name.
    attempt_id
        Unique id, 16 hex digits.
    checkpoints_dir
        The query's option ``checkpointsDir``, None if it was not set.
    partitions
        The query's number of shuffle partitions; None if Spark's log does not have it.
    attempts
        The attempt that wrote each store's version; for a pointer only.
    written_by
        Version of this package.
    """

    path: str
    kind: Kind
    query_id: str
    batch: int
    created_ms: int
    source: str
    state_url: str
    name: str
    attempt_id: str
    checkpoints_dir: str | None = None
    partitions: int | None = None
    attempts: Mapping[StoreId, str] = field(default_factory=dict, repr=False, hash=False)
    written_by: str = __version__

    def checkpoint(self, *, fsync: bool = False) -> QueryCheckpoint:
        """Open the savepoint as a query's checkpoint, for reading."""
        if self.kind == "canonical":
            return QueryCheckpoint(self.path, fsync=fsync)
        return QueryCheckpoint(self.path, state_url=self.state_url, attempts=self.attempts, fsync=fsync)

    def __str__(self) -> str:
        return f"the {self.kind} savepoint {self.path} of batch {self.batch}"


def new_name(query_id: str) -> tuple[str, str]:
    """Return a name and an attempt id for a new savepoint of a query."""
    attempt_id = secrets.token_hex(8)
    return f"{SAVEPOINT_DIR_PREFIX}{query_id[:6]}-{attempt_id[:12]}", attempt_id


def encode_savepoint(savepoint: Savepoint) -> bytes:
    """Return the metadata object of a savepoint."""
    properties = {
        "name": savepoint.name,
        "kind": savepoint.kind,
        "queryId": savepoint.query_id,
        "batch": savepoint.batch,
        "createdMs": savepoint.created_ms,
        "writtenBy": savepoint.written_by,
        "source": savepoint.source,
        "checkpointsDir": savepoint.checkpoints_dir,
        "partitions": savepoint.partitions,
    }
    if savepoint.kind == "pointer":
        properties["stateUrl"] = savepoint.state_url
        properties["attempts"] = [
            [store.operator, store.partition, store.name, attempt_id]
            for store, attempt_id in savepoint.attempts.items()
        ]
    return bytes(encode_object(MetadataKind.SAVEPOINT, savepoint.attempt_id, properties, []))


def decode_savepoint(data: bytes, path: str, where: str) -> Savepoint:
    """Decode and validate the metadata object of a savepoint in the directory `path`; `where` is for messages."""
    found = decode_object(data, where)
    properties = found.properties
    with reading(where):
        if found.kind is not MetadataKind.SAVEPOINT:
            raise ValueError(f"it describes {found.kind.name}, not a savepoint of a query")
        kind = properties["kind"]
        if kind not in KINDS:
            raise ValueError(f"it is of the kind {kind!r:.40}")
        savepoint = Savepoint(
            path=path,
            kind=kind,
            query_id=properties["queryId"],
            batch=properties["batch"],
            created_ms=properties["createdMs"],
            source=properties["source"],
            state_url=properties["stateUrl"] if kind == "pointer" else join(path, STATE),
            name=properties["name"],
            attempt_id=found.attempt_id,
            checkpoints_dir=properties["checkpointsDir"],
            partitions=properties["partitions"],
            attempts={
                StoreId(operator, partition, name): attempt_id
                for operator, partition, name, attempt_id in properties.get("attempts", ())
            },
            written_by=properties["writtenBy"],
        )
        # These become parts of paths, also of files to delete.
        for part in (savepoint.name, savepoint.query_id):
            if not _PART_OF_A_PATH.fullmatch(part):
                raise ValueError(f"it has the name or the query {part!r:.80}")
        require_count(savepoint.batch)
        require_count(savepoint.created_ms)
        for attempt_id in savepoint.attempts.values():
            require_attempt_id(attempt_id)
        return savepoint


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
    found = savepoint_store(target).get_all()
    return sorted(found, key=lambda savepoint: (savepoint.created_ms, savepoint.path))


def savepoint_store(target: str) -> StateStore[Savepoint]:
    """Return the store of the savepoints in a directory: on the heap for ``memory://``, else in files."""
    files, root = open_file_system(target)
    return _store_at(files, root)


def store_of(path: str) -> tuple[StateStore[Savepoint], str]:
    """Return the store of a savepoint, by the URL of its directory or metadata, and the savepoint's path in it."""
    files, directory = locate(path)
    store = _store_at(files, parent_of(directory))
    return store, files.url(directory) if isinstance(store, HeapStateStore) else path


def _store_at(files: FileSystem, root: str) -> StateStore[Savepoint]:
    url = files.url(root.rstrip("/"))
    if files.scheme == "memory":
        # Its files end with the process too.
        return _IN_MEMORY.setdefault(url, HeapStateStore(_path_of))
    return FileSystemStateStore(url, _path_of, encode_savepoint, decode_savepoint, _NAME.fullmatch)


def _path_of(savepoint: Savepoint) -> str:
    return savepoint.path


def open_checkpoint(path: str, *, checkpoints_dir: str | None = None, fsync: bool = False) -> QueryCheckpoint:
    """Open a checkpoint location, or a savepoint of either kind, for reading."""
    try:
        found = load_savepoint(path)
    except SavepointNotFoundError:
        checkpoint = QueryCheckpoint(path, checkpoints_dir=checkpoints_dir, fsync=fsync)
        store, at = store_of(path)
        if store.is_being_disposed(at):
            # Its remaining files may look like the checkpoint of another query.
            require_savepoint(checkpoint)
        return checkpoint
    checkpoint = found.checkpoint(fsync=fsync)
    require_own_files(found, checkpoint)
    return checkpoint


def require_own_files(savepoint: Savepoint, checkpoint: QueryCheckpoint) -> None:
    """Raise if a savepoint's metadata and its files belong to different queries."""
    try:
        found = checkpoint.query_id
    except CheckpointError:
        # The next read raises the specific error.
        return
    if found != savepoint.query_id:
        raise CorruptCheckpointError(
            f"{savepoint} is of the query {savepoint.query_id}, but its files are of the query {found}: files "
            "were moved or mixed up. Restore the right ones from a backup, or use another savepoint; nothing was changed."
        )


def is_or_was_savepoint(checkpoint: QueryCheckpoint) -> bool:
    """Return True if a checkpoint is a savepoint, or one that is being disposed of."""
    store, path = store_of(checkpoint.url)
    return store.exists(path) or store.is_being_disposed(path)


def require_savepoint(checkpoint: QueryCheckpoint) -> None:
    """Raise if a savepoint was disposed of during a read, which may then be incomplete."""
    store, path = store_of(checkpoint.url)
    if not store.exists(path):
        raise SavepointError(
            f"the savepoint {checkpoint.url} is being disposed of. Use another one, or take a new one."
        )

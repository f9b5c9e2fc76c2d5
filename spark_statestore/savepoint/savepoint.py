"""A savepoint of a streaming query: what it says of itself, how that is stored, and how it is found."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from spark_statestore._version import __version__
from spark_statestore.checkpoint.files import FileSystem, join, open_file_system, parent_of
from spark_statestore.checkpoint.files.failures import failing_to, read_file
from spark_statestore.checkpoint.metadata import StoreId
from spark_statestore.checkpoint.metadata.format import (
    MetadataKind,
    decode_object,
    encode_object,
    read_object,
    reading,
    require_attempt,
    require_count,
)
from spark_statestore.checkpoint.query.checkpoint import STATE, QueryCheckpoint
from spark_statestore.checkpoint.storage import METADATA_FILE_NAME, SAVEPOINT_DIR_PREFIX
from spark_statestore.errors import (
    CheckpointError,
    CorruptCheckpointError,
    SavepointError,
    SavepointNotFoundError,
)
from spark_statestore.savepoint.stores.base import not_found

__all__ = [
    "BEING_DISPOSED",
    "KINDS",
    "Kind",
    "Savepoint",
    "decode_savepoint",
    "encode_savepoint",
    "is_or_was_savepoint",
    "list_savepoints",
    "load_savepoint",
    "locate",
    "new_name",
    "open_checkpoint",
    "require_own_files",
    "require_savepoint",
]

_logger = logging.getLogger(__name__)

Kind = Literal["canonical", "pointer"]

KINDS: Final[tuple[Kind, ...]] = ("canonical", "pointer")

BEING_DISPOSED: Final = "_disposing"
"""What a savepoint's metadata becomes while it is disposed of: whoever finds it can go on with that."""

_PART_OF_A_PATH: Final = re.compile(r"[0-9A-Za-z-]{1,128}")

_NAME: Final = re.compile(rf"{SAVEPOINT_DIR_PREFIX}[0-9a-f]{{1,6}}-[0-9a-f]{{12}}")


@dataclass(frozen=True)
class Savepoint:
    """A savepoint of a streaming query, which its user owns: it stays until it is disposed of.

    Attributes
    ----------
    path
        URL of its directory.
    kind
        ``canonical``: it holds all that the query needs, and can be copied and moved. ``pointer``: it holds
        Spark's small files; the state stays in the checkpoint that it was taken of, kept by a pin.
    query_id
        The query's id.
    batch
        The batch that was done last.
    created_ms
        When, in milliseconds since 1970.
    source
        URL of the checkpoint that it was taken of.
    state_url
        Where the state lies, by operator.
    name
        The name that it was given; a pointer's pin has it too.
    attempt
        Tells it from every other one, 16 hex digits.
    checkpoints_dir
        The query's option ``checkpointsDir``, None if it was not set.
    partitions
        The query's number of shuffle partitions, None if Spark did not note it.
    attempts
        Of a pointer, the attempt that wrote each store's version.
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
    attempt: str
    checkpoints_dir: str | None = None
    partitions: int | None = None
    attempts: Mapping[StoreId, str] = field(default_factory=dict, repr=False, hash=False)
    written_by: str = __version__

    def checkpoint(self, *, fsync: bool = False) -> QueryCheckpoint:
        """The savepoint as a query's checkpoint, to read from.

        Raises
        ------
        StorageError
            If its file system cannot be used.
        """
        if self.kind == "canonical":
            return QueryCheckpoint(self.path, fsync=fsync)
        return QueryCheckpoint(self.path, state_url=self.state_url, attempts=self.attempts, fsync=fsync)

    def __str__(self) -> str:
        return f"the {self.kind} savepoint {self.path} of batch {self.batch}"


def new_name(query_id: str) -> tuple[str, str]:
    """A name for a new savepoint of a query, and its attempt."""
    attempt = secrets.token_hex(8)
    return f"{SAVEPOINT_DIR_PREFIX}{query_id[:6]}-{attempt[:12]}", attempt


def encode_savepoint(savepoint: Savepoint) -> bytes:
    """The metadata object of a savepoint."""
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
            [store.operator, store.partition, store.name, attempt]
            for store, attempt in savepoint.attempts.items()
        ]
    return bytes(encode_object(MetadataKind.SAVEPOINT, savepoint.attempt, properties, []))


def decode_savepoint(data: bytes, path: str, where: str) -> Savepoint:
    """Read the metadata object of a savepoint, checking all of it.

    Parameters
    ----------
    path
        URL of the directory that it lies in now.
    where
        The object's URL, for messages.

    Raises
    ------
    CorruptCheckpointError
        If the bytes are not those that were written, or not those of a savepoint.
    UnsupportedFormatError
        If a newer release wrote them.
    """
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
            attempt=found.attempt,
            checkpoints_dir=properties["checkpointsDir"],
            partitions=properties["partitions"],
            attempts={
                StoreId(operator, partition, name): attempt
                for operator, partition, name, attempt in properties.get("attempts", ())
            },
            written_by=properties["writtenBy"],
        )
        # These become parts of paths, of what is removed too.
        for part in (savepoint.name, savepoint.query_id):
            if not _PART_OF_A_PATH.fullmatch(part):
                raise ValueError(f"it has the name or the query {part!r:.80}")
        require_count(savepoint.batch)
        require_count(savepoint.created_ms)
        for attempt in savepoint.attempts.values():
            require_attempt(attempt)
        return savepoint


def load_savepoint(path: str) -> Savepoint:
    """Find a savepoint.

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
    files, directory = locate(path)
    try:
        return _read(files, directory)
    except FileNotFoundError as error:
        if isinstance(error, CheckpointError):
            raise
        raise not_found(
            path,
            f"there is no file {METADATA_FILE_NAME!r}. It was disposed of or moved, is being written, or a process "
            "died while it wrote it. Check the path; list_savepoints(directory) says which ones there are.",
        ) from error


def list_savepoints(target: str) -> list[Savepoint]:
    """The savepoints in a directory, oldest first. One that cannot be read is left out, with a warning.

    Parameters
    ----------
    target
        URL of the directory that they were written to.

    Raises
    ------
    CheckpointIOError, StorageError
        If the directory cannot be listed.
    """
    files, root = open_file_system(target)
    start = root.rstrip("/") + "/"
    with failing_to("list", files, root):
        paths = [status.path for status in files.list_files(root)]
    found = []
    for path in paths:
        directory, _, file = path.removeprefix(start).partition("/")
        if file == METADATA_FILE_NAME and _NAME.fullmatch(directory):
            try:
                found.append(_read(files, start + directory))
            except FileNotFoundError:
                # Disposed of meanwhile.
                continue
            except CheckpointError as error:
                _logger.warning("%s is left out of the savepoints in %s: %s", directory, target, error)
    return sorted(found, key=lambda savepoint: (savepoint.created_ms, savepoint.path))


def open_checkpoint(path: str, *, checkpoints_dir: str | None = None, fsync: bool = False) -> QueryCheckpoint:
    """A checkpoint location, or a savepoint of either kind, to read from.

    Raises
    ------
    CheckpointError
        If it is a savepoint that cannot be read, or its files are of several.
    StorageError
        If the file system cannot be used.
    """
    try:
        found = load_savepoint(path)
    except SavepointNotFoundError:
        checkpoint = QueryCheckpoint(path, checkpoints_dir=checkpoints_dir, fsync=fsync)
        if _exists(checkpoint, BEING_DISPOSED):
            # What is left of it may look like the checkpoint of another query.
            require_savepoint(checkpoint)
        return checkpoint
    checkpoint = found.checkpoint(fsync=fsync)
    require_own_files(found, checkpoint)
    return checkpoint


def require_own_files(savepoint: Savepoint, checkpoint: QueryCheckpoint) -> None:
    """Fail if a savepoint's metadata lies beside the files of another query.

    Raises
    ------
    CorruptCheckpointError
        If it does.
    """
    try:
        found = checkpoint.query_id
    except CheckpointError:
        # Whoever reads on is told what is wrong.
        return
    if found != savepoint.query_id:
        raise CorruptCheckpointError(
            f"{savepoint} is one of the query {savepoint.query_id}, and what lies there is of the query {found}: files "
            "were moved or mixed up. Put the right ones back from a backup, or use another savepoint; nothing was changed."
        )


def is_or_was_savepoint(checkpoint: QueryCheckpoint) -> bool:
    """Whether a checkpoint is a savepoint, perhaps one that is being disposed of at this moment.

    Raises
    ------
    CheckpointIOError
        If that cannot be told.
    """
    return _exists(checkpoint, METADATA_FILE_NAME) or _exists(checkpoint, BEING_DISPOSED)


def require_savepoint(checkpoint: QueryCheckpoint) -> None:
    """Fail if a savepoint that is read was disposed of meanwhile: then what was read may be a part of it.

    Raises
    ------
    SavepointError
        If it was.
    CheckpointIOError
        If that cannot be told.
    """
    if not _exists(checkpoint, METADATA_FILE_NAME):
        raise SavepointError(
            f"the savepoint {checkpoint.url} is being disposed of. Use another one, or take one anew."
        )


def _exists(checkpoint: QueryCheckpoint, name: str) -> bool:
    path = checkpoint.path(name)
    with failing_to("look for", checkpoint.files, path):
        return checkpoint.files.exists(path)


def locate(path: str, *, fsync: bool = False) -> tuple[FileSystem, str]:
    """The file system and the directory of a savepoint."""
    files, directory = open_file_system(path, fsync=fsync)
    directory = directory.rstrip("/")
    if directory.rpartition("/")[2] == METADATA_FILE_NAME:
        directory = parent_of(directory)
    return files, directory


def _read(files: FileSystem, directory: str) -> Savepoint:
    path = join(directory, METADATA_FILE_NAME)
    return decode_savepoint(read_file(files, path, read_object), files.url(directory), files.url(path))

"""`Savepoint`, the metadata of a streaming query's savepoint, and its encoding."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from spark_statestore._version import __version__
from spark_statestore.files import join
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
from spark_statestore.store.metadata import StoreId

Kind = Literal["canonical", "pointer"]

KINDS: Final[tuple[Kind, ...]] = ("canonical", "pointer")

_PART_OF_A_PATH: Final = re.compile(r"[0-9A-Za-z-]{1,128}")


@dataclass(frozen=True)
class Savepoint:
    """A savepoint of a streaming query, which exists until its user disposes of it.

    Attributes
    ----------
    path
        URL of its directory.
    kind
        ``canonical``: self-contained, can be copied and moved. ``pointer``: it has Spark's small files; the
        state is in the source checkpoint, retained by a hold.
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

    def checkpoint(self) -> QueryCheckpoint:
        """Open the savepoint as a query's checkpoint, for reading."""
        if self.kind == "canonical":
            return QueryCheckpoint(self.path)
        return QueryCheckpoint(self.path, state_url=self.state_url, attempts=self.attempts)

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
    """Decode and validate the metadata object of a savepoint in the directory `path`.

    `where` is for messages.
    """
    decoded = decode_object(data, where)
    properties = decoded.properties
    with reading(where):
        if decoded.kind is not MetadataKind.SAVEPOINT:
            raise ValueError(f"it describes {decoded.kind.name}, not a savepoint of a query")
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
            attempt_id=decoded.attempt_id,
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

"""The metadata of one version of a state store is encoded and decoded here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spark_statestore.errors import CorruptCheckpointError
from spark_statestore.files.base import parent_of
from spark_statestore.formats.metadata import (
    EncodedObject,
    InlineState,
    MetadataKind,
    decode_object,
    encode_object,
    matches_with_state,
    reading,
    require_attempt_id,
    require_count,
    require_type,
)
from spark_statestore.storage.file_handles import SegmentFileStateHandle
from spark_statestore.storage.handle_codec import HandleContext, decode_handle
from spark_statestore.storage.incremental_handle import IncrementalStateHandle


@dataclass(frozen=True, slots=True)
class StoreId:
    """The identity of a store in a query: operator, partition and name."""

    operator: int
    partition: int
    name: str = "default"

    @property
    def directories(self) -> tuple[str, ...]:
        """Names of the directories between the query's state directory and the store's content."""
        names = (str(self.operator), str(self.partition))
        return names if self.name == "default" else (*names, self.name)

    def __str__(self) -> str:
        return f"operator {self.operator}, partition {self.partition}, store {self.name}"


def state_directory_of(store_directory: str, store: StoreId) -> str | None:
    """Return the state directory of a store's query; None for a store outside of one."""
    state = store_directory.rstrip("/")
    for name in reversed(store.directories):
        if state.rpartition("/")[2] != name:
            return None
        state = parent_of(state)
    return state or None


@dataclass(frozen=True, slots=True)
class ColumnFamily:
    """One column family of a version.

    Attributes
    ----------
    name
        Name; every operator has a column family ``default``.
    rows
        Number of keys.
    key_schema, value_schema
        Spark's schemas, as Spark's JSON.
    key_encoder
        Key state encoder spec of Spark: ``hash``, ``prefix``, ``range``, ``timestampPrefix`` or
        ``timestampPostfix``.
    prefix_columns
        Leading key columns that prefix scans use; 0 unless the encoder is ``prefix``.
    ordering_columns
        Positions of the key columns that order ``range``, most significant first.
    values
        Number of values of all keys if a key may have several, else None.
    internal
        Whether the column family is internal to Spark, whose metrics do not count its keys.
    created_at_version
        The version whose commit created it. Older entries of a chain may have changes of a removed column
        family of the same name, which do not apply.
    """

    name: str
    rows: int
    key_schema: str
    value_schema: str
    key_encoder: str
    prefix_columns: int
    ordering_columns: tuple[int, ...] = ()
    values: int | None = None
    internal: bool = False
    created_at_version: int = 0

    @property
    def stored_rows(self) -> int:
        """Number of stored rows: one per value."""
        return self.rows if self.values is None else self.values

    @property
    def has_multiple_values(self) -> bool:
        """True if a key may have several values."""
        return self.values is not None

    @classmethod
    def from_json(cls, node: dict[str, Any]) -> ColumnFamily:
        """Decode the column family in a request or a metadata object."""
        family = cls(
            name=node["name"],
            rows=node["rows"],
            key_schema=node["keySchema"],
            value_schema=node["valueSchema"],
            key_encoder=node["keyEncoder"],
            prefix_columns=node["prefixColumns"],
            ordering_columns=tuple(node["orderingColumns"]),
            values=node.get("values"),
            internal=node["internal"],
            created_at_version=node["createdAtVersion"],
        )
        for text in (family.name, family.key_schema, family.value_schema, family.key_encoder):
            require_type(text, str)
        for number in (
            family.rows,
            family.prefix_columns,
            family.created_at_version,
            *family.ordering_columns,
        ):
            require_count(number)
        if family.values is not None:
            require_count(family.values)
        require_type(family.internal, bool)
        return family

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that `from_json` decodes."""
        return {
            "name": self.name,
            "rows": self.rows,
            "keySchema": self.key_schema,
            "valueSchema": self.value_schema,
            "keyEncoder": self.key_encoder,
            "prefixColumns": self.prefix_columns,
            "orderingColumns": list(self.ordering_columns),
            "values": self.values,
            "internal": self.internal,
            "createdAtVersion": self.created_at_version,
        }


@dataclass(frozen=True, slots=True)
class CheckpointMetadata:
    """The metadata of one version of a store.

    Attributes
    ----------
    attempt_id
        The attempt that wrote it, 16 hex digits.
    parent_attempt_id
        The attempt that wrote the version before it; None for the first version.
    created_ms
        Time of the commit in milliseconds since 1970.
    written_by
        Version of this package.
    host
        Name of the machine that wrote it.
    handle
        The version's chain of streams.
    """

    store: StoreId
    version: int
    attempt_id: str
    parent_attempt_id: str | None
    created_ms: int
    written_by: str
    host: str
    column_families: tuple[ColumnFamily, ...]
    handle: IncrementalStateHandle


def encode_metadata(metadata: CheckpointMetadata, inline_state: InlineState, handle: bytes) -> EncodedObject:
    """Encode the metadata object of a version.

    `handle` is its handle, which the caller encodes to send it too.
    """
    properties = {
        "operator": metadata.store.operator,
        "partition": metadata.store.partition,
        "store": metadata.store.name,
        "version": metadata.version,
        "parentAttemptId": metadata.parent_attempt_id,
        "createdMs": metadata.created_ms,
        "writtenBy": metadata.written_by,
        "host": metadata.host,
        "columnFamilies": [family.to_json() for family in metadata.column_families],
    }
    return encode_object(MetadataKind.STORE_VERSION, metadata.attempt_id, properties, [handle], inline_state)


def is_whole_with_state(metadata: CheckpointMetadata, data: bytes, path: str) -> bool:
    """Return True if metadata matches its checksum with its inline state.

    The metadata was decoded from `data` without that state. The state is not read: the handle contains its
    checksum, which reading the state verifies.
    """
    for entry in metadata.handle:
        state = entry.state.delegate_state_handle
        if isinstance(state, SegmentFileStateHandle) and (state.path, state.attempt_id) == (
            path,
            metadata.attempt_id,
        ):
            return state.checksum is not None and matches_with_state(data, state.size, state.checksum)
    return matches_with_state(data, 0, 0)


def decode_metadata(
    data: bytes, context: HandleContext, where: str, *, without_state: bool = False
) -> CheckpointMetadata:
    """Decode and verify the metadata object of a version, see `decode_object` for errors."""
    decoded = decode_object(data, where, without_state=without_state)
    properties = decoded.properties
    with reading(where):
        if decoded.kind is not MetadataKind.STORE_VERSION:
            raise ValueError(f"it describes {decoded.kind.name}, not a version of a store")
        (encoded_handle,) = decoded.handles
        try:
            handle = decode_handle(encoded_handle, context)
        except CorruptCheckpointError as error:
            raise CorruptCheckpointError(f"{where}: {error}") from error
        if not isinstance(handle, IncrementalStateHandle):
            raise TypeError(f"the handle is a {type(handle).__name__}")
        for number in ("operator", "partition"):
            require_type(properties[number], int)
        for text in ("store", "writtenBy", "host"):
            require_type(properties[text], str)
        for number in ("version", "createdMs"):
            require_count(properties[number])
        if properties["parentAttemptId"] is not None:
            require_attempt_id(properties["parentAttemptId"])
        return CheckpointMetadata(
            store=StoreId(properties["operator"], properties["partition"], properties["store"]),
            version=properties["version"],
            attempt_id=decoded.attempt_id,
            parent_attempt_id=properties["parentAttemptId"],
            created_ms=properties["createdMs"],
            written_by=properties["writtenBy"],
            host=properties["host"],
            column_families=tuple(ColumnFamily.from_json(node) for node in properties["columnFamilies"]),
            handle=handle,
        )

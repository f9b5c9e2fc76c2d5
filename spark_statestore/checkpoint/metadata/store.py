"""What the metadata of one version of a state store says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spark_statestore.checkpoint.metadata.format import (
    EncodedObject,
    InlineState,
    MetadataKind,
    decode_object,
    encode_object,
    matches_with_state,
    reading,
    require_attempt,
    require_count,
    require_type,
)
from spark_statestore.errors import CorruptCheckpointError
from spark_statestore.state.handles import SegmentFileStateHandle
from spark_statestore.state.handles.codec import HandleContext, decode_handle
from spark_statestore.state.handles.incremental import IncrementalStateHandle

__all__ = [
    "CheckpointMetadata",
    "NamedState",
    "StoreId",
    "decode_metadata",
    "encode_metadata",
    "is_whole_with_state",
]


@dataclass(frozen=True, slots=True)
class StoreId:
    """Which store of a query: its operator, partition and name."""

    operator: int
    partition: int
    name: str = "default"

    @property
    def directories(self) -> tuple[str, ...]:
        """The names of the directories that lead to the store's from that of all of a query's state."""
        names = (str(self.operator), str(self.partition))
        return names if self.name == "default" else (*names, self.name)

    def __str__(self) -> str:
        return f"operator {self.operator}, partition {self.partition}, store {self.name}"


@dataclass(frozen=True, slots=True)
class NamedState:
    """One column family of a version.

    Attributes
    ----------
    name
        Its name; the plain state of an operator is called ``default``.
    rows
        Keys that it has.
    key_schema, value_schema
        Spark's schemas, as Spark's JSON.
    key_encoder
        How keys are indexed: ``hash``, ``prefix``, ``range``, ``timestampPrefix`` or
        ``timestampPostfix``; Spark's key state encoder specs.
    prefix_columns
        Leading key columns that prefix scans use; 0 unless the encoder is ``prefix``.
    ordering_columns
        Key columns by which ``range`` orders, by position, the first one first.
    values
        Values of all keys where a key may have several, None where each has one.
    internal
        Whether Spark keeps it for itself, and does not count its keys.
    since
        The version whose commit created it. What older entries of a chain hold under its name was
        another state's, which was removed.
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
    since: int = 0

    @property
    def stored_rows(self) -> int:
        """Rows in storage: one for each value."""
        return self.rows if self.values is None else self.values

    @property
    def has_multiple_values(self) -> bool:
        """Whether a key may have several values."""
        return self.values is not None

    @classmethod
    def from_json(cls, node: dict[str, Any]) -> NamedState:
        """Read what the shim or a metadata object says of a state; formats 1 and 2 say less.

        Raises
        ------
        KeyError, TypeError, ValueError
            If something is missing, or is not what it must be.
        """
        state = cls(
            name=node["name"],
            rows=node["rows"],
            key_schema=node["keySchema"],
            value_schema=node["valueSchema"],
            key_encoder=node["keyEncoder"],
            prefix_columns=node["prefixColumns"],
            ordering_columns=tuple(node.get("orderingColumns", ())),
            values=node.get("values"),
            internal=node.get("internal", False),
            since=node.get("since", 0),
        )
        for text in (state.name, state.key_schema, state.value_schema, state.key_encoder):
            require_type(text, str)
        for number in (state.rows, state.prefix_columns, state.since, *state.ordering_columns):
            require_count(number)
        if state.values is not None:
            require_count(state.values)
        require_type(state.internal, bool)
        return state

    def to_json(self) -> dict[str, Any]:
        """Counterpart of `from_json`."""
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
            "since": self.since,
        }


@dataclass(frozen=True, slots=True)
class CheckpointMetadata:
    """What a version of a store says of itself.

    Attributes
    ----------
    store
        The store.
    version
        The version.
    attempt
        The commit attempt that wrote it, 16 hex digits.
    parent_attempt
        The attempt that wrote the version before it; None for the first version.
    created_ms
        When, in milliseconds since 1970.
    written_by
        Version of this package.
    states
        The column families.
    handle
        The streams of the version.
    """

    store: StoreId
    version: int
    attempt: str
    parent_attempt: str | None
    created_ms: int
    written_by: str
    states: tuple[NamedState, ...]
    handle: IncrementalStateHandle


def encode_metadata(metadata: CheckpointMetadata, inline_state: InlineState, handle: bytes) -> EncodedObject:
    """The metadata object of a version.

    Parameters
    ----------
    inline_state
        State that stays inside the object.
    handle
        The metadata's handle, encoded: it also travels on its own, and encoding it takes time.
    """
    properties = {
        "operator": metadata.store.operator,
        "partition": metadata.store.partition,
        "store": metadata.store.name,
        "version": metadata.version,
        "parentAttempt": metadata.parent_attempt,
        "createdMs": metadata.created_ms,
        "writtenBy": metadata.written_by,
        "states": [state.to_json() for state in metadata.states],
    }
    return encode_object(MetadataKind.STORE_VERSION, metadata.attempt, properties, [handle], inline_state)


def is_whole_with_state(metadata: CheckpointMetadata, data: bytes, path: str) -> bool:
    """Whether a version's metadata, taken without the state inside of it, matches its checksum with that state.

    The state is not read: the handle says what its checksum is, with which its reader compares it.

    Parameters
    ----------
    metadata, data
        What `decode_metadata` made of which bytes.
    path
        Where the object lies.
    """
    for entry in metadata.handle:
        state = entry.state.delegate_state_handle
        if isinstance(state, SegmentFileStateHandle) and (state.path, state.owner) == (
            path,
            metadata.attempt,
        ):
            return state.checksum is not None and matches_with_state(data, state.size, state.checksum)
    return matches_with_state(data, 0, 0)


def decode_metadata(
    data: bytes, context: HandleContext, where: str, *, without_state: bool = False
) -> CheckpointMetadata:
    """Read the metadata object of a version, checking all of it.

    Parameters
    ----------
    where
        The object's URL, for messages.
    without_state
        See `decode_object`.

    Raises
    ------
    CorruptCheckpointError
        If the bytes are not those that were written, or not those of a version.
    UnsupportedFormatError
        If a newer release wrote them.
    """
    found = decode_object(data, where, without_state=without_state)
    properties = found.properties
    with reading(where):
        if found.kind is not MetadataKind.STORE_VERSION:
            raise ValueError(f"it describes {found.kind.name}, not a version of a store")
        (handle,) = found.handles
        try:
            decoded = decode_handle(handle, context, found.handle_version)
        except CorruptCheckpointError as error:
            raise CorruptCheckpointError(f"{where}: {error}") from error
        if not isinstance(decoded, IncrementalStateHandle):
            raise TypeError(f"the handle is a {type(decoded).__name__}")
        for number in ("operator", "partition"):
            require_type(properties[number], int)
        for text in ("store", "writtenBy"):
            require_type(properties[text], str)
        for number in ("version", "createdMs"):
            require_count(properties[number])
        if properties["parentAttempt"] is not None:
            require_attempt(properties["parentAttempt"])
        return CheckpointMetadata(
            store=StoreId(properties["operator"], properties["partition"], properties["store"]),
            version=properties["version"],
            attempt=found.attempt,
            parent_attempt=properties["parentAttempt"],
            created_ms=properties["createdMs"],
            written_by=properties["writtenBy"],
            states=tuple(NamedState.from_json(node) for node in properties["states"]),
            handle=decoded,
        )

"""Handles encoded as Arrow record batches.

A handle is one record batch message. The metadata object or the wire protocol that carries it fixes the
schema, so that only the batch is stored; docs/format.md lists the columns. A handle is a tree, and the batch
has one row for each node, parents before children.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from spark_statestore.errors import CorruptCheckpointError, restore_from_backup
from spark_statestore.files.base import FileSystem, join
from spark_statestore.files.failures import failing_to
from spark_statestore.formats.messages import BatchEncoder, read_batch
from spark_statestore.formats.metadata import is_attempt_id
from spark_statestore.storage.file_handles import FileStateHandle, SegmentFileStateHandle
from spark_statestore.storage.incremental_handle import ChainEntry, IncrementalStateHandle
from spark_statestore.storage.operator_handles import Mode, OperatorStreamStateHandle, StateMetaInfo
from spark_statestore.storage.stream_handles import ByteStreamStateHandle, StateObject, StreamStateHandle

HANDLE_SCHEMA: Final = pa.schema(
    [
        pa.field("parent", pa.int32(), nullable=False),
        pa.field("kind", pa.uint8(), nullable=False),
        pa.field("stream", pa.uint8()),
        pa.field("name", pa.utf8()),
        pa.field("path", pa.utf8()),
        pa.field("attempt_id", pa.utf8()),
        pa.field("start", pa.int64()),
        pa.field("size", pa.int64()),
        pa.field("checksum", pa.uint32()),
        pa.field("data", pa.binary()),
        pa.field("version", pa.int64()),
        pa.field("since", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field("mode", pa.uint8()),
        pa.field("offsets", pa.list_(pa.field("item", pa.int64(), nullable=False))),
    ]
)

_ENCODER: Final = BatchEncoder(HANDLE_SCHEMA)

# Kinds of nodes. The numbers are stored: do not change or reuse one.
_STREAM: Final = 1
_OPERATOR: Final = 2
_STATE: Final = 3
_INCREMENTAL: Final = 4
_FULL_ENTRY: Final = 5
_DELTA_ENTRY: Final = 6

# Kinds of streams, likewise.
_BYTES: Final = 1
_FILE: Final = 3
_SEGMENT: Final = 4


@dataclass(frozen=True, slots=True)
class HandleContext:
    """The file system and the store's directory that stored handles are relative to.

    A file is stored by its path from the directory, so that a store can be moved as a whole. Stored handles
    may only name files below the directory, with names that this package gives, and without links. Otherwise
    forged metadata could make a load read, and a cleanup delete, any file.
    """

    files: FileSystem
    directory: str

    def relative(self, handle: FileStateHandle | SegmentFileStateHandle) -> str:
        """Return the path of a handle's file relative to the directory.

        Raises
        ------
        TypeError
            If the file is outside of the directory.
        """
        start = self.directory.rstrip("/") + "/"
        relative = handle.path.removeprefix(start)
        if (
            handle.files.scheme != self.files.scheme
            or not handle.path.startswith(start)
            or not _stays_below(relative)
        ):
            raise TypeError(
                f"{handle!r} has no stored form: it is outside of {self.files.url(self.directory)}"
            )
        return relative

    def resolve(self, relative: str) -> str:
        """Return the full path of a file below the directory.

        Raises
        ------
        CorruptCheckpointError
            If the path would leave the directory.
        CheckpointIOError
            If storage cannot tell.
        """
        if not self._is_own(relative):
            raise CorruptCheckpointError(
                f"a handle of {self.files.url(self.directory)} points outside of that directory, to "
                f"{relative!r:.200}, or "
                "gets there by a link. The metadata is damaged or was tampered with. " + restore_from_backup()
            )
        return join(self.directory, relative)

    def _is_own(self, relative: str) -> bool:
        if not all(map(_NAME.fullmatch, relative.split("/"))):
            return False
        with failing_to("check", self.files, join(self.directory, relative)):
            return not self.files.has_link(self.directory, relative)


# Names of files and directories of this package, which contain no special characters of any file system.
_NAME: Final = re.compile(r"[0-9A-Za-z_][0-9A-Za-z_.-]*")


def _stays_below(relative: str) -> bool:
    return relative != "" and not relative.startswith("/") and ".." not in relative.split("/")


_COLUMNS: Final = {name: position for position, name in enumerate(HANDLE_SCHEMA.names)}
_NO_VALUES: Final = (None,) * (len(_COLUMNS) - 2)

_Row = list[Any]
"""The values of a row, by the positions of `_COLUMNS`."""


def _row(parent: int, kind: int, values: Mapping[str, Any]) -> _Row:
    # The schema's first columns, then the others.
    row: _Row = [parent, kind, *_NO_VALUES]
    for name, value in values.items():
        row[_COLUMNS[name]] = value
    return row


def encode_handle(state: StateObject, context: HandleContext) -> bytes:
    """Encode a handle as one Arrow record batch message.

    Raises
    ------
    TypeError
        If there is no stored form for this kind of handle, or for a file outside of the directory.
    ValueError
        If a size is unknown: without it a truncated stream could not be detected.
    """
    rows: list[_Row] = []
    _add(rows, state, context)
    return _ENCODER.encode(list(zip(*rows, strict=True)))


def encode_extended_handle(
    handle: IncrementalStateHandle,
    parent: IncrementalStateHandle,
    encoded_parent: bytes,
    context: HandleContext,
) -> bytes:
    """Encode a handle that has the streams of its parent, and possibly one more, see `extend_chain`.

    The result is that of `encode_handle`, in a time that hardly depends on the number of streams. One of
    these two functions has encoded `encoded_parent`.
    """
    rows: list[_Row] = []
    first = _ENCODER.count_rows(encoded_parent)
    for entry in handle.entries[len(parent) :]:
        _add_entry(rows, entry, context, first)
    encoded = _ENCODER.append(encoded_parent, list(zip(*rows, strict=True))) if rows else encoded_parent
    return _ENCODER.replace_number(encoded, _COLUMNS["version"], 0, handle.version)


def decode_handle(message: bytes, context: HandleContext) -> StateObject:
    """Decode a handle from an Arrow record batch message.

    Raises
    ------
    CorruptCheckpointError
        If the message is no handle.
    """
    try:
        batch = read_batch(pa.py_buffer(message), HANDLE_SCHEMA, full=True)
        nodes = _Nodes(batch.to_pylist())
        return nodes.decode(0, context)
    except (pa.ArrowException, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, CorruptCheckpointError):
            raise
        raise CorruptCheckpointError(
            f"a handle of {context.files.url(context.directory)} cannot be read: {error}. The metadata is "
            "damaged. " + restore_from_backup()
        ) from error


def _add(rows: list[_Row], state: StateObject, context: HandleContext) -> None:
    match state:
        case IncrementalStateHandle():
            rows.append(_row(-1, _INCREMENTAL, {"version": state.version, "start": state.base_version}))
            for entry in state:
                _add_entry(rows, entry, context)
        case OperatorStreamStateHandle():
            _add_operator(rows, -1, _OPERATOR, state, context, {})
        case StreamStateHandle():
            rows.append(_row(-1, _STREAM, _stream_columns(state, context)))
        case _:
            raise TypeError(f"{type(state).__name__} has no stored form")


def _add_entry(rows: list[_Row], entry: ChainEntry, context: HandleContext, first: int = 0) -> None:
    kind = _FULL_ENTRY if entry.full else _DELTA_ENTRY
    values = {"version": entry.version, "since": entry.since, "rows": entry.rows}
    _add_operator(rows, 0, kind, entry.state, context, values, first)


def _add_operator(
    rows: list[_Row],
    parent: int,
    kind: int,
    state: OperatorStreamStateHandle,
    context: HandleContext,
    values: dict[str, Any],
    first: int = 0,
) -> None:
    # `first` is the number of rows before `rows`.
    number = first + len(rows)
    rows.append(_row(parent, kind, _stream_columns(state.delegate_state_handle, context) | values))
    for name, meta in state.state_name_to_partition_offsets.items():
        rows.append(
            _row(number, _STATE, {"name": name, "mode": int(meta.distribution_mode), "offsets": meta.offsets})
        )


def _stream_columns(stream: StreamStateHandle, context: HandleContext) -> dict[str, Any]:
    columns: dict[str, Any] = {"checksum": stream.checksum}
    if stream.state_size < 0:
        raise ValueError(f"{stream!r} has no stored form: its size is not known")
    match stream:
        case ByteStreamStateHandle():
            return columns | {"stream": _BYTES, "name": stream.handle_name, "data": stream.data}
        case SegmentFileStateHandle():
            return columns | {
                "stream": _SEGMENT,
                "path": context.relative(stream),
                "attempt_id": stream.attempt_id,
                "start": stream.start,
                "size": stream.size,
            }
        case FileStateHandle():
            return columns | {"stream": _FILE, "path": context.relative(stream), "size": stream.size}
        case _:
            raise TypeError(f"{type(stream).__name__} has no stored form")


class _Nodes:
    """The rows of a handle's batch, with each row's children."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows
        self._children: dict[int, list[int]] = {}
        for number, row in enumerate(rows):
            parent = row["parent"]
            if not -1 <= parent < number or (parent == -1) != (number == 0):
                raise ValueError(f"row {number} has the parent {parent}")
            for column in ("start", "size", "version", "since", "rows"):
                if row[column] is not None and row[column] < 0:
                    raise ValueError(f"row {number} has the {column} {row[column]}")
            self._children.setdefault(parent, []).append(number)

    def children(self, number: int) -> Iterator[int]:
        return iter(self._children.get(number, ()))

    def decode(self, number: int, context: HandleContext) -> StateObject:
        row = self._rows[number]
        match row["kind"]:
            case kind if kind == _STREAM:
                return self.stream(row, context)
            case kind if kind == _OPERATOR:
                return self.operator(number, context)
            case kind if kind == _INCREMENTAL:
                return IncrementalStateHandle(
                    row["version"],
                    row["start"],
                    [self.entry(child, context) for child in self.children(number)],
                )
            case kind:
                raise ValueError(f"row {number} has the unknown kind {kind}")

    def entry(self, number: int, context: HandleContext) -> ChainEntry:
        row = self._rows[number]
        if row["kind"] not in (_FULL_ENTRY, _DELTA_ENTRY):
            raise ValueError(f"row {number} of kind {row['kind']} is no entry of a chain")
        full = row["kind"] == _FULL_ENTRY
        return ChainEntry(row["version"], full, self.operator(number, context), row["since"], row["rows"])

    def operator(self, number: int, context: HandleContext) -> OperatorStreamStateHandle:
        column_families = {}
        for child in self.children(number):
            row = self._rows[child]
            if row["kind"] != _STATE or row["name"] in column_families:
                raise ValueError(f"row {child} of kind {row['kind']} is no named state")
            if any(offset < 0 for offset in row["offsets"]):
                raise ValueError(f"row {child} has the offsets {row['offsets']}")
            column_families[row["name"]] = StateMetaInfo(tuple(row["offsets"]), Mode(row["mode"]))
        return OperatorStreamStateHandle(
            state_name_to_partition_offsets=column_families,
            delegate_state_handle=self.stream(self._rows[number], context),
        )

    def require_attempt_id(self, row: dict[str, Any], context: HandleContext) -> None:
        # It becomes a part of a path.
        if not is_attempt_id(row["attempt_id"]):
            raise ValueError(f"{row['attempt_id']!r:.40} is no attempt id")
        context.resolve(f"{row['path']}.{row['attempt_id']}")

    def stream(self, row: dict[str, Any], context: HandleContext) -> StreamStateHandle:
        checksum = row["checksum"]
        match row["stream"]:
            case kind if kind == _BYTES:
                return ByteStreamStateHandle(row["name"], row["data"], checksum)
            case kind if kind == _FILE:
                return FileStateHandle(context.files, context.resolve(row["path"]), row["size"], checksum)
            case kind if kind == _SEGMENT:
                self.require_attempt_id(row, context)
                path = context.resolve(row["path"])
                return SegmentFileStateHandle(
                    context.files, path, row["start"], row["size"], row["attempt_id"], checksum
                )
            case kind:
                raise ValueError(f"the stream kind {kind} is unknown")

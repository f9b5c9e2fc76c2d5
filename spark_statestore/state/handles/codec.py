"""Handles as Arrow record batches.

A handle is one record batch message. Its schema is fixed by the format version, so only the batch
travels and is stored; docs/format.md lists the columns. A handle is a tree, and the batch has one
row for each node, parents before children. Version 2 has the schema of version 1 and more kinds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from spark_statestore.checkpoint.files.base import FileSystem, join
from spark_statestore.errors import CorruptCheckpointError, UnsupportedFormatError
from spark_statestore.state.batches import read_batch
from spark_statestore.state.handles.base import StreamStateHandle
from spark_statestore.state.handles.file import (
    FileStateHandle,
    RelativeFileStateHandle,
    SegmentFileStateHandle,
)
from spark_statestore.state.handles.incremental import ChainEntry, IncrementalStateHandle
from spark_statestore.state.handles.memory import ByteStreamStateHandle
from spark_statestore.state.handles.operator import Mode, OperatorStreamStateHandle, StateMetaInfo
from spark_statestore.state.handles.owner import is_attempt
from spark_statestore.state.handles.placeholder import PlaceholderStreamStateHandle
from spark_statestore.state.messages import BatchEncoder
from spark_statestore.state.objects import StateObject
from spark_statestore.state.snapshot.result import SnapshotResult

__all__ = ["HANDLE_FORMAT_VERSION", "HANDLE_SCHEMA", "HandleContext", "decode_handle", "encode_handle"]

HANDLE_FORMAT_VERSION: Final = 2

HANDLE_SCHEMA: Final = pa.schema(
    [
        pa.field("parent", pa.int32(), nullable=False),
        pa.field("kind", pa.uint8(), nullable=False),
        pa.field("stream", pa.uint8()),
        pa.field("name", pa.utf8()),
        pa.field("path", pa.utf8()),
        pa.field("owner", pa.utf8()),
        pa.field("start", pa.int64()),
        pa.field("size", pa.int64()),
        pa.field("checksum", pa.uint32()),
        pa.field("data", pa.binary()),
        pa.field("version", pa.int64()),
        pa.field("mode", pa.uint8()),
        pa.field("offsets", pa.list_(pa.field("item", pa.int64(), nullable=False))),
    ]
)

_ENCODER: Final = BatchEncoder(HANDLE_SCHEMA)

# Kinds of nodes. Numbers are stored: never change one, never use one again.
_STREAM: Final = 1
_OPERATOR: Final = 2
_STATE: Final = 3
_INCREMENTAL: Final = 4
_FULL_ENTRY: Final = 5
_DELTA_ENTRY: Final = 6
_SNAPSHOT_RESULT: Final = 7

# Kinds of streams, likewise.
_BYTES: Final = 1
_FILE: Final = 2
_RELATIVE_FILE: Final = 3
_SEGMENT: Final = 4
_PLACEHOLDER: Final = 5

# The version that a kind came with, if not the first.
_KIND_SINCE: Final = {_SNAPSHOT_RESULT: 2}
_STREAM_SINCE: Final = {_PLACEHOLDER: 2}


@dataclass(frozen=True, slots=True)
class HandleContext:
    """What stored handles are relative to.

    A file below `directory` is stored by its path from there, so that a checkpoint can be moved
    as a whole; every other file is stored by its full path.

    Attributes
    ----------
    files
        The file system of the handles.
    directory
        The directory of the store that they belong to.
    confined
        Whether a stored handle may lead to nothing but files of the directory, of such names as this package
        gives them, and by no link. Whoever can write metadata could else have any file read, and discarded with
        the version.
    """

    files: FileSystem
    directory: str
    confined: bool = False

    def relative(self, path: str) -> str | None:
        """The path from the directory, None if the file lies elsewhere."""
        start = self.directory.rstrip("/") + "/"
        if not path.startswith(start):
            return None
        relative = path[len(start) :]
        return relative if _stays_below(relative) else None

    def resolve(self, relative: str) -> str:
        """The full path of a file below the directory.

        Raises
        ------
        CorruptCheckpointError
            If the path would leave the directory.
        """
        if not _stays_below(relative) or (self.confined and not self._is_own(relative)):
            raise self.leads_out(relative)
        return join(self.directory, relative)

    def leads_out(self, path: str) -> CorruptCheckpointError:
        """The error for a handle that leads out of the directory."""
        return CorruptCheckpointError(
            f"a handle of {self.files.url(self.directory)} points outside of that directory, to {path!r:.200}, or "
            "gets there by a link. The metadata is damaged or was tampered with. Copy it back from a backup, or start from "
            "an earlier version; nothing was changed."
        )

    def _is_own(self, relative: str) -> bool:
        names = relative.split("/")
        return all(map(_NAME.fullmatch, names)) and not self.files.has_link(self.directory, relative)


# What files and directories of this package are called: nothing that a file system reads as more than a name.
_NAME: Final = re.compile(r"[0-9A-Za-z_][0-9A-Za-z_.-]*")


def _stays_below(relative: str) -> bool:
    return relative != "" and not relative.startswith("/") and ".." not in relative.split("/")


class _Rows:
    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []

    def add(self, parent: int, kind: int, **values: Any) -> int:
        values["parent"] = parent
        values["kind"] = kind
        self._rows.append(values)
        return len(self._rows) - 1

    def columns(self) -> dict[str, list[Any]]:
        return {name: [row.get(name) for row in self._rows] for name in HANDLE_SCHEMA.names}


def encode_handle(state: StateObject, context: HandleContext) -> bytes:
    """A handle as one Arrow record batch message.

    A file is stored by its path from the context's directory if it lies there now, whatever the
    handle calls itself: Flink kept the relative name of a file that another checkpoint's directory
    holds, and looked for it in the wrong place (FLINK-39964).

    Raises
    ------
    TypeError
        If there is no stored form for this kind of handle, or for a file of another file system.
    ValueError
        If a size is unknown: it is what tells that a stream was cut off.
    """
    rows = _Rows()
    _add(rows, -1, state, context)
    return _ENCODER.encode(rows.columns())


def decode_handle(
    message: bytes, context: HandleContext, version: int = HANDLE_FORMAT_VERSION
) -> StateObject:
    """The handle in an Arrow record batch message.

    Parameters
    ----------
    version
        The format version that was noted with the message.

    Raises
    ------
    UnsupportedFormatError
        If the format version is a newer one.
    CorruptCheckpointError
        If the message is no handle, or has what its version does not have.
    """
    if version > HANDLE_FORMAT_VERSION:
        raise UnsupportedFormatError(
            f"a handle of {context.files.url(context.directory)} has format {version}, but this release reads "
            f"formats up to {HANDLE_FORMAT_VERSION}. Upgrade spark-statestore to the release that wrote it."
        )
    try:
        batch = read_batch(pa.py_buffer(message), HANDLE_SCHEMA, full=True)
        nodes = _Nodes(batch.to_pylist(), version)
        return nodes.decode(0, context)
    except (pa.ArrowException, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, CorruptCheckpointError):
            raise
        raise CorruptCheckpointError(
            f"a handle of {context.files.url(context.directory)} cannot be read: {error}. The metadata is damaged. Copy it back "
            "from a backup, or start from an earlier version; nothing was changed."
        ) from error


def _add(rows: _Rows, parent: int, state: StateObject, context: HandleContext) -> None:
    match state:
        case IncrementalStateHandle():
            persisted = None if state.persisted_size < 0 else state.persisted_size
            row = rows.add(
                parent, _INCREMENTAL, version=state.version, start=state.base_version, size=persisted
            )
            for entry in state:
                kind = _FULL_ENTRY if entry.full else _DELTA_ENTRY
                _add_operator(rows, row, kind, entry.state, context, version=entry.version)
        case OperatorStreamStateHandle():
            _add_operator(rows, parent, _OPERATOR, state, context)
        case SnapshotResult():
            row = rows.add(parent, _SNAPSHOT_RESULT)
            for snapshot in (state.job_manager_owned, state.task_local):
                if snapshot is not None:
                    _add(rows, row, snapshot, context)
        case StreamStateHandle():
            rows.add(parent, _STREAM, **_stream_columns(state, context))
        case _:
            raise TypeError(f"{type(state).__name__} has no stored form")


def _add_operator(
    rows: _Rows,
    parent: int,
    kind: int,
    state: OperatorStreamStateHandle,
    context: HandleContext,
    **values: Any,
) -> None:
    row = rows.add(parent, kind, **_stream_columns(state.delegate_state_handle, context), **values)
    for name, meta in state.state_name_to_partition_offsets.items():
        rows.add(row, _STATE, name=name, mode=int(meta.distribution_mode), offsets=list(meta.offsets))


def _stream_columns(stream: StreamStateHandle, context: HandleContext) -> dict[str, Any]:
    columns: dict[str, Any] = {"checksum": stream.checksum}
    if stream.state_size < 0:
        raise ValueError(f"{stream!r} has no stored form: its size is not known")
    if (
        isinstance(stream, FileStateHandle | SegmentFileStateHandle)
        and stream.files.scheme != context.files.scheme
    ):
        raise TypeError(
            f"{stream!r} has no stored form below {context.files.url(context.directory)}: it lies on another file "
            "system"
        )
    match stream:
        case ByteStreamStateHandle():
            return columns | {"stream": _BYTES, "name": stream.handle_name, "data": stream.data}
        case SegmentFileStateHandle():
            relative = context.relative(stream.path)
            if relative is None:
                raise TypeError(f"{stream!r} lies outside of {context.directory}")
            return columns | {
                "stream": _SEGMENT,
                "path": relative,
                "owner": stream.owner,
                "start": stream.start,
                "size": stream.size,
            }
        case FileStateHandle():
            relative = context.relative(stream.path)
            if relative is None and context.confined:
                raise TypeError(f"{stream!r} lies outside of {context.directory}")
            if relative is not None:
                return columns | {"stream": _RELATIVE_FILE, "path": relative, "size": stream.size}
            return columns | {"stream": _FILE, "path": stream.path, "size": stream.size}
        case PlaceholderStreamStateHandle():
            return columns | {
                "stream": _PLACEHOLDER,
                "name": stream.stream_state_handle_id,
                "size": stream.size,
            }
        case _:
            raise TypeError(f"{type(stream).__name__} has no stored form")


class _Nodes:
    """The rows of a handle's batch, with each row's children."""

    def __init__(self, rows: list[dict[str, Any]], version: int) -> None:
        if version < 1:
            raise ValueError(f"there is no format {version}")
        self._rows = rows
        self._children: dict[int, list[int]] = {}
        for number, row in enumerate(rows):
            parent = row["parent"]
            if not -1 <= parent < number or (parent == -1) != (number == 0):
                raise ValueError(f"row {number} has the parent {parent}")
            if _KIND_SINCE.get(row["kind"], 1) > version or _STREAM_SINCE.get(row["stream"], 1) > version:
                raise ValueError(f"row {number} is of a kind that format {version} does not have")
            for column in ("start", "size", "version"):
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
                    persisted_size=-1 if row["size"] is None else row["size"],
                )
            case kind if kind == _SNAPSHOT_RESULT:
                return self.snapshot_result(number, context)
            case kind:
                raise ValueError(f"row {number} has the unknown kind {kind}")

    def snapshot_result(self, number: int, context: HandleContext) -> SnapshotResult[StateObject]:
        children = list(self.children(number))
        if len(children) > 2 or any(self._rows[child]["kind"] == _SNAPSHOT_RESULT for child in children):
            raise ValueError(f"row {number} is no result of a snapshot")
        snapshots = [self.decode(child, context) for child in children]
        if not snapshots:
            return SnapshotResult.empty()
        if len(snapshots) == 1:
            return SnapshotResult.of(snapshots[0])
        return SnapshotResult.with_local_state(snapshots[0], snapshots[1])

    def entry(self, number: int, context: HandleContext) -> ChainEntry:
        row = self._rows[number]
        if row["kind"] not in (_FULL_ENTRY, _DELTA_ENTRY):
            raise ValueError(f"row {number} of kind {row['kind']} is no entry of a chain")
        return ChainEntry(row["version"], row["kind"] == _FULL_ENTRY, self.operator(number, context))

    def operator(self, number: int, context: HandleContext) -> OperatorStreamStateHandle:
        states = {}
        for child in self.children(number):
            row = self._rows[child]
            if row["kind"] != _STATE or row["name"] in states:
                raise ValueError(f"row {child} of kind {row['kind']} is no named state")
            if any(offset < 0 for offset in row["offsets"]):
                raise ValueError(f"row {child} has the offsets {row['offsets']}")
            states[row["name"]] = StateMetaInfo(tuple(row["offsets"]), Mode(row["mode"]))
        return OperatorStreamStateHandle(
            state_name_to_partition_offsets=states,
            delegate_state_handle=self.stream(self._rows[number], context),
        )

    def require_owner(self, row: dict[str, Any], context: HandleContext) -> None:
        # It becomes a part of a path.
        if not is_attempt(row["owner"]):
            raise ValueError(f"{row['owner']!r:.40} names no attempt")
        context.resolve(f"{row['path']}.{row['owner']}")

    def stream(self, row: dict[str, Any], context: HandleContext) -> StreamStateHandle:
        checksum = row["checksum"]
        match row["stream"]:
            case kind if kind == _BYTES:
                return ByteStreamStateHandle(row["name"], row["data"], checksum)
            case kind if kind == _FILE:
                if not row["path"]:
                    raise ValueError("a file has no path")
                if context.confined:
                    raise context.leads_out(row["path"])
                return FileStateHandle(context.files, row["path"], row["size"], checksum)
            case kind if kind == _RELATIVE_FILE:
                context.resolve(row["path"])
                return RelativeFileStateHandle(
                    context.files, context.directory, row["path"], row["size"], checksum
                )
            case kind if kind == _SEGMENT:
                if context.confined:
                    self.require_owner(row, context)
                path = context.resolve(row["path"])
                return SegmentFileStateHandle(
                    context.files, path, row["start"], row["size"], row["owner"], checksum
                )
            case kind if kind == _PLACEHOLDER:
                return PlaceholderStreamStateHandle(row["name"], row["size"])
            case kind:
                raise ValueError(f"the stream kind {kind} is unknown")

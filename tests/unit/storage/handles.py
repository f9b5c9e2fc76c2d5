"""Handles of state for tests, and files that cannot be deleted."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from spark_statestore.files import LocalFileSystem
from spark_statestore.storage.file_handles import FileStateHandle
from spark_statestore.storage.incremental_handle import IncrementalStateHandle
from spark_statestore.storage.operator_handles import OperatorStreamStateHandle, StateMetaInfo
from spark_statestore.storage.stream_handles import StateObject, StreamStateHandle


def state_in(stream: StreamStateHandle, *offsets: int) -> OperatorStreamStateHandle:
    """Return the state `default` in a stream, with its batches at these offsets."""
    return OperatorStreamStateHandle(
        state_name_to_partition_offsets={"default": StateMetaInfo(offsets)}, delegate_state_handle=stream
    )


def state_file(directory: Path, name: str, files: LocalFileSystem | None = None) -> FileStateHandle:
    """Write a file of one byte."""
    (directory / name).write_bytes(b"1")
    return FileStateHandle(files or LocalFileSystem(), str(directory / name), 1)


def facts(state: StateObject) -> object:
    """All that a handle knows; handles are equal by their names alone."""
    match state:
        case IncrementalStateHandle():
            entries = [(entry.version, entry.full, facts(entry.state)) for entry in state]
            return (state.version, state.base_version, entries)
        case OperatorStreamStateHandle():
            column_families = list(state.state_name_to_partition_offsets.items())
            return (column_families, facts(state.delegate_state_handle))
        case _:
            return (type(state), {f.name: getattr(state, f.name) for f in fields(state) if f.name != "files"})


class StubbornFiles(LocalFileSystem):
    """A file system that refuses to delete while `stubborn` is set."""

    stubborn = True

    def delete(self, path: str) -> None:
        if self.stubborn:
            raise PermissionError(path)
        super().delete(path)

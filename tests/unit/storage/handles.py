"""Handles of state for tests, generated and by hand, and files that cannot be deleted."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import hypothesis.strategies as st

from spark_statestore.files import LocalFileSystem, MemoryFileSystem
from spark_statestore.storage.file_handles import FileStateHandle, SegmentFileStateHandle
from spark_statestore.storage.handle_codec import HandleContext
from spark_statestore.storage.incremental_handle import IncrementalStateHandle
from spark_statestore.storage.operator_handles import Mode, OperatorStreamStateHandle, StateMetaInfo
from spark_statestore.storage.stream_handles import ByteStreamStateHandle, StateObject, StreamStateHandle

FILES = MemoryFileSystem()
CONTEXT = HandleContext(FILES, "/store")

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
sizes = st.integers(0, 2**62)
checksums = st.one_of(st.none(), st.integers(0, 2**32 - 1))
paths = st.from_regex(r"/store/shared/[0-9A-Za-z_][0-9A-Za-z_.-]{0,11}", fullmatch=True)
attempts = st.from_regex("[0-9a-f]{16}", fullmatch=True)

streams = st.one_of(
    st.builds(ByteStreamStateHandle, texts, st.binary(max_size=20), checksums),
    st.builds(FileStateHandle, st.just(FILES), paths, sizes, checksums),
    st.builds(SegmentFileStateHandle, st.just(FILES), paths, sizes, sizes, attempts, checksums),
)
operators = st.builds(
    OperatorStreamStateHandle,
    state_name_to_partition_offsets=st.dictionaries(
        texts,
        st.builds(StateMetaInfo, st.lists(sizes, max_size=3).map(tuple), st.sampled_from(Mode)),
        max_size=3,
    ),
    delegate_state_handle=streams,
)


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

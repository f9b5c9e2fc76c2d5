"""State machine of checkpoint streams and handles against plain bytes."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from spark_statestore.errors import CheckpointIOError
from spark_statestore.files import FileSystem, open_file_system
from spark_statestore.storage.file_handles import FileStateHandle
from spark_statestore.storage.fs_streams import FsCheckpointStateOutputStream, FsCheckpointStreamFactory
from spark_statestore.storage.handle_codec import HandleContext, decode_handle, encode_handle
from spark_statestore.storage.stream_handles import StreamStateHandle
from spark_statestore.storage.streams import (
    CheckpointedStateScope,
    CheckpointStateOutputStream,
    CheckpointStreamFactory,
)
from tests.support.effort import EFFORT

__all__ = ["CheckpointStreamMachine", "run_stream_machine_at"]

_pieces = st.one_of(
    st.binary(max_size=20),
    st.integers(0, 255).map(lambda n: bytes([n]) * 700),
    st.integers(0, 255).map(lambda n: bytes([n]) * 70_000),
)


@dataclass(slots=True)
class _Open:
    out: CheckpointStateOutputStream
    content: bytes = b""
    # True after a write, even an empty one, or a request for the file.
    touched: bool = False


class CheckpointStreamMachine(RuleBasedStateMachine):
    """Several streams of one factory are written, finished, read, discarded, in any order.

    States of some megabytes must fit. All that streams store is in `directory` of `files`, and nothing else.
    With `an_empty_write_counts` a stream has a handle if nothing but empty pieces was written.
    """

    def __init__(
        self,
        factory: CheckpointStreamFactory,
        files: FileSystem,
        directory: str,
        *,
        an_empty_write_counts: bool = False,
    ) -> None:
        super().__init__()
        self.factory = factory
        self.files = files
        self.directory = directory
        self.an_empty_write_counts = an_empty_write_counts
        self.streams: list[_Open] = []
        self.closed: list[CheckpointStateOutputStream] = []
        self.handles: list[tuple[StreamStateHandle, bytes]] = []

    def pick(self, data: st.DataObject) -> _Open:
        return data.draw(st.sampled_from(self.streams))

    @precondition(lambda self: len(self.streams) < 4)
    @rule(scope=st.sampled_from(CheckpointedStateScope))
    def open(self, scope: CheckpointedStateScope) -> None:
        self.streams.append(_Open(self.factory.create_checkpoint_state_output_stream(scope)))

    @precondition(lambda self: self.streams)
    @rule(data=st.data(), piece=_pieces, kind=st.sampled_from([bytes, bytearray, memoryview]))
    def write(self, data: st.DataObject, piece: bytes, kind: Callable[[bytes], bytes]) -> None:
        stream = self.pick(data)
        stream.out.write(kind(piece))
        stream.content += piece
        stream.touched |= bool(piece) or self.an_empty_write_counts

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def flush_to_file(self, data: st.DataObject) -> None:
        stream = self.pick(data)
        if isinstance(stream.out, FsCheckpointStateOutputStream):
            stream.out.flush_to_file()
            stream.touched = True

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def ask_for_the_position(self, data: st.DataObject) -> None:
        stream = self.pick(data)
        assert stream.out.get_pos() == len(stream.content)

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        stream = self.pick(data)
        handle = stream.out.close_and_get_handle()
        assert (handle is not None) == stream.touched
        if handle is not None:
            self.streams.remove(stream)
            self.closed.append(stream.out)
            self.handles.append((handle, stream.content))

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        stream = self.pick(data)
        stream.out.close()
        self.streams.remove(stream)
        if stream.touched:
            self.closed.append(stream.out)

    @precondition(lambda self: self.closed)
    @rule(data=st.data())
    def use_a_closed_stream(self, data: st.DataObject) -> None:
        out = data.draw(st.sampled_from(self.closed))
        with pytest.raises(CheckpointIOError, match="closed"):
            out.write(b"late")
        with pytest.raises(CheckpointIOError, match="closed"):
            out.close_and_get_handle()
        out.close()

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), store=st.booleans())
    def read(self, data: st.DataObject, store: bool) -> None:
        number = data.draw(st.integers(0, len(self.handles) - 1))
        handle, content = self.handles[number]
        if store:
            context = HandleContext(self.files, self.directory)
            again = decode_handle(encode_handle(handle, context), context)
            assert isinstance(again, StreamStateHandle)
            assert again == handle
            handle = again
            self.handles[number] = (again, content)
        assert (handle.state_size, handle.checksum) == (len(content), zlib.crc32(content))
        start = data.draw(st.integers(0, len(content)))
        with handle.open_input_stream() as stream:
            assert stream.read(start) == content[:start]
            assert stream.read() == content[start:]

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), times=st.integers(1, 2))
    def discard(self, data: st.DataObject, times: int) -> None:
        handle, _ = self.handles.pop(data.draw(st.integers(0, len(self.handles) - 1)))
        for _ in range(times):
            handle.discard_state()

    def teardown(self) -> None:
        """Check that only files named by handles are left, and that they are complete."""
        for stream in self.streams:
            stream.out.close()
        for handle, content in self.handles:
            with handle.open_input_stream() as input_stream:
                assert input_stream.read() == content
        named = {handle.path for handle, _ in self.handles if isinstance(handle, FileStateHandle)}
        assert {status.path for status in self.files.list_files(self.directory)} == named
        for handle, _ in self.handles:
            handle.discard_state()


def run_stream_machine_at(url: str) -> None:
    """Run the machine in directories below a URL, as queries open it."""
    files, base = open_file_system(url)
    numbers = itertools.count()

    def machine() -> CheckpointStreamMachine:
        directory = f"{base}/{next(numbers)}"
        exclusive, shared = f"{directory}/chk-1", f"{directory}/shared"
        files.make_directory(exclusive)
        files.make_directory(shared)
        factory = FsCheckpointStreamFactory(files, exclusive, shared, 1000, 4096, "1-")
        return CheckpointStreamMachine(factory, files, directory)

    run_state_machine_as_test(machine, settings=settings(max_examples=5 * EFFORT, stateful_step_count=20))

"""Contracts of checkpoint streams to files and to memory."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from spark_statestore.errors import CheckpointIOError
from spark_statestore.files import FileSystem, join, parent_of
from spark_statestore.options import MAX_FILE_STATE_THRESHOLD
from spark_statestore.storage.file_handles import FileStateHandle
from spark_statestore.storage.fs_streams import FsCheckpointStateOutputStream, FsCheckpointStreamFactory
from spark_statestore.storage.memory_streams import MemCheckpointStreamFactory
from spark_statestore.storage.stream_handles import ByteStreamStateHandle
from spark_statestore.storage.streams import CheckpointedStateScope
from tests.support.contracts.streams import CheckpointStreamTests

__all__ = ["FsCheckpointStreamTests", "MemoryCheckpointStreamTests"]

EXCLUSIVE, SHARED = CheckpointedStateScope.EXCLUSIVE, CheckpointedStateScope.SHARED


class FsCheckpointStreamTests(CheckpointStreamTests):
    """`CheckpointStreamTests`, and the contract of streams to files alone.

    Subclasses override the fixtures ``files`` and ``directory``.
    """

    examples = 20
    """Examples of the tests with generated input."""

    @pytest.fixture
    def factory(self, files: FileSystem, directory: str) -> FsCheckpointStreamFactory:
        """Return a factory whose states stay in memory up to 1000 bytes."""
        return self.streams(files, directory, 1000, 4096)

    @staticmethod
    def streams(
        files: FileSystem, directory: str, threshold: int, buffer_size: int
    ) -> FsCheckpointStreamFactory:
        """Return a factory whose two directories exist."""
        for name in ("chk-7", "shared"):
            files.make_directory(join(directory, name))
        return FsCheckpointStreamFactory(
            files, join(directory, "chk-7"), join(directory, "shared"), threshold, buffer_size, "7-"
        )

    def test_writes_round_trip_around_the_threshold(
        self, files: FileSystem, directory: str, stored: Callable[[], list[str]]
    ) -> None:
        pieces = st.lists(st.one_of(st.binary(max_size=9), st.just("flush")), max_size=12)

        @settings(max_examples=self.examples, deadline=None, database=None)
        @given(pieces, st.integers(0, 12), st.integers(0, 24))
        def check(pieces: list[bytes | str], threshold: int, buffer_size: int) -> None:
            factory = self.streams(files, directory, threshold, buffer_size)
            out = factory.create_checkpoint_state_output_stream(SHARED)
            data, flushed = b"", False
            for piece in pieces:
                if isinstance(piece, str):
                    out.flush_to_file()
                    flushed = True
                else:
                    out.write(piece)
                    data += piece
                assert out.get_pos() == len(data)
            handle = out.close_and_get_handle()
            if not data and not flushed:
                assert handle is None
            else:
                assert handle is not None
                assert self.content(handle) == data
                assert (handle.state_size, handle.checksum) == (len(data), zlib.crc32(data))
                in_memory = handle.as_bytes_if_in_memory() is not None
                assert in_memory == (len(data) <= threshold and not flushed)
                assert len(stored()) == (0 if in_memory else 1)
                handle.discard_state()
            assert stored() == []

        check()

    def test_closed_stream_raises_even_if_empty(self, factory: FsCheckpointStreamFactory) -> None:
        out = factory.create_checkpoint_state_output_stream(SHARED)
        out.close()
        for call in (out.close_and_get_handle, out.flush_to_file):
            with pytest.raises(CheckpointIOError, match="closed"):
                call()

    def test_state_files_have_unique_prefixed_names_in_the_directory_of_their_scope(
        self, factory: FsCheckpointStreamFactory
    ) -> None:
        directories = {EXCLUSIVE: factory.checkpoint_directory, SHARED: factory.shared_state_directory}
        for scope, directory in directories.items():
            handles = [self.finish(factory, scope, bytes(5000)) for _ in range(5)]
            paths = {handle.path for handle in handles if isinstance(handle, FileStateHandle)}
            assert len(paths) == 5
            assert all(path.startswith(f"{directory}/7-") for path in paths)

    def test_inline_state_has_a_unique_id_below_its_directory(
        self, factory: FsCheckpointStreamFactory, files: FileSystem
    ) -> None:
        names = [self.finish(factory, EXCLUSIVE, b"1").stream_state_handle_id for _ in range(2)]
        assert names[0] != names[1]
        for name in names:
            assert parent_of(name) == factory.checkpoint_directory
            assert not files.exists(name)

    def test_discarding_state_keeps_its_directory(self, files: FileSystem, directory: str) -> None:
        factory = self.streams(files, directory, 0, 0)
        if not files.is_directory(factory.shared_state_directory):
            pytest.skip("no directory without a file")
        for scope in CheckpointedStateScope:
            self.finish(factory, scope, b"1").discard_state()
            with factory.create_checkpoint_state_output_stream(scope) as out:
                out.write(b"1")
        assert files.is_directory(factory.checkpoint_directory)
        assert files.is_directory(factory.shared_state_directory)

    @pytest.mark.parametrize("threshold", [-1, MAX_FILE_STATE_THRESHOLD + 1])
    def test_stream_factory_refuses_sizes_out_of_range(
        self, files: FileSystem, directory: str, threshold: int
    ) -> None:
        with pytest.raises(ValueError, match=f"is {threshold} bytes"):
            FsCheckpointStreamFactory(files, directory, directory, threshold, 0)
        with pytest.raises(ValueError, match="is -1 bytes"):
            FsCheckpointStreamFactory(files, directory, directory, 0, -1)
        with pytest.raises(ValueError, match="4000 bytes is smaller than the threshold of 5000"):
            FsCheckpointStateOutputStream(files, directory, 4000, 5000)


class MemoryCheckpointStreamTests(CheckpointStreamTests):
    """`CheckpointStreamTests`, and the contract of streams to memory alone."""

    @pytest.fixture
    def factory(self) -> MemCheckpointStreamFactory:
        """Return a factory for states of up to 16 MiB."""
        return MemCheckpointStreamFactory(16 * 1024 * 1024)

    def test_memory_state_is_in_its_handle(
        self,
        factory: MemCheckpointStreamFactory,
        scope: CheckpointedStateScope,
        stored: Callable[[], list[str]],
    ) -> None:
        for data in (b"x", bytes(self.largest)):
            handle = self.finish(factory, scope, data)
            assert isinstance(handle, ByteStreamStateHandle)
            assert handle.as_bytes_if_in_memory() == data
            handle.discard_state()
            assert self.content(handle) == data
        assert stored() == []

    def test_closed_empty_memory_stream_has_no_handle(self, factory: MemCheckpointStreamFactory) -> None:
        out = factory.create_checkpoint_state_output_stream(SHARED)
        assert out.close_and_get_handle() is None
        out.close()
        assert out.close_and_get_handle() is None

    def test_closed_memory_stream_has_position_zero(self, factory: MemCheckpointStreamFactory) -> None:
        out = factory.create_checkpoint_state_output_stream(SHARED)
        out.write(b"state")
        out.close()
        assert out.get_pos() == 0

    def test_memory_stream_returns_its_bytes_once(self, factory: MemCheckpointStreamFactory) -> None:
        for data in (b"", b"state"):
            out = factory.create_checkpoint_state_output_stream(SHARED)
            if data:
                out.write(data)
            assert out.close_and_get_bytes() == data
            with pytest.raises(CheckpointIOError, match="closed"):
                out.close_and_get_bytes()

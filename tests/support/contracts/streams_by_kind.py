"""Contracts of checkpoint streams to files and to memory."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from spark_statestore.errors import CheckpointIOError, StateTooLargeError
from spark_statestore.files import FileSystem, join, parent_of
from spark_statestore.options import MAX_FILE_STATE_THRESHOLD
from spark_statestore.storage.file_handles import FileStateHandle
from spark_statestore.storage.fs_streams import FsCheckpointStateOutputStream, FsCheckpointStreamFactory
from spark_statestore.storage.memory_streams import MemCheckpointStreamFactory, MemoryCheckpointOutputStream
from spark_statestore.storage.stream_handles import ByteStreamStateHandle, StreamStateHandle
from spark_statestore.storage.streams import CheckpointedStateScope
from tests.support.contracts.streams import CheckpointStreamTests

__all__ = ["FsCheckpointStreamTests", "MemoryCheckpointStreamTests"]

EXCLUSIVE, SHARED = CheckpointedStateScope.EXCLUSIVE, CheckpointedStateScope.SHARED


class FsCheckpointStreamTests(CheckpointStreamTests):
    """`CheckpointStreamTests`, and the contract of streams to files alone.

    Subclasses override the fixtures ``files`` and ``directory``.

    Attributes
    ----------
    examples
        Number of examples of the tests with generated input.
    """

    examples = 20

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

    @pytest.mark.parametrize(
        ("size", "buffer_size", "threshold", "in_memory"),
        [
            (222, 999, 512, True),
            (512, 999, 512, True),
            (513, 999, 512, False),
            (896, 1024, 15, False),
            (15, 15, 15, True),
            (16, 15, 15, False),
            (1, 4096, 0, False),
            (16_678, 4096, 0, False),
            (576_446, 259, 17, False),
            (1, 0, 0, False),
            (100, 0, 0, False),
        ],
    )
    def test_state_of_at_most_the_threshold_stays_in_memory(
        self,
        files: FileSystem,
        directory: str,
        stored: Callable[[], list[str]],
        size: int,
        buffer_size: int,
        threshold: int,
        in_memory: bool,
    ) -> None:
        data = bytes(range(256)) * (size // 256 + 1)
        handle = self.finish(self.streams(files, directory, threshold, buffer_size), SHARED, data[:size])
        assert isinstance(handle, ByteStreamStateHandle if in_memory else FileStateHandle)
        assert len(stored()) == (0 if in_memory else 1)
        assert self.content(handle) == data[:size]

    def test_writes_round_trip_around_the_threshold(
        self, files: FileSystem, directory: str, stored: Callable[[], list[str]]
    ) -> None:
        pieces = st.lists(st.one_of(st.binary(max_size=9), st.just("flush")), max_size=12)

        @settings(max_examples=self.examples, deadline=None, database=None)
        @given(pieces, st.integers(0, 12), st.integers(0, 12))
        def written(pieces: list[bytes | str], threshold: int, extra: int) -> None:
            out = self.streams(
                files, directory, threshold, threshold + extra
            ).create_checkpoint_state_output_stream(SHARED)
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

        written()

    def test_threshold_of_one_mebibyte(
        self, files: FileSystem, directory: str, stored: Callable[[], list[str]]
    ) -> None:
        factory = self.streams(files, directory, 1 << 20, 0)
        assert isinstance(self.finish(factory, SHARED, bytes(1 << 20)), ByteStreamStateHandle)
        assert stored() == []
        assert isinstance(self.finish(factory, SHARED, bytes((1 << 20) + 1)), FileStateHandle)

    @pytest.mark.parametrize("size", [0, 1])
    def test_flushed_state_stays_in_its_file(
        self, files: FileSystem, directory: str, stored: Callable[[], list[str]], size: int
    ) -> None:
        factory = self.streams(files, directory, 1000, 4096)
        out = factory.create_checkpoint_state_output_stream(EXCLUSIVE)
        out.write(bytes(size))
        out.flush_to_file()
        out.flush_to_file()
        assert out.get_pos() == size
        handle = out.close_and_get_handle()
        assert isinstance(handle, FileStateHandle)
        assert (handle.state_size, self.content(handle)) == (size, bytes(size))
        assert stored() == [handle.path]

    def test_position_counts_buffered_and_written_bytes(self, files: FileSystem, directory: str) -> None:
        with self.streams(files, directory, 17, 31).create_checkpoint_state_output_stream(SHARED) as out:
            for number in range(64):
                assert out.get_pos() == number
                out.write(b"1")
            written = 64
            for size in (10, 31, 32, 100, 1, 0, 17):
                out.write(bytes(size))
                written += size
                assert out.get_pos() == written

    def test_empty_writes_make_no_file(
        self, files: FileSystem, directory: str, stored: Callable[[], list[str]]
    ) -> None:
        for threshold, buffer_size in ((0, 0), (0, 10), (10, 10)):
            factory = self.streams(files, directory, threshold, buffer_size)
            with factory.create_checkpoint_state_output_stream(SHARED) as out:
                out.write(b"")
                assert out.close_and_get_handle() is None
            assert stored() == []

    def test_closed_stream_raises_even_if_empty(self, factory: FsCheckpointStreamFactory) -> None:
        out = factory.create_checkpoint_state_output_stream(SHARED)
        out.close()
        for call in (out.close_and_get_handle, out.flush_to_file):
            with pytest.raises(CheckpointIOError, match="closed"):
                call()

    def test_scope_selects_the_directory(self, factory: FsCheckpointStreamFactory) -> None:
        exclusive, shared = (self.finish(factory, scope, bytes(5000)) for scope in (EXCLUSIVE, SHARED))
        assert isinstance(exclusive, FileStateHandle)
        assert isinstance(shared, FileStateHandle)
        assert parent_of(exclusive.path) == factory.checkpoint_directory
        assert parent_of(shared.path) == factory.shared_state_directory

    def test_state_file_names_are_unique_and_prefixed(self, factory: FsCheckpointStreamFactory) -> None:
        handles = [self.finish(factory, SHARED, bytes(2000)) for _ in range(5)]
        names = {handle.path.rpartition("/")[2] for handle in handles if isinstance(handle, FileStateHandle)}
        assert len(names) == 5
        assert all(name.startswith("7-") for name in names)

    def test_inline_state_has_a_unique_id_below_its_directory(
        self, factory: FsCheckpointStreamFactory, files: FileSystem
    ) -> None:
        names = [self.finish(factory, EXCLUSIVE, b"1").stream_state_handle_id for _ in range(2)]
        assert names[0] != names[1]
        for name in names:
            assert parent_of(name) == factory.checkpoint_directory
            assert not files.exists(name)

    def test_factory_mixes_files_inline_state_and_empty_streams(
        self, files: FileSystem, directory: str, stored: Callable[[], list[str]]
    ) -> None:
        factory = self.streams(files, directory, 15, 1024)
        column_families = [bytes(1024), bytes(15), b"", bytes(16), b"", b"x", bytes(70_000)]
        handles: list[StreamStateHandle] = []
        for state in column_families:
            with factory.create_checkpoint_state_output_stream(SHARED) as out:
                out.write(state)
                handle = out.close_and_get_handle()
            assert (handle is None) == (not state)
            if handle is not None:
                assert self.content(handle) == state
                handles.append(handle)
        assert len(stored()) == 3
        for handle in handles:
            handle.discard_state()
        assert stored() == []

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

    def test_empty_write_to_memory_has_a_handle(self, factory: MemCheckpointStreamFactory) -> None:
        handle = self.finish(factory, SHARED, b"")
        assert isinstance(handle, ByteStreamStateHandle)
        assert (handle.data, handle.checksum) == (b"", 0)

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

    @pytest.mark.parametrize("size", [9, 10, 11, 1000])
    def test_memory_stream_limit_is_inclusive(self, size: int) -> None:
        out = MemoryCheckpointOutputStream(10)
        for start in range(0, size, 3):
            out.write(bytes(min(3, size - start)))
        # The error appears only now.
        assert out.get_pos() == size
        if size <= 10:
            handle = out.close_and_get_handle()
            assert handle is not None
            assert handle.data == bytes(size)
        else:
            with pytest.raises(StateTooLargeError, match=rf"{size} bytes .*maxStateSize=10 bytes"):
                out.close_and_get_handle()
            assert out.get_pos() == 0
        with pytest.raises(CheckpointIOError, match="closed"):
            out.close_and_get_handle()

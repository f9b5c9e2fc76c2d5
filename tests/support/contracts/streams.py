"""Contract of checkpoint stream factories and their streams."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable

import pytest

from spark_statestore.storage.stream_handles import StreamStateHandle
from spark_statestore.storage.streams import CheckpointedStateScope, CheckpointStreamFactory
from tests.support.contracts.on_files import OnFiles

__all__ = ["CheckpointStreamTests"]

EXCLUSIVE, SHARED = CheckpointedStateScope.EXCLUSIVE, CheckpointedStateScope.SHARED

PIECES = (b"a", b"bc" * 40, bytes(5000), b"d" * 200_000, b"e")


class CheckpointStreamTests(OnFiles):
    """The contract of `CheckpointStreamFactory` and its streams beyond `CheckpointStreamMachine`'s.

    Subclasses override the fixtures ``files``, ``directory`` and ``factory``.
    """

    largest = 5_000_000
    """Bytes of the largest tested state."""

    @pytest.fixture
    def factory(self) -> CheckpointStreamFactory:
        """Return the factory; everything it stores is below the directory."""
        raise NotImplementedError

    @pytest.fixture(params=list(CheckpointedStateScope), ids=lambda scope: scope.value)
    def scope(self, request: pytest.FixtureRequest) -> CheckpointedStateScope:
        scope: CheckpointedStateScope = request.param
        return scope

    @staticmethod
    def finish(
        factory: CheckpointStreamFactory, scope: CheckpointedStateScope, *pieces: bytes
    ) -> StreamStateHandle:
        with factory.create_checkpoint_state_output_stream(scope) as out:
            for piece in pieces:
                out.write(piece)
            handle = out.close_and_get_handle()
        assert handle is not None
        return handle

    def test_stream_round_trip(self, factory: CheckpointStreamFactory, scope: CheckpointedStateScope) -> None:
        position = 0
        with factory.create_checkpoint_state_output_stream(scope) as out:
            for piece, kind in zip(PIECES, itertools.cycle((bytes, bytearray, memoryview)), strict=False):
                assert out.get_pos() == position
                out.write(kind(piece))
                position += len(piece)
            assert out.get_pos() == position
            handle = out.close_and_get_handle()
        assert handle is not None
        # First the figures: pytest in CI would show how many bytes differ, line by line.
        assert (handle.state_size, handle.checksum) == (position, zlib.crc32(b"".join(PIECES)))
        assert self.content(handle) == b"".join(PIECES)

    def test_stream_accepts_large_and_many_small_writes(self, factory: CheckpointStreamFactory) -> None:
        large = bytes(range(251)) * (self.largest // 251)
        for pieces in ([b"x"], [large], [n.to_bytes(2 + n % 7, "big") for n in range(30_000)]):
            data = b"".join(pieces)
            handle = self.finish(factory, SHARED, *pieces)
            assert handle.checksum == zlib.crc32(data)
            assert self.content(handle) == data
            assert handle.as_bytes_if_in_memory() in (None, data)

    def test_stream_writes_the_bytes_of_a_typed_memoryview(self, factory: CheckpointStreamFactory) -> None:
        numbers = memoryview(bytearray(range(64))).cast("i")
        with factory.create_checkpoint_state_output_stream(SHARED) as out:
            out.write(numbers)
            assert out.get_pos() == 64
            handle = out.close_and_get_handle()
        assert handle is not None
        assert self.content(handle) == bytes(range(64))

    def test_stream_copies_mutable_buffers(self, factory: CheckpointStreamFactory) -> None:
        for size in (10, 100_000, 2_000_000):
            buffer = bytearray(b"x" * size)
            with factory.create_checkpoint_state_output_stream(SHARED) as out:
                out.write(buffer)
                out.write(memoryview(buffer)[1:])
                assert buffer == b"x" * size
                buffer[:] = b"y" * size
                # A buffer that is still in use could not grow.
                buffer += b"z"
                handle = out.close_and_get_handle()
            assert handle is not None
            assert self.content(handle) == b"x" * (2 * size - 1)
            assert handle.checksum == zlib.crc32(b"x" * (2 * size - 1))

    @pytest.mark.parametrize("size", [0, 1, 5000, 3_000_000])
    def test_exit_without_the_handle_removes_the_state(
        self, factory: CheckpointStreamFactory, stored: Callable[[], list[str]], size: int
    ) -> None:
        with factory.create_checkpoint_state_output_stream(EXCLUSIVE) as out:
            out.write(bytes(size))
        assert stored() == []

        def fails() -> None:
            with factory.create_checkpoint_state_output_stream(SHARED) as out:
                out.write(bytes(size))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fails()
        assert stored() == []

    def test_open_input_streams_are_independent(self, factory: CheckpointStreamFactory) -> None:
        for length in (100, 100_000):
            handle = self.finish(factory, SHARED, bytes(range(100)) * (length // 100))
            with handle.open_input_stream() as first_stream, handle.open_input_stream() as second_stream:
                assert first_stream.read(3) == bytes([0, 1, 2])
                assert second_stream.read(1) == b"\0"
                assert len(first_stream.read()) == length - 3
                assert first_stream.read() == b""
                assert second_stream.read(2) == bytes([1, 2])

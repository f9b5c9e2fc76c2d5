"""What holds for the streams of every factory."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest

from spark_statestore.checkpoint.files import FileSystem, join
from spark_statestore.checkpoint.streams import (
    CheckpointedStateScope,
    CheckpointStreamFactory,
)
from spark_statestore.errors import CheckpointIOError
from spark_statestore.state.handles import (
    StreamStateHandle,
)
from spark_statestore.state.handles.codec import HandleContext, decode_handle, encode_handle

__all__ = ["CheckpointStreamTests"]

EXCLUSIVE, SHARED = CheckpointedStateScope.EXCLUSIVE, CheckpointedStateScope.SHARED

PIECES = (b"a", b"bc" * 40, bytes(5000), b"d" * 200_000, b"e")


class CheckpointStreamTests:
    """The contract of `CheckpointStreamFactory` and its streams.

    Subclasses override the fixtures ``files``, ``directory`` and ``factory``.

    Attributes
    ----------
    largest
        Bytes of the largest state that is tried.
    """

    largest = 5_000_000

    @pytest.fixture
    def files(self) -> FileSystem:
        """The file system that the streams write to, or another one if they write to none."""
        raise NotImplementedError

    @pytest.fixture
    def directory(self) -> str:
        """Path of a directory of its own for this test."""
        raise NotImplementedError

    @pytest.fixture
    def factory(self) -> CheckpointStreamFactory:
        """The factory; everything it stores lies below the directory."""
        raise NotImplementedError

    @pytest.fixture(params=list(CheckpointedStateScope), ids=lambda scope: scope.value)
    def scope(self, request: pytest.FixtureRequest) -> CheckpointedStateScope:
        """Each scope."""
        scope: CheckpointedStateScope = request.param
        return scope

    @pytest.fixture
    def stored(self, files: FileSystem, directory: str) -> Callable[[], list[str]]:
        """Names the files that are stored now."""
        return lambda: sorted(status.path for status in files.list_files(directory))

    @staticmethod
    def finish(
        factory: CheckpointStreamFactory, scope: CheckpointedStateScope, *pieces: bytes
    ) -> StreamStateHandle:
        """The handle of a stream with these bytes."""
        with factory.create_checkpoint_state_output_stream(scope) as out:
            for piece in pieces:
                out.write(piece)
            handle = out.close_and_get_handle()
        assert handle is not None
        return handle

    @staticmethod
    def content(handle: StreamStateHandle) -> bytes:
        """Everything in a stream."""
        with handle.open_input_stream() as stream:
            return stream.read()

    def test_what_is_written_is_read(
        self, factory: CheckpointStreamFactory, scope: CheckpointedStateScope
    ) -> None:
        handle = self.finish(factory, scope, *PIECES)
        assert self.content(handle) == b"".join(PIECES)
        assert handle.state_size == sum(map(len, PIECES))
        assert handle.checksum == zlib.crc32(b"".join(PIECES))

    def test_the_state_in_memory_is_all_of_it_or_none(
        self, factory: CheckpointStreamFactory, scope: CheckpointedStateScope
    ) -> None:
        for data in (b"x", bytes(self.largest)):
            assert self.finish(factory, scope, data).as_bytes_if_in_memory() in (None, data)

    def test_a_large_state_in_one_write(
        self, factory: CheckpointStreamFactory, scope: CheckpointedStateScope
    ) -> None:
        data = bytes(range(251)) * (self.largest // 251)
        assert self.content(self.finish(factory, scope, data)) == data

    def test_a_state_in_many_small_writes(
        self, factory: CheckpointStreamFactory, scope: CheckpointedStateScope
    ) -> None:
        pieces = [n.to_bytes(2 + n % 7, "big") for n in range(30_000)]
        handle = self.finish(factory, scope, *pieces)
        assert self.content(handle) == b"".join(pieces)
        assert handle.checksum == zlib.crc32(b"".join(pieces))

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_any_kind_of_buffer_can_be_written(
        self, factory: CheckpointStreamFactory, kind: Callable[[bytes], bytes]
    ) -> None:
        assert self.content(self.finish(factory, SHARED, *map(kind, PIECES))) == b"".join(PIECES)

    def test_a_view_of_numbers_is_its_bytes(self, factory: CheckpointStreamFactory) -> None:
        numbers = memoryview(bytearray(range(64))).cast("i")
        with factory.create_checkpoint_state_output_stream(SHARED) as out:
            out.write(numbers)
            assert out.get_pos() == 64
            handle = out.close_and_get_handle()
        assert handle is not None
        assert self.content(handle) == bytes(range(64))

    def test_the_callers_buffer_is_neither_changed_nor_kept(self, factory: CheckpointStreamFactory) -> None:
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

    def test_the_position_counts_the_bytes(
        self, factory: CheckpointStreamFactory, scope: CheckpointedStateScope
    ) -> None:
        with factory.create_checkpoint_state_output_stream(scope) as out:
            written = 0
            assert out.get_pos() == 0
            for piece in PIECES:
                out.write(piece)
                written += len(piece)
                assert out.get_pos() == written
                out.flush()
                assert out.get_pos() == written

    def test_a_stream_of_nothing_has_no_handle(
        self, factory: CheckpointStreamFactory, scope: CheckpointedStateScope, stored: Callable[[], list[str]]
    ) -> None:
        with factory.create_checkpoint_state_output_stream(scope) as out:
            assert out.close_and_get_handle() is None
            assert out.close_and_get_handle() is None
        assert stored() == []

    def test_a_stream_of_nothing_is_still_open(self, factory: CheckpointStreamFactory) -> None:
        with factory.create_checkpoint_state_output_stream(SHARED) as out:
            assert out.close_and_get_handle() is None
            out.write(b"after all")
            handle = out.close_and_get_handle()
        assert handle is not None
        assert self.content(handle) == b"after all"

    def test_flushing_and_syncing_change_nothing(
        self, factory: CheckpointStreamFactory, scope: CheckpointedStateScope
    ) -> None:
        with factory.create_checkpoint_state_output_stream(scope) as out:
            out.flush()
            out.sync()
            assert out.close_and_get_handle() is None
            for piece in PIECES:
                out.write(piece)
                out.flush()
                out.sync()
                out.flush()
            handle = out.close_and_get_handle()
        assert handle is not None
        assert self.content(handle) == b"".join(PIECES)

    @pytest.mark.parametrize("size", [0, 1, 5000, 3_000_000])
    def test_leaving_the_block_without_the_handle_removes_the_state(
        self,
        factory: CheckpointStreamFactory,
        scope: CheckpointedStateScope,
        stored: Callable[[], list[str]],
        size: int,
    ) -> None:
        with factory.create_checkpoint_state_output_stream(scope) as out:
            out.write(bytes(size))
        assert stored() == []

    def test_an_error_in_the_block_removes_the_state(
        self, factory: CheckpointStreamFactory, stored: Callable[[], list[str]]
    ) -> None:
        def fails() -> None:
            with factory.create_checkpoint_state_output_stream(EXCLUSIVE) as out:
                out.write(bytes(3_000_000))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fails()
        assert stored() == []

    def test_leaving_the_block_with_the_handle_keeps_the_state(
        self, factory: CheckpointStreamFactory, scope: CheckpointedStateScope, stored: Callable[[], list[str]]
    ) -> None:
        with factory.create_checkpoint_state_output_stream(scope) as out:
            out.write(bytes(100_000))
            handle = out.close_and_get_handle()
            before = stored()
        out.close()
        assert stored() == before
        assert handle is not None
        assert self.content(handle) == bytes(100_000)

    def test_a_handle_is_given_once(
        self, factory: CheckpointStreamFactory, scope: CheckpointedStateScope, stored: Callable[[], list[str]]
    ) -> None:
        for size in (1, 100_000):
            out = factory.create_checkpoint_state_output_stream(scope)
            out.write(bytes(size))
            handle = out.close_and_get_handle()
            before = stored()
            for _ in range(2):
                with pytest.raises(CheckpointIOError, match="closed"):
                    out.close_and_get_handle()
            assert stored() == before
            assert handle is not None
            assert self.content(handle) == bytes(size)

    @pytest.mark.parametrize("size", [1, 100_000])
    def test_an_abandoned_stream_is_closed(
        self, factory: CheckpointStreamFactory, stored: Callable[[], list[str]], size: int
    ) -> None:
        out = factory.create_checkpoint_state_output_stream(SHARED)
        out.write(bytes(size))
        out.close()
        out.close()
        with pytest.raises(CheckpointIOError, match="closed"):
            out.close_and_get_handle()
        for data in (b"1", bytes(100_000)):
            with pytest.raises(CheckpointIOError, match="closed"):
                out.write(data)
        assert stored() == []

    def test_a_finished_stream_takes_no_more(self, factory: CheckpointStreamFactory) -> None:
        for size in (1, 100_000):
            out = factory.create_checkpoint_state_output_stream(SHARED)
            out.write(bytes(size))
            handle = out.close_and_get_handle()
            with pytest.raises(CheckpointIOError, match="closed"):
                out.write(b"more")
            assert handle is not None
            assert self.content(handle) == bytes(size)

    def test_a_handle_comes_back_from_its_stored_form(
        self,
        factory: CheckpointStreamFactory,
        files: FileSystem,
        directory: str,
        scope: CheckpointedStateScope,
    ) -> None:
        for size in (1, 100_000):
            handle = self.finish(factory, scope, b"s" * size)
            for base in (directory, join(directory, "elsewhere")):
                context = HandleContext(files, base)
                again = decode_handle(encode_handle(handle, context), context)
                assert isinstance(again, StreamStateHandle)
                assert self.content(again) == b"s" * size
                assert again.checksum == handle.checksum
                assert again.state_size == size
                assert again.stream_state_handle_id == handle.stream_state_handle_id

    def test_state_can_be_read_from_anywhere_in_it(
        self, factory: CheckpointStreamFactory, scope: CheckpointedStateScope
    ) -> None:
        for length in (100, 100_000):
            handle = self.finish(factory, scope, bytes(range(100)) * (length // 100))
            with handle.open_input_stream() as one, handle.open_input_stream() as other:
                one.seek(50)
                assert (one.tell(), one.read(3)) == (50, bytes([50, 51, 52]))
                one.seek(length)
                assert one.read() == b""
                one.seek(0)
                assert one.read(2) == b"\0\1"
                assert other.read(1) == b"\0"

    def test_streams_that_are_open_at_once_do_not_mix(
        self, factory: CheckpointStreamFactory, stored: Callable[[], list[str]]
    ) -> None:
        outs = [factory.create_checkpoint_state_output_stream(SHARED) for _ in range(4)]
        for _ in range(20):
            for number, out in enumerate(outs):
                out.write(bytes([number]) * 5000)
        outs[0].close()
        handles = [out.close_and_get_handle() for out in outs[1:]]
        for number, handle in enumerate(handles, 1):
            assert handle is not None
            assert self.content(handle) == bytes([number]) * 100_000
        assert len({handle.stream_state_handle_id for handle in handles if handle is not None}) == 3
        for handle in handles:
            assert handle is not None
            handle.discard_state()
        assert stored() == []

    def test_discarded_state_is_gone_and_can_be_discarded_again(
        self, factory: CheckpointStreamFactory, scope: CheckpointedStateScope, stored: Callable[[], list[str]]
    ) -> None:
        for size in (1, 100_000):
            kept = self.finish(factory, scope, b"k" * size)
            handle = self.finish(factory, scope, b"g" * size)
            handle.discard_state()
            handle.discard_state()
            assert self.content(kept) == b"k" * size
            if handle.as_bytes_if_in_memory() is None:
                with pytest.raises(FileNotFoundError):
                    self.content(handle)
            kept.discard_state()
        assert stored() == []

"""Handles: what they give, when they are equal, and who discards what they stand for."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from spark_statestore.checkpoint.files import FileSystem, LocalFileSystem, MemoryFileSystem
from spark_statestore.checkpoint.registry import SharedStateRegistry
from spark_statestore.errors import (
    CheckpointIOError,
    IllegalStateError,
)
from spark_statestore.state import StateObject, discard_all
from spark_statestore.state.handles import (
    ByteStreamStateHandle,
    ChainEntry,
    FileStateHandle,
    IncrementalStateHandle,
    Mode,
    OperatorStreamStateHandle,
    PlaceholderStreamStateHandle,
    RelativeFileStateHandle,
    SegmentFileStateHandle,
    StateMetaInfo,
    StreamStateHandle,
)

FILES = MemoryFileSystem()


def test_handles_are_equal_if_their_names_are() -> None:
    assert ByteStreamStateHandle("s", b"1") == ByteStreamStateHandle("s", b"2")
    assert ByteStreamStateHandle("s", b"1") != ByteStreamStateHandle("t", b"1")
    assert FileStateHandle(FILES, "/a", 1) == FileStateHandle(FILES, "/a", 2)
    assert FileStateHandle(FILES, "/a", 1) != FileStateHandle(LocalFileSystem(), "/a", 1)
    assert RelativeFileStateHandle(FILES, "/d", "a", 1) != FileStateHandle(FILES, "/d/a", 1)
    assert SegmentFileStateHandle(FILES, "/a", 0, 1, "x") != SegmentFileStateHandle(FILES, "/a", 0, 1, "y")


@pytest.mark.parametrize(
    ("position", "whence"),
    [
        (-1, io.SEEK_SET),
        (4, io.SEEK_SET),
        (2**40, io.SEEK_SET),
        (3, io.SEEK_CUR),
        (-2, io.SEEK_CUR),
        (1, io.SEEK_END),
        (-4, io.SEEK_END),
    ],
)
def test_positions_outside_of_state_in_memory_are_refused(position: int, whence: int) -> None:
    stream = ByteStreamStateHandle("s", b"123").open_input_stream()
    assert stream.read(1) == b"1"
    with pytest.raises(OSError, match="out of bounds"):
        stream.seek(position, whence)
    assert stream.tell() == 1


def test_state_in_memory_is_read_from_any_position() -> None:
    stream = ByteStreamStateHandle("s", b"123").open_input_stream()
    assert stream.seek(3) == 3
    assert stream.read(1) == b""
    assert stream.seek(-1, io.SEEK_END) == 2
    assert stream.seek(-1, io.SEEK_CUR) == 1
    assert stream.read(9) == b"23"


def test_state_in_memory_needs_a_name_and_data() -> None:
    with pytest.raises(TypeError, match="needs a name and data"):
        ByteStreamStateHandle("s", None)
    with pytest.raises(ValueError, match="-1"):
        FileStateHandle(FILES, "/a", -2)
    with pytest.raises(ValueError, match="-1"):
        PlaceholderStreamStateHandle("s", -2)
    with pytest.raises(ValueError, match="-2"):
        IncrementalStateHandle(1, 1, [], persisted_size=-2)
    with pytest.raises(ValueError, match="negative"):
        SegmentFileStateHandle(FILES, "/a", -1, 1, "o")
    with pytest.raises(TypeError, match="needs the handle"):
        OperatorStreamStateHandle(state_name_to_partition_offsets={}, delegate_state_handle=None)


def test_discarding_twice_succeeds_and_leaves_the_directory(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"1")
    handle = FileStateHandle(LocalFileSystem(), str(tmp_path / "state"), 1)
    handle.discard_state()
    handle.discard_state()
    assert list(tmp_path.iterdir()) == []
    assert tmp_path.exists()


def test_what_cannot_be_discarded_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointIOError, match="could not be deleted") as raised:
        FileStateHandle(LocalFileSystem(), str(tmp_path), 1).discard_state()
    assert str(tmp_path) in str(raised.value)


class Discarded(StateObject):
    state_size = 0

    def __init__(self, log: list[str], name: str, error: Exception | None = None) -> None:
        self.log, self.name, self.error = log, name, error

    def discard_state(self) -> None:
        self.log.append(self.name)
        if self.error:
            raise self.error


def test_all_are_discarded_before_the_first_failure_is_raised() -> None:
    log: list[str] = []
    failing = [Discarded(log, "a", OSError("first")), Discarded(log, "b", OSError("second"))]
    with pytest.raises(OSError, match="first") as raised:
        discard_all([failing[0], None, failing[1], Discarded(log, "c")])
    assert log == ["a", "b", "c"]
    assert "second" in raised.value.__notes__[0]


def test_a_chain_knows_its_sizes_and_discards_all_of_it(tmp_path: Path) -> None:
    files: FileSystem = LocalFileSystem()
    entries = []
    for version, size in ((1, 10), (2, 3), (4, 5)):
        (tmp_path / str(version)).write_bytes(bytes(size))
        stream = FileStateHandle(files, str(tmp_path / str(version)), size)
        operator = OperatorStreamStateHandle(state_name_to_partition_offsets={}, delegate_state_handle=stream)
        entries.append(ChainEntry(version, version == 1, operator))
    handle = IncrementalStateHandle(4, 1, entries)
    assert (handle.base_size, handle.delta_size, handle.state_size) == (10, 8, 18)
    handle.discard_state()
    assert list(tmp_path.iterdir()) == []


def test_a_segment_is_found_beside_the_metadata_that_replaced_it() -> None:
    from tests.checkpoint.test_metadata import SAMPLE

    owner, files = "0123456789abcdef", MemoryFileSystem()
    segment = SegmentFileStateHandle(files, "/s/_metadata", 40, 6, owner)
    with pytest.raises(FileNotFoundError, match="process-memory:///s/_metadata"):
        segment.open_input_stream()
    files.create(f"/s/_metadata.{owner}", SAMPLE)
    files.create("/s/_metadata", SAMPLE.replace(bytes.fromhex(owner), bytes(8)))
    assert segment.open_input_stream().read() == SAMPLE[40:46]
    segment.discard_state()
    assert files.exists("/s/_metadata")
    files.replace("/s/_metadata", b"")
    files.delete(f"/s/_metadata.{owner}")
    with pytest.raises(FileNotFoundError):
        segment.open_input_stream()


# Discarding a file


class Watched(LocalFileSystem):
    """Fails to delete as told, and counts the questions whether something exists."""

    def __init__(self, error: OSError | None = None, unsure: bool = False) -> None:
        super().__init__()
        self.error, self.unsure, self.asked = error, unsure, 0

    def delete(self, path: str) -> None:
        if self.error:
            raise self.error
        super().delete(path)

    def exists(self, path: str) -> bool:
        self.asked += 1
        if self.unsure:
            raise PermissionError(path)
        return super().exists(path)


def test_discarding_asks_whether_the_file_exists_only_after_a_failure(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"1")
    files = Watched()
    FileStateHandle(files, str(tmp_path / "state"), 1).discard_state()
    FileStateHandle(files, str(tmp_path / "state"), 1).discard_state()
    assert files.asked == 0
    files.error = PermissionError("no")
    FileStateHandle(files, str(tmp_path / "state"), 1).discard_state()
    assert files.asked == 1


@pytest.mark.parametrize("unsure", [False, True])
def test_a_file_that_may_still_be_there_is_an_error(tmp_path: Path, unsure: bool) -> None:
    (tmp_path / "state").write_bytes(b"1")
    with pytest.raises(CheckpointIOError, match="could not be deleted: no"):
        FileStateHandle(Watched(PermissionError("no"), unsure), str(tmp_path / "state"), 1).discard_state()
    assert (tmp_path / "state").exists()


# Placeholders and chains with a registry


def test_a_placeholder_cannot_be_read_and_discards_nothing() -> None:
    placeholder = PlaceholderStreamStateHandle("s", 7)
    with pytest.raises(IllegalStateError, match=r"'s', 7 bytes.* cannot be read"):
        placeholder.open_input_stream()
    placeholder.discard_state()
    assert placeholder.as_bytes_if_in_memory() is None
    assert (placeholder.stream_state_handle_id, placeholder.state_size) == ("s", 7)
    assert placeholder == PlaceholderStreamStateHandle("s")
    assert placeholder != PlaceholderStreamStateHandle("t", 7)
    assert placeholder != ByteStreamStateHandle("s", b"")
    assert len({placeholder, PlaceholderStreamStateHandle("s")}) == 1


def entry(stream: StreamStateHandle, version: int, full: bool = False) -> ChainEntry:
    meta = {"default": StateMetaInfo((0,))}
    state = OperatorStreamStateHandle(state_name_to_partition_offsets=meta, delegate_state_handle=stream)
    return ChainEntry(version, full, state)


def file(directory: Path, name: str) -> FileStateHandle:
    (directory / name).write_bytes(b"12345")
    return FileStateHandle(LocalFileSystem(), str(directory / name), 5)


def test_registered_streams_are_left_to_the_registry(tmp_path: Path) -> None:
    registry = SharedStateRegistry()
    chain = IncrementalStateHandle(2, 1, [entry(file(tmp_path, "1"), 1, True), entry(file(tmp_path, "2"), 2)])
    chain.register_shared_states(registry, 2)
    chain.discard_state()
    assert len(list(tmp_path.iterdir())) == 2
    registry.unregister_unused_state(3)
    assert list(tmp_path.iterdir()) == []


def test_a_placeholder_becomes_the_handle_it_stands_for(tmp_path: Path) -> None:
    registry = SharedStateRegistry()
    base = file(tmp_path, "1")
    IncrementalStateHandle(1, 1, [entry(base, 1, True)]).register_shared_states(registry, 1)
    sent = PlaceholderStreamStateHandle(base.stream_state_handle_id, 5)
    chain = IncrementalStateHandle(2, 1, [entry(sent, 1, True), entry(file(tmp_path, "2"), 2)])
    chain.register_shared_states(registry, 2)
    first = chain.entries[0].state
    assert first.delegate_state_handle is base
    assert list(first.state_name_to_partition_offsets) == ["default"]
    with first.open_input_stream() as stream:
        assert stream.read() == b"12345"


def test_a_chain_registers_once_with_each_registry(tmp_path: Path) -> None:
    old, new = SharedStateRegistry(), SharedStateRegistry()
    chain = IncrementalStateHandle(1, 1, [entry(file(tmp_path, "1"), 1, True)])
    chain.register_shared_states(old, 1)
    with pytest.raises(IllegalStateError, match=r"already.*rebound"):
        chain.register_shared_states(old, 2)
    chain.register_shared_states(new, 1)
    assert chain.is_registered_with(new)
    assert not chain.is_registered_with(old)
    new.unregister_unused_state(2)
    assert list(tmp_path.iterdir()) == []


def test_a_chain_with_an_unknown_placeholder_keeps_its_files_and_can_be_registered_later(
    tmp_path: Path,
) -> None:
    registry = SharedStateRegistry()
    missing = PlaceholderStreamStateHandle("gone", 5)
    chain = IncrementalStateHandle(2, 1, [entry(file(tmp_path, "1"), 1, True), entry(missing, 2)])
    with pytest.raises(IllegalStateError, match="'gone'"):
        chain.register_shared_states(registry, 2)
    chain.discard_state()
    assert (tmp_path / "1").exists()
    registry.register_reference("gone", file(tmp_path, "2"), 1)
    chain.register_shared_states(registry, 2)
    assert len(registry) == 2


def test_a_chain_knows_what_was_newly_written() -> None:
    entries = [
        entry(ByteStreamStateHandle("1", b"12345"), 1, True),
        entry(ByteStreamStateHandle("2", b"1"), 2),
    ]
    assert IncrementalStateHandle(2, 1, entries).checkpointed_size == 6
    assert IncrementalStateHandle(2, 1, entries, persisted_size=1).checkpointed_size == 1
    assert IncrementalStateHandle(2, 1, entries, persisted_size=0).checkpointed_size == 0


def test_a_chain_is_bound_to_another_checkpoint_with_its_owner(tmp_path: Path) -> None:
    registry = SharedStateRegistry()
    chain = IncrementalStateHandle(1, 1, [entry(file(tmp_path, "1"), 1, True)], persisted_size=3)
    own = chain.rebound(2)
    assert (own.version, own.base_version, own.entries, own.checkpointed_size) == (2, 1, chain.entries, 3)
    chain.register_shared_states(registry, 1)
    registered = chain.rebound(3)
    registered.discard_state()
    assert (tmp_path / "1").exists()
    registered.register_shared_states(registry, 3)
    registry.unregister_unused_state(3)
    assert (tmp_path / "1").exists()
    own.discard_state()
    assert not (tmp_path / "1").exists()


def test_a_segment_keeps_the_version_it_lies_in() -> None:
    registry = SharedStateRegistry()
    segment = SegmentFileStateHandle(FILES, "/store/chk-1/_metadata", 40, 5, "0123456789abcdef")
    IncrementalStateHandle(3, 1, [entry(segment, 1, True)]).register_shared_states(registry, 3)
    assert registry.checkpoints_in_use(2) == {1}


def test_modes_keep_their_numbers() -> None:
    assert {mode.name: int(mode) for mode in Mode} == {"SPLIT_DISTRIBUTE": 0, "UNION": 1, "BROADCAST": 2}


def test_an_operators_handle_stands_for_its_stream() -> None:
    delegate = ByteStreamStateHandle("s", b"123", 7)
    handle = OperatorStreamStateHandle(state_name_to_partition_offsets={}, delegate_state_handle=delegate)
    assert handle.as_bytes_if_in_memory() == b"123"
    assert (handle.stream_state_handle_id, handle.state_size, handle.checksum) == ("s", 3, 7)
    with handle.open_input_stream() as stream:
        assert stream.read() == b"123"
    assert handle != delegate


def test_other_things_are_not_equal_to_handles() -> None:
    file = FileStateHandle(FILES, "/a", 1)
    segment = SegmentFileStateHandle(FILES, "/a", 0, 1, "o")
    relative = RelativeFileStateHandle(FILES, "/", "a", 1)
    for handle in (
        file,
        segment,
        relative,
        ByteStreamStateHandle("/a", b""),
        IncrementalStateHandle(1, 1, []),
    ):
        assert handle != "/a"
    assert file.as_bytes_if_in_memory() is segment.as_bytes_if_in_memory() is None
    assert file != relative
    assert file.stream_state_handle_id == relative.stream_state_handle_id

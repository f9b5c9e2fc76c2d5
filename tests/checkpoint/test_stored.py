"""What a version is made of, as it is stored and where it lies."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from spark_statestore.checkpoint.files import LocalFileSystem
from spark_statestore.checkpoint.metadata import format as metadata_format
from spark_statestore.checkpoint.metadata.format import INLINE_STATE_OFFSET
from spark_statestore.checkpoint.storage import CheckpointName
from spark_statestore.checkpoint.stored import local_streams, starts_with_newest, stored_messages
from spark_statestore.checkpoint.versions import VersionStore
from spark_statestore.errors import CheckpointIOError, CorruptCheckpointError, UnsupportedFormatError
from spark_statestore.options import StorageOptions
from spark_statestore.state.changes import CHANGE_SCHEMA
from tests.checkpoint.stores import commit, message, open_store, rows_of


def chain(directory: Path) -> VersionStore:
    """Three versions: in a file, inside of the metadata, in a file."""
    store = open_store(directory)
    parent = commit(store, CheckpointName(1), {b"a": bytes(1_000)}).handle
    parent = commit(store, CheckpointName(2), {b"b": b"2"}, parent=parent).handle
    commit(store, CheckpointName(3), {b"c": bytes(2_000)}, [b"a"], parent=parent)
    return store


def keys_of(data: bytes) -> list[bytes]:
    return pa.ipc.read_record_batch(pa.py_buffer(data), CHANGE_SCHEMA)["key"].to_pylist()


def test_messages_come_as_they_are_stored_the_newest_stream_first(tmp_path: Path) -> None:
    store = chain(tmp_path)
    name = CheckpointName(3)
    metadata = store.load(name)
    found = list(stored_messages(store, name, metadata))
    assert [part and (part[0], keys_of(part[1])) for part in found] == [
        ("default", [b"c", b"a"]),
        None,
        ("default", [b"b"]),
        None,
        ("default", [b"a"]),
        None,
    ]
    assert found[2] == ("default", message({b"b": b"2"}).to_pybytes())


def test_the_oldest_stream_comes_first_where_a_key_may_have_several_values(tmp_path: Path) -> None:
    store = chain(tmp_path)
    name = CheckpointName(3)
    metadata = store.load(name)
    assert starts_with_newest(metadata)
    lists = replace(metadata, states=tuple(replace(state, values=3) for state in metadata.states))
    assert not starts_with_newest(lists)
    found = [keys_of(part[1]) for part in stored_messages(store, name, lists) if part is not None]
    assert found == [[b"a"], [b"b"], [b"c", b"a"]]
    starts = [stream["start"] for stream in local_streams(store, name, lists) or []]
    assert starts == [0, 40, 0]


def test_a_state_that_was_made_anew_has_nothing_of_before(tmp_path: Path) -> None:
    store = chain(tmp_path)
    name = CheckpointName(3)
    metadata = store.load(name)
    anew = replace(metadata, states=tuple(replace(state, since=2) for state in metadata.states))
    found = [part and keys_of(part[1]) for part in stored_messages(store, name, anew)]
    assert found == [[b"c", b"a"], None, [b"b"], None, None]
    files = local_streams(store, name, anew)
    assert files is not None
    assert [[state for state, _ in stream["parts"]] for stream in files] == [[0], [0], [-1]]


def test_local_files_are_said_with_all_that_checks_them(tmp_path: Path) -> None:
    store = chain(tmp_path)
    name = CheckpointName(3)
    files = local_streams(store, name, store.load(name))
    assert files is not None
    assert [stream["isWhole"] for stream in files] == [True, False, True]
    for stream in files:
        size = 16 + sum(size for _, size in stream["parts"])
        data = Path(stream["path"]).read_bytes()
        assert stream["isWhole"] == (len(data) == size)
        assert zlib.crc32(data[stream["start"] : stream["start"] + size]) == stream["checksum"]


def test_a_segment_is_found_under_the_name_of_the_attempt_that_wrote_it(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    first = commit(store, CheckpointName(1), {b"a": b"1"}, by="1" * 16)
    commit(store, CheckpointName(2), {b"b": b"2"}, parent=first.handle)
    commit(open_store(tmp_path), CheckpointName(1), {b"a": b"other"}, by="2" * 16)
    name = CheckpointName(2)
    files = local_streams(store, name, store.load(name))
    assert files is not None
    assert [Path(stream["path"]).name for stream in files] == ["_metadata", f"_metadata.{'1' * 16}"]
    (tmp_path / "chk-1" / files[1]["path"].rpartition("/")[2]).unlink()
    with pytest.raises(CorruptCheckpointError, match="which is missing"):
        local_streams(store, name, store.load(name))


def test_what_is_not_in_local_files_has_no_place(tmp_path: Path) -> None:
    store = chain(tmp_path)
    name = CheckpointName(3)
    metadata = store.load(name)
    metadata.handle.entries[0].state.checksum = None
    assert local_streams(store, name, metadata) is None
    remote = open_store("memory://stored")
    commit(remote, CheckpointName(1), {b"a": b"1"})
    assert local_streams(remote, CheckpointName(1), remote.load(CheckpointName(1))) is None


# A version is loaded without reading what others read


LARGE = {b"key %d" % number: bytes([number]) * 900 for number in range(4)}


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The metadata of a version with its state inside, more than is read at once."""
    monkeypatch.setattr(metadata_format, "_READ_AT_ONCE", 256)
    inside = StorageOptions(file_state_threshold=1 << 20, compression=None)
    commit(open_store(tmp_path, inside), CheckpointName(1), LARGE)
    return tmp_path / "chk-1" / "_metadata"


def test_a_load_reads_metadata_without_the_state_inside_of_it(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int | None]] = []
    read = LocalFileSystem.read

    def note(self: LocalFileSystem, path: str, start: int = 0, size: int | None = None) -> bytes:
        asked.append((start, size))
        return read(self, path, start, size)

    monkeypatch.setattr(LocalFileSystem, "read", note)
    store = open_store(large.parent.parent)
    metadata = store.load(CheckpointName(1))
    assert all(size is not None and size < 1_000 for _, size in asked)
    assert rows_of(store, CheckpointName(1)) == LARGE
    assert metadata == store.metadata(CheckpointName(1))


def test_damage_to_a_version_is_found_before_its_rows_are_used(large: Path) -> None:
    whole = large.read_bytes()
    unread = 0
    state = range(INLINE_STATE_OFFSET, INLINE_STATE_OFFSET + 4 * 900)
    for at in (at for at in range(len(whole)) if at not in state or at % 40 == 0):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        large.write_bytes(damaged)
        store = open_store(large.parent.parent)
        try:
            metadata = store.load(CheckpointName(1))
        except (CorruptCheckpointError, UnsupportedFormatError, CheckpointIOError):
            continue
        # What lies in the state is found by whoever reads that.
        assert INLINE_STATE_OFFSET <= at < INLINE_STATE_OFFSET + metadata.handle.state_size
        unread += 1
        with pytest.raises((CorruptCheckpointError, UnsupportedFormatError)):
            list(store.read(CheckpointName(1), metadata))
    assert unread >= len(state) / 40


def test_a_version_that_was_cut_off_is_not_loaded(large: Path) -> None:
    whole = large.read_bytes()
    for length in (*range(0, len(whole), 50), *range(len(whole) - 20, len(whole))):
        large.write_bytes(whole[:length])
        with pytest.raises(CorruptCheckpointError):
            open_store(large.parent.parent).load(CheckpointName(1))

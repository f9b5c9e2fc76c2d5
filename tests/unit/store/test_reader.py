"""Raw messages and local file ranges of a version's streams."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from spark_statestore.errors import CorruptCheckpointError
from spark_statestore.files import LocalFileSystem
from spark_statestore.formats.change_batches import CHANGE_SCHEMA
from spark_statestore.options import StorageOptions
from spark_statestore.storage import CheckpointName, metadata_streams
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.reader import in_load_order, is_read_newest_first, local_streams, stored_messages
from tests.unit.store.stores import commit, message, open_store, rows_of


def chain(directory: Path) -> StoreDirectory:
    """Three versions: in a file, inside of the metadata, in a file."""
    store = open_store(directory)
    parent = commit(store, CheckpointName(1), {b"a": bytes(1_000)}).handle
    parent = commit(store, CheckpointName(2), {b"b": b"2"}, parent=parent).handle
    commit(store, CheckpointName(3), {b"c": bytes(2_000)}, [b"a"], parent=parent)
    return store


def keys_of(data: bytes) -> list[bytes]:
    return pa.ipc.read_record_batch(pa.py_buffer(data), CHANGE_SCHEMA)["key"].to_pylist()


def test_stored_messages_are_raw_and_newest_stream_first(tmp_path: Path) -> None:
    store = chain(tmp_path)
    name = CheckpointName(3)
    metadata = store.load(name)
    messages = list(stored_messages(store, name, metadata, in_load_order(metadata)))
    assert [part and (part[0], keys_of(part[1])) for part in messages] == [
        ("default", [b"c", b"a"]),
        None,
        ("default", [b"b"]),
        None,
        ("default", [b"a"]),
        None,
    ]
    assert messages[2] == ("default", message({b"b": b"2"}).to_pybytes())


def test_stored_messages_are_oldest_first_for_keys_with_several_values(tmp_path: Path) -> None:
    store = chain(tmp_path)
    name = CheckpointName(3)
    metadata = store.load(name)
    assert is_read_newest_first(metadata)
    lists = replace(
        metadata, column_families=tuple(replace(state, values=3) for state in metadata.column_families)
    )
    assert not is_read_newest_first(lists)
    keys = [
        keys_of(part[1])
        for part in stored_messages(store, name, lists, in_load_order(lists))
        if part is not None
    ]
    assert keys == [[b"a"], [b"b"], [b"c", b"a"]]
    starts = [stream["start"] for stream in local_streams(store, name, lists, in_load_order(lists)) or []]
    assert starts == [0, 40, 0]


def test_recreated_column_family_has_no_older_changes(tmp_path: Path) -> None:
    store = chain(tmp_path)
    name = CheckpointName(3)
    metadata = store.load(name)
    anew = replace(
        metadata,
        column_families=tuple(replace(state, created_at_version=2) for state in metadata.column_families),
    )
    keys = [part and keys_of(part[1]) for part in stored_messages(store, name, anew, in_load_order(anew))]
    assert keys == [[b"c", b"a"], None, [b"b"], None, None]
    files = local_streams(store, name, anew, in_load_order(anew))
    assert files is not None
    assert [[state for state, _ in stream["parts"]] for stream in files] == [[0], [0], [-1]]


def test_local_streams_have_ranges_and_checksums(tmp_path: Path) -> None:
    store = chain(tmp_path)
    name = CheckpointName(3)
    metadata = store.load(name)
    files = local_streams(store, name, metadata, in_load_order(metadata))
    assert files is not None
    assert [stream["isWhole"] for stream in files] == [True, False, True]
    for stream in files:
        size = 16 + sum(size for _, size in stream["parts"])
        data = Path(stream["path"]).read_bytes()
        assert stream["isWhole"] == (len(data) == size)
        assert zlib.crc32(data[stream["start"] : stream["start"] + size]) == stream["checksum"]


def test_local_streams_find_the_segment_of_a_replaced_attempt(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    first = commit(store, CheckpointName(1), {b"a": b"1"}, by="1" * 16)
    commit(store, CheckpointName(2), {b"b": b"2"}, parent=first.handle)
    commit(open_store(tmp_path), CheckpointName(1), {b"a": b"other"}, by="2" * 16)
    name = CheckpointName(2)
    metadata = store.load(name)
    files = local_streams(store, name, metadata, in_load_order(metadata))
    assert files is not None
    assert [Path(stream["path"]).name for stream in files] == ["_metadata", f"_metadata.{'1' * 16}"]
    (tmp_path / "chk-1" / files[1]["path"].rpartition("/")[2]).unlink()
    with pytest.raises(CorruptCheckpointError, match="which is missing"):
        local_streams(store, name, metadata, in_load_order(metadata))


def test_local_streams_is_none_for_other_storage(tmp_path: Path) -> None:
    store = chain(tmp_path)
    name = CheckpointName(3)
    metadata = store.load(name)
    metadata.handle.entries[0].state.checksum = None
    assert local_streams(store, name, metadata, in_load_order(metadata)) is None
    remote = open_store("memory://stored")
    commit(remote, CheckpointName(1), {b"a": b"1"})
    metadata = remote.load(CheckpointName(1))
    assert local_streams(remote, CheckpointName(1), metadata, in_load_order(metadata)) is None


def test_load_does_not_read_inline_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = {b"key %d" % number: bytes([number]) * 900 for number in range(4)}
    inside = StorageOptions(file_state_threshold=1 << 20, compression=None)
    commit(open_store(tmp_path, inside), CheckpointName(1), large)
    # The metadata with its state inside is more than is read at once.
    monkeypatch.setattr(metadata_streams, "_FIRST_READ", 256)
    ranges: list[tuple[int, int | None]] = []
    read_file = LocalFileSystem.read

    def record(self: LocalFileSystem, path: str, start: int = 0, size: int | None = None) -> bytes:
        ranges.append((start, size))
        return read_file(self, path, start, size)

    monkeypatch.setattr(LocalFileSystem, "read", record)
    store = open_store(tmp_path)
    metadata = store.load(CheckpointName(1))
    assert all(size is not None and size < 1_000 for _, size in ranges)
    assert rows_of(store, CheckpointName(1)) == large
    assert metadata == store.metadata(CheckpointName(1))

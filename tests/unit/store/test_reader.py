"""Raw messages and local file ranges of a version's streams."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_statestore.errors import CorruptCheckpointError
from spark_statestore.files import LocalFileSystem
from spark_statestore.formats.change_batches import CHANGE_SCHEMA
from spark_statestore.options import StorageOptions
from spark_statestore.storage import CheckpointName, metadata_streams
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.metadata import CheckpointMetadata
from spark_statestore.store.reader import in_load_order, is_read_newest_first, local_streams, stored_messages
from tests.unit.store.stores import commit, message, open_store, rows_of

# A version of a store, with its store.
Version = tuple[StoreDirectory, CheckpointMetadata]


@pytest.fixture
def newest(tmp_path: Path) -> Version:
    """Return the last of three versions: in a file, inside of the metadata, in a file."""
    store = open_store(tmp_path)
    parent = commit(store, CheckpointName(1), {b"a": bytes(1_000)}).handle
    parent = commit(store, CheckpointName(2), {b"b": b"2"}, parent=parent).handle
    commit(store, CheckpointName(3), {b"c": bytes(2_000)}, [b"a"], parent=parent)
    return store, store.load(CheckpointName(3))


def keys_of(data: bytes) -> list[bytes]:
    return pa.ipc.read_record_batch(pa.py_buffer(data), CHANGE_SCHEMA)["key"].to_pylist()


def messages_of(version: Version) -> list[tuple[str, bytes] | None]:
    store, metadata = version
    name = CheckpointName(metadata.version)
    return list(stored_messages(store, name, metadata, in_load_order(metadata)))


def local_streams_of(version: Version) -> list[dict[str, Any]] | None:
    store, metadata = version
    return local_streams(store, CheckpointName(metadata.version), metadata, in_load_order(metadata))


def with_families(version: Version, **changes: int) -> Version:
    store, metadata = version
    families = tuple(replace(family, **changes) for family in metadata.column_families)
    return store, replace(metadata, column_families=families)


def test_stored_messages_are_raw_and_newest_stream_first(newest: Version) -> None:
    messages = messages_of(newest)
    assert [part and (part[0], keys_of(part[1])) for part in messages] == [
        ("default", [b"c", b"a"]),
        None,
        ("default", [b"b"]),
        None,
        ("default", [b"a"]),
        None,
    ]
    assert messages[2] == ("default", message({b"b": b"2"}).to_pybytes())


def test_stored_messages_are_oldest_first_for_keys_with_several_values(newest: Version) -> None:
    assert is_read_newest_first(newest[1])
    lists = with_families(newest, values=3)
    assert not is_read_newest_first(lists[1])
    keys = [keys_of(part[1]) for part in messages_of(lists) if part is not None]
    assert keys == [[b"a"], [b"b"], [b"c", b"a"]]
    assert [stream["start"] for stream in local_streams_of(lists) or []] == [0, 40, 0]


def test_recreated_column_family_has_no_older_changes(newest: Version) -> None:
    anew = with_families(newest, created_at_version=2)
    assert [part and keys_of(part[1]) for part in messages_of(anew)] == [
        [b"c", b"a"],
        None,
        [b"b"],
        None,
        None,
    ]
    files = local_streams_of(anew) or []
    assert [[state for state, _ in stream["parts"]] for stream in files] == [[0], [0], [-1]]


def test_local_streams_have_ranges_and_checksums(newest: Version) -> None:
    files = local_streams_of(newest) or []
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
    version = store, store.load(CheckpointName(2))
    files = local_streams_of(version) or []
    assert [Path(stream["path"]).name for stream in files] == ["_metadata", f"_metadata.{'1' * 16}"]
    Path(files[1]["path"]).unlink()
    with pytest.raises(CorruptCheckpointError, match="which is missing"):
        local_streams_of(version)


def test_local_streams_is_none_for_other_storage(newest: Version) -> None:
    newest[1].handle.entries[0].state.checksum = None
    assert local_streams_of(newest) is None
    remote = open_store("memory://stored")
    commit(remote, CheckpointName(1), {b"a": b"1"})
    assert local_streams_of((remote, remote.load(CheckpointName(1)))) is None


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

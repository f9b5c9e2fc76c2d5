"""What a version is made of, as it is stored and where it lies."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from spark_statestore.checkpoint.storage import CheckpointName
from spark_statestore.checkpoint.stored import local_streams, starts_with_newest, stored_messages
from spark_statestore.checkpoint.versions import VersionStore
from spark_statestore.errors import CorruptCheckpointError
from spark_statestore.state.changes import CHANGE_SCHEMA
from tests.checkpoint.stores import commit, message, open_store


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

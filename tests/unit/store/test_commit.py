"""Commits: their results, their calls to storage, and their errors."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_statestore import __version__
from spark_statestore.errors import CheckpointIOError
from spark_statestore.formats.metadata import INLINE_STATE_OFFSET, InlineState
from spark_statestore.options import StorageOptions
from spark_statestore.storage import CheckpointName
from spark_statestore.storage.handle_codec import decode_handle
from spark_statestore.store.cleanup import discard_versions
from spark_statestore.store.commit import begin_checkpoint, begin_snapshot
from spark_statestore.store.metadata import encode_metadata
from tests.support.trees import files_below
from tests.unit.store.stores import attempt_id, commit, message, named, open_store, rows_of, snapshot
from tests.unit.store.test_directory import LARGE, grow, v1

# Cost that a commit reports


def test_commit_returns_bytes_and_objects_written(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    parent = None
    for version, put in ((1, {b"a": b"1"}), (2, LARGE), (3, {})):
        before = files_below(tmp_path)
        committed = commit(store, v1(version), put, parent=parent)
        new_files = [data for name, data in files_below(tmp_path).items() if name not in before]
        assert committed.objects_written == len(new_files) == (2 if put == LARGE else 1)
        assert committed.bytes_written == sum(map(len, new_files))
        parent = committed.handle
        assert len(decode_handle(committed.encoded_handle, store.context).entries) == len(parent.entries)


def test_commit_that_replaces_metadata_counts_the_copies(tmp_path: Path) -> None:
    store, own_id = open_store(tmp_path), attempt_id()
    commit(store, v1(1), {b"a": b"1"})
    assert commit(store, v1(1), {b"a": b"2"}, by=own_id).objects_written == 3
    before = files_below(tmp_path)
    # The same attempt once more changes nothing.
    assert commit(store, v1(1), {b"a": b"2"}, by=own_id).objects_written == 1
    assert files_below(tmp_path) == before


def test_commit_metadata_has_parent_time_and_package_version(tmp_path: Path) -> None:
    store, own_id = open_store(tmp_path), attempt_id()
    first = commit(store, v1(1), {b"a": b"1"}, by=own_id).handle
    pending = begin_checkpoint(store, v1(2), attempt_id(), named())
    pending.write(0, message(LARGE))
    committed = pending.publish(first, own_id, None)
    metadata = store.load(v1(2))
    assert metadata.parent_attempt_id == own_id
    assert metadata.written_by == __version__
    assert isinstance(metadata.created_ms, int)
    assert abs(metadata.created_ms - time.time() * 1000) < 60_000
    # The state is in a file, and the metadata is nothing but metadata.
    assert (tmp_path / "chk-2" / "_metadata").read_bytes() == bytes(
        encode_metadata(metadata, InlineState(), committed.encoded_handle)
    )


def test_write_encoded_of_many_batches_writes_one_object(tmp_path: Path) -> None:
    pending = begin_checkpoint(open_store(tmp_path, StorageOptions()), v1(1), attempt_id(), named())
    rows = {bytes([i]): bytes([i]) * 100_000 for i in range(100)}
    encoded = [message({key: value}) for key, value in rows.items()]
    pending.write_encoded(("default", batch, zlib.crc32(batch)) for batch in encoded)
    committed = pending.publish(None, None, None)
    ((name, data),) = files_below(tmp_path).items()
    assert (name, committed.objects_written, committed.bytes_written) == ("chk-1/_metadata", 1, len(data))
    assert rows_of(open_store(tmp_path), v1(1)) == rows


def test_commit_compresses_according_to_the_option(tmp_path: Path) -> None:
    sizes = {}
    for codec in (None, "zstd"):
        directory = tmp_path / str(codec)
        store = open_store(directory, StorageOptions(file_state_threshold=0, compression=codec))
        commit(store, v1(1), LARGE)
        snapshot(store, 1, LARGE)
        sizes[codec] = [path.stat().st_size for path in (directory / "shared").iterdir()]
    assert min(sizes[None]) > 2000
    assert max(sizes["zstd"]) < 1500


# Calls of the storage


def test_commit_and_cleanup_list_nothing_in_steady_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, own_id = open_store(tmp_path), attempt_id()
    third = grow(store, 3, by=own_id)
    discard_versions(store, v1(3), own_id, 1, 0)
    calls: list[tuple[object, ...]] = []

    def noting(call: Callable[..., Any]) -> Callable[..., Any]:
        def record(*args: object, **options: bool) -> Any:
            calls.append((call.__name__, *args))
            return call(*args, **options)

        return record

    for name in ("list_files", "make_directory", "read"):
        monkeypatch.setattr(store.files, name, noting(getattr(store.files, name)))
    commit(store, v1(4), {b"k4": b"v"}, parent=third, by=own_id)
    assert calls == [("make_directory", str(tmp_path / "chk-4"))]
    calls.clear()
    for version in (2, 3):
        discard_versions(store, v1(4), own_id, version, 0)
    # One read of the attempt id of each version that could have been replaced, not of the whole metadata.
    look = ("read", str(tmp_path / "chk-4" / "_metadata"), 0, INLINE_STATE_OFFSET)
    assert calls == [look] * 3


def test_snapshot_without_rows_writes_no_file(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    first = commit(store, v1(1), {b"a": b"1"}).handle
    second = commit(store, v1(2), {}, [b"a"], parent=first).handle
    base = begin_snapshot(store, 2, named()).finish()
    assert not any((tmp_path / "shared").iterdir())
    chain = commit(store, v1(3), {b"b": b"3"}, parent=second, base=base).handle
    assert chain.base_version == 2
    assert rows_of(open_store(tmp_path), v1(3)) == {b"b": b"3"}


def test_memory_storage_with_a_directory_keeps_the_last_attempt(tmp_path: Path) -> None:
    options = StorageOptions(storage="memory", checkpoints_dir="given")
    first = commit(open_store(tmp_path, options), v1(1), {b"a": b"first"}).handle
    store = open_store(tmp_path, options)
    commit(store, v1(1), {b"a": b"second"})
    commit(store, v1(2), {b"b": b"2"}, parent=first)
    assert rows_of(open_store(tmp_path, options), v1(1)) == {b"a": b"second"}
    assert rows_of(open_store(tmp_path, options), v1(2)) == {b"a": b"first", b"b": b"2"}


# What goes wrong


def test_commit_rewrites_a_truncated_copy_of_metadata(tmp_path: Path) -> None:
    store, own_id, other_id = open_store(tmp_path), attempt_id(), attempt_id()
    commit(store, v1(1), {b"a": b"first"}, by=other_id)
    whole = (tmp_path / "chk-1" / "_metadata").read_bytes()
    for by in (own_id, other_id):
        (tmp_path / "chk-1" / f"_metadata.{by}").write_bytes(b"a part")
    commit(store, v1(1), {b"a": b"second"}, by=own_id)
    assert (tmp_path / "chk-1" / f"_metadata.{other_id}").read_bytes() == whole
    metadata = (tmp_path / "chk-1" / "_metadata").read_bytes()
    assert (tmp_path / "chk-1" / f"_metadata.{own_id}").read_bytes() == metadata


def test_commit_error_of_a_failed_replacement_names_the_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    commit(store, v1(1), {b"a": b"1"})

    def refuse(path: str, data: bytes) -> None:
        raise PermissionError(f"not {path}")

    monkeypatch.setattr(store.files, "replace", refuse)
    with pytest.raises(CheckpointIOError, match=rf"version 1 at .*{tmp_path}/chk-1 cannot be written: not /"):
        commit(store, v1(1), {b"a": b"2"})


def test_abandon_keeps_files_of_others(tmp_path: Path) -> None:
    store, own_id = open_store(tmp_path), attempt_id()
    pending = begin_checkpoint(store, CheckpointName(1, own_id), own_id, named())
    (tmp_path / f"chk-1_{own_id}" / "notes").write_bytes(b"mine")
    pending.abandon()
    assert files_below(tmp_path) == {f"chk-1_{own_id}/notes": b"mine"}

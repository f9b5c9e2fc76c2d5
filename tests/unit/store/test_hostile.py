"""Checkpoints that an attacker could write are read or refused.

No other file is accessed, and memory is bounded.
"""

from __future__ import annotations

import os
import secrets
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_statestore.errors import (
    CheckpointError,
    CheckpointIOError,
    CorruptCheckpointError,
)
from spark_statestore.formats.change_batches import CHANGE_SCHEMA
from spark_statestore.formats.messages import message_layout
from spark_statestore.formats.metadata import decode_object, encode_object
from spark_statestore.operator_state.stream_format import Reader
from spark_statestore.options import StorageOptions
from spark_statestore.storage import CheckpointName
from spark_statestore.storage.handle_codec import HANDLE_SCHEMA
from spark_statestore.storage.stream_handles import ByteStreamStateHandle
from spark_statestore.store.changelog import ChangeStreamWriter, read_changes
from spark_statestore.store.cleanup import discard_versions
from tests.fuzz.targets import reencoded
from tests.support.trees import files_below
from tests.unit.damaged_bytes import encoded
from tests.unit.storage.handles import state_in
from tests.unit.store.stores import commit, message, open_store, rows_of

IN_FILES = StorageOptions(file_state_threshold=0, compression=None)


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    """A store of two versions, whose changes are in files, beside a file that is none of its business."""
    directory = tmp_path / "state" / "0" / "3"
    directory.mkdir(parents=True)
    store = open_store(directory, IN_FILES)
    first = commit(store, CheckpointName(1), {b"a": b"1"})
    commit(store, CheckpointName(2), {b"b": b"2"}, parent=first.handle)
    (tmp_path / "victim").write_bytes(next((directory / "shared").iterdir()).read_bytes())
    return directory


def rewrite(path: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    """Change the rows of the handle in a version's metadata, as an attacker who knows the format does."""
    data = path.read_bytes()
    metadata_object = decode_object(data, "it")
    rows = pa.ipc.read_record_batch(pa.py_buffer(metadata_object.handles[0]), HANDLE_SCHEMA).to_pylist()
    change(rows)
    handle = pa.Table.from_pylist(rows, schema=HANDLE_SCHEMA).combine_chunks().to_batches()[0].serialize()
    path.write_bytes(
        bytes(
            encode_object(
                metadata_object.kind, metadata_object.attempt_id, metadata_object.properties, [bytes(handle)]
            )
        )
    )


def leading_to(
    path: str, kind: int = 3, attempt_id: str | None = None
) -> Callable[[list[dict[str, Any]]], None]:
    def change(rows: list[dict[str, Any]]) -> None:
        (row,) = [row for row in rows if row["kind"] == 6 and row["version"] == 2]
        row.update(
            {"stream": kind, "path": path, "attempt_id": attempt_id, "start": 40 if kind == 4 else None}
        )

    return change


@pytest.mark.parametrize(
    ("path", "kind", "attempt_id"),
    [
        ("{victim}", 3, None),
        ("../../../victim", 3, None),
        ("shared/../../../../victim", 3, None),
        ("shared/./x", 3, None),
        ("shared//x", 3, None),
        ("shared/x?versionId=1", 3, None),
        ("shared/*", 3, None),
        ("shared/x\0y", 3, None),
        ("file:{victim}", 3, None),
        ("{victim}", 4, "0123456789abcdef"),
        ("chk-1/_metadata", 4, "../../../../victim"),
        ("chk-1/_metadata", 4, "x/../../../../../victim"),
    ],
)
def test_metadata_with_foreign_paths_is_refused_and_nothing_is_removed(
    store_path: Path, tmp_path: Path, path: str, kind: int, attempt_id: str | None
) -> None:
    victim = tmp_path / "victim"
    rewrite(store_path / "chk-2" / "_metadata", leading_to(path.format(victim=victim), kind, attempt_id))
    (store_path / "chk-1" / "_metadata.x").mkdir()
    before = files_below(tmp_path)
    store = open_store(store_path)
    with pytest.raises(
        CorruptCheckpointError, match=r"version 2 at .*/chk-2.*(outside of that|is no attempt id)"
    ):
        rows_of(store, CheckpointName(2))
    # A cleanup that reads it discards nothing.
    attempt = decode_object((store_path / "chk-2/_metadata").read_bytes(), "").attempt_id
    with pytest.raises(CheckpointError):
        discard_versions(store, CheckpointName(2), attempt, 2, 0)
    after = {path: data for path, data in files_below(tmp_path).items() if "_holds" not in path}
    assert after == before


@pytest.mark.parametrize("where", ["file", "directory", "metadata"])
def test_load_refuses_a_symbolic_link_in_the_store(store_path: Path, tmp_path: Path, where: str) -> None:
    shared = store_path / "shared"
    elsewhere = tmp_path / "elsewhere"
    if where == "directory":
        shared.rename(elsewhere)
        shared.symlink_to(elsewhere)
    elif where == "file":
        stream = max(shared.iterdir(), key=lambda path: path.name)
        stream.rename(elsewhere)
        stream.symlink_to(elsewhere)
    else:
        inline = store_path.parent / "4"
        store = open_store(inline)
        first = commit(store, CheckpointName(1), {b"a": b"1"})
        commit(store, CheckpointName(2), {b"b": b"2"}, parent=first.handle)
        (inline / "chk-1").rename(elsewhere)
        (inline / "chk-1").symlink_to(elsewhere)
        store_path = inline
    with pytest.raises(CorruptCheckpointError, match="or gets there by a link"):
        rows_of(open_store(store_path), CheckpointName(2))


def test_load_follows_a_symbolic_link_to_the_checkpoint(store_path: Path, tmp_path: Path) -> None:
    store_path.parent.parent.rename(tmp_path / "larger-disk")
    (tmp_path / "state").symlink_to(tmp_path / "larger-disk")
    assert rows_of(open_store(store_path), CheckpointName(2)) == {b"a": b"1", b"b": b"2"}


@pytest.mark.parametrize("link", ["shared", "chk-3"])
def test_commit_refuses_to_write_through_a_symbolic_link(store_path: Path, tmp_path: Path, link: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if (store_path / link).exists():
        (store_path / link).rename(tmp_path / "was")
    (store_path / link).symlink_to(elsewhere)
    with pytest.raises(CheckpointIOError, match=f"cannot be written: .*{link} is a link"):
        commit(open_store(store_path, IN_FILES), CheckpointName(3), {b"c": b"3"})
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("where", ["metadata", "stream"])
def test_load_refuses_a_pipe_instead_of_blocking(store_path: Path, where: str) -> None:
    path = store_path / "chk-2/_metadata"
    if where == "stream":
        path = max((store_path / "shared").iterdir(), key=lambda path: path.name)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CheckpointError, match=r"not a plain file|or gets there by a link"):
        rows_of(open_store(store_path), CheckpointName(2))


# Sizes


LIMITED = r"""
import re, resource, sys
from pathlib import Path
from spark_statestore.storage import CheckpointName
from spark_statestore.errors import CheckpointError
from tests.unit.store.stores import open_store, rows_of
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
try:
    rows_of(open_store(Path(sys.argv[1])), CheckpointName(2))
except CheckpointError as error:
    print(type(error).__name__, error)
# Not ru_maxrss, which begins with what the process that forked this one had.
print(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
"""


def limited(store_path: Path) -> tuple[str, int]:
    """Load with little memory; return the error and the peak memory in KiB."""
    process = subprocess.run(
        [sys.executable, "-c", LIMITED, str(store_path)], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    *text, most = process.stdout.splitlines()
    return "\n".join(text), int(most)


def huge_file(store_path: Path) -> None:
    os.truncate(store_path / "chk-2/_metadata", 1 << 40)


def huge_and_nothing(store_path: Path) -> None:
    (store_path / "chk-2/_metadata").write_bytes(b"")
    huge_file(store_path)


def declares_a_huge_size(store_path: Path) -> None:
    path = store_path / "chk-2/_metadata"
    data = bytearray(path.read_bytes())
    struct.pack_into("<Q", data, 32, 1 << 40)
    path.write_bytes(data)
    huge_file(store_path)


def huge_stream(store_path: Path) -> None:
    rewrite(
        store_path / "chk-2/_metadata", lambda rows: [row.update(size=1 << 62) for row in rows if row["size"]]
    )


def body_that_inflates(store_path: Path) -> None:
    path = store_path / "chk-2/_metadata"
    path.write_bytes(reencoded(bytes(80 << 20), path.read_bytes()))


def properties_that_inflate(store_path: Path) -> None:
    path = store_path / "chk-2/_metadata"
    text = b'{"a":[' + b"[]," * (6 << 20) + b"[]]}"
    path.write_bytes(reencoded(struct.pack("<2I", len(text), 0) + text, path.read_bytes()))


@pytest.mark.parametrize(
    "make",
    [
        huge_file,
        huge_and_nothing,
        declares_a_huge_size,
        huge_stream,
        body_that_inflates,
        properties_that_inflate,
    ],
)
def test_load_allocates_no_memory_for_forged_sizes(store_path: Path, make: Callable[[Path], None]) -> None:
    make(store_path)
    text, most = limited(store_path)
    assert text.startswith("CorruptCheckpointError"), text
    assert most < 400 << 10


def compressed(claim: int) -> bytes:
    """Return a message of changes with a buffer that declares so many bytes."""
    sound = encoded(pa.ipc.read_record_batch(message({b"k" * 100: b"v" * 4000}), CHANGE_SCHEMA), "zstd")
    at = sound.rindex(struct.pack("<q", 4000))
    return sound[:at] + struct.pack("<q", claim) + sound[at + 8 :]


@pytest.mark.parametrize("claim", [1 << 33, 1 << 62, -2, -(1 << 62)])
def test_read_batch_refuses_an_impossible_compression_ratio_before_allocating(
    claim: int,
) -> None:
    allocated = pa.total_allocated_bytes()
    with pytest.raises(pa.ArrowInvalid, match="that declares"):
        message_layout(pa.py_buffer(compressed(claim)))
    assert pa.total_allocated_bytes() - allocated < 1 << 20
    stream = ByteStreamStateHandle("s", b"\x89SSTS\r\n\x1a\x01\0\0\0\0\0\0\0" + compressed(claim))
    with pytest.raises(CorruptCheckpointError, match="unreadable batch at byte 16"):
        list(read_changes(state_in(stream, 16), "it"))


def test_read_batch_refuses_more_than_two_gigabytes_before_allocating() -> None:
    value = secrets.token_bytes(70_000)
    sound = encoded(pa.ipc.read_record_batch(message({b"k": value}), CHANGE_SCHEMA), "zstd")
    at = sound.rindex(struct.pack("<q", len(value)))
    assert message_layout(pa.py_buffer(sound)).uncompressed_size > len(value)
    # So many compressed bytes could decompress to that size.
    large = sound[:at] + struct.pack("<q", 1 << 31) + sound[at + 8 :]
    allocated = pa.total_allocated_bytes()
    with pytest.raises(pa.ArrowInvalid, match=r"a batch of 21474\d+ bytes"):
        message_layout(pa.py_buffer(large))
    assert pa.total_allocated_bytes() - allocated < 1 << 20


def test_read_batch_refuses_offsets_that_overflow() -> None:
    # Lengths that are all the same, modulo 2**32, of bytes that are not there.
    rows, width = 80, (4 * (1 << 32) + 16) // 80
    ends = [((n * width) + (1 << 31)) % (1 << 32) - (1 << 31) for n in range(rows + 1)]
    assert ends[-1] == 16
    offsets = pa.py_buffer(struct.pack(f"<{rows + 1}i", *ends))
    arrays = [
        pa.array([0] * rows, pa.uint8()),
        pa.Array.from_buffers(pa.binary(), rows, [None, offsets, pa.py_buffer(bytes(16))]),
        pa.array([b"12345678"] * rows),
    ]
    batch = pa.record_batch(arrays, schema=CHANGE_SCHEMA).serialize()
    assert batch.size > 1024
    with pytest.raises(pa.ArrowInvalid):
        ChangeStreamWriter(None, "zstd").write("default", batch)  # type: ignore[arg-type]


def test_restore_refuses_overlapping_elements() -> None:
    # Offsets that all lead to one large element would make a large list of a small stream.
    reader = Reader(struct.pack("<I", 100) + bytes(100), "a stream")
    assert reader.element(0, 1) == (0, bytes(100))
    with pytest.raises(CorruptCheckpointError, match="overlapping elements"):
        reader.element(0, 1)


def test_encode_object_refuses_metadata_beyond_the_limits() -> None:
    with pytest.raises(CheckpointIOError, match="exceeds the limits of 67108864 and 16777216 bytes"):
        encode_object(0, "0" * 16, {"a": "x" * (17 << 20)}, [])  # type: ignore[arg-type]

"""A checkpoint that somebody else could write: it is read, or refused, and nothing outside of it is touched."""

from __future__ import annotations

import json
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

from spark_statestore.checkpoint.metadata.format import decode_object, encode_object
from spark_statestore.checkpoint.query.checkpoint import QueryCheckpoint
from spark_statestore.checkpoint.storage import CheckpointName
from spark_statestore.errors import (
    CheckpointError,
    CheckpointIOError,
    CorruptCheckpointError,
)
from spark_statestore.options import StorageOptions
from spark_statestore.state.change_batches import CHANGE_SCHEMA
from spark_statestore.state.changes import ChangeStreamWriter, parts_of, read_changes
from spark_statestore.state.handles import OperatorStreamStateHandle, StateMetaInfo
from spark_statestore.state.handles.codec import HANDLE_SCHEMA
from spark_statestore.state.handles.memory import ByteStreamStateHandle
from spark_statestore.state.messages import shape_of
from spark_statestore.state.operator.format import Reader
from tests.checkpoint.stores import commit, message, open_store, rows_of
from tests.fuzz.targets import resealed
from tests.state.damage import encoded
from tests.trees import files_below

IN_FILES = StorageOptions(file_state_threshold=0, compression=None)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store of two versions, whose changes are in files, beside a file that is none of its business."""
    directory = tmp_path / "state" / "0" / "3"
    directory.mkdir(parents=True)
    store = open_store(directory, IN_FILES)
    first = commit(store, CheckpointName(1), {b"a": b"1"})
    commit(store, CheckpointName(2), {b"b": b"2"}, parent=first.handle)
    (tmp_path / "victim").write_bytes(next((directory / "shared").iterdir()).read_bytes())
    return directory


def rewrite(path: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    """Change the rows of the handle in a version's metadata, as one who knows the format does."""
    data = path.read_bytes()
    found = decode_object(data, "it")
    rows = pa.ipc.read_record_batch(pa.py_buffer(found.handles[0]), HANDLE_SCHEMA).to_pylist()
    change(rows)
    handle = pa.Table.from_pylist(rows, schema=HANDLE_SCHEMA).combine_chunks().to_batches()[0].serialize()
    path.write_bytes(bytes(encode_object(found.kind, found.attempt, found.properties, [bytes(handle)])))


def leading_to(path: str, kind: int = 3, owner: str | None = None) -> Callable[[list[dict[str, Any]]], None]:
    def change(rows: list[dict[str, Any]]) -> None:
        (row,) = [row for row in rows if row["kind"] == 6 and row["version"] == 2]
        row.update({"stream": kind, "path": path, "owner": owner, "start": 40 if kind == 4 else None})

    return change


@pytest.mark.parametrize(
    ("path", "kind", "owner"),
    [
        ("{victim}", 2, None),
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
def test_metadata_that_leads_elsewhere_has_nothing_read_and_nothing_removed(
    place: Path, tmp_path: Path, path: str, kind: int, owner: str | None
) -> None:
    victim = tmp_path / "victim"
    rewrite(place / "chk-2" / "_metadata", leading_to(path.format(victim=victim), kind, owner))
    (place / "chk-1" / "_metadata.x").mkdir()
    before = files_below(tmp_path)
    store = open_store(place)
    with pytest.raises(
        CorruptCheckpointError, match=r"version 2 at .*/chk-2.*(outside of that|names no attempt)"
    ):
        rows_of(store, CheckpointName(2))
    # A clean-up that has to look at it discards nothing.
    with pytest.raises(CheckpointError):
        store.cleanup(
            CheckpointName(2), decode_object((place / "chk-2/_metadata").read_bytes(), "").attempt, 2, 0
        )
    after = {path: data for path, data in files_below(tmp_path).items() if "_pins" not in path}
    assert after == before


@pytest.mark.parametrize("where", ["file", "directory", "metadata"])
def test_a_link_inside_of_a_store_is_not_followed(place: Path, tmp_path: Path, where: str) -> None:
    shared = place / "shared"
    elsewhere = tmp_path / "elsewhere"
    if where == "directory":
        shared.rename(elsewhere)
        shared.symlink_to(elsewhere)
    elif where == "file":
        stream = max(shared.iterdir(), key=lambda path: path.name)
        stream.rename(elsewhere)
        stream.symlink_to(elsewhere)
    else:
        inline = place.parent / "4"
        store = open_store(inline)
        first = commit(store, CheckpointName(1), {b"a": b"1"})
        commit(store, CheckpointName(2), {b"b": b"2"}, parent=first.handle)
        (inline / "chk-1").rename(elsewhere)
        (inline / "chk-1").symlink_to(elsewhere)
        place = inline
    with pytest.raises(CorruptCheckpointError, match="or gets there by a link"):
        rows_of(open_store(place), CheckpointName(2))


def test_a_checkpoint_may_be_reached_by_a_link(place: Path, tmp_path: Path) -> None:
    place.parent.parent.rename(tmp_path / "larger-disk")
    (tmp_path / "state").symlink_to(tmp_path / "larger-disk")
    assert rows_of(open_store(place), CheckpointName(2)) == {b"a": b"1", b"b": b"2"}


@pytest.mark.parametrize("link", ["shared", "chk-3"])
def test_nothing_is_written_through_a_link(place: Path, tmp_path: Path, link: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if (place / link).exists():
        (place / link).rename(tmp_path / "was")
    (place / link).symlink_to(elsewhere)
    with pytest.raises(CheckpointIOError, match=f"cannot be written: .*{link} is a link"):
        commit(open_store(place, IN_FILES), CheckpointName(3), {b"c": b"3"})
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("where", ["metadata", "stream"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(place: Path, where: str) -> None:
    path = place / "chk-2/_metadata"
    if where == "stream":
        path = max((place / "shared").iterdir(), key=lambda path: path.name)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CheckpointError, match=r"not a plain file|or gets there by a link"):
        rows_of(open_store(place), CheckpointName(2))


# Sizes


LIMITED = r"""
import re, resource, sys
from pathlib import Path
from spark_statestore.checkpoint.storage import CheckpointName
from spark_statestore.errors import CheckpointError
from tests.checkpoint.stores import open_store, rows_of
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
try:
    rows_of(open_store(Path(sys.argv[1])), CheckpointName(2))
except CheckpointError as error:
    print(type(error).__name__, error)
# Not ru_maxrss, which begins with what the process that forked this one had.
print(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
"""


def limited(place: Path) -> tuple[str, int]:
    """What a load in little memory raises, and how much it took at most, in KiB."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(place)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    *said, most = done.stdout.splitlines()
    return "\n".join(said), int(most)


def huge_file(place: Path) -> None:
    os.truncate(place / "chk-2/_metadata", 1 << 40)


def huge_and_nothing(place: Path) -> None:
    (place / "chk-2/_metadata").write_bytes(b"")
    huge_file(place)


def says_it_is_huge(place: Path) -> None:
    path = place / "chk-2/_metadata"
    data = bytearray(path.read_bytes())
    struct.pack_into("<Q", data, 32, 1 << 40)
    path.write_bytes(data)
    huge_file(place)


def huge_stream(place: Path) -> None:
    rewrite(place / "chk-2/_metadata", lambda rows: [row.update(size=1 << 62) for row in rows if row["size"]])


def body_that_inflates(place: Path) -> None:
    path = place / "chk-2/_metadata"
    path.write_bytes(resealed(bytes(80 << 20), path.read_bytes()))


def properties_that_inflate(place: Path) -> None:
    path = place / "chk-2/_metadata"
    text = b'{"a":[' + b"[]," * (6 << 20) + b"[]]}"
    path.write_bytes(resealed(struct.pack("<2I", len(text), 0) + text, path.read_bytes()))


@pytest.mark.parametrize(
    "make",
    [huge_file, huge_and_nothing, says_it_is_huge, huge_stream, body_that_inflates, properties_that_inflate],
)
def test_what_says_it_is_huge_takes_no_memory(place: Path, make: Callable[[Path], None]) -> None:
    make(place)
    said, most = limited(place)
    assert said.startswith("CorruptCheckpointError"), said
    assert most < 400 << 10


def compressed(claim: int, codec: str) -> bytes:
    """A message of changes with a buffer that says it stands for so many bytes."""
    sound = encoded(pa.ipc.read_record_batch(message({b"k" * 100: b"v" * 4000}), CHANGE_SCHEMA), codec)
    at = sound.rindex(struct.pack("<q", 4000))
    return sound[:at] + struct.pack("<q", claim) + sound[at + 8 :]


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("claim", [1 << 33, 1 << 62, -2, -(1 << 62)])
def test_a_buffer_that_cannot_stand_for_what_it_says_is_refused_before_memory_is_taken(
    codec: str, claim: int
) -> None:
    taken = pa.total_allocated_bytes()
    with pytest.raises(pa.ArrowInvalid, match="that is to stand for"):
        shape_of(pa.py_buffer(compressed(claim, codec)))
    assert pa.total_allocated_bytes() - taken < 1 << 20
    stream = ByteStreamStateHandle("s", b"\x89SSTS\r\n\x1a\x03\0\0\0\0\0\0\0" + compressed(claim, codec))
    handle = OperatorStreamStateHandle(
        state_name_to_partition_offsets={"default": StateMetaInfo((16,))}, delegate_state_handle=stream
    )
    with pytest.raises(CorruptCheckpointError, match="unreadable batch at byte 16"):
        list(read_changes(handle, "it"))


def test_a_batch_of_more_than_two_gigabytes_is_refused_before_memory_is_taken() -> None:
    value = secrets.token_bytes(70_000)
    sound = encoded(pa.ipc.read_record_batch(message({b"k": value}), CHANGE_SCHEMA), "zstd")
    at = sound.rindex(struct.pack("<q", len(value)))
    assert shape_of(pa.py_buffer(sound)).plain_bytes > len(value)
    # So many bytes could stand for so much.
    large = sound[:at] + struct.pack("<q", 1 << 31) + sound[at + 8 :]
    taken = pa.total_allocated_bytes()
    with pytest.raises(pa.ArrowInvalid, match=r"a batch of 21474\d+ bytes"):
        shape_of(pa.py_buffer(large))
    assert pa.total_allocated_bytes() - taken < 1 << 20


def test_a_handle_that_is_compressed_is_refused(place: Path) -> None:
    path = place / "chk-2/_metadata"
    found = decode_object(path.read_bytes(), "it")
    batch = pa.ipc.read_record_batch(pa.py_buffer(found.handles[0]), HANDLE_SCHEMA)
    path.write_bytes(
        bytes(encode_object(found.kind, found.attempt, found.properties, [encoded(batch, "zstd")]))
    )
    with pytest.raises(CorruptCheckpointError, match="which such a message never is"):
        rows_of(open_store(place), CheckpointName(2))


@pytest.mark.parametrize("offsets", [(16, 16), (16, 5000), (16, 1 << 60)])
def test_batches_without_bytes_are_refused(offsets: tuple[int, ...]) -> None:
    stream = ByteStreamStateHandle("s", bytes(100))
    handle = OperatorStreamStateHandle(
        state_name_to_partition_offsets={"default": StateMetaInfo(offsets)}, delegate_state_handle=stream
    )
    with pytest.raises(CorruptCheckpointError, match="has a batch without bytes"):
        parts_of(handle, "it")


def test_offsets_that_wrap_around_are_refused_before_a_row_is_copied() -> None:
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


def test_elements_that_lie_over_each_other_are_refused() -> None:
    # Offsets that all lead to one large element would make a large list of a small stream.
    reader = Reader(struct.pack("<I", 100) + bytes(100), "a stream")
    assert reader.element(0, 1) == (0, bytes(100))
    with pytest.raises(CorruptCheckpointError, match="elements that lie over each other"):
        reader.element(0, 1)


def test_types_that_metadata_cannot_have_are_refused(place: Path) -> None:
    path = place / "chk-2/_metadata"
    sound = path.read_bytes()
    found = decode_object(sound, "it")
    wrong: list[tuple[str, Any]] = [
        ("version", "2"),
        ("version", True),
        ("operator", None),
        ("parentAttempt", "x/../../../../victim"),
        ("parentAttempt", "0123456789ABCDEF"),
        ("store", ["default"]),
        ("createdMs", -1),
        ("states", [{"name": {}}]),
        ("states", [found.properties["states"][0] | {"rows": -1}]),
        ("states", [found.properties["states"][0] | {"name": ["a"]}]),
        ("states", [found.properties["states"][0] | {"since": 1.5}]),
        ("states", [found.properties["states"][0] | {"keySchema": None}]),
    ]
    for name, value in wrong:
        properties = found.properties | {name: value}
        path.write_bytes(bytes(encode_object(found.kind, found.attempt, properties, list(found.handles))))
        with pytest.raises(CorruptCheckpointError, match="chk-2"):
            rows_of(open_store(place), CheckpointName(2))


def test_metadata_that_could_not_be_read_again_is_not_written() -> None:
    with pytest.raises(CheckpointIOError, match="at most 67108864 and 16777216 can be read again"):
        encode_object(0, "0" * 16, {"a": "x" * (17 << 20)}, [])  # type: ignore[arg-type]


# Spark's own files of a checkpoint, which restore and clone read


def test_a_query_checkpoint_names_nothing_outside_of_it(tmp_path: Path) -> None:
    checkpoint = QueryCheckpoint(str(tmp_path))
    for names in (("..", "x"), ("state", "../../x"), ("sources", "0/../../../x"), ("a\0b",)):
        with pytest.raises(CorruptCheckpointError, match="leads out of it"):
            checkpoint.path(*names)
    (tmp_path / "metadata").write_text(json.dumps({"id": "../../x"}))
    with pytest.raises(CorruptCheckpointError, match="no id of a query"):
        _ = checkpoint.query_id

"""Changelog streams: round trips, and detection of every kind of damage."""

from __future__ import annotations

import itertools
import random
import struct
import zlib
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from spark_statestore.errors import CorruptCheckpointError, ProtocolError, UnsupportedFormatError
from spark_statestore.files import LocalFileSystem
from spark_statestore.formats.change_batches import CHANGE_SCHEMA, pack, read_change_batch
from spark_statestore.formats.messages import message_layout
from spark_statestore.storage.file_handles import FileStateHandle
from spark_statestore.storage.fs_streams import FsCheckpointStateOutputStream
from spark_statestore.storage.memory_streams import MemoryCheckpointOutputStream
from spark_statestore.storage.operator_handles import OperatorStreamStateHandle
from spark_statestore.storage.stream_handles import ByteStreamStateHandle
from spark_statestore.store.changelog import CHANGE_FORMAT_VERSION, ChangeStreamWriter, compress, read_changes
from tests.unit.damaged_bytes import without_offsets
from tests.unit.storage.handles import state_in
from tests.unit.store.stores import Change, change_batch

keys = st.binary(max_size=6)
changes = st.one_of(
    st.tuples(
        st.just(0),
        keys,
        st.one_of(st.binary(max_size=6), st.integers(0, 255).map(lambda b: bytes([b]) * 900)),
    ),
    st.tuples(st.just(1), keys, st.none()),
)
even_changes = st.one_of(
    st.tuples(st.sampled_from([0, 2]), st.binary(min_size=3, max_size=3), st.binary(min_size=4, max_size=4)),
    st.tuples(st.just(1), st.binary(min_size=3, max_size=3), st.none()),
)
rows_of_a_batch = st.lists(changes, max_size=5) | st.lists(even_changes, max_size=12)
batches = st.lists(st.tuples(st.sampled_from(["default", "timers"]), rows_of_a_batch), max_size=6)


def batch(rows: list[Change]) -> pa.Buffer:
    return change_batch(rows).serialize()


def packed(rows: list[Change]) -> pa.Buffer:
    return pack(read_change_batch(batch(rows), full=True)).serialize()


def write(
    batches: list[tuple[str, list[Change]]], codec: str | None = None
) -> OperatorStreamStateHandle | None:
    writer = ChangeStreamWriter(MemoryCheckpointOutputStream(1 << 30), codec)
    for state, rows in batches:
        writer.write(state, packed(rows))
    return writer.finish()


def read(handle: OperatorStreamStateHandle) -> list[tuple[str, list[Change]]]:
    return [
        (state, [(row["op"], row["key"], row["value"]) for row in rows.to_pylist()])
        for state, rows in read_changes(handle, "here")
    ]


@given(batches, st.sampled_from([None, "zstd"]))
def test_changelog_round_trip(batches: list[tuple[str, list[Change]]], codec: str | None) -> None:
    handle = write(batches, codec)
    if not batches:
        assert handle is None
    else:
        assert handle is not None
        assert read(handle) == batches
        assert handle.checksum == zlib.crc32(handle.as_bytes_if_in_memory())


@pytest.mark.parametrize(
    ("rows", "buffers"),
    [
        ([], 8),
        ([(0, b"key", b"value"), (2, b"new", b"other")], 6),
        ([(0, b"key", b"value"), (0, b"k", b"value")], 8),
        ([(0, b"key", b"value"), (0, b"new", b"v")], 8),
        ([(0, b"", b"value")], 8),
        ([(0, b"key", b"")], 8),
        ([(0, b"key", bytes(16)), (1, b"new", None)], 6),
        ([(0, b"key", bytes(17)), (1, b"new", None)], 8),
    ],
)
def test_pack_drops_offsets_of_equal_lengths(rows: list[Change], buffers: int) -> None:
    message = packed(rows)
    assert message_layout(message).buffers == buffers
    batch = read_change_batch(message, full=True)
    assert batch.schema == CHANGE_SCHEMA
    assert [tuple(row.values()) for row in batch.to_pylist()] == rows


@pytest.mark.parametrize("codec", [None, "zstd"])
@pytest.mark.parametrize(
    ("key", "value", "rows", "message_part"),
    [
        (3, 4, 2, "21 bytes of 2 rows"),
        (4, 3, 2, "21 bytes of 2 rows"),
        (0, 4, 7, "too small"),
        (4, 4, 0, "28 bytes of 0 rows"),
        (3, 4, 29, "too small"),
        (3, 4, -1, "length is negative"),
    ],
)
def test_read_change_batch_refuses_indivisible_lengths(
    codec: str | None, key: int, value: int, rows: int, message_part: str
) -> None:
    message = without_offsets(key, value, rows, codec)
    assert message_layout(message).buffers == 6
    with pytest.raises(pa.ArrowException, match=message_part):
        read_change_batch(message, full=True)


def test_read_change_batch_refuses_another_number_of_buffers() -> None:
    uneven = pa.schema([("op", pa.uint8()), ("key", pa.binary()), ("value", pa.binary(5))])
    for batch in (
        pa.record_batch([[0], [b"key"], [b"value"]], schema=uneven),
        pa.record_batch({"op": [1]}),
        pa.record_batch({name: [b"x"] for name in "abcd"}),
    ):
        message = batch.serialize()
        with pytest.raises(pa.ArrowInvalid, match=rf"in {message_layout(message).buffers} buffers"):
            read_change_batch(message, full=True)


def test_compress_drops_offsets_of_equal_lengths() -> None:
    even = batch([(0, b"%03d" % i, zlib.crc32(b"%d" % i).to_bytes(4, "big") * 4) for i in range(500)])
    small = compress(even, "zstd")
    assert message_layout(small).buffers == 6
    assert small.size < 500 * 16
    assert read_change_batch(small, full=True) == read_change_batch(even, full=True)


def test_compress_keeps_a_message_that_would_not_shrink() -> None:
    assert compress(batch([(0, b"k", b"x" * 5000)]), "zstd").size < 1000
    for value in (b"v", random.Random(1).randbytes(1000)):
        assert compress(batch([(0, b"k", value)]), "zstd").size <= batch([(0, b"k", value)]).size


@pytest.mark.parametrize(
    "junk", [b"", b"junk", b"\xff" * 64, bytes(64), CHANGE_SCHEMA.serialize().to_pybytes()]
)
def test_writer_refuses_a_message_that_is_no_batch(junk: bytes) -> None:
    out = MemoryCheckpointOutputStream(1 << 20)
    with pytest.raises(pa.ArrowException):
        ChangeStreamWriter(out, "zstd").write("default", pa.py_buffer(junk))
    with pytest.raises(ProtocolError, match="changes that cannot be read"):
        ChangeStreamWriter(out, "zstd").write_encoded([("default", pa.py_buffer(junk), zlib.crc32(junk))])
    assert out.get_pos() == 0


@pytest.mark.parametrize("threshold", [0, 1 << 20])
def test_write_encoded_stores_the_batch_with_the_given_checksum(tmp_path: Path, threshold: int) -> None:
    out = FsCheckpointStateOutputStream(LocalFileSystem(), str(tmp_path), 1 << 20, threshold)
    writer = ChangeStreamWriter(out, "zstd")
    batches = [compress(batch([(0, b"k", bytes([i]) * 5000)]), "zstd") for i in range(3)]
    writer.write_encoded(("default", encoded, zlib.crc32(encoded)) for encoded in batches)
    handle = writer.finish()
    with handle.open_input_stream() as stream:
        stored = stream.read()
    assert stored[16:] == b"".join(map(bytes, batches))
    assert handle.checksum == zlib.crc32(stored)
    assert len(read(handle)) == 3


def test_read_detects_a_batch_damaged_before_it_was_written() -> None:
    out = FsCheckpointStateOutputStream(LocalFileSystem(), "/nowhere", 1 << 20, 1 << 20)
    writer = ChangeStreamWriter(out, None)
    encoded = batch([(0, b"k", b"value")])
    writer.write_encoded([("default", encoded, zlib.crc32(bytes(encoded).replace(b"value", b"other")))])
    with pytest.raises(CorruptCheckpointError, match="does not match its checksum"):
        read(writer.finish())


@given(batches, st.sampled_from([None, "zstd"]), st.data())
def test_read_detects_overwritten_bytes(
    batches: list[tuple[str, list[Change]]], codec: str | None, data: st.DataObject
) -> None:
    handle = write(batches or [("default", [])], codec)
    whole = handle.as_bytes_if_in_memory()
    start = data.draw(st.integers(16, len(whole) - 1))
    garbage = data.draw(st.one_of(st.binary(min_size=1, max_size=40), st.integers(1, 40).map(bytes)))
    changed = (whole[:start] + garbage + whole[start + len(garbage) :])[: len(whole)]
    if changed != whole:
        with pytest.raises(CorruptCheckpointError):
            read(damaged(changed, handle))


SAMPLE = write([("default", [(0, b"key", b"value")]), ("timers", [(0, b"t", b"1"), (1, b"u", None)])])


COMPRESSED = write([("default", [(0, b"key", b"value" * 300)]), ("timers", [(1, b"u", None)])], "zstd")


class Damaged(ByteStreamStateHandle):
    """As a file that was cut: the handle remembers the size that was written."""

    state_size = 0


def damaged(data: bytes, sample: OperatorStreamStateHandle = SAMPLE) -> OperatorStreamStateHandle:
    """The sample's handle, with other bytes behind it."""
    stream = Damaged("the stream", data, sample.checksum)
    stream.state_size = sample.state_size
    return OperatorStreamStateHandle(
        state_name_to_partition_offsets=sample.state_name_to_partition_offsets, delegate_state_handle=stream
    )


@pytest.mark.parametrize("sample", [SAMPLE, COMPRESSED], ids=["plain", "zstd"])
def test_read_detects_every_bit_flip(sample: OperatorStreamStateHandle) -> None:
    data = sample.as_bytes_if_in_memory()
    for at, bit in itertools.product(range(len(data)), range(8)):
        changed = bytearray(data)
        changed[at] ^= 1 << bit
        with pytest.raises(CorruptCheckpointError, match="the stream"):
            read(damaged(bytes(changed), sample))


def test_read_detects_every_truncation() -> None:
    data = SAMPLE.as_bytes_if_in_memory()
    assert read(damaged(data)) == read(SAMPLE)
    for length in range(len(data)):
        with pytest.raises(CorruptCheckpointError, match="the stream"):
            read(damaged(data[:length]))
    with pytest.raises(CorruptCheckpointError, match="is longer than"):
        read(damaged(data + b"\0"))


@pytest.mark.parametrize("has_checksum", [True, False])
@pytest.mark.parametrize(
    ("version", "error", "message_part"),
    [
        (7, UnsupportedFormatError, rf"here: .* has stream format 7, .* up to {CHANGE_FORMAT_VERSION}\."),
        (0, CorruptCheckpointError, "unknown format version 0"),
    ],
)
def test_read_refuses_another_format_version(
    version: int, error: type[Exception], message_part: str, has_checksum: bool
) -> None:
    data = SAMPLE.as_bytes_if_in_memory()
    changed = data[:8] + struct.pack("<H", version) + data[10:]
    handle = damaged(changed)
    checksum = zlib.crc32(changed) if has_checksum else None
    handle.delegate_state_handle.checksum = handle.checksum = checksum
    with pytest.raises(error, match=message_part):
        read(handle)


@pytest.mark.parametrize("offsets", [(), (0,), (17,), (16, 16), (16, 5000), (16, 1 << 60)], ids=str)
def test_read_refuses_invalid_offsets(offsets: tuple[int, ...]) -> None:
    stream = ByteStreamStateHandle("s", SAMPLE.as_bytes_if_in_memory())
    with pytest.raises(CorruptCheckpointError, match=r"has no batch at its start|has an empty batch"):
        read(state_in(stream, *offsets))


def test_read_of_a_missing_file_raises_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(state_in(FileStateHandle(LocalFileSystem(), str(tmp_path / "gone"), 100), 16))

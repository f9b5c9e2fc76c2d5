"""Decoding of messages of changes in the JVM: both layouts, intact and damaged."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from spark_statestore.formats.change_batches import CHANGE_SCHEMA, pack, read_change_batch
from spark_statestore.formats.messages import message_layout
from tests.spark.harness import Family, Provider
from tests.spark.test_cold_loads import reading, rows_at, run_batch
from tests.unit.damaged_bytes import encoded, without_offsets

Change = tuple[int, bytes, bytes | None]
Read = Callable[[pa.Buffer | bytes, str | None], list[Change] | None]

codecs = st.sampled_from([None, "zstd"])
even = st.lists(
    st.tuples(st.sampled_from([0, 2]), st.binary(min_size=8, max_size=8), st.binary(min_size=3, max_size=3))
    | st.tuples(st.just(1), st.binary(min_size=8, max_size=8), st.none()),
    max_size=40,
)
uneven = st.lists(
    st.tuples(st.sampled_from([0, 2]), st.binary(max_size=9), st.binary(max_size=9)), max_size=9
)


@pytest.fixture(scope="module")
def decode_in_jvm(spark: Any) -> Read:
    """Return a function that decodes a message in the JVM; None if it is refused."""
    changes_of = reading(spark).changes

    def decode(message: pa.Buffer | bytes, codec: str | None) -> list[Change] | None:
        decoded = changes_of(bytes(message), codec is not None)
        if decoded is None:
            return None
        data, at, changes = bytes(decoded), 0, []
        while at < len(data):
            op = data[at]
            fields = []
            at += 1
            for _ in range(2):
                length = struct.unpack_from(">i", data, at)[0]
                fields.append(data[at + 4 : at + 4 + length])
                at += 4 + length
            changes.append((op, fields[0], None if op == 1 else fields[1]))
        return changes

    return decode


def batch(changes: list[Change]) -> pa.RecordBatch:
    columns = list(zip(*changes, strict=True)) or [[], [], []]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, CHANGE_SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=CHANGE_SCHEMA)


@given(changes=even | uneven, codec=codecs)
def test_decode_reads_both_layouts(decode_in_jvm: Read, changes: list[Change], codec: str | None) -> None:
    for layout in (batch(changes), pack(batch(changes))):
        assert decode_in_jvm(encoded(layout, codec), codec) == changes


@pytest.mark.parametrize("codec", [None, "zstd"])
@pytest.mark.parametrize(
    ("key", "value", "rows"),
    [
        (3, 4, 2),
        (4, 3, 2),
        (0, 4, 7),
        (4, 0, 7),
        (4, 4, 0),
        (3, 4, 8),
        (3, 4, 29),
        (3, 4, -1),
        (3, 4, 1 << 40),
    ],
)
def test_decode_rejects_a_buffer_size_that_is_no_multiple_of_rows(
    decode_in_jvm: Read, codec: str | None, key: int, value: int, rows: int
) -> None:
    assert decode_in_jvm(without_offsets(key, value, 7, codec), codec) is None or 0 not in (key, value)
    assert decode_in_jvm(without_offsets(key, value, rows, codec), codec) is None


def test_decode_rejects_an_unknown_number_of_buffers(decode_in_jvm: Read) -> None:
    changes: list[Change] = [(0, b"key", b"value"), (0, b"k", b"v")]
    message = batch(changes).serialize().to_pybytes()
    assert decode_in_jvm(message, None) == changes
    # The number of the buffers precedes their positions.
    places = struct.pack("<qqqq", 0, 0, 0, len(changes))
    for number in (0, 5, 7, 9):
        damaged = message.replace(struct.pack("<I", 8) + places, struct.pack("<I", number) + places)
        assert damaged != message
        assert decode_in_jvm(damaged, None) is None


@pytest.mark.parametrize("offsets", [(0, 3, 4), (0, 5, 6)], ids=["keys", "values"])
def test_decode_rejects_a_last_offset_behind_its_buffer(
    decode_in_jvm: Read, offsets: tuple[int, ...]
) -> None:
    changes: list[Change] = [(0, b"key", b"value"), (0, b"k", b"v")]
    message = batch(changes).serialize().to_pybytes()
    stored = struct.pack("<iii", *offsets)
    assert message.count(stored) == 1
    for end in (4_096, 1 << 30):
        assert decode_in_jvm(message.replace(stored, struct.pack("<iii", *offsets[:2], end)), None) is None


@settings(max_examples=300)
@given(changes=even, at=st.integers(0, 2**20), byte=st.integers(0, 255))
def test_decode_exposes_no_row_outside_of_a_damaged_message(
    decode_in_jvm: Read, changes: list[Change], at: int, byte: int
) -> None:
    message = bytearray(pack(batch(changes)).serialize())
    message[at % len(message)] = byte
    # It fails if one did.
    decode_in_jvm(message, None)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_commit_writes_no_offsets_if_all_lengths_are_equal(spark: Any, tmp_path: Path, codec: str) -> None:
    options = {
        "backend__compression": codec,
        "backend__fileStateThreshold": "0",
        "minDeltasForSnapshot": "100",
    }
    family = Family()
    writer = Provider(spark, f"file:{tmp_path}", **options)
    # Values of one length; of two; and with a removal, small enough beside the rest not to be a snapshot.
    changed: list[dict[int, int | None]] = [dict.fromkeys(range(n), 40) for n in (100, 6)]
    changed += [{1: 40, 4: 80}, {**dict.fromkeys(range(1, 12), 40), 0: None}]
    streams: list[tuple[Path, int]] = []
    for version, changes in enumerate(changed):
        run_batch(writer, version, family, changes)
        (new,) = set(tmp_path.glob("state/0/0/shared/*")) - {path for path, _ in streams}
        streams.append((new, message_layout(pa.py_buffer(new.read_bytes()[16:])).buffers))
    writer.close()
    assert [buffers for _, buffers in streams] == [6, 6, 8, 6]
    removal = read_change_batch(pa.py_buffer(streams[-1][0].read_bytes()[16:]), full=True)
    assert removal.column("value").null_count == 1
    before = reading(spark).decodedLoads()
    cold = Provider(spark, f"file:{tmp_path}", **options)
    assert len(rows_at(cold, 4)) == 99
    assert reading(spark).decodedLoads() == before
    cold.close()


def test_commit_writes_messages_of_a_few_mebibytes(spark: Any, tmp_path: Path) -> None:
    options = {"backend__compression": "none", "backend__fileStateThreshold": "0"}
    writer = Provider(spark, f"file:{tmp_path}", **options)
    run_batch(writer, 0, Family(), dict.fromkeys(range(12), 1_000_000))
    writer.close()
    (file,) = tmp_path.glob("state/0/0/shared/*")
    messages = pa.BufferReader(file.read_bytes()[16:])
    sizes = []
    while messages.tell() < messages.size():
        sizes.append(pa.ipc.read_message(messages).body.size)
    # A row may be the first one beyond 4 MiB.
    assert max(sizes) < (4 << 20) + 1_001_000
    assert sum(sizes) > 12_000_000

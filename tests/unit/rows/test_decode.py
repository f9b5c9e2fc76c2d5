"""Tests of `decode_rows` with malformed bytes and selected columns; test_encode.py has all values."""

from __future__ import annotations

import contextlib
import json
import struct

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from spark_statestore.errors import CorruptCheckpointError, OptionError, UnsupportedFormatError
from spark_statestore.rows import decode_rows
from tests.support.effort import EFFORT
from tests.unit.query.stored_query import schema
from tests.unit.rows.encoder import encode, encode_row, rows

# Microseconds that are whole nanoseconds of 64 bits.
MOST_MICROS = (2**63 - 1) // 1000


@given(st.data())
@settings(max_examples=150 * EFFORT)
def test_decode_rows_of_damaged_bytes_refuses_or_returns(data: st.DataObject) -> None:
    row = data.draw(rows.filter(lambda row: row.arrow.num_fields))
    values = data.draw(st.lists(row.values, min_size=1, max_size=4))
    damaged = [bytearray(encode(row.node, value)) for value in values]
    for _ in range(data.draw(st.integers(1, 3))):
        victim = damaged[data.draw(st.integers(0, len(damaged) - 1))]
        if victim and data.draw(st.booleans()):
            victim[data.draw(st.integers(0, len(victim) - 1))] = data.draw(
                st.sampled_from([0, 1, 8, 127, 128, 255])
            )
        elif victim:
            del victim[data.draw(st.integers(0, len(victim) - 1)) :]
    text = json.dumps(row.node)
    with contextlib.suppress(CorruptCheckpointError):
        column = decode_rows(pa.array(map(bytes, damaged), pa.binary()), text)
        # The digits of a decimal are not validated; everything else is.
        assert "decimal" in text or column.validate(full=True) is None


def test_decode_rows_of_chunks_and_slices() -> None:
    values = [(number, "x" * number) for number in range(9)]
    all_rows = pa.array([encode_row(["long", "string"], value) for value in values], pa.binary())
    text = schema(a="long", b="string")
    expected = [{"a": a, "b": b} for a, b in values]
    assert decode_rows(all_rows[2:5], text).to_pylist() == expected[2:5]
    chunked = decode_rows(pa.chunked_array([all_rows[:4], all_rows[4:4], all_rows[7:]]), text)
    assert chunked.to_pylist() == expected[:4] + expected[7:]
    assert chunked.num_chunks == 3
    none = decode_rows(pa.chunked_array([], pa.binary()), text)
    assert (none.type, len(none)) == (chunked.type, 0)
    # Where the bytes do not start at a whole word of memory.
    odd = pa.py_buffer(b"x" + all_rows.buffers()[2].to_pybytes()).slice(1)
    moved = pa.Array.from_buffers(pa.binary(), 9, [None, all_rows.buffers()[1], odd])
    assert decode_rows(moved, text).to_pylist() == expected


def in_row(far: bytes) -> pa.BinaryArray:
    """A row with one field, which has these bytes."""
    return pa.array([struct.pack("<qII", 0, len(far), 16) + far], pa.binary())


STRINGS = {"type": "array", "elementType": "string", "containsNull": True}
PAIRS = {"type": "map", "keyType": "long", "valueType": "long", "valueContainsNull": True}


def test_decode_rows_of_values_in_any_order() -> None:
    # The second string was written before the first one.
    far = struct.pack("<qqIIII", 2, 0, 3, 40, 5, 32) + b"later".ljust(8, b"\0") + b"sun".ljust(8, b"\0")
    assert decode_rows(in_row(far), schema(a=STRINGS)).to_pylist() == [{"a": ["sun", "later"]}]
    shared = struct.pack("<qqIIII", 2, 0, 3, 32, 5, 32) + b"later".ljust(8, b"\0")
    with pytest.raises(CorruptCheckpointError, match="belong to another value too"):
        decode_rows(in_row(shared), schema(a=STRINGS))


def array_of(*numbers: int, nulls: int = 0) -> bytes:
    return struct.pack(f"<qq{len(numbers)}q", len(numbers), nulls, *numbers)


def test_decode_rows_refuses_arrays_and_maps_beyond_their_row() -> None:
    good = struct.pack("<q", 32) + array_of(1, 2) + array_of(3, 4)
    assert decode_rows(in_row(good), schema(a=PAIRS)).to_pylist() == [{"a": [(1, 3), (2, 4)]}]
    wrong = {
        "2 keys and 1 values": struct.pack("<q", 32) + array_of(1, 2) + array_of(3),
        "null key": struct.pack("<q", 32) + array_of(1, 2, nulls=2) + array_of(3, 4),
        "do not fit into it": struct.pack("<q", 72) + array_of(1, 2) + array_of(3, 4),
        "shorter than its elements": struct.pack("<q", 32) + array_of(1, 2) + array_of(3, 4)[:-8],
        "wrong number of elements": struct.pack("<q", 32) + array_of(1, 2) + struct.pack("<qq", -1, 0),
    }
    for expected, far in wrong.items():
        with pytest.raises(CorruptCheckpointError, match=expected):
            decode_rows(in_row(far), schema(a=PAIRS))


def test_decode_rows_refuses_shared_elements_before_allocation() -> None:
    # Each element of the outer array is the same inner one: a few KiB would be millions of numbers.
    count = 2_000
    bitmap = bytes(8 * ((count + 63) // 64))
    inner = struct.pack("<q", count) + bitmap + bytes(8 * count)
    at = 8 + len(bitmap) + 8 * count
    outer = struct.pack("<q", count) + bitmap + struct.pack("<q", at << 32 | len(inner)) * count + inner
    row = bytes(8) + struct.pack("<q", 16 << 32 | len(outer)) + outer
    numbers = {"type": "array", "elementType": "long", "containsNull": True}
    nested = schema(a={"type": "array", "elementType": numbers, "containsNull": True})
    with pytest.raises(CorruptCheckpointError, match="elements that belong to another value too"):
        decode_rows(pa.array([row]), nested)


def test_decode_rows_replaces_invalid_utf8_as_spark_does() -> None:
    texts = [b"\xff", "é".encode(), b"a\xc3", None]
    rows = pa.array([encode_row(["binary"], [text]) for text in texts], pa.binary())
    assert decode_rows(rows, schema(a="string")).field("a").to_pylist() == ["\ufffd", "é", "a\ufffd", None]
    assert decode_rows(rows, schema(a="binary")).field("a").to_pylist() == texts


INNER = {
    "type": "struct",
    "fields": [{"name": "b.c", "type": "long"}, {"name": "d", "type": "geoid(4326)"}],
}


def test_decode_rows_decodes_selected_columns() -> None:
    text = schema(a="string", s=INNER, z="long")
    rows = pa.array([encode_row(["string", "long", "long"], ["x", None, 3])], pa.binary())
    assert decode_rows(rows, text, ["z", "a"]).to_pylist() == [{"z": 3, "a": "x"}]
    assert decode_rows(rows, text, ["s.b.c"]).to_pylist() == [{"s": None}]
    assert decode_rows(rows, text, ["s.b.c"]).type == pa.struct([("s", pa.struct([("b.c", pa.int64())]))])
    assert decode_rows(rows, text, []).to_pylist() == [{}]
    for wrong in ("b", "a.b", "s.b", "z.a", ""):
        with pytest.raises(OptionError, match="there is no column"):
            decode_rows(rows, text, [wrong])


def test_decode_rows_refuses_unknown_types_and_columns_by_name() -> None:
    rows = pa.array([encode_row(["long"], [1])], pa.binary())
    for node in ("geoid(4326)", INNER, {"type": "array", "elementType": INNER}, {"type": "geo"}):
        with pytest.raises(UnsupportedFormatError, match=r"'geo.*cannot decode.*columns="):
            decode_rows(rows, schema(a=node))
    for text in (
        "",
        "[]",
        '"long"',
        '{"type":"array","elementType":"long"}',
        '{"type":"struct"}',
        schema(a={}),
        '{"type":"struct","fields":[{"name":1,"type":"long"}]}',
    ):
        with pytest.raises(CorruptCheckpointError, match="not one that Spark writes"):
            decode_rows(rows, text)


def test_decode_rows_names_the_malformed_field() -> None:
    inner = {"type": "struct", "fields": [{"name": "b", "type": "string"}]}
    good = encode_row(["string"], ["x"])
    rows = pa.array(
        [struct.pack("<qII", 0, 24, 16) + good[:8] + struct.pack("<II", 99, 16) + good[16:]], pa.binary()
    )
    with pytest.raises(CorruptCheckpointError, match=r"the field a\.b of a row reaches out of its row"):
        decode_rows(rows, schema(a=inner))
    with pytest.raises(CorruptCheckpointError, match="too few for 3 fields"):
        decode_rows(pa.array([bytes(16)], pa.binary()), schema(a="long", b="long", c="long"))
    # The rows start at even distances, but do not end so.
    with pytest.raises(CorruptCheckpointError, match="8 bytes, too few"):
        decode_rows(pa.array([bytes(32), bytes(8)], pa.binary()), schema(a="long", b="long", c="long"))
    with pytest.raises(CorruptCheckpointError, match="multiple of 8"):
        decode_rows(pa.array([bytes(17)], pa.binary()), schema(a="long"))


@pytest.mark.parametrize("micros", [2**60, -(2**60), 2**63 - 1, -(2**63), MOST_MICROS + 1, -MOST_MICROS - 1])
def test_decode_rows_refuses_an_interval_beyond_nanoseconds(micros: int) -> None:
    rows = pa.array([struct.pack("<qIIiiq", 0, 16, 16, 0, 0, micros)], pa.binary())
    with pytest.raises(CorruptCheckpointError, match="292 years"):
        decode_rows(rows, schema(a="interval"))


@pytest.mark.parametrize("micros", [MOST_MICROS, -MOST_MICROS])
def test_decode_rows_reads_the_longest_interval(micros: int) -> None:
    rows = pa.array([struct.pack("<qIIiiq", 0, 16, 16, 0, 0, micros)], pa.binary())
    assert decode_rows(rows, schema(a="interval")).to_pylist() == [{"a": (0, 0, micros * 1000)}]


@pytest.mark.parametrize("nanos", [-1, -(2**63), 86_400 * 10**9, 2**63 - 1])
def test_decode_rows_refuses_a_time_outside_of_a_day(nanos: int) -> None:
    with pytest.raises(CorruptCheckpointError, match="the field a of a row is a time outside of a day"):
        decode_rows(pa.array([struct.pack("<qq", 0, nanos)], pa.binary()), schema(a="time(6)"))
    # Of a null, the bytes do not count.
    null = decode_rows(pa.array([struct.pack("<qq", 1, nanos)], pa.binary()), schema(a="time(6)"))
    assert null.to_pylist() == [{"a": None}]

"""Tests of `encode_rows` and `decode_rows` against an encoder of single values, and of wrong values."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from spark_statestore.errors import CorruptCheckpointError, RowEncodingError, UnsupportedFormatError
from spark_statestore.formats.change_batches import CHANGE_SCHEMA, pack
from spark_statestore.rows import decode_rows, encode_rows
from tests.support.effort import EFFORT
from tests.unit.query.stored_query import schema
from tests.unit.rows.encoder import SIMPLE, Column, encode, encode_row, rows, struct_of


def expected(row: Column, values: list[Any]) -> list[bytes | None]:
    return [None if value is None else encode(row.node, value) for value in values]


def check_round_trip(row: Column, values: list[Any]) -> pa.BinaryArray:
    """Return the encoded rows, once they were compared, decoded and encoded again."""
    text = json.dumps(row.node)
    structs = pa.array(values, row.arrow)
    encoded = encode_rows(structs, text)
    encoded.validate(full=True)
    assert encoded.to_pylist() == expected(row, values)
    decoded = decode_rows(encoded, text)
    decoded.validate(full=True)
    assert decoded.type == row.arrow
    # As text, which distinguishes NaN from null and 0.0 from -0.0.
    assert repr(decoded.to_pylist()) == repr(structs.to_pylist())
    assert encode_rows(decoded, text).equals(encoded)
    return encoded


@given(st.data())
@settings(max_examples=250 * EFFORT)
def test_rows_equal_rows_encoded_singly_and_are_decoded(data: st.DataObject) -> None:
    row = data.draw(rows)
    values = data.draw(st.lists(row.nullable, max_size=6))
    encoded = check_round_trip(row, values)
    # A slice begins in the middle of buffers and bitmaps.
    start = data.draw(st.integers(0, len(values)))
    structs = pa.array(values, row.arrow)
    assert encode_rows(structs[start:], json.dumps(row.node)).to_pylist() == encoded.to_pylist()[start:]


@pytest.mark.parametrize("column", SIMPLE, ids=lambda column: column.node)
@given(st.data())
@settings(max_examples=15 * EFFORT)
def test_rows_of_every_type_are_encoded_and_decoded(column: Column, data: st.DataObject) -> None:
    row = struct_of([column])
    check_round_trip(row, data.draw(st.lists(row.values, min_size=1, max_size=6)))


def test_rows_of_more_than_64_fields_are_encoded_and_decoded() -> None:
    numbers = {f"f{number}": None if number % 3 == 0 else number for number in range(130)}
    text = schema(**dict.fromkeys(numbers, "long"))
    table = pa.Table.from_pylist([numbers], pa.schema([(name, pa.int64()) for name in numbers]))
    encoded = encode_rows(table, text)
    assert encoded.to_pylist() == [encode_row(["long"] * 130, list(numbers.values()))]
    assert decode_rows(encoded, text).to_pylist() == [numbers]
    flags = [None if number % 5 == 0 else number % 2 == 0 for number in range(200)]
    node = {"type": "array", "elementType": "boolean", "containsNull": True}
    arrays = [flags[:count] for count in (200, 3, 64, 65, 63, 0, 128)]
    encoded = encode_rows(pa.table({"a": pa.array(arrays, pa.list_(pa.bool_()))}), schema(a=node))
    assert encoded.to_pylist() == [encode_row([node], [array]) for array in arrays]
    assert decode_rows(encoded, schema(a=node)).to_pylist() == [{"a": array} for array in arrays]


@pytest.mark.parametrize(
    ("node", "integers", "kind"), [("float", "<u4", pa.float32()), ("double", "<u8", pa.float64())]
)
def test_encode_rows_keeps_the_bits_of_floating_point_numbers(
    node: str, integers: str, kind: pa.DataType
) -> None:
    # Quiet and signalling NaNs with a payload, of either sign, and a negative zero.
    sizes = {
        "<u4": (0x7FC00001, 0xFF800005, 0x80000000),
        "<u8": (0x7FF8 << 48 | 1, 0xFFF0 << 48 | 5, 1 << 63),
    }
    bits = np.array(sizes[integers], integers)
    values = pa.Array.from_buffers(kind, len(bits), [None, pa.py_buffer(bits)])
    encoded = encode_rows(pa.table({"a": values}), schema(a=node)).combine_chunks()
    slots = [int.from_bytes(value[8:], "little") for value in encoded.to_pylist()]
    assert slots == bits.tolist()
    again = decode_rows(encoded, schema(a=node)).field("a")
    assert np.frombuffer(again.buffers()[1], integers).tolist() == bits.tolist()


def test_encode_rows_has_the_chunks_of_its_input() -> None:
    text = schema(a="long", b="string")
    batch = pa.record_batch({"b": pa.array(["x", None]), "a": pa.array([1, 2])})
    rows = [encode_row(["long", "string"], [1, "x"]), encode_row(["long", "string"], [2, None])]
    assert encode_rows(batch, text).equals(pa.array(rows, pa.binary()))
    table = pa.Table.from_batches([batch, batch.slice(1), batch.slice(0, 0)])
    for many in (table, pa.chunked_array([b.to_struct_array() for b in table.to_batches()])):
        assert encode_rows(many, text).to_pylist() == [*rows, rows[1]]
    assert encode_rows(table.slice(0, 0), text).equals(pa.chunked_array([], pa.binary()))
    assert encode_rows(pa.Table.from_batches([], batch.schema), text).to_pylist() == []
    for empty in (
        pa.Table.from_batches([], pa.schema([("a", pa.int64())])),
        pa.chunked_array([], pa.int64()),
    ):
        with pytest.raises(RowEncodingError):
            encode_rows(empty, text)
    nothing = pa.array([{}, None], pa.struct([]))
    assert encode_rows(nothing, schema()).to_pylist() == [b"", None]


def test_encode_rows_yields_columns_of_change_batches() -> None:
    table = pa.table({"a": [1, 2, 3], "b": [4, None, 6]})
    keys = encode_rows(table.select(["a"]), schema(a="long")).combine_chunks()
    values = encode_rows(table, schema(a="long", b="long")).combine_chunks()
    changes = pa.record_batch([pa.array([1, 1, 1], pa.uint8()), keys, values], CHANGE_SCHEMA)
    assert pack(changes).schema.field("value").type == pa.binary(24)


SHORTS = {"type": "array", "elementType": "short", "containsNull": False}
PAIRS = {"type": "map", "keyType": "string", "valueType": SHORTS, "valueContainsNull": False}
POINT = {
    "type": "struct",
    "fields": [
        {"name": "x", "type": "integer", "nullable": False, "metadata": {}},
        {"name": "tags", "type": PAIRS, "nullable": True, "metadata": {}},
    ],
}

LOSSLESS = {
    "short": ("short", pa.array([1, -7], pa.int64()), [1, -7]),
    "unsigned": ("long", pa.array([1, 2], pa.uint64()), [1, 2]),
    "float": ("double", pa.array([0.5, -1.5], pa.float32()), [0.5, -1.5]),
    "dictionary": ("string", pa.array(["x", "y"]).dictionary_encode(), ["x", "y"]),
    "large string": ("string", pa.array(["x", "y"], pa.large_string()), ["x", "y"]),
    "string view": ("string", pa.array(["x", "long enough for a view"], pa.string_view()), None),
    "fixed size": ("binary", pa.array([b"xy", b"zz"], pa.binary(2)), [b"xy", b"zz"]),
    "milliseconds": ("timestamp_ntz", pa.array([1, 2], pa.timestamp("ms")), [1000, 2000]),
    "nanoseconds": ("timestamp", pa.array([1000, 2000], pa.timestamp("ns", "Asia/Tokyo")), [1, 2]),
    "date64": ("date", pa.array([86_400_000, 0], pa.date64()), [1, 0]),
    "seconds": ("interval day to second", pa.array([1, -1], pa.duration("s")), [1_000_000, -1_000_000]),
    "time32": ("time(6)", pa.array([1, 2], pa.time32("ms")), [1_000_000, 2_000_000]),
    "null": ("string", pa.nulls(2), [None, None]),
    "large list": (SHORTS, pa.array([None, [1], []], pa.large_list(pa.int8())), [None, [1], []]),
    "fixed list": (SHORTS, pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int16(), 2))[1:], [None, [3, 4]]),
    "list view": (SHORTS, pa.array([[1], None, [2, 3]], pa.list_view(pa.int16()))[1:], [None, [2, 3]]),
}


@pytest.mark.parametrize("case", LOSSLESS)
def test_encode_rows_casts_without_loss(case: str) -> None:
    node, values, stored = LOSSLESS[case]
    stored = stored if stored is not None else values.to_pylist()
    assert encode_rows(pa.table({"a": values}), schema(a=node)).to_pylist() == [
        encode_row([node], [value]) for value in stored
    ]


def test_encode_rows_rescales_decimals_without_loss() -> None:
    for node, digits in (("decimal(5,2)", 5), ("decimal(30,2)", 30)):
        for kind in (pa.decimal128(38, 1), pa.decimal256(50, 4), pa.decimal128(digits, 2)):
            values = pa.array(["1.5", "-999.9", None]).cast(kind)
            encoded_rows = [encode_row([node], [value]) for value in values.to_pylist()]
            assert encode_rows(pa.table({"a": values}), schema(a=node)).to_pylist() == encoded_rows


def unchecked(kind: pa.DataType, dtype: Any, *values: Any) -> pa.Array:
    """An array of values that Arrow does not check."""
    data = np.array(values, dtype)
    return pa.Array.from_buffers(kind, data.nbytes * 8 // kind.bit_width, [None, pa.py_buffer(data)])


INTERVAL = pa.month_day_nano_interval()
WRONG: dict[str, tuple[Any, pa.Array, str]] = {
    "another type": (
        "long",
        pa.array([1.0, 2.0]),
        r"^the column 'a' has the Arrow type double, but .* is long",
    ),
    "text": ("string", pa.array([1, 2]), "the Arrow type int64, but Spark's type is string. Convert it to"),
    "bytes": ("string", pa.array([b"a"]), "the Arrow type binary"),
    "local time": ("timestamp", pa.array([1], pa.timestamp("us")), "Convert it to the Arrow type timestamp"),
    "instant": ("timestamp_ntz", pa.array([1], pa.timestamp("us", "UTC")), "the Arrow type timestamp"),
    "float": ("float", pa.array([0.1], pa.float64()), "Spark's type is float"),
    "range": (
        "byte",
        pa.array([1, None, 127, -129, 128]),
        r"^row 3: the column 'a' has the value -129 \(int64\)",
    ),
    "unsigned": ("long", pa.array([1, 2**63], pa.uint64()), "^row 1:"),
    "nanoseconds": ("timestamp_ntz", pa.array([1000, 1001], pa.timestamp("ns")), "^row 1: .* hold exactly"),
    "seconds": ("interval day to second", pa.array([2**62], pa.duration("s")), "^row 0:"),
    "half a day": ("date", pa.array([0, 43_200_000], pa.date64()), "^row 1:"),
    "late": (
        "time(6)",
        unchecked(pa.time64("ns"), "<i8", 0, 86_400_000_000_000),
        "^row 1: .*type time cannot",
    ),
    "before midnight": ("time(6)", unchecked(pa.time64("ns"), "<i8", -1), "^row 0:"),
    "places": (
        "decimal(5,2)",
        pa.array(["1.25", "1.255"]).cast(pa.decimal128(9, 3)),
        "^row 1: .* 1.255 .*(5,2)",
    ),
    "digits": ("decimal(5,2)", pa.array(["1000.00"]).cast(pa.decimal128(9, 2)), "^row 0:"),
    "many digits": ("decimal(20,2)", pa.array(["1", "1" * 19]).cast(pa.decimal128(38, 2)), "^row 1:"),
    "hidden digits": ("decimal(5,2)", unchecked(pa.decimal128(5, 2), "<i8", 5, 0, 10**5, 0), "^row 1:"),
    "hidden high half": ("decimal(5,2)", unchecked(pa.decimal128(5, 2), "<i8", 5, 1), "^row 0:"),
    "large hidden digits": (
        "decimal(20,2)",
        unchecked(pa.decimal128(20, 2), "<i8", 5, 0, 0, 6),
        "^row 1: .*decimal.20,2",
    ),
    "nanos": ("interval", pa.array([(1, 2, 3000), None, (1, 2, 3001)], INTERVAL), "^row 2: .*type interval"),
    "days": ("interval year to month", pa.array([(1, 1, 0)], INTERVAL), "^row 0: .*year-month interval"),
    "years": ("interval year to month", pa.array([(1, 0, 1)], INTERVAL), "^row 0:"),
    "scalar": (SHORTS, pa.array([1]), "the Arrow type int64, but Spark's type is array"),
    "element": (
        SHORTS,
        pa.array([None, [], [1, 2], [3, 40000]]),
        r"^row 3: the column 'a\.element' has .* 40000",
    ),
    "element type": (SHORTS, pa.array([["x"]]), r"^the column 'a\.element' has the Arrow type string"),
    "null element": (
        SHORTS,
        pa.array([[1], None, [2, None]]),
        r"^row 2: the column 'a\.element' is null, which",
    ),
    "map": (PAIRS, pa.array([[1]]), "the Arrow type list.* is map. Convert it to the Arrow type map"),
    "value in a map": (
        PAIRS,
        pa.array([None, [("x", [1]), ("y", [2, 40000])]], pa.map_(pa.string(), pa.list_(pa.int64()))),
        r"^row 1: the column 'a\.value\.element' has the value 40000",
    ),
    "null in a map": (
        PAIRS,
        pa.array([[("x", None)]], pa.map_(pa.string(), pa.list_(pa.int64()))),
        r"^row 0: the column 'a\.value' is null",
    ),
    "field": (POINT, pa.array([None, {"x": None, "tags": None}]), r"^row 1: the column 'a\.x' is null"),
    "missing field": (
        POINT,
        pa.array([{"x": 1}]),
        r"^the column 'a' has no fields of these names: 'tags'; .*'x'",
    ),
    "unknown field": (
        POINT,
        pa.array([{"x": 1, "tags": None, "y": 1}]),
        "does not have: 'y'.* Drop or rename",
    ),
    "value of a variant": (
        "variant",
        pa.array(
            [None, {"value": b"", "metadata": None}],
            pa.struct([("value", pa.binary()), ("metadata", pa.binary())]),
        ),
        r"^row 1: the column 'a\.metadata' is null in a value that is not",
    ),
    "other bytes than UTF-8": (
        "string",
        pa.Array.from_buffers(pa.string(), 2, pa.array([b"a", b"\xff"]).buffers()),
        "^row 1: the column 'a' has the value \"\N{REPLACEMENT CHARACTER}\" .*Spark's type string cannot",
    ),
    "void": ("void", pa.array([1]), "the Arrow type int64, but Spark's type is void"),
}


@pytest.mark.parametrize("case", WRONG)
def test_encode_rows_names_the_row_and_column_of_a_wrong_value(case: str) -> None:
    node, values, message = WRONG[case]
    with pytest.raises(RowEncodingError, match=message) as caught:
        encode_rows(pa.table({"a": values}), schema(a=node))
    assert str(caught.value).endswith(" Nothing was encoded.")


def test_encode_rows_counts_the_rows_of_all_chunks() -> None:
    table = pa.concat_tables([pa.table({"a": [1, 2]}), pa.table({"a": [3, 400]})])
    with pytest.raises(RowEncodingError, match=r"^row 3: the column 'a' has the value 400 "):
        encode_rows(table, schema(a="byte"))
    structs = pa.array([None, {"a": 1}, {"a": 400}])
    with pytest.raises(RowEncodingError, match=r"^row 2: "):
        encode_rows(structs, schema(a="byte"))


def test_encode_rows_refuses_null_where_the_schema_does() -> None:
    table = pa.table({"a": pa.array([1, None], pa.int64())})
    assert encode_rows(table, schema(a="long")).null_count == 0
    with pytest.raises(RowEncodingError, match=r"^row 1: the column 'a' is null, which the schema"):
        encode_rows(table, schema(a="long").replace("true", "false"))
    # The field of a struct that is null is not.
    inner = {"type": "struct", "fields": [{"name": "x", "type": "long", "nullable": False, "metadata": {}}]}
    structs = pa.table({"a": pa.array([{"x": 1}, None])})
    assert encode_rows(structs, schema(a=inner)).to_pylist() == [
        encode_row([inner], [value]) for value in ({"x": 1}, None)
    ]


def test_encode_rows_refuses_other_columns_than_the_schema_has() -> None:
    text = schema(a="long", b="long")
    wrong = {
        "several fields of one name: 'a'; .* Rename or drop": ["a", "b", "a"],
        "no fields of these names: 'b'; the schema has 'a', 'b'. Add": ["a"],
        "fields that the schema does not have: 'B', 'c'": ["a", "b", "B", "c"],
    }
    for message, names in wrong.items():
        table = pa.Table.from_arrays([pa.array([1])] * len(names), names)
        with pytest.raises(RowEncodingError, match=rf"^the table of rows has {message}"):
            encode_rows(table, text)
    with pytest.raises(RowEncodingError, match=r"the table of rows has the Arrow type int64, but .* struct"):
        encode_rows(pa.array([1]), text)


def test_encode_rows_refuses_unknown_types_and_schemas() -> None:
    table = pa.table({"a": [1]})
    with pytest.raises(UnsupportedFormatError) as caught:
        encode_rows(table, schema(a="geoid(4326)"))
    assert str(caught.value) == (
        "rows cannot be encoded, since the state has a column of Spark's type 'geoid(4326)', which this "
        "release cannot decode. Upgrade spark-statestore. Nothing was encoded."
    )
    with pytest.raises(CorruptCheckpointError, match="not one that Spark writes"):
        encode_rows(table, "[]")


def test_encode_rows_refuses_more_than_an_array_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_statestore.rows.encode._LARGEST_ARRAY", 47)
    table = pa.table({"a": ["x", "y"]})
    assert encode_rows(table.slice(1), schema(a="string")).nbytes
    with pytest.raises(RowEncodingError, match=r"^2 rows have 48 bytes, .* less than 2 GiB. .*to_batches"):
        encode_rows(table, schema(a="string"))

"""Encoder of UnsafeRows, value by value, with strategies for schemas and values."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Context, Decimal
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa

_EXACT = Context(prec=38)

# Formats of the struct module for types whose values are stored in their slot.
_IN_SLOT = {
    "boolean": "?",
    "byte": "b",
    "short": "h",
    "integer": "i",
    "long": "q",
    "float": "f",
    "double": "d",
    "date": "i",
    "time(6)": "q",
    "timestamp": "q",
    "timestamp_ntz": "q",
    "interval year to month": "i",
    "interval day to second": "q",
}


def encode_row(types: Sequence[Any], values: Sequence[Any]) -> bytes:
    """A row of fields with these types, as they are in Spark's JSON."""

    def room(node: Any) -> int:
        return 16 if _is_replaceable(node) else 0

    return _encode(b"", types, values, lambda _: 8, room)


def encode_array(node: Any, values: Sequence[Any]) -> bytes:
    """An array of elements of this type."""

    def width(node: Any) -> int:
        return struct.calcsize(_IN_SLOT[node]) if isinstance(node, str) and node in _IN_SLOT else 8

    return _encode(struct.pack("<q", len(values)), [node] * len(values), values, width, lambda _: 0)


def encode(node: Any, value: dict[str, Any]) -> bytes:
    """A row of a schema, as in Spark's JSON."""
    types = [field["type"] for field in node["fields"]]
    return encode_row(types, [value[field["name"]] for field in node["fields"]])


def _encode(
    header: bytes,
    types: Sequence[Any],
    values: Sequence[Any],
    width: Callable[[Any], int],
    room: Callable[[Any], int],
) -> bytes:
    types = [_stored(node) for node in types]
    nulls = sum(1 << number for number, value in enumerate(values) if value is None)
    head = header + nulls.to_bytes((len(values) + 63) // 64 * 8, "little")
    slots, behind = b"", b""
    start = len(head) + _whole(sum(map(width, types)))
    for node, value in zip(types, values, strict=True):
        far = None if value is None else _far(node, value)
        if far is not None:
            slots += struct.pack("<II", len(far), start + len(behind))
        elif value is None and room(node):
            slots += struct.pack("<II", 16 if node == "interval" else 0, start + len(behind))
        else:
            slots += (b"" if value is None else _near(node, value)).ljust(width(node), b"\0")
        # Spark keeps room for what may be set later.
        behind += (far or b"").ljust(max(_whole(len(far or b"")), room(node)), b"\0")
    return head + slots.ljust(start - len(head), b"\0") + behind


def _stored(node: Any) -> Any:
    """The type that a user's type is stored as."""
    return _stored(node["sqlType"]) if isinstance(node, dict) and node["type"] == "udt" else node


def _whole(size: int) -> int:
    return -(-size // 8) * 8


def _is_replaceable(node: Any) -> bool:
    """True if Spark may set a null of this type to a value later."""
    return node == "interval" or _digits(node) > 18


def _digits(node: Any) -> int:
    return int(node[8:].split(",")[0]) if isinstance(node, str) and node.startswith("decimal") else 0


def _unscaled(node: str, value: Decimal) -> int:
    return int(value.scaleb(int(node[:-1].split(",")[1]), _EXACT))


def _near(node: Any, value: Any) -> bytes:
    if _digits(node):
        return struct.pack("<q", _unscaled(node, value))
    if node == "interval year to month":
        value, _, _ = value
    return struct.pack("<" + _IN_SLOT[node], value)


def _far(node: Any, value: Any) -> bytes | None:
    """Return the bytes of a value that is stored behind the slots."""
    if isinstance(node, dict):
        match node["type"]:
            case "struct":
                return encode(node, value)
            case "array":
                return encode_array(node["elementType"], value)
            case "map":
                keys = encode_array(node["keyType"], [key for key, _ in value])
                return (
                    struct.pack("<q", len(keys))
                    + keys
                    + encode_array(node["valueType"], [v for _, v in value])
                )
    if _digits(node) > 18:
        number = _unscaled(node, value)
        return number.to_bytes((number + (number < 0)).bit_length() // 8 + 1, "big", signed=True)
    if node == "interval":
        months, days, nanos = value
        return struct.pack("<iiq", months, days, nanos // 1000)
    if node == "variant":
        return struct.pack("<i", len(value["value"])) + value["value"] + value["metadata"]
    if node.startswith("geo"):
        return struct.pack("<i", value["srid"]) + value["wkb"]
    if node == "binary":
        return value
    if node.startswith(("string", "char", "varchar")):
        return value.encode()
    return None


@dataclass(frozen=True)
class Column:
    """A type as in Spark's JSON, what it is decoded to, and values as pyarrow takes them for that."""

    node: Any
    arrow: pa.DataType
    values: st.SearchStrategy[Any]

    @property
    def nullable(self) -> st.SearchStrategy[Any]:
        return st.none() | self.values


def _integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _decimal(digits: int, places: int) -> Column:
    most = 10**digits - 1
    # Few bytes and many, of either sign.
    edges = [number for number in (0, -1, 127, 128, -128, -129, most, -most) if abs(number) <= most]
    numbers = st.integers(-most, most) | st.sampled_from(edges)
    values = numbers.map(lambda number: Decimal(number).scaleb(-places, _EXACT))
    return Column(f"decimal({digits},{places})", pa.decimal128(digits, places), values)


# As far as Python's datetime can show them.
_FIRST, _LAST = (int(datetime(year, 1, 2, tzinfo=UTC).timestamp()) for year in (1, 9999))
_MICROS = st.integers(_FIRST * 10**6, _LAST * 10**6)
_TEXT = st.text(max_size=20)

SIMPLE = [
    Column("void", pa.null(), st.none()),
    Column("boolean", pa.bool_(), st.booleans()),
    Column("byte", pa.int8(), _integers(8)),
    Column("short", pa.int16(), _integers(16)),
    Column("integer", pa.int32(), _integers(32)),
    Column("long", pa.int64(), _integers(64)),
    Column("float", pa.float32(), st.floats(width=32)),
    Column("double", pa.float64(), st.floats()),
    _decimal(1, 0),
    _decimal(18, 3),
    _decimal(19, 0),
    _decimal(38, 18),
    Column("string", pa.string(), _TEXT),
    Column("string collate UTF8_LCASE", pa.string(), _TEXT),
    Column("varchar(20)", pa.string(), _TEXT),
    Column("binary", pa.binary(), st.binary(max_size=20)),
    Column("date", pa.date32(), st.integers(_FIRST // 86400, _LAST // 86400)),
    Column("time(6)", pa.time64("ns"), st.integers(0, 86_400_000_000 - 1).map(lambda micros: micros * 1000)),
    Column("timestamp", pa.timestamp("us", tz="UTC"), _MICROS),
    Column("timestamp_ntz", pa.timestamp("us"), _MICROS),
    Column("interval day to second", pa.duration("us"), _integers(64)),
    Column(
        "interval year to month",
        pa.month_day_nano_interval(),
        _integers(32).map(lambda months: (months, 0, 0)),
    ),
    Column(
        "interval",
        pa.month_day_nano_interval(),
        st.tuples(_integers(32), _integers(32), _integers(53).map(lambda micros: micros * 1000)),
    ),
    Column(
        "variant",
        pa.struct([("value", pa.binary()), ("metadata", pa.binary())]),
        st.fixed_dictionaries({"value": st.binary(max_size=20), "metadata": st.binary(max_size=20)}),
    ),
    Column(
        "geometry(SRID:0)",
        pa.struct([("srid", pa.int32()), ("wkb", pa.binary())]),
        st.fixed_dictionaries({"srid": _integers(32), "wkb": st.binary(max_size=20)}),
    ),
]


def _array_of(element: Column) -> Column:
    node = {"type": "array", "elementType": element.node, "containsNull": True}
    return Column(node, pa.list_(element.arrow), st.lists(element.nullable, max_size=4))


def _map_of(key: Column, value: Column) -> Column:
    node = {"type": "map", "keyType": key.node, "valueType": value.node, "valueContainsNull": True}
    values = st.lists(st.tuples(key.values, value.nullable), max_size=4, unique_by=lambda pair: repr(pair[0]))
    return Column(node, pa.map_(key.arrow, value.arrow), values)


def struct_of(columns: Sequence[Column]) -> Column:
    names = [f"f{number}" for number in range(len(columns))]
    fields = [
        {"name": name, "type": column.node, "nullable": True, "metadata": {}}
        for name, column in zip(names, columns, strict=True)
    ]
    return Column(
        {"type": "struct", "fields": fields},
        pa.struct([(name, column.arrow) for name, column in zip(names, columns, strict=True)]),
        st.fixed_dictionaries({name: column.nullable for name, column in zip(names, columns, strict=True)}),
    )


def columns_of(simple: Sequence[Column], *, least: int = 0) -> st.SearchStrategy[Column]:
    """Columns of these types and of types built of them, whose structs have at least so many fields."""
    keys = st.sampled_from([column for column in simple if column.node != "void"])
    return st.recursive(
        st.sampled_from(simple),
        lambda inner: (
            inner.map(_array_of)
            | st.builds(_map_of, keys, inner)
            | st.lists(inner, min_size=least, max_size=3).map(struct_of)
        ),
        max_leaves=4,
    )


def _users(stored: Column) -> Column:
    return Column({"type": "udt", "class": "x", "sqlType": stored.node}, stored.arrow, stored.values)


# Equal to one another, with or without regard to case; like what a repeated name becomes; and like a path.
_NAMES = [
    "count",
    "Count",
    "COUNT",
    "count_2",
    "Count_2",
    "count_3",
    "sum",
    "a",
    "a.b",
    "b",
    "A_2.b",
    "",
    "ß",
    "SS",
]


@st.composite
def repeated_names(draw: st.DrawFn, node: Any) -> Any:
    """A type with the fields of its structs renamed, several of them alike; its rows are the same."""
    if not isinstance(node, dict):
        return node
    parts = {
        part: draw(repeated_names(node[part]))
        for part in ("elementType", "keyType", "valueType", "sqlType")
        if part in node
    }
    if "fields" in node:
        parts["fields"] = [
            field | {"name": draw(st.sampled_from(_NAMES)), "type": draw(repeated_names(field["type"]))}
            for field in node["fields"]
        ]
    return node | parts


def by_position(value: Any) -> Any:
    """A value whose structs, lists and pairs are lists alike: without the names of fields."""
    if hasattr(value, "tolist"):
        return by_position(value.tolist())
    if isinstance(value, dict):
        return [by_position(part) for part in value.values()]
    return [by_position(part) for part in value] if isinstance(value, list | tuple) else value


_columns = columns_of(SIMPLE)
rows = st.lists(_columns | _columns.map(_users), max_size=6).map(struct_of)
"""Types of rows, with their values as dicts."""

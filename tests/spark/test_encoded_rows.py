"""Rows encoded without Spark, compared byte by byte with Spark's own projection, for every type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_statestore.rows import decode_rows, encode_rows
from tests.support.effort import EFFORT
from tests.support.spark_versions import is_since

pytestmark = [pytest.mark.spark, pytest.mark.oldest]

ROWS = 10_000 * EFFORT

_DAY_NANOS = 86_400_000_000_000


class Values(NamedTuple):
    """An array as it is encoded, and in a type that Spark's columnar rows read."""

    encoded: pa.Array
    columnar: pa.Array


def same(array: pa.Array) -> Values:
    return Values(array, array)


def array_of(node: Any, nullable: bool = True) -> dict[str, Any]:
    return {"type": "array", "elementType": node, "containsNull": nullable}


def map_of(key: Any, value: Any) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


def struct_of(*nodes: Any) -> dict[str, Any]:
    fields = [
        {"name": f"f{number}", "type": node, "nullable": True, "metadata": {}}
        for number, node in enumerate(nodes)
    ]
    return {"type": "struct", "fields": fields}


FIXED = {
    "byte": (pa.int8(), "i1"),
    "short": (pa.int16(), "<i2"),
    "integer": (pa.int32(), "<i4"),
    "long": (pa.int64(), "<i8"),
    # Any bits: NaNs with payloads, infinities and denormalised numbers too.
    "float": (pa.float32(), "<u4"),
    "double": (pa.float64(), "<u8"),
    "date": (pa.date32(), "<i4"),
    "timestamp": (pa.timestamp("us", tz="UTC"), "<i8"),
    "timestamp_ntz": (pa.timestamp("us"), "<i8"),
    "interval day to second": (pa.duration("us"), "<i8"),
}

SIMPLE = [
    "void",
    "boolean",
    *FIXED,
    "decimal(1,0)",
    "decimal(18,3)",
    "decimal(19,0)",
    "decimal(38,18)",
    "string",
    "binary",
    "interval year to month",
    "interval",
    "variant",
    *(["time(6)"] if is_since("4.1") else []),
    # Spark 4.1 has the types, but reads them from Arrow's structs alone.
    *(["geometry(OGC:CRS84)", "geography(OGC:CRS84, SPHERICAL)"] if is_since("4.2") else []),
]

NESTED = {
    "arrays": array_of(array_of("string")),
    "long arrays": struct_of(array_of("boolean"), array_of("short"), array_of("binary", nullable=False)),
    "maps": map_of("string", map_of("integer", struct_of("decimal(38,18)", array_of("byte")))),
    "structs": struct_of(struct_of(struct_of("string", "void"), "interval"), "decimal(20,2)", struct_of()),
    "wide": struct_of(*["long", "string", "decimal(22,1)"] * 30),
    "user-defined": {
        "type": "udt",
        "pyClass": "x.X",
        "serializedClass": "",
        "sqlType": struct_of("double", array_of("double")),
    },
}


class Generator:
    """Generator of random arrays of Spark's types; about a fifth of the values is null."""

    def __init__(self, seed: str) -> None:
        self._random = np.random.default_rng(list(seed.encode()))

    def values(self, node: Any, count: int, *, nullable: bool = True) -> Values:
        null = self._random.random(count) < 0.2 if nullable else np.zeros(count, bool)
        if isinstance(node, dict):
            return self._nested(node, count, null)
        if node in FIXED:
            kind, dtype = FIXED[node]
            return same(self._masked(kind, self._bits(dtype, count), null))
        if node.startswith("decimal"):
            return same(self._decimals(node, count, null))
        match node:
            case "void":
                return same(pa.nulls(count))
            case "boolean":
                return same(pa.array(self._random.random(count) < 0.5, mask=null))
            case "string":
                return same(self._texts(count, null, 32, 127).cast(pa.string()))
            case "binary":
                return same(self._texts(count, null, 0, 256))
            case "time(6)":
                micros = self._random.integers(0, _DAY_NANOS // 1000, count)
                return Values(
                    self._masked(pa.time64("ns"), micros * 1000, null), pa.array(micros * 1000, mask=null)
                )
            case _ if node.startswith("geo"):
                # As binary, Spark's columnar rows have both parts in one.
                srid = np.full(count, 4326, "<i4")
                wkb = self._texts(count, null, 0, 256)
                prefix = pa.Array.from_buffers(pa.binary(4), count, [None, pa.py_buffer(srid)])
                array = pa.StructArray.from_arrays(
                    [pa.array(srid), wkb], ["srid", "wkb"], mask=pa.array(null)
                )
                joined = pc.binary_join_element_wise(prefix.cast(pa.binary()), wkb, b"")
                return Values(array, joined)
            case "variant":
                parts = [self._texts(count, np.zeros(count, bool), 0, 256) for _ in range(2)]
                return same(pa.StructArray.from_arrays(parts, ["value", "metadata"], mask=pa.array(null)))
        return self._intervals(node, count, null)

    def field(self, node: Any, count: int) -> Values:
        """Return values of a field of rows.

        In the place of an interval that is null, Spark leaves bytes of the rows before.
        """
        return self.values(node, count, nullable=node != "interval")

    def _bits(self, dtype: str, count: int) -> np.ndarray:
        size = np.dtype(dtype).itemsize
        return np.frombuffer(self._random.bytes(count * size), dtype)

    @staticmethod
    def _masked(kind: pa.DataType, values: np.ndarray, null: np.ndarray) -> pa.Array:
        bitmap = pa.py_buffer(np.packbits(~null, bitorder="little"))
        return pa.Array.from_buffers(kind, len(null), [bitmap, pa.py_buffer(np.ascontiguousarray(values))])

    def _texts(self, count: int, null: np.ndarray, least: int, most: int) -> pa.Array:
        sizes = self._random.integers(0, 20, count)
        sizes[::1000] *= 100
        # Arrow permits bytes behind a null, too.
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        data = self._random.integers(least, most, offsets[-1]).astype(np.uint8)
        bitmap = pa.py_buffer(np.packbits(~null, bitorder="little"))
        return pa.Array.from_buffers(pa.binary(), count, [bitmap, pa.py_buffer(offsets), pa.py_buffer(data)])

    def _decimals(self, node: str, count: int, null: np.ndarray) -> pa.Array:
        digits, places = map(int, node[8:-1].split(","))
        if digits <= 18:
            low = self._random.integers(-(10**digits) + 1, 10**digits, count)
            high = low >> 63
        else:
            low = self._bits("<i8", count)
            most = min((10**digits >> 64) - 1, 2**62)
            # 19 digits are a little more than 64 bits.
            high = self._random.integers(-most - 1, most + 1, count) if most > 0 else low >> 63
            # Values of all lengths.
            shift = self._random.integers(0, 127, count)
            few = shift & 63
            carried = np.where(few > 0, high << (64 - few) % 64, 0)
            shifted = (low.view("<u8") >> few.astype("<u8")).view("<i8") | carried
            low = np.where(shift < 64, shifted, high >> few)
            high = np.where(shift < 64, high >> few, high >> 63)
        return self._masked(pa.decimal128(digits, places), np.stack([low, high], axis=1), null)

    def _intervals(self, node: str, count: int, null: np.ndarray) -> Values:
        values = np.zeros(count, [("months", "<i4"), ("days", "<i4"), ("nanos", "<i8")])
        values["months"] = self._bits("<i4", count)
        if node == "interval":
            values["days"] = self._bits("<i4", count)
            values["nanos"] = self._random.integers(-(2**53), 2**53, count) * 1000
        array = self._masked(pa.month_day_nano_interval(), values, null)
        return Values(array, array if node == "interval" else pa.array(values["months"], mask=null))

    def _nested(self, node: Any, count: int, null: np.ndarray) -> Values:
        mask = pa.array(null)
        match node["type"]:
            case "udt":
                return self.values(node["sqlType"], count)
            case "struct":
                names = [field["name"] for field in node["fields"]]
                fields = [self.field(field["type"], count) for field in node["fields"]]
                if not fields:
                    bitmap = pa.py_buffer(np.packbits(~null, bitorder="little"))
                    return same(pa.Array.from_buffers(pa.struct([]), count, [bitmap]))
                return Values(
                    *(
                        pa.StructArray.from_arrays(list(parts), names, mask=mask)
                        for parts in zip(*fields, strict=True)
                    )
                )
        sizes = self._random.integers(0, 4, count)
        sizes[::5000] *= 50
        sizes[null] = 0
        offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
        total = int(sizes.sum())
        if node["type"] == "array":
            elements = self.values(node["elementType"], total, nullable=node["containsNull"])
            return Values(*(pa.ListArray.from_arrays(offsets, part, mask=mask) for part in elements))
        keys = self.values(node["keyType"], total, nullable=False)
        items = self.values(node["valueType"], total)
        return Values(
            *(
                pa.MapArray.from_arrays(offsets, key, item, mask=mask)
                for key, item in zip(keys, items, strict=True)
            )
        )


def projected(spark: Any, directory: Path, rows: pa.RecordBatch, schema: str) -> pa.BinaryArray:
    """The rows as Spark's projection writes them."""
    stream, offsets, data = (directory / name for name in ("stream", "offsets", "data"))
    with pa.ipc.new_stream(stream, rows.schema) as writer:
        writer.write_batch(rows)
    spark._jvm.org.apache.spark.sql.statestore.arrow.ProjectedRows.write(
        str(stream), schema, str(offsets), str(data)
    )
    buffers = [None, *(pa.py_buffer(path.read_bytes()) for path in (offsets, data))]
    return pa.Array.from_buffers(pa.binary(), rows.num_rows, buffers)


def around(node: Any) -> list[Any]:
    """Types of columns with a type in all places where the format differs."""
    return [node, "long", array_of(node), map_of("integer", node), struct_of("string", node)]


CASES: dict[str, list[Any]] = {node: around(node) for node in SIMPLE} | {
    name: [node, "long"] for name, node in NESTED.items()
}


@pytest.mark.parametrize("case", CASES)
def test_encode_rows_equals_sparks_projection(spark: Any, tmp_path: Path, case: str) -> None:
    count = ROWS if case in SIMPLE else ROWS // 10
    generator = Generator(case)
    node = struct_of(*CASES[case])
    names = [field["name"] for field in node["fields"]]
    schema = json.dumps(node)
    columns = [generator.field(kind, count) for kind in CASES[case]]
    batch, spark_batch = (
        pa.RecordBatch.from_arrays(list(part), names) for part in zip(*columns, strict=True)
    )
    encoded = encode_rows(batch, schema)
    expected = projected(spark, tmp_path, spark_batch, schema)
    if not encoded.equals(expected):
        row = next(row for row in range(count) if encoded[row] != expected[row])
        assert (row, encoded[row].as_py().hex(" ", 8)) == (row, expected[row].as_py().hex(" ", 8))
    assert encode_rows(decode_rows(expected, schema), schema).equals(expected)


@pytest.mark.parametrize("node", ["interval", struct_of("string", "interval")], ids=["field", "nested"])
def test_encode_rows_of_null_intervals_equals_sparks_first_row(spark: Any, tmp_path: Path, node: Any) -> None:
    value = None if node == "interval" else {"f0": "x", "f1": None}
    schema = json.dumps(struct_of(node))
    kind = pa.month_day_nano_interval()
    if node != "interval":
        kind = pa.struct([("f0", pa.string()), ("f1", kind)])
    rows = pa.RecordBatch.from_arrays([pa.array([value], kind)], ["f0"])
    assert encode_rows(rows, schema).equals(projected(spark, tmp_path, rows, schema))

"""Tests of files with changes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from spark_statestore import OptionError, RowEncodingError
from spark_statestore.writing.files import read_changes
from tests.unit.writing.test_write import table

COUNTS = {"ann": 1, "carl": 2**62}
ROWS = table(COUNTS)
SCHEMA = ROWS.schema.append(pa.field("partition_id", pa.int32()))


def parquet(rows: pa.Table) -> bytes:
    output = io.BytesIO()
    pyarrow.parquet.write_table(rows, output, write_page_checksum=True)
    return output.getvalue()


def ipc(rows: pa.Table, new: Callable[..., Any]) -> bytes:
    output = io.BytesIO()
    with new(output, rows.schema) as writer:
        writer.write_table(rows, 1)
    return output.getvalue()


def ipc_file(rows: pa.Table) -> bytes:
    return ipc(rows, pa.ipc.new_file)


def ipc_stream(rows: pa.Table) -> bytes:
    return ipc(rows, pa.ipc.new_stream)


def lines(*rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@pytest.fixture
def put(tmp_path: Path) -> Callable[[bytes], str]:
    def put(data: bytes) -> str:
        (tmp_path / "changes").write_bytes(data)
        return str(tmp_path / "changes")

    return put


@pytest.mark.parametrize("encode", [parquet, ipc_file, ipc_stream, lambda rows: lines(*rows.to_pylist())])
def test_read_changes_finds_the_format(
    put: Callable[[bytes], str], encode: Callable[[pa.Table], bytes]
) -> None:
    changes = read_changes(put(encode(ROWS)), SCHEMA, "upsert")
    assert changes.select(["key", "value"]).to_pylist() == ROWS.to_pylist()
    assert changes.select(["key", "value"]).schema.equals(ROWS.schema)


def with_damaged_offsets() -> bytes:
    data = ipc_file(pa.table({"key": ["a" * 1000, "b" * 1000]}).combine_chunks())
    # The end of the first string.
    at = data.index((1000).to_bytes(4, "little"))
    return data[:at] + b"\xff\xff\xff\x7f" + data[at + 4 :]


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        *(
            (data, RowEncodingError, r"changes cannot be read: .*\. No copy was made")
            for data in (
                parquet(ROWS)[:-5],
                ipc_file(ROWS)[:-5],
                ipc_stream(ROWS)[:-8],
                ipc_stream(ROWS)[:-100],
                with_damaged_offsets(),
                b'{"key": {}}\n{"key": {"dou',
                b'{"key": {}, "key": {}}',
                b"{}{}x",
            )
        ),
        (b"", OptionError, "is empty"),
        (b" \n", OptionError, "is empty"),
        (b"key,value\n1,2\n", OptionError, "is neither Parquet, nor Arrow IPC .* it begins with b'key,valu'"),
        (b"[{}]", OptionError, "is neither Parquet"),
    ],
)
def test_read_changes_refuses_incomplete_files_and_other_formats(
    put: Callable[[bytes], str], data: bytes, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        read_changes(put(data), SCHEMA, "upsert")


def test_read_changes_refuses_other_paths(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"there is no file .*none with changes"):
        read_changes(str(tmp_path / "none"), SCHEMA, "upsert")
    with pytest.raises(OptionError, match="is a directory"):
        read_changes(str(tmp_path), SCHEMA, "upsert")


EVERY = pa.schema(
    [
        pa.field(
            "key",
            pa.struct(
                [
                    ("day", pa.date32()),
                    ("at", pa.timestamp("us", "UTC")),
                    ("local", pa.timestamp("us")),
                    ("decimal", pa.decimal128(20, 2)),
                    ("double", pa.float64()),
                    ("float", pa.float32()),
                    ("list", pa.list_(pa.struct([("day", pa.date32())]))),
                    ("nones", pa.list_(pa.null())),
                    ("none", pa.null()),
                ]
            ),
        ),
        pa.field("value", pa.struct([("flag", pa.bool_()), ("small", pa.int16())])),
    ]
)
KEY = {
    "day": "2024-02-29",
    "at": "2024-01-01T02:00:00.000001+02:00",
    "local": "2024-01-01 02:00:00",
    "decimal": "123456789012345678.25",
    "double": 1,
    "float": 0.1,
    "list": [{"day": "1960-01-01"}, None],
    "nones": [None, None],
    "none": None,
}


def test_json_has_text_for_dates_and_timestamps(put: Callable[[bytes], str]) -> None:
    nothing = dict.fromkeys(KEY)
    rows = lines(
        {"key": KEY, "value": {"flag": True, "small": None}},
        {"key": nothing, "value": {"flag": None, "small": -7}},
    )
    changes = read_changes(put(rows), EVERY, "upsert")
    changes.validate(full=True)
    assert changes.schema == EVERY
    first, second = changes.to_pylist()
    assert first["key"] == {
        "day": date(2024, 2, 29),
        "at": datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
        "local": datetime(2024, 1, 1, 2),
        "decimal": Decimal("123456789012345678.25"),
        "double": 1.0,
        "float": float(np.float32(0.1)),
        "list": [{"day": date(1960, 1, 1)}, None],
        "nones": [None, None],
        "none": None,
    }
    assert first["value"] == {"flag": True, "small": None}
    assert second == {"key": nothing, "value": {"flag": None, "small": -7}}


@pytest.mark.parametrize(
    "row",
    [
        {"key": {"day": "2024-02-30"}},
        {"key": {"at": "2024-01-01T00:00:00"}},
        {"key": {"local": "2024-01-01T00:00:00Z"}},
        {"key": {"decimal": "0.125"}},
        {"key": {"list": [{"days": "1960-01-01"}]}},
        {"key": {"unknown": 1}},
        {"keys": {}},
        {"value": {"small": 32768}},
        {"value": {"small": 1.0}},
        {"value": {"small": "1"}},
        {"value": {"flag": 1}},
    ],
    ids=str,
)
def test_json_of_other_types_is_refused(put: Callable[[bytes], str], row: Any) -> None:
    with pytest.raises(RowEncodingError, match="changes cannot be read"):
        read_changes(put(lines({"key": KEY}, row)), EVERY, "upsert")


VALUE = {"flag": None, "small": 1}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"key": KEY}, "lacks a field, .*: 'value'"),
        ({"key": KEY, "value": {"flag": True}}, "lacks a field, .*: 'value.small'"),
        ({"key": KEY | {"list": [None, {}]}, "value": VALUE}, "lacks a field, .*: 'key.list.day'"),
        ({"key": KEY | {"float": 1e39}, "value": VALUE}, "has the number 1e[+]39, which .*: 'key.float'"),
        ({"key": KEY | {"float": 2**24 + 1}, "value": VALUE}, "has the number 16777217, which"),
        ({"key": KEY | {"double": 2**53 + 1}, "value": VALUE}, "has the number 9007199254740993, which"),
    ],
    ids=str,
)
def test_json_whose_values_would_change_is_refused(
    put: Callable[[bytes], str], row: Any, message: str
) -> None:
    whole = {"key": KEY | {"float": 2**24, "double": 2**53}, "value": VALUE}
    with pytest.raises(RowEncodingError, match=f"row 1 of the changes {message}"):
        read_changes(put(lines(whole, row)), EVERY, "upsert")
    assert len(read_changes(put(lines(whole)), EVERY, "upsert")) == 1


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.duration("us"),
        pa.time64("ns"),
        pa.month_day_nano_interval(),
        pa.map_(pa.string(), pa.int64()),
        pa.list_(pa.struct([("a", pa.binary())])),
    ],
    ids=str,
)
def test_json_does_not_hold_every_type(put: Callable[[bytes], str], kind: pa.DataType) -> None:
    schema = pa.schema([("key", pa.struct([("a", pa.int64())])), ("value", pa.struct([("b", kind)]))])
    rows = put(lines({"key": {"a": 1}}))
    with pytest.raises(RowEncodingError, match=r"JSON cannot hold the column 'value' of the state"):
        read_changes(rows, schema, "upsert")
    # Keys alone are enough to delete.
    assert read_changes(rows, schema, "delete").to_pylist() == [{"key": {"a": 1}}]


def test_json_has_rows_larger_than_a_block(put: Callable[[bytes], str]) -> None:
    words = {"x" * (3 << 20): 1, "y" * (1 << 20): 2, "z": 3}
    rows = table(words)
    changes = read_changes(put(lines(*rows.to_pylist())), SCHEMA, "upsert")
    assert changes.select(["key", "value"]).equals(rows)

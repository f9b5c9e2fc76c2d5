"""Tests of ``get`` and ``diff``."""

from __future__ import annotations

import datetime
import shlex
from decimal import Decimal

import click
import pyarrow as pa
import pytest

from spark_statestore.cli.output import plain
from spark_statestore.cli.rows import matches, parse_key
from tests.unit.cli.commands import invoke, node, output_of
from tests.unit.query.stored_query import StoredQuery

MORNING = datetime.datetime(2026, 1, 1, 9, tzinfo=datetime.UTC)
WINDOW = pa.struct({"start": pa.timestamp("us", "UTC"), "end": pa.timestamp("us", "UTC")})


def test_get_finds_a_key_in_a_batch_and_a_partition(query: StoredQuery) -> None:
    (row,) = node("get", query.url, '"ann"')["rows"]
    assert row == {"key": {"word": "ann"}, "value": {"count": 3}, "partition_id": 0}
    assert "ann" in output_of("get", query.url, '{"word": "ann"}')
    (row,) = node("get", query.url, '"ann"', "--batch", 1, "--partition", 0)["rows"]
    assert row["value"] == {"count": 1}
    assert node("get", query.url, '"ann"', "--batch", 0, code=1)["rows"] == []
    assert node("get", query.url, '"ann"', "--partition", 1, code=1)["rows"] == []


def test_get_refuses_other_columns_and_repeated_ones(query: StoredQuery) -> None:
    assert "no column 'user'" in output_of("get", query.url, '{"user": "ann"}', code=2)
    assert "no stateful operator 3" in output_of("get", query.url, '"ann"', "--operator", 3, code=1)
    text = output_of("get", query.url, '{"word": "bob", "word": "ann"}', code=2)
    assert "'word' twice" in text
    assert "word_2" in text


@pytest.mark.parametrize(
    ("key", "example"),
    [
        ("ann", """'"ann"'"""),
        ("it's", """'"it'"'"'s"'"""),
        ("{user: ann}", """'{"user": "ann"}'"""),
        ("", """'""'"""),
    ],
)
def test_get_refuses_a_key_that_is_not_json_with_an_example(
    query: StoredQuery, key: str, example: str
) -> None:
    message = output_of("get", query.url, key, code=2)
    assert f"the key {key!r} is not JSON" in message
    assert example in message
    if key in ("ann", "it's"):
        (word,) = shlex.split(example)
        assert isinstance(node("get", query.url, word, code=0 if key == "ann" else 1)["rows"], list)
    error = node("get", query.url, key, code=2)["error"]
    assert error["type"] == "UsageError"
    assert example in error["message"]


def test_diff_prints_changes(query: StoredQuery) -> None:
    rows = node("diff", query.url, 0, 2)["rows"]
    assert {row["key"]["word"] for row in rows} == {"ann", "carl"}
    assert node("diff", query.url, 2, 2)["rows"] == []


@pytest.mark.parametrize(
    ("text", "columns", "key"),
    [
        ('"ann"', {"word": pa.string()}, {"word": "ann"}),
        ("7", {"word": pa.string()}, {"word": "7"}),
        ("null", {"id": pa.int64()}, {"id": None}),
        ('{"a": 1}', {"a": pa.int64(), "b": pa.int64()}, {"a": 1}),
    ],
)
def test_parse_key_accepts_typed_keys(
    text: str, columns: dict[str, pa.DataType], key: dict[str, object]
) -> None:
    assert parse_key(text, pa.struct(columns)) == key


@pytest.mark.parametrize(
    ("value", "type_", "operand"),
    [
        ("ann", pa.string(), "ann"),
        (7, pa.int64(), "7"),
        (7, pa.int16(), 7),
        (1.5, pa.float64(), "1.5"),
        (True, pa.bool_(), "true"),
        (Decimal("1.50"), pa.decimal128(10, 2), "1.50"),
        (datetime.date(2026, 1, 1), pa.date32(), "2026-01-01"),
        (MORNING, pa.timestamp("us", "UTC"), "2026-01-01T09:00:00Z"),
        (MORNING.replace(tzinfo=None), pa.timestamp("us"), "2026-01-01 09:00:00"),
        ({"start": MORNING, "end": MORNING}, WINDOW, {"start": "2026-01-01T10:00:00+01:00"}),
        ([1, 2], pa.list_(pa.int32()), [1, 2]),
        (b"\1\2", pa.binary(), "0102"),
    ],
)
def test_matches_compares_values_with_their_text(value: object, type_: pa.DataType, operand: object) -> None:
    column = pa.array([None, value], type_)
    assert matches(column, operand).fill_null(False).to_pylist() == [False, True]
    assert matches(column, None).to_pylist() == [True, False]
    # Text of a value as it is printed finds it again.
    assert matches(column, plain(value)).fill_null(False).to_pylist() == [False, True]


def test_matches_refuses_a_value_of_another_type(query: StoredQuery) -> None:
    for operand, type_ in [
        ("x", pa.int64()),
        ({"a": 1}, pa.int64()),
        ({"b": 1}, pa.struct({"a": pa.int64()})),
    ]:
        with pytest.raises(click.UsageError):
            matches(pa.array([None], type_), operand)
    assert invoke("get", query.url).exit_code == 2

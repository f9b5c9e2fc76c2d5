"""Tests of structs with several fields of one name."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import duckdb
import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from spark_statestore import diff_state, iter_state, read_state
from spark_statestore.cli.output import plain
from spark_statestore.rescaling.murmur3 import hash_columns
from spark_statestore.rows import decode_rows, encode_rows
from spark_statestore.rows.types import SparkType, parse_schema
from tests.support.effort import EFFORT
from tests.unit.cli.commands import node, output_of
from tests.unit.rows.encoder import (
    SIMPLE,
    Column,
    by_position,
    columns_of,
    encode,
    encode_row,
    repeated_names,
    rows,
    struct_of,
)
from tests.unit.savepoints.written_query import WrittenQuery


def struct(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"name": name, "type": kind} for name, kind in fields]}


def structs(kind: pa.DataType) -> Iterator[pa.StructType]:
    """All structs in a type."""
    if pa.types.is_struct(kind):
        yield kind
    for number in range(kind.num_fields):
        yield from structs(kind.field(number).type)


def alike(names: Sequence[str]) -> bool:
    """Return True if some names differ only in case, and so are equal in SQL."""
    return len({name.casefold() for name in names}) < len(names)


def flattened(table: pa.Table) -> Iterator[pa.Table]:
    """The table with one level of structs less at a time, until none is left."""
    while any(pa.types.is_struct(kind) and kind.num_fields for kind in table.schema.types):
        table = table.flatten()
        yield table


@pytest.mark.parametrize(
    ("names", "unique"),
    [
        (["count", "sum", "count"], ["count", "sum", "count_2"]),
        (["count", "count", "count"], ["count", "count_2", "count_3"]),
        (["count", "Count", "COUNT"], ["count", "Count_2", "COUNT_3"]),
        # A field that is called so keeps its name, wherever it comes.
        (["count", "count", "count_2"], ["count", "count_3", "count_2"]),
        (["Count_2", "count", "count"], ["Count_2", "count", "count_3"]),
        (["count_2", "count_2", "count"], ["count_2", "count_2_2", "count"]),
        (["", ""], ["", "_2"]),
        (["straße", "STRASSE"], ["straße", "STRASSE_2"]),
        (["a", "b", "a_b"], ["a", "b", "a_b"]),
    ],
)
def test_repeated_names_are_numbered(names: list[str], unique: list[str]) -> None:
    column = decode_rows(
        pa.array([encode_row(["long"] * len(names), range(len(names)))]),
        json.dumps(struct(*((name, "long") for name in names))),
    )
    assert column.to_pylist() == [{name: number for number, name in enumerate(unique)}]
    inside = struct(*((name, "long") for name in names))
    for node_ in (
        inside,
        {"type": "array", "elementType": inside},
        {"type": "map", "keyType": inside, "valueType": inside},
        {"type": "udt", "class": "x", "sqlType": inside},
    ):
        for part in structs(parse_schema(json.dumps(struct(("s", node_)))).children[0].arrow):
            # The entries of a map are no struct of Spark's.
            if part.names != ["key", "value"]:
                assert part.names == unique


@pytest.mark.parametrize(
    ("kind", "paths"),
    [
        (struct(("a", struct(("b", "long"))), ("a.b", "long")), ["a.b", "a.b_2"]),
        (struct(("a.b", "long"), ("A", struct(("B", "long")))), ["a.b", "A_2.B"]),
        (
            struct(("a", struct(("b.c", "long"))), ("a.b", struct(("c", "long"), ("d", "long")))),
            ["a.b.c", "a.b_2.c", "a.b_2.d"],
        ),
        (
            struct(("a", struct(("b", "long"))), ("a", struct(("b", "long"))), ("a_2.b", "long")),
            ["a.b", "a_3.b", "a_2.b"],
        ),
        (struct(("v", "variant"), ("v.value", "long")), ["v.value", "v.metadata", "v.value_2"]),
    ],
)
def test_names_with_dots_differ_from_paths(kind: dict[str, Any], paths: list[str]) -> None:
    table = pa.table([pa.array([], parse_schema(json.dumps(kind)).arrow)], ["value"])
    *_, last = flattened(table)
    assert last.column_names == [f"value.{path}" for path in paths]


@given(st.data())
@settings(max_examples=100 * EFFORT)
def test_rows_of_repeated_names_are_matched_by_position(data: st.DataObject) -> None:
    row = data.draw(rows)
    values = data.draw(st.lists(row.nullable, max_size=5))
    schema = json.dumps(data.draw(repeated_names(row.node)))
    stored = pa.array([None if value is None else encode(row.node, value) for value in values], pa.binary())
    column = decode_rows(stored, schema)
    column.validate(full=True)
    assert column.type == decode_rows(stored, schema).type
    assert encode_rows(column, schema).equals(stored)
    assert not any(alike(part.names) for part in structs(column.type))
    expected = pa.array(values, row.arrow).to_pylist()
    assert repr(by_position(column.to_pylist())) == repr(by_position(expected))
    for table in flattened(pa.table([column], ["value"])):
        assert not alike(table.column_names)
    for path, field in fields_of(parse_schema(schema), column):
        alone = decode_rows(stored, schema, [".".join(path)])
        for _ in path:
            (alone,) = alone.flatten()
        assert repr(alone.to_pylist()) == repr(field.to_pylist())


def fields_of(kind: SparkType, values: pa.StructArray) -> Iterator[tuple[list[str], pa.Array]]:
    """The fields of structs, and of structs in these, each with the names that lead to it."""
    for name, child, field in zip(kind.arrow.names, kind.children, values.flatten(), strict=True):
        yield [name], field
        if child.name == "struct":
            yield from (([name, *path], inner) for path, inner in fields_of(child, field))


@given(st.data())
@settings(max_examples=50 * EFFORT)
def test_hash_columns_does_not_depend_on_names(data: st.DataObject) -> None:
    hashed = [column for column in SIMPLE if not column.node.startswith(("variant", "geo"))]
    row = struct_of(data.draw(st.lists(columns_of(hashed), max_size=4)))
    values = data.draw(st.lists(row.values, min_size=1, max_size=4))
    stored = pa.array([encode(row.node, value) for value in values], pa.binary())

    def hashes(schema: str) -> list[int]:
        columns = decode_rows(stored, schema).flatten()
        return hash_columns(columns, parse_schema(schema).children, len(values)).tolist()

    assert hashes(json.dumps(data.draw(repeated_names(row.node)))) == hashes(json.dumps(row.node))


# Types that pandas and DuckDB return unchanged, nulls in lists included.
SHOWN = [column for column in SIMPLE if column.node in ("string", "boolean", "binary")]


@st.composite
def made_states(draw: st.DrawFn) -> tuple[Column, Any, Column, Any]:
    """Draw the types of keys and values, each with a schema of repeated names."""
    # Spark has no maps in keys.
    simple = st.sampled_from(SHOWN)
    keys = st.lists(simple | st.lists(simple, min_size=1, max_size=3).map(struct_of), min_size=2, max_size=4)
    key = struct_of(draw(keys))
    value = struct_of(draw(st.lists(columns_of(SHOWN, least=1), min_size=2, max_size=4)))
    return key, draw(repeated_names(key.node)), value, draw(repeated_names(value.node))


@given(made_states(), st.data())
@settings(max_examples=12 * EFFORT)
def test_state_with_repeated_names_is_readable_by_all_functions(
    columns: tuple[Column, Any, Column, Any], data: st.DataObject
) -> None:
    key, key_schema, value, value_schema = columns
    added = data.draw(st.lists(st.tuples(key.values, value.values), min_size=1, max_size=5))
    changed = [(k, data.draw(value.values)) for k, _ in added[:2]]
    with tempfile.TemporaryDirectory() as directory:
        query = WrittenQuery(
            directory,
            operators={0: ("stateStoreSave", 1, ("default",))},
            key_schema=json.dumps(key_schema),
            value_schema=json.dumps(value_schema),
        )
        batches = [{encode(key.node, k): encode(value.node, v) for k, v in part} for part in (added, changed)]
        for batch in batches:
            query.run(put=batch)
        # Encoded rows, as the schema without repeated names has them.
        before, after = batches[0], batches[0] | batches[1]
        expected = list(zip(decoded(key, after), decoded(value, after.values()), strict=True))
        assert_read(query.url, expected)
        assert_shown(query.url)
        differ = {k: after[k] for k in before if before[k] != after[k]}
        changes = zip(
            decoded(key, differ),
            decoded(value, (before[k] for k in differ)),
            decoded(value, differ.values()),
            strict=True,
        )
        difference = diff_state(query.url, 0, 1).to_pylist()
        assert ordered((r["key"], r["before"], r["after"]) for r in difference) == ordered(changes)
        printed = node("diff", query.url, 0, 1)["rows"]
        assert printed == json.loads(json.dumps(plain(difference)))


def decoded(row: Column, encoded: Iterable[bytes]) -> list[Any]:
    return by_position(decode_rows(pa.array(encoded, pa.binary()), json.dumps(row.node)).to_pylist())


def assert_shown(url: str) -> None:
    """`show` has the names under which state is read."""
    (shown,) = node("show", url, "--operator", 0)["column_families"]
    schema = read_state(url).schema
    text = output_of("show", url, "--operator", 0)
    for part, column in (("keySchema", "key"), ("valueSchema", "value")):
        names = [field["name"] for field in json.loads(shown[part])["fields"]]
        assert names == schema.field(column).type.names
        assert all(name in text for name in names)


def assert_read(
    url: str, expected: list[Any], operator: int = 0, store: str = "default", column_family: str | None = None
) -> None:
    """All readers give these rows by position, under names that differ."""
    family = [] if column_family is None else ["--column-family", column_family]
    arguments = ["--operator", operator, "--store", store]
    state = read_state(url, operator, store, column_family)
    pieces = pa.Table.from_batches(iter_state(url, operator, store, column_family, batch_rows=2))
    assert pieces == state
    columns = [name for name in state.column_names if name != "partition_id"]
    assert ordered(state.select(columns).to_pylist()) == ordered(expected)
    assert ordered(state.to_pandas()[columns].to_dict("records")) == ordered(expected)
    with duckdb.connect() as connection:
        connection.register("state", state)
        again = connection.sql(f"select {', '.join(columns)} from state").to_arrow_table().to_pylist()
        assert ordered(again) == ordered(expected)
        for position, column in enumerate(columns):
            for number, name in enumerate(state.schema.field(column).type.names):
                if name:
                    query_result = connection.sql(
                        f"""select {column}."{name}" as x from state"""
                    ).to_arrow_table()
                    fields = [row[position][number] for row in expected]
                    assert ordered(query_result["x"].to_pylist()) == ordered(fields)
        for table in flattened(state):
            connection.register("flat", table)
            assert connection.sql("select * from flat").columns == table.column_names
    rows_ = [json.loads(json.dumps(plain(row))) for row in state.to_pylist()]
    for row in rows_:
        same = [candidate for candidate in rows_ if candidate["key"] == row["key"]]
        found_rows = node("get", url, json.dumps(row["key"]), *arguments, *family)["rows"]
        assert ordered(found_rows) == ordered(same)
        assert all(found_row.keys() == row.keys() for found_row in found_rows)
    assert output_of("get", url, json.dumps(rows_[0]["key"]), *arguments, *family)
    (listed,) = (
        store_entry
        for store_entry in node("ls", url)["stores"]
        if store_entry["operator"] == operator and store_entry["store"] in (store, "default")
    )
    assert listed["rows"] >= len({repr(row["key"]) for row in rows_})


def ordered(values: Iterable[Any]) -> list[str]:
    """Values by position, as text, with times as UTC."""

    def text(value: Any) -> Any:
        if isinstance(value, list):
            return [text(part) for part in value]
        is_time = isinstance(value, datetime)
        return value.astimezone(UTC).isoformat(timespec="microseconds") if is_time else value

    return sorted(repr(text(by_position(value))) for value in values)

"""Tests of the columns of a changed state, and of the buffers of aggregates in them."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from spark_statestore.writing.buffers import buffers_of, matched_buffers
from spark_statestore.writing.columns import NewColumns


@pytest.mark.parametrize(
    ("names", "kinds"),
    [
        ("count:l", ["count"]),
        ("sum:l count:l", ["sum", "count"]),
        ("sum:d count:l", ["avg, or sum and count"]),
        ("sum:c count:l", ["avg of decimals"]),
        ("sum:c isEmpty:b count:l", ["sum with isEmpty", "count"]),
        (
            "first:l valueSet:b last:l valueSet:b first:l",
            ["first with valueSet", "last with valueSet", "first"],
        ),
        ("min:l max:l n:d avg:d m2:d", ["min", "max", "n", "avg", "m2"]),
        ("", []),
    ],
)
def test_buffers_are_told_by_their_fields(names: str, kinds: list[str]) -> None:
    assert [buffer.kind for buffer in buffers_of(fields(names))] == kinds


def fields(names: str) -> list[pa.Field]:
    types = {"l": pa.int64(), "d": pa.float64(), "c": pa.decimal128(30, 2), "b": pa.bool_()}
    return [pa.field(name, types[kind]) for name, _, kind in (f.partition(":") for f in names.split())]


KINDS = ["count:l", "sum:l", "min:l", "max:l", "sum:c isEmpty:b", "first:l valueSet:b", "sum:c count:l"]


def test_buffers_of_the_same_functions_are_taken_in_their_order() -> None:
    buffers = buffers_of(fields("buf:l sum:d count:l n:d avg:d m2:d count:l"))
    assert matched_buffers(buffers, buffers) == ([(buffer, buffer) for buffer in buffers], [], [])


@given(st.permutations(KINDS), st.permutations(KINDS), st.integers(0, 7), st.integers(0, 7))
def test_buffers_of_one_kind_belong_together(old: list[str], new: list[str], has: int, wants: int) -> None:
    before, after = old[:has], new[:wants]
    pairs, added, unclear = matched_buffers(
        buffers_of(fields(" ".join(before))), buffers_of(fields(" ".join(after)))
    )
    sums = {kind for kind in KINDS if "sum" in kind or "count" in kind}
    lost, new_ones = set(before) - set(after), set(after) - set(before)
    # One of those that are new may be one of those that are not there any more.
    clear = set(after) - sums if lost & sums and new_ones & sums else set(after)
    assert len(unclear) == len(set(after) - clear)
    assert len(pairs) == len(set(before) & clear)
    assert all(old_buffer.kind == new_buffer.kind for old_buffer, new_buffer in pairs)
    assert len(added) == len(clear - set(before))


def columns(old: str, new: str, begin: int = 0, **values: Any) -> NewColumns:
    """Columns of an aggregation by one key, whose values have some fields."""
    return NewColumns(
        state(fields(old)),
        state(fields(new)),
        {f"value.{name}": value for name, value in values.items()},
        (json_of(old), json_of(new), begin, begin),
    )


def state(value: list[pa.Field]) -> pa.Schema:
    names: dict[str, int] = {}
    unique = []
    for field in value:
        names[field.name] = names.get(field.name, 0) + 1
        number = names[field.name]
        unique.append(field if number == 1 else field.with_name(f"{field.name}_{number}"))
    return pa.schema([("key", pa.struct([("k", pa.string())])), ("value", pa.struct(unique))])


def json_of(names: str) -> str:
    return json.dumps({"type": "struct", "fields": [{"name": field.name} for field in fields(names)]})


def test_buffers_are_matched_by_kind_and_not_by_name() -> None:
    new_columns = columns("count:l", "sum:c count:l count:l")
    # The count of an average is no count of rows.
    assert {f.path: str(f) for f in new_columns.fields} == {
        "key.k": "key.k",
        "value.sum": "0",
        "value.count": "0",
        "value.count_2": "value.count",
    }
    row = pa.RecordBatch.from_pylist([{"key": {"k": "a"}, "value": {"count": 3}}], state(fields("count:l")))
    assert new_columns.evaluate(row).to_pylist()[0]["value"] == {"sum": Decimal(0), "count": 0, "count_2": 3}


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("count:l", "count:l count:l", "value.count is of count, which"),
        ("count:l", "sum:d count:l", "value.sum is of avg, or sum and count, which"),
        # An average of floating-point numbers could be a sum and a count, of the rows or of something else.
        ("count:l", "count:l sum:d count:l", "value.count is of count, which"),
        ("sum:d count:l", "sum:d count:l count:l", "value.sum is of avg, or sum and count, which"),
        ("sum:d count:l count:l", "max:l sum:d count:l", "value.sum is of avg, or sum and count, which"),
        ("count:l", "count:l n:d avg:d m2:d", "value.n is of n, which"),
        # A sum or an average of another type begins with nothing only if no other one is left.
        ("sum:l", "sum:c isEmpty:b", "value.sum is of sum with isEmpty, which"),
        ("sum:l sum:l count:l", "sum:l sum:c count:l count:l", "value.sum is of sum, which"),
        ("sum:c count:l", "sum:d count:l", "value.sum is of avg, or sum and count, which"),
        # Fields of functions that are not known may belong to another one.
        ("n:d avg:d m2:d count:l", "n:d avg:d m2:d", "value.n is of n, which"),
        ("buf:l", "buf:l max:l", "value.buf is of buf, which"),
        ("count:l", "count:l n:d", "value.n is of n, which"),
        ("min:d", "min:l", "value.min is int64 and was double"),
        ("sum:l", "sum:d", "value.sum is double and was int64"),
    ],
)
def test_buffers_that_cannot_be_told_are_problems(old: str, new: str, problem: str) -> None:
    new_columns = columns(old, new)
    assert any(text.startswith(problem) for text in new_columns.problems)
    names = [field.name for field in state(fields(new)).field("value").type]
    assert not columns(old, new, **dict.fromkeys(names, 1)).problems


def test_decimals_are_widened_if_all_digits_fit() -> None:
    def problems(precision: int, scale: int) -> list[str]:
        key = ("key", pa.struct([("k", pa.string())]))
        old = pa.schema([key, ("value", pa.struct([("x", pa.decimal128(10, 2))]))])
        new = pa.schema([key, ("value", pa.struct([("x", pa.decimal128(precision, scale))]))])
        return NewColumns(old, new, {}).problems

    assert not problems(12, 4)
    assert problems(12, 5)
    assert problems(12, 1)


def test_new_fields_that_could_be_renamed_ones_are_problems() -> None:
    def problems(old: str, new: str) -> list[str]:
        return NewColumns(state(fields(old)), state(fields(new)), {}).problems

    assert not problems("a:l", "a:l b:l")
    assert not problems("a:l b:l", "a:l")
    assert problems("a:l", "b:l") == ["value.b is not in the old state, and could be value.a"]


@pytest.mark.parametrize("number", [pa.int32(), pa.int64()], ids=str)
def test_nested_columns_of_nulls_are_taken(number: pa.DataType) -> None:
    """Arrow's cast of a nested type with nulls makes invalid arrays, also of the same type."""

    def schema(kind: pa.DataType) -> pa.Schema:
        nulls = pa.list_(pa.struct([("none", pa.null())]))
        value = pa.struct([("s", pa.struct([("n", kind), ("l", nulls)]))])
        return pa.schema([("key", pa.struct([("k", pa.string())])), ("value", value)])

    rows = [{"key": {"k": "a"}, "value": {"s": {"n": 1, "l": [{"none": None}] * n}}} for n in range(4)]
    batch = pa.RecordBatch.from_pylist(rows, schema(pa.int32())).slice(1)
    new_rows = NewColumns(batch.schema, schema(number), {}).evaluate(batch)
    new_rows.validate(full=True)
    assert new_rows.to_pylist() == rows[1:]

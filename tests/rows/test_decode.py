"""Rows decoded to columns: what an encoder wrote value by value comes back, and bytes that are no rows are refused."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
from hypothesis import given, settings

from spark_statestore.rows import decode_rows
from tests.effort import EFFORT
from tests.rows.encoder import SIMPLE, Column, _struct_of, encode_row, rows


def schema(**fields: Any) -> str:
    nodes = [{"name": n, "type": node, "nullable": True, "metadata": {}} for n, node in fields.items()]
    return json.dumps({"type": "struct", "fields": nodes})


def encoded(row: Column, values: list[Any]) -> pa.BinaryArray:
    types = [field["type"] for field in row.node["fields"]]
    return pa.array(
        [None if value is None else encode_row(types, list(value.values())) for value in values], pa.binary()
    )


def shown(values: pa.Array) -> list[str]:
    """Each value as text, which tells NaN from null and 0.0 from -0.0."""
    return [repr(value) for value in values.to_pylist()]


@given(st.data())
@settings(max_examples=150 * EFFORT)
def test_what_was_encoded_is_decoded(data: st.DataObject) -> None:
    row = data.draw(rows)
    values = data.draw(st.lists(row.nullable, max_size=6))
    found = decode_rows(encoded(row, values), json.dumps(row.node))
    found.validate(full=True)
    assert found.type == row.arrow
    assert shown(found) == shown(pa.array(values, row.arrow))


@given(st.data())
@settings(max_examples=5 * len(SIMPLE) * EFFORT)
def test_every_type_is_decoded(data: st.DataObject) -> None:
    row = _struct_of([data.draw(st.sampled_from(SIMPLE))])
    values = data.draw(st.lists(row.values, min_size=1, max_size=6))
    assert shown(decode_rows(encoded(row, values), json.dumps(row.node))) == shown(
        pa.array(values, row.arrow)
    )

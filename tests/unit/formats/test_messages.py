"""Tests of record batch messages that are encoded from a template."""

from __future__ import annotations

import struct
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from spark_statestore.formats.messages import BatchEncoder

VALUES = {
    pa.uint8(): st.integers(0, 255),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.uint32(): st.integers(0, 2**32 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.utf8(): st.text(max_size=5),
    pa.binary(): st.binary(max_size=5),
    pa.list_(pa.field("item", pa.int64(), nullable=False)): st.lists(st.integers(0, 9), max_size=3),
}
SCHEMA = pa.schema([pa.field(f"c{i}", kind) for i, kind in enumerate(VALUES)])
ENCODER = BatchEncoder(SCHEMA)


ROWS = st.lists(st.tuples(*(st.none() | values for values in VALUES.values())), min_size=1, max_size=20)


@given(ROWS)
def test_batch_encoder_writes_what_pyarrow_reads(rows: list[tuple[Any, ...]]) -> None:
    columns = {name: list(column) for name, column in zip(SCHEMA.names, zip(*rows, strict=True), strict=True)}
    message = ENCODER.encode(list(columns.values()))
    batch = pa.ipc.read_record_batch(pa.py_buffer(message), SCHEMA)
    batch.validate(full=True)
    assert batch.to_pydict() == columns
    assert [c.null_count for c in batch.columns] == [column.count(None) for column in columns.values()]
    # The next message starts where the reader expects it.
    assert len(message) == pa.record_batch(list(columns.values()), schema=SCHEMA).serialize().size


@given(st.lists(ROWS, min_size=2, max_size=4), st.data())
def test_batch_encoder_appends_what_it_encodes_at_once(parts: list[Any], data: st.DataObject) -> None:
    def columns(rows: list[Any]) -> list[tuple[Any, ...]]:
        return list(zip(*rows, strict=True))

    message = ENCODER.encode(columns(parts[0]))
    for part in parts[1:]:
        message = ENCODER.append(message, columns(part))
    rows = [row for part in parts for row in part]
    assert message == ENCODER.encode(columns(rows))
    assert ENCODER.count_rows(message) == len(rows)
    column = SCHEMA.get_field_index("c3")
    present = [number for number, row in enumerate(rows) if row[column] is not None]
    if present:
        number = data.draw(st.sampled_from(present))
        rows[number] = (*rows[number][:column], 77, *rows[number][column + 1 :])
        assert ENCODER.replace_number(message, column, number, 77) == ENCODER.encode(columns(rows))


def test_batch_encoder_refuses_numbers_out_of_range() -> None:
    with pytest.raises(struct.error):
        BatchEncoder(pa.schema([("a", pa.uint8())])).encode([[256]])


def test_batch_encoder_refuses_other_column_types() -> None:
    with pytest.raises(TypeError, match="double"):
        BatchEncoder(pa.schema([("a", pa.float64())]))

"""Tests of `write_state` with changes that are not Arrow tables."""

from __future__ import annotations

import datetime
import math
from pathlib import Path
from typing import Any

import duckdb
import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given

from spark_statestore import OptionError, RowEncodingError, WrittenState, write_state
from spark_statestore.writing.tables import as_tables
from tests.unit.query.stored_query import StoredQuery
from tests.unit.rows import encoder
from tests.unit.writing.test_write import counts, table

BEFORE = {"a": 1, "b": 2}
CHANGES = {"b": 20, "c": 30}
BEGIN = datetime.datetime(2024, 1, 1)


@pytest.fixture
def query(tmp_path: Path) -> StoredQuery:
    query = StoredQuery(tmp_path / "query")
    query.run(**BEFORE)
    return query


class Stream:
    """An object with the Arrow C stream interface alone, with types as Polars has them."""

    def __init__(self, rows: pa.Table) -> None:
        words = [row["key"]["word"] for row in rows.to_pylist()]
        distinct = pa.array(sorted(set(words)), pa.string_view())
        indices = pa.array([distinct.to_pylist().index(word) for word in words], pa.uint32())
        keys = pa.StructArray.from_arrays([pa.DictionaryArray.from_arrays(indices, distinct)], ["word"])
        self.rows = pa.table({"key": keys, "value": rows["value"]})

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.rows.__arrow_c_stream__(requested_schema)


class SparkFrame:
    """A DataFrame of Spark, as far as it is used."""

    def toArrow(self) -> pa.Table:
        return table(CHANGES)


def relation() -> Any:
    return duckdb.sql(
        "select {'word': word} as key, {'count': n} as value from (values ('b', 20), ('c', 30)) t(word, n)"
    )


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(lambda: table(CHANGES).combine_chunks().to_batches()[0], id="record batch"),
        pytest.param(lambda: table(CHANGES).to_reader(1), id="record batch reader"),
        pytest.param(lambda: table(CHANGES).to_pandas(), id="pandas"),
        pytest.param(lambda: table({"x": 0} | CHANGES).to_pandas().iloc[1:], id="slice of pandas"),
        pytest.param(
            lambda: table(CHANGES).to_pandas(types_mapper=pd.ArrowDtype), id="pandas with Arrow's types"
        ),
        pytest.param(lambda: Stream(table(CHANGES)), id="stream"),
        pytest.param(relation, id="DuckDB"),
        pytest.param(SparkFrame, id="Spark"),
    ],
)
def test_write_state_takes_data_frames_and_streams(query: StoredQuery, tmp_path: Path, changes: Any) -> None:
    result = write_state(query.url, str(tmp_path / "target"), changes())
    assert result == WrittenState(batch=0, added=1, changed=1, removed=0)
    assert counts(tmp_path / "target") == BEFORE | CHANGES


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (None, OptionError, "the changes are a NoneType, but they must be"),
        ([{"key": 1}], OptionError, "the changes are a list, but they must be"),
        ({"key": [1]}, OptionError, "the changes are a dict, but they must be"),
        (pd.DataFrame({"key": [{"word": object()}]}), RowEncodingError, "have no rows of Arrow types: "),
        (pa.chunked_array([[1, 2]]), RowEncodingError, r"the changes \(.*\) have no rows of Arrow types: "),
    ],
    ids=["nothing", "list", "dict", "pandas", "array"],
)
def test_write_state_refuses_objects_without_rows(
    query: StoredQuery, tmp_path: Path, changes: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        write_state(query.url, str(tmp_path / "target"), changes)
    assert not (tmp_path / "target").exists()


def test_views_become_arrays() -> None:
    def kind(text: pa.DataType, data: pa.DataType) -> pa.DataType:
        return pa.struct(
            [
                ("a", pa.list_(text)),
                ("b", pa.large_list(data)),
                ("c", pa.list_(text, 2)),
                ("d", pa.map_(text, data)),
                ("e", pa.list_(pa.null())),
            ]
        )

    rows = [
        {"a": ["x", None], "b": [b"x" * 20], "c": ["x", "y"], "d": [("x", b"y")], "e": [None, None]},
        None,
        {"a": None, "b": [], "c": None, "d": None, "e": []},
    ]
    arrays = whole(pa.table({"key": pa.array(rows, kind(pa.string_view(), pa.binary_view()))}))["key"]
    arrays.validate(full=True)
    assert arrays.to_pylist() == rows
    assert arrays.type == kind(pa.large_string(), pa.large_binary())


def with_views(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(with_views(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(with_views(kind.key_type), with_views(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(with_views(kind.value_type))
    return pa.string_view() if pa.types.is_string(kind) else kind


@pytest.mark.parametrize("convert", [lambda kind: kind, with_views], ids=["arrays", "views"])
@given(data=st.data())
def test_rows_of_every_type_stay_equal(data: st.DataObject, convert: Any) -> None:
    """Arrow's cast of nested columns of nulls, such as those of Spark's type void, makes invalid arrays."""
    row = data.draw(encoder.rows)
    values = data.draw(st.lists(row.values, max_size=4))
    kind = convert(row.arrow)
    rows = pa.table({"key": pa.array(values, kind)}).slice(data.draw(st.integers(0, len(values))))
    arrays = whole(rows)
    arrays.validate(full=True)
    assert repr(arrays.to_pylist()) == repr(rows.to_pylist())


def whole(changes: Any) -> pa.Table:
    return pa.concat_tables(as_tables(changes))


def test_pandas_values_are_not_changed() -> None:
    rows = [
        {"n": 2**62, "x": math.nan, "t": BEGIN, "l": np.array([1.5, math.nan]), "s": [{"y": 1}, None]},
        {"n": None, "x": None, "t": None, "l": None, "s": [{"y": None}]},
    ]
    first, second = whole(pd.DataFrame({"key": rows}))["key"].to_pylist()
    assert math.isnan(first["x"])
    assert math.isnan(first["l"][1])
    assert (first["n"], first["t"], first["s"]) == (2**62, BEGIN, [{"y": 1}, None])
    assert second == {"n": None, "x": None, "t": None, "l": None, "s": [{"y": None}]}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"a": 1, "b": 1}, {"a": 1}], "row 1 .* 'key' .* only one has the fields 'b'"),
        ([{"a": [{"b": 1}]}, {"a": [{"c": 1}]}], r"row 1 .* 'key\.a\.element' .* the fields 'b', 'c'"),
        ([{"a": None}, {"a": BEGIN}, {"a": BEGIN.date()}], r"row 2 .* 'key\.a' .* without a zone and date"),
        (
            [{"a": BEGIN}, {"a": BEGIN.replace(tzinfo=datetime.UTC)}],
            "row 1 .* without a zone and a time with",
        ),
        ([{"a": np.array([{"b": 1}, {}])}], r"row 0 .* 'key\.a\.element' .* the fields 'b'"),
        ([{"a": "x"}, {"a": b"x"}], r"row 1 .* 'key\.a' .* str and bytes"),
        ([{"a": {"b": 1}}, {"a": 1}], r"row 1 .* 'key\.a' .* dict and a number"),
        ([{"a": pd.Timestamp(1)}], r"row 0 .* 'key\.a' has Timestamp.* nanoseconds"),
        ([{"a": pd.Timedelta(1)}], r"row 0 .* 'key\.a' has Timedelta.* nanoseconds"),
        ([{"a": BEGIN}, {"a": pd.NaT}], r"row 1 .* 'key\.a' has the null NaT of pandas"),
    ],
)
def test_pandas_values_that_would_change_are_refused(rows: list[Any], message: str) -> None:
    with pytest.raises(RowEncodingError, match=message):
        whole(pd.DataFrame({"key": rows}))


def test_reader_that_was_read_before_is_refused() -> None:
    rows = table({"a": 1})
    reader = pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches())
    assert whole(reader).num_rows == 1
    with pytest.raises(OptionError, match="may have been read before"):
        whole(reader)
    assert whole(rows.slice(0, 0)).num_rows == 0

"""Aggregations and dropDuplicates by generated keys of many types, against Spark's own store."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import Phase, given, note, settings

from tests.effort import EFFORT
from tests.spark.queries import OURS, SPARKS, Query, Rows, run_with_restarts

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def decimals(precision: int, places: int) -> st.SearchStrategy[Any]:
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda n: pa.scalar(n, pa.decimal128(38, 0)).as_py().scaleb(-places))


TYPES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.sampled_from([0.0, -0.0, float("nan")]) | st.floats(width=32)),
    (pa.float64(), st.sampled_from([0.0, -0.0, float("nan")]) | st.floats()),
    (pa.string(), text),
    (pa.binary(), st.binary(max_size=20)),
    (pa.date32(), st.dates(date(1901, 1, 1), date(2999, 1, 1))),
    (
        pa.timestamp("us", tz="UTC"),
        st.datetimes(datetime(1971, 1, 1), datetime(2999, 1, 1), timezones=st.just(UTC)),
    ),
    (pa.decimal128(9, 2), decimals(9, 2)),
    (pa.decimal128(38, 18), decimals(38, 18)),
    (
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        st.fixed_dictionaries({"a": st.none() | st.integers(0, 9), "b": st.none() | text}),
    ),
    (pa.list_(pa.string()), st.lists(st.none() | text, max_size=3)),
]


@dataclass
class Input:
    schema: pa.Schema
    parts: list[list[Rows]]
    checkpoint_format: int


@st.composite
def inputs(draw: st.DrawFn) -> Input:
    """Batches over a few values of each key column, so that keys come again."""
    columns = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=3))
    names = [f"k{number}" for number in range(len(columns))]
    values = {
        name: st.sampled_from([None, *draw(st.lists(column[1], min_size=1, max_size=4))])
        for name, column in zip(names, columns, strict=True)
    }
    row = st.fixed_dictionaries({**values, "v": st.none() | st.integers(-(2**31), 2**31)})
    batch = st.lists(row, min_size=1, max_size=30)
    # The query is stopped and started between the parts.
    parts = [[draw(batch), draw(batch)], [draw(batch)]]
    fields = [pa.field(name, column[0]) for name, column in zip(names, columns, strict=True)]
    return Input(pa.schema([*fields, ("v", pa.int64())]), parts, draw(st.sampled_from([1, 2])))


def keys(stream: Any) -> list[str]:
    return [name for name in stream.columns if name != "v"]


def aggregate(stream: Any) -> Any:
    from pyspark.sql import functions as F

    return stream.groupBy(*keys(stream)).agg(F.count("*").alias("n"), F.sum("v").alias("sum"))


def distinct(stream: Any) -> Any:
    return stream.dropDuplicates(keys(stream)).select(*keys(stream))


@pytest.mark.slow
@pytest.mark.parametrize(("build", "mode"), [(aggregate, "update"), (distinct, "append")])
def test_keys_of_every_type_are_told_apart_as_on_sparks_own_store(
    spark: Any, tmp_path_factory: pytest.TempPathFactory, build: Any, mode: str
) -> None:
    @settings(max_examples=5 * EFFORT, phases=[Phase.generate], database=None)
    @given(inputs())
    def compare(given_: Input) -> None:
        note(str(given_.schema))
        found = []
        for provider, checkpoint_format in ((SPARKS, 1), (OURS, given_.checkpoint_format)):
            query = Query(
                spark,
                tmp_path_factory.mktemp("generated"),
                build,
                mode,
                given_.schema,
                provider=provider,
                checkpoint_format=checkpoint_format,
            )
            found.append((run_with_restarts(query, given_.parts), query.state()))
        assert found[0] == found[1]

    compare()

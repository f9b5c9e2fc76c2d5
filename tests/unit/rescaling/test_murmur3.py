"""Tests of row hashes and partitions against Spark's, for every type that it hashes."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from operator import itemgetter
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings

from spark_statestore.rescaling.murmur3 import hash_columns, partitions_of
from spark_statestore.rows.types import parse_schema
from tests.spark.inputs import TYPES, decimals, text
from tests.spark.queries import configured
from tests.support.effort import EFFORT

PARTITIONS = 3

MORE_TYPES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.decimal128(18, 0), decimals(18, 0)),
    (
        pa.decimal128(19, 0),
        st.sampled_from(list(map(Decimal, (0, -1, 127, 128, 255, 256, -128, -129, 2**63)))),
    ),
    (pa.string(), st.sampled_from(["", "x" * 4099, "größe" * 901, "\U0001f600"])),
    (pa.timestamp("us"), st.datetimes(datetime(1901, 1, 1), datetime(2999, 1, 1))),
    (
        pa.map_(pa.string(), pa.list_(pa.int16())),
        # Spark sorts the entries before a shuffle, so that equal maps meet.
        st.dictionaries(
            text, st.none() | st.lists(st.none() | st.integers(-9, 9), max_size=3), max_size=3
        ).map(lambda entries: sorted(entries.items(), key=itemgetter(0))),
    ),
]


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    columns = draw(st.lists(st.sampled_from(TYPES + MORE_TYPES), min_size=1, max_size=8))
    rows = draw(st.integers(1, 60))
    return pa.table(
        {
            f"c{number}": pa.array(draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), kind)
            for number, (kind, values) in enumerate(columns)
        }
    )


def hashed_by_spark(frame: Any) -> list[tuple[int, int]]:
    """The hash of each row and its partition after a shuffle, in the order of the column `row`."""
    names = [name for name in frame.columns if name != "row"]
    shuffled = frame.repartition(PARTITIONS, *names)
    rows = shuffled.selectExpr(
        "row", f"hash({', '.join(names)}) as hash", "spark_partition_id() as partition"
    )
    return [(row.hash, row.partition) for row in sorted(rows.collect())]


def hashed_by_us(table: pa.Table, schema: str) -> list[tuple[int, int]]:
    columns = [column.combine_chunks() for column in table.columns]
    hashes = hash_columns(columns, parse_schema(schema).children, table.num_rows)
    partitions = partitions_of(hashes, PARTITIONS)
    return list(zip(hashes.view("i4").tolist(), partitions.tolist(), strict=True))


@pytest.fixture(scope="module")
def hashing(spark: Any) -> Any:
    """A session that hashes maps too, as its shuffle does anyway."""
    with configured(spark, {"spark.sql.legacy.allowHashOnMapType": "true"}):
        yield spark


@pytest.mark.slow
@settings(max_examples=6 * EFFORT, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=tables())
def test_hash_columns_equals_sparks_hash(hashing: Any, tmp_path: Path, table: pa.Table) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(table.append_column("row", pa.array(range(len(table)))), path)
    frame = hashing.read.parquet(str(path))
    schema = frame.drop("row").schema.json()
    expected = hashed_by_spark(frame)
    assert hashed_by_us(table, schema) == expected
    assert hashed_by_us(table.slice(len(table) // 3), schema) == expected[len(table) // 3 :]


NUMBERS = [0, 1, -1, 59, -86_399, 123_456]

# What Parquet has no type for: made in SQL of a number n, and here as it is decoded.
IN_SQL = {
    "null": ("null", pa.nulls(len(NUMBERS))),
    "months": (
        "make_ym_interval(0, n)",
        pa.array([(n, 0, 0) for n in NUMBERS], pa.month_day_nano_interval()),
    ),
    "seconds": (
        "make_dt_interval(n, 0, 0, n / 1000000)",
        pa.array([n * 86_400_000_000 + n for n in NUMBERS], pa.duration("us")),
    ),
    "mixed": (
        "make_interval(0, n, 0, n + 1, 0, 0, n / 1000000)",
        pa.array([(n, n + 1, n * 1000) for n in NUMBERS], pa.month_day_nano_interval()),
    ),
    "time": (
        "make_time(0, 0, abs(n) / 1000000)",
        pa.array([abs(n) * 1000 for n in NUMBERS], pa.time64("ns")),
    ),
}


def test_hash_columns_of_intervals_times_and_nulls_equals_sparks(hashing: Any) -> None:
    with configured(hashing, {"spark.sql.timeType.enabled": "true"}):
        numbers = hashing.createDataFrame(list(enumerate(NUMBERS)), "row int, n int")
        frame = numbers.selectExpr("row", *(f"{sql} as `{name}`" for name, (sql, _) in IN_SQL.items()))
        expected = hashed_by_spark(frame)
        table = pa.table({name: column for name, (_, column) in IN_SQL.items()})
        assert hashed_by_us(table, frame.drop("row").schema.json()) == expected

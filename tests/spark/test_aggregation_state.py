"""State of an aggregation that Spark computes from a batch, compared with that of a stream."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from spark_statestore import OptionError, aggregation_state, read_state
from tests.spark.queries import Query

pytestmark = pytest.mark.slow

SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("d", pa.decimal128(20, 3)),
        ("e", pa.decimal128(8, 2)),
        ("t", pa.timestamp("us", tz="UTC")),
    ]
)
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)


def event(number: int) -> dict[str, Any]:
    """Return a row; some values are null, and all values of the key "empty" are."""
    key = [None, "empty", "a", "b", "ä"][number % 5]
    empty = key == "empty" or number % 7 == 0
    return {
        "k": key,
        "n": None if empty else number - 150,
        # Sums of these are exact in any order.
        "x": None if empty else number / 4,
        "d": None if empty else Decimal(number * 1234567) / 1000,
        "e": None if empty else Decimal(number) / 100,
        "t": BEGIN + timedelta(seconds=20 * number),
    }


HISTORY = [event(number) for number in range(300)]

Build = Callable[[Any], Any]


def functions(events: Any) -> Any:
    return events.groupBy("k").agg(
        F.count("*"),
        F.count("n"),
        *(function(column) for function in (F.sum, F.avg) for column in "nxde"),
        F.min("n"),
        F.max("t"),
        F.min("k"),
        F.stddev("x"),
        F.approx_count_distinct("n"),
        F.sum(F.when(F.col("n") > 0, F.col("d"))),
    )


def selected(events: Any) -> Any:
    """Spark keeps what the result needs."""
    counts = events.groupBy((F.col("n") % 3).alias("g"), F.upper("k")).agg(
        F.count("*").alias("c"), F.sum("x").alias("s"), F.max("n").alias("high")
    )
    return counts.where("c > 1").select("g", (F.col("s") + 1).alias("more"))


def total(events: Any) -> Any:
    return events.groupBy().sum("n")


def sessions(events: Any) -> Any:
    late = events.withWatermark("t", "1 day")
    return late.groupBy(F.session_window("t", "30 seconds"), "k").agg(F.count("*"), F.sum("d"))


def in_sql(events: Any) -> Any:
    spark = events.sparkSession
    events.createOrReplaceTempView("events")
    return spark.sql(
        "with e as (select * from events where n > 0) "
        "select k, sum(x), collect_list(n), collect_set(k), first(d) from e group by k"
    )


def history(spark: Any, rows: list[dict[str, Any]], directory: Path) -> Any:
    import pyarrow.parquet as pq

    path = directory / "history.parquet"
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path)
    return spark.read.parquet(str(path))


def in_order(rows: pa.Table) -> list[str]:
    return sorted(map(repr, rows.select(["key", "value"]).to_pylist()))


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(functions, marks=[pytest.mark.spark, pytest.mark.oldest]),
        selected,
        total,
        sessions,
        in_sql,
    ],
)
def test_state_of_a_batch_is_that_of_a_stream(spark: Any, tmp_path: Path, build: Build) -> None:
    mode = "append" if build is sessions else "update"
    query = Query(spark, tmp_path / "query", build, mode, SCHEMA, checkpoint_format=1)
    query.feed(HISTORY)
    query.run()
    expected = read_state(str(query.checkpoint))
    state = aggregation_state(build(history(spark, HISTORY, tmp_path))).toArrow()
    assert [field.type.names for field in state.schema] == [
        expected.schema.field(name).type.names for name in ("key", "value")
    ]
    assert in_order(state) == in_order(expected)


def test_frames_without_such_a_state_are_refused(spark: Any, tmp_path: Path) -> None:
    from pyspark.errors import AnalysisException

    events = history(spark, HISTORY, tmp_path)
    with pytest.raises(OptionError, match="does not end in an aggregation"):
        aggregation_state(events.groupBy("k").count().union(events.groupBy("k").count()))
    with pytest.raises(OptionError, match="is one of a stream"):
        aggregation_state(spark.readStream.format("rate").load().groupBy("value").count())
    with pytest.raises(AnalysisException, match="approx_count_distinct"):
        aggregation_state(events.groupBy("k").agg(F.count_distinct("n")))

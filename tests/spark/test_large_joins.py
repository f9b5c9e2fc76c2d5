"""Joins whose state has more than a million rows: exact, also after a restart that loads all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from tests.spark.queries import Query, unload_all

SCHEMA = pa.schema(
    [("left", pa.bool_()), ("k", pa.int64()), ("v", pa.int64()), ("ts", pa.timestamp("us", tz="UTC"))]
)
ROWS = 520_000
"""Rows of each side at first; a tenth as many further keys are on both sides."""


def events(side: bool, keys: np.ndarray[Any, Any], minute: int) -> pa.Table:
    ts = np.datetime64("2024-01-01T00:00", "us") + np.timedelta64(minute, "m")
    columns = [np.full(len(keys), side), keys, keys * 7 + minute, np.full(len(keys), ts)]
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], SCHEMA
    )


def first() -> pa.Table:
    keys = np.arange(ROWS)
    return pa.concat_tables([events(True, keys, 0), events(False, keys + ROWS * 9 // 10, 0)])


def second() -> pa.Table:
    """Return rows that match rows all over the state, and some without a match."""
    keys = np.arange(0, 2 * ROWS, 97)
    return pa.concat_tables([events(True, keys, 1), events(False, keys + 1, 2)])


def joined(events: Any) -> Any:
    left = events.where("left").selectExpr("k as l", "v as lv", "ts as lts")
    right = events.where("not left").selectExpr("k as r", "v as rv", "ts as rts")
    near = F.expr("l = r and rts between lts - interval 1 hour and lts + interval 1 hour")
    return left.join(right, near)


def with_checksum(batch: Any) -> list[tuple[int, int]]:
    row = batch.agg(F.count("*"), F.sum(F.hash("l", "lv", "lts", "rv", "rts").cast("bigint"))).first()
    return [(row[0], row[1] or 0)]


@pytest.mark.soak
@pytest.mark.parametrize(("state_format", "checkpoint_format"), [(2, 1), (4, 2)], ids=["2", "4"])
def test_join_of_a_million_rows_is_exact_across_a_restart(
    spark: Any, tmp_path: Path, state_format: int, checkpoint_format: int
) -> None:
    sums: list[tuple[int, int]] = []

    def collect(batch: Any) -> list[Any]:
        sums.extend(with_checksum(batch))
        return []

    query = Query(
        spark,
        tmp_path,
        lambda stream: joined(stream.withWatermark("ts", "1 day")),
        "append",
        SCHEMA,
        checkpoint_format=checkpoint_format,
        confs={
            "spark.sql.streaming.join.stateFormatVersion": str(state_format),
            "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        },
        collect=collect,
    )
    for number, table in enumerate([first(), second()]):
        pq.write_table(table, tmp_path / "input" / f"{number}.parquet")
        unload_all(spark)
        query.run()
        assert query.progress[-1]["stateOperators"][0]["numRowsTotal"] > 1_000_000
    everything = spark.read.parquet(str(tmp_path / "input"))
    [(count, checksum)] = with_checksum(joined(everything))
    assert sum(part[0] for part in sums) == count > ROWS // 10
    assert all(part[0] for part in sums)
    assert sum(part[1] for part in sums) == checksum

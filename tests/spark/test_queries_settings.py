"""Settings of Spark that reach a store change nothing in a query's output and state."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.spark import events
from tests.spark.golden import Recordings
from tests.spark.queries import OURS, SPARKS, STATE_STORE, Output, Query, run_with_restarts, side_by_side

pytestmark = pytest.mark.slow

WATERMARK = "15 minutes"

SETTINGS = {
    "row checksums": {
        STATE_STORE + "rowChecksum.enabled": "true",
        STATE_STORE + "rowChecksum.readVerificationRatio": "1",
    },
    "no check of the format of rows": {STATE_STORE + "formatValidation.enabled": "false"},
    "unload on commit": {STATE_STORE + "unloadOnCommit": "true"},
    "no older version in memory": {"spark.sql.streaming.maxBatchesToRetainInMemory": "0"},
    "joins without null keys": {STATE_STORE + "skipNullsForStreamStreamJoins.enabled": "true"},
}


def counts_and_joins(stream: Any) -> Any:
    from pyspark.sql import functions as F

    timely = stream.withWatermark("ts", WATERMARK)
    left = timely.select("k", "ts", "id")
    right = timely.select(F.col("k").alias("other"), F.col("ts").alias("other_ts"))
    near = F.expr("k = other and other_ts between ts and ts + interval 30 seconds")
    return side_by_side(
        {
            "counts": timely.groupBy(F.window("ts", "10 minutes"), "k").agg(F.count("*"), F.sum("big")),
            "seen": timely.dropDuplicates(["id", "ts"]).select("id"),
            "near": left.join(right, near, "left_outer"),
        }
    )


def life_of(query: Query) -> tuple[list[Output], Counter[str]]:
    batches = events.batches(4)
    return run_with_restarts(query, [batches[:2], batches[2:]]), query.state()


@pytest.mark.parametrize(
    ("checkpoint_format", "names"),
    [
        (1, ["row checksums", "no older version in memory", "joins without null keys"]),
        (2, ["no check of the format of rows", "unload on commit"]),
    ],
)
def test_settings_do_not_change_results(
    spark: Any, tmp_path: Path, recordings: Recordings, checkpoint_format: int, names: list[str]
) -> None:
    def make_query(provider: str, checkpoint_format: int, **confs: str) -> Query:
        return Query(
            spark,
            tmp_path / provider,
            counts_and_joins,
            "append",
            events.SCHEMA,
            provider=provider,
            checkpoint_format=checkpoint_format,
            confs=confs,
        )

    settings = {key: value for name in names for key, value in SETTINGS[name].items()}
    query = make_query(OURS, checkpoint_format, **settings)
    recordings.compare("counts and joins", life_of(query), lambda: life_of(make_query(SPARKS, 1)))
    # The last run's first batch always loads, the next one if nothing stays in memory.
    first, second = [
        sum(operator["customMetrics"]["checkpointLoadBytes"] for operator in progress["stateOperators"])
        for progress in query.progress[:2]
    ]
    assert first > 0
    assert (second > 0) == ("unload on commit" in names)

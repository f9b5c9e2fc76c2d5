"""Settings of Spark that reach a store, and options of storage, do not change a query's output and state."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.spark import events
from tests.spark.counting import run_to
from tests.spark.golden import Recordings
from tests.spark.queries import OURS, SPARKS, STATE_STORE, Output, Query, run_with_restarts, side_by_side

pytestmark = pytest.mark.slow

# First bytes of a frame of zstd; Arrow writes them behind the length of each buffer.
FRAME = bytes.fromhex("28b52ffd")

WATERMARK = "15 minutes"

UNLOAD = "unload on commit"
SETTINGS = {
    "row checksums": {
        STATE_STORE + "rowChecksum.enabled": "true",
        STATE_STORE + "rowChecksum.readVerificationRatio": "1",
    },
    "no check of the format of rows": {STATE_STORE + "formatValidation.enabled": "false"},
    UNLOAD: {STATE_STORE + "unloadOnCommit": "true"},
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


def are_loaded(query: Query) -> list[bool]:
    """Return whether each of the last run's first two batches has loaded state."""
    return [
        any(operator["customMetrics"]["checkpointLoadBytes"] for operator in progress["stateOperators"])
        for progress in query.progress[:2]
    ]


def test_settings_do_not_change_results(spark: Any, tmp_path: Path, recordings: Recordings) -> None:
    batches = events.batches(4)

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

    def live_on_sparks_store() -> tuple[list[Output], Counter[str]]:
        query = make_query(SPARKS, 1)
        return run_with_restarts(query, [batches[:2], batches[2:]]), query.state()

    in_memory = {
        key: text for name, confs in SETTINGS.items() if name != UNLOAD for key, text in confs.items()
    }
    query = make_query(OURS, 2, **in_memory)
    outputs = run_with_restarts(query, [batches[:2]])
    assert are_loaded(query) == [False, False]
    query.session_confs = SETTINGS[UNLOAD]
    outputs += run_with_restarts(query, [batches[2:]])
    assert are_loaded(query) == [True, True]
    recordings.compare("counts and joins", (outputs, query.state()), live_on_sparks_store)


def test_query_is_exact_with_other_storage_options_than_before(spark: Any, tmp_path: Path) -> None:
    run_to(spark.newSession(), tmp_path, 0, compression="zstd", fileStateThreshold="0", fsync="true")
    streams = [path.read_bytes() for path in tmp_path.glob("state/0/*/shared/*")]
    assert any(FRAME in stream for stream in streams)
    # A stream written with any setting can be read with every other.
    run_to(spark.newSession(), tmp_path, 2, compression="none")

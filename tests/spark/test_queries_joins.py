"""Joins of two streams, of every kind and in every format of their state, against Spark's own stores."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.spark import events
from tests.spark.golden import Recordings
from tests.spark.queries import (
    JOIN_FORMAT,
    OURS,
    ROCKSDB,
    SPARKS,
    Output,
    Query,
    run_with_restarts,
    side_by_side,
)
from tests.support.spark_versions import NEWEST_JOIN_FORMAT, since

pytestmark = pytest.mark.slow

WATERMARK = "15 minutes"
NEAR = "right_ts between left_ts - interval 2 minutes and left_ts + interval 5 minutes"

# By the format of the join's state: Spark's store, and the format of its checkpoints.
STORES = {2: (SPARKS, 1), 3: (ROCKSDB, 2), 4: (ROCKSDB, 2)}

Life = tuple[list[Output], Counter[str], Counter[str], list[str]]


def join(stream: Any, how: str, condition: str) -> Any:
    """Join the even rows of a stream with its odd ones; each column is named after its side."""
    from pyspark.sql import functions as F

    left, right = (
        stream.where(f"id % 2 = {rest}").select(*(stream[c].alias(f"{side}_{c}") for c in stream.columns))
        for rest, side in enumerate(("left", "right"))
    )
    return left.join(right, F.expr(condition), how)


def every_join(stream: Any) -> Any:
    """Join by one key and by several, some of them null; without watermark, by time and by window."""
    from pyspark.sql import functions as F

    timely = stream.withWatermark("ts", WATERMARK)
    some = stream.where("id % 4 < 2").select("id", "k", "amount")
    windows = timely.select(F.window("ts", "10 minutes").alias("window"), "id", "k", "x")
    return side_by_side(
        {
            "inner": join(some, "inner", "left_k = right_k and left_amount < right_amount"),
            "left": join(timely, "left", f"left_k <=> right_k and {NEAR}"),
            "right": join(windows, "right", "left_window = right_window and left_k = right_k"),
            "full": join(
                timely,
                "full",
                f"left_who = right_who and left_x = right_x and left_tags <=> right_tags and {NEAR}",
            ),
            "semi": join(timely, "left_semi", f"left_k = right_k and left_amount = right_amount and {NEAR}"),
        }
    )


def life_of(query: Query) -> Life:
    """Return output, an older state and the last one, and Spark's metadata of the operators."""
    batches = events.batches(3, rows=40)
    outputs = run_with_restarts(query, [batches[:1], batches[1:2]])
    # As if the driver had died after the state was committed and before the batch was.
    query.forget_newest_commit()
    outputs += run_with_restarts(query, [batches[2:]])
    assert len(query.progress[-1]["stateOperators"]) == 5
    return outputs, query.state(only=1, batchId=1), without_chance(query.state()), query.metadata()


def without_chance(state: Counter[str]) -> Counter[str]:
    """Return state without the small random numbers that format 4 has in place of missing times."""
    times = re.compile(r"__event_time=\d{1,4}\b")
    rows = (row for row in state.elements() if "tsWithKey" not in row or times.search(row) is None)
    return Counter(times.sub("", row) for row in rows)


format_3 = since("4.1", "joins of state format 3")
format_4 = since("4.3", "joins of state format 4")


# With another Spark, joins of its newest format.
@pytest.mark.parametrize(
    ("state_format", "checkpoint_format"),
    [
        pytest.param(2, 1, marks=[pytest.mark.spark] * (NEWEST_JOIN_FORMAT == 2)),
        pytest.param(4, 2, marks=[pytest.mark.spark, format_4]),
        pytest.param(
            3, 2, marks=[pytest.mark.spark, format_3, *[pytest.mark.soak] * (NEWEST_JOIN_FORMAT > 3)]
        ),
        pytest.param(2, 2, marks=[pytest.mark.soak, since("4.1", "data source of checkpoint format v2")]),
        pytest.param(3, 1, marks=[pytest.mark.soak, format_3]),
        pytest.param(4, 1, marks=[pytest.mark.soak, format_4]),
    ],
)
def test_join_output_equals_sparks_store(
    spark: Any,
    tmp_path_factory: pytest.TempPathFactory,
    recordings: Recordings,
    state_format: int,
    checkpoint_format: int,
) -> None:
    def live(provider: str, checkpoint_format: int) -> Life:
        query = Query(
            spark,
            tmp_path_factory.mktemp("joins"),
            every_join,
            "append",
            events.SCHEMA,
            provider=provider,
            checkpoint_format=checkpoint_format,
            confs={JOIN_FORMAT: str(state_format)},
        )
        return life_of(query)

    sparks_store, sparks_format = STORES[state_format]
    life = live(OURS, checkpoint_format)
    outputs, older, newest, _ = life
    kinds = ["inner", "left", "right", "full", "semi"]
    rows = Counter(row for output in outputs for _, batch in output for row in batch.elements())
    assert older
    assert newest
    assert [any(f"{kind}=Row(" in row for row in rows) for kind in kinds] == [True] * len(kinds)
    recordings.compare(f"state format {state_format}", life, lambda: live(sparks_store, sparks_format))


# Spark 4.3 cannot write the schemas of an inner join's state in this format, and refuses outer joins.
REFUSALS = {
    "inner": "Unsupported schema writer version: 1",
    "left": "with state format version 1 - correctness issue",
}


@pytest.mark.parametrize("provider", [pytest.param(SPARKS, marks=pytest.mark.soak), OURS])
@pytest.mark.parametrize("how", REFUSALS)
def test_join_with_state_format_1_is_rejected_on_any_store(
    spark: Any, tmp_path: Path, provider: str, how: str
) -> None:
    from pyspark.errors import StreamingQueryException

    def build(stream: Any) -> Any:
        return join(stream.withWatermark("ts", WATERMARK), how, f"left_k = right_k and {NEAR}")

    confs = {JOIN_FORMAT: "1"}
    query = Query(spark, tmp_path, build, "append", events.SCHEMA, provider=provider, confs=confs)
    query.feed(events.batches(1)[0])
    with pytest.raises(StreamingQueryException, match=REFUSALS[how]):
        query.run()

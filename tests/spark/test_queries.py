"""Real queries, restarted twice, with the output of Spark's own store, batch by batch."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.spark import events
from tests.spark.golden import Recordings
from tests.spark.queries import OURS, SPARKS, Collect, Output, Query, run_with_restarts
from tests.support.spark_versions import NEWEST_READABLE_FORMAT, since

WATERMARK = "15 minutes"
COUNTED = "k string, visits bigint, latest bigint, ended boolean"
SEEN = "visits bigint, latest bigint"


@dataclass(frozen=True)
class Case:
    """A stateful query."""

    build: Callable[[Any], Any]
    mode: str = "append"
    confs: Mapping[str, str] = field(default_factory=dict)
    collect: Collect = lambda batch: batch.collect()
    operators: int = 1
    keeps_clock: bool = False


def aggregate(stream: Any) -> Any:
    from pyspark.sql import functions as F

    return stream.groupBy("k", "who", "x").agg(
        F.count("*").alias("n"),
        F.sum("amount").alias("amount"),
        F.avg("amount").alias("mean"),
        F.max("ts").alias("latest"),
        F.max("tags").alias("tags"),
        F.approx_count_distinct("id", 0.2).alias("ids"),
    )


def aggregate_all(stream: Any) -> Any:
    from pyspark.sql import functions as F

    return stream.agg(F.count("*").alias("n"), F.sum("amount").alias("amount"), F.min("x").alias("least"))


def megabytes(stream: Any) -> Any:
    """Use keys and values of a megabyte, and output only their fingerprints."""
    from pyspark.sql import functions as F

    few = stream.where("id < 40").selectExpr("repeat(k, 27000) as k", "repeat(get(tags, 0), 1000000) as tag")
    longest = few.groupBy("k").agg(F.max("tag").alias("tag"), F.count("*").alias("n"))
    return longest.select(F.sha1("k"), F.sha1("tag"), F.length("k"), F.length("tag"), "n")


def windows(stream: Any) -> Any:
    from pyspark.sql import functions as F

    return (
        stream.withWatermark("ts", WATERMARK)
        .groupBy(F.window("ts", "20 minutes", "10 minutes"), "k")
        .agg(F.count("*").alias("n"), F.sum("big").alias("sum"), F.max("who").alias("who"))
    )


def totals(stream: Any) -> Any:
    from pyspark.sql import functions as F

    return stream.groupBy("big", "tags").agg(F.count("*").alias("n"), F.min("ts").alias("first"))


def leaders(stream: Any) -> Any:
    from pyspark.sql import functions as F

    counts = stream.groupBy("id").agg(F.count("*").alias("n"))
    return counts.orderBy(F.desc("n"), "id").limit(5)


def distinct(stream: Any) -> Any:
    return (
        stream.select("k", "who", "x", "amount", "tags")
        .dropDuplicates(["k", "who", "x"])
        .select("k", "who", "x")
    )


def distinct_while_on_time(stream: Any) -> Any:
    return stream.withWatermark("ts", WATERMARK).dropDuplicates(["id", "ts"]).select("id", "ts", "k")


def distinct_within_watermark(stream: Any) -> Any:
    return (
        stream.withWatermark("ts", WATERMARK).dropDuplicatesWithinWatermark(["k", "who"]).select("k", "who")
    )


def sessions(stream: Any) -> Any:
    from pyspark.sql import functions as F

    return (
        stream.withWatermark("ts", WATERMARK)
        .groupBy(F.session_window("ts", "2 minutes"), "k")
        .agg(F.count("*").alias("n"), F.sum("amount").alias("amount"))
    )


def visits_until_event_time(stream: Any, mode: str = "update") -> Any:
    def update(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        visits, latest = state.get if state.exists else (0, 0)
        if state.hasTimedOut:
            state.remove()
            yield pd.DataFrame({"k": [key[0]], "visits": [visits], "latest": [latest], "ended": [True]})
            return
        for frame in frames:
            visits += len(frame)
            latest = max(latest, int(frame["seconds"].max()))
        state.update((visits, latest))
        end = latest * 1000 + 600_000
        if end > state.getCurrentWatermarkMs():
            state.setTimeoutTimestamp(end)
        yield pd.DataFrame({"k": [key[0]], "visits": [visits], "latest": [latest], "ended": [False]})

    keyed = stream.withWatermark("ts", WATERMARK).selectExpr(
        "concat(coalesce(k, 'none'), id % 3) as k", "ts", "unix_seconds(ts) as seconds"
    )
    return keyed.groupBy("k").applyInPandasWithState(update, COUNTED, SEEN, mode, "EventTimeTimeout")


def counts_in_scala(stream: Any) -> Any:
    from pyspark.sql import DataFrame

    keyed = stream.withWatermark("ts", WATERMARK).selectExpr(
        "concat(coalesce(k, 'none'), id % 3) as k", "unix_seconds(ts) as seconds", "ts"
    )
    session = stream.sparkSession
    counts = session._jvm.org.apache.spark.sql.statestore.GroupCounts.over(keyed._jdf)
    return DataFrame(counts, session)


def visits_until_the_next_batch(stream: Any) -> Any:
    def update(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        visits, latest = state.get if state.exists else (0, 0)
        if state.hasTimedOut:
            state.remove()
            yield pd.DataFrame({"k": [key[0]], "visits": [visits], "latest": [latest], "ended": [True]})
            return
        visits += sum(len(frame) for frame in frames)
        state.update((visits, visits * 2))
        # Either over before the next batch can begin, or not within this test.
        state.setTimeoutDuration(1 if is_short(key[0]) else 86_400_000)
        yield pd.DataFrame({"k": [key[0]], "visits": [visits], "latest": [latest], "ended": [False]})

    def is_short(key: str) -> bool:
        return key[-1] in "01"

    keyed = stream.selectExpr("concat(coalesce(k, 'none'), id % 7) as k")
    return keyed.groupBy("k").applyInPandasWithState(update, COUNTED, SEEN, "append", "ProcessingTimeTimeout")


def first_rows(stream: Any) -> Any:
    return stream.select("id", "k", "who").limit(60)


def new_counts(stream: Any) -> Any:
    from pyspark.sql import functions as F

    counts = (
        stream.withWatermark("ts", WATERMARK)
        .groupBy(F.window("ts", "10 minutes"), "k")
        .agg(F.count("*").alias("n"))
    )
    return counts.dropDuplicates(["window", "k"])


def late_and_on_time(stream: Any) -> Any:
    from pyspark.sql import functions as F

    events_ = stream.withWatermark("ts", WATERMARK)
    left = events_.selectExpr("id % 40 as l", "ts as left_ts", "who")
    right = events_.where("k is not null").selectExpr("id % 40 as r", "ts as right_ts", "k")
    near = F.expr("l = r and right_ts between left_ts and left_ts + interval 5 minutes")
    return left.join(right, near, "left_outer")


def read_twice(batch: Any) -> list[Any]:
    whole = batch.collect()
    again = batch.collect()
    assert sorted(map(repr, whole)) == sorted(map(repr, again))
    return whole + again


def read_a_little_first(batch: Any) -> list[Any]:
    batch.limit(1).collect()
    return batch.collect()


CASES = {
    "aggregation in update mode": Case(aggregate, "update"),
    "aggregation without keys": Case(aggregate_all, "update"),
    "keys and values of a megabyte": Case(megabytes, "update"),
    "windows in update mode": Case(windows, "update"),
    "windows in append mode": Case(windows),
    "windows in complete mode": Case(windows, "complete"),
    "aggregation in complete mode": Case(totals, "complete"),
    "limit in complete mode": Case(leaders, "complete"),
    "limit in append mode": Case(first_rows),
    "dropDuplicates": Case(distinct),
    "dropDuplicates with watermark": Case(distinct_while_on_time),
    "dropDuplicatesWithinWatermark": Case(distinct_within_watermark),
    "session windows": Case(sessions),
    "pandas state with event-time timeout": Case(visits_until_event_time, "update"),
    "Scala's state of groups": Case(counts_in_scala),
    "pandas state with processing-time timeout": Case(
        visits_until_the_next_batch,
        # Otherwise batches never end: each may find a timeout that has passed.
        confs={"spark.sql.streaming.noDataMicroBatches.enabled": "false"},
        keeps_clock=True,
    ),
    "aggregation, then dropDuplicates": Case(new_counts, operators=2),
    "outer join": Case(late_and_on_time),
    "sink that reads a batch twice": Case(aggregate, "update", collect=read_twice),
    "sink that reads one row of a batch first": Case(aggregate, "update", collect=read_a_little_first),
    "sink that reads twice, no state": Case(
        lambda s: s.select("id", "ts", "x"), collect=read_twice, operators=0
    ),
}


Life = tuple[list[Output], Counter[str], list[str]]


def life_of(
    spark: Any, name: str, directory: Path, provider: str, checkpoint_format: int, *, reads_state: bool
) -> Life:
    """Return a query's output, final state and operator metadata."""
    case = CASES[name]
    batches = events.batches(5)
    query = Query(
        spark,
        directory,
        case.build,
        case.mode,
        events.SCHEMA,
        provider=provider,
        checkpoint_format=checkpoint_format,
        confs=case.confs,
        collect=case.collect,
    )
    outputs = run_with_restarts(query, [batches[:2], batches[2:4], batches[4:]])
    assert len(query.progress[-1]["stateOperators"]) == case.operators
    state = query.state() if reads_state else Counter()
    if case.keeps_clock:
        state = Counter(re.sub(r"timeoutTimestamp=\d+", "", row) for row in state.elements())
    return outputs, state, query.metadata() if case.operators else []


IN_FIRST_TIER = {
    "aggregation in update mode",
    "dropDuplicates",
    "limit in append mode",
    "outer join",
    "pandas state with event-time timeout",
    "session windows",
}

# Joins of every kind are in test_queries_joins.py.
WITH_EVERY_SPARK = IN_FIRST_TIER - {"outer join"} | {"sink that reads a batch twice"}

# Their requests to a store are those of the others; large rows are in test_provider_scenarios.py.
IN_SOAK = {
    "aggregation in complete mode",
    "aggregation, then dropDuplicates",
    "dropDuplicates with watermark",
    "keys and values of a megabyte",
    "limit in complete mode",
    "sink that reads twice, no state",
    "windows in complete mode",
    "windows in update mode",
}

NO_LIMIT_IN_V2 = since("4.1", "limit in checkpoint format v2, with any state store")

# The others in one checkpoint format, alternating; the other format runs in soak.
IN_TURN = [
    pytest.param(
        name,
        checkpoint_format,
        marks=[
            *[pytest.mark.soak] * ((number + checkpoint_format) % 2 or name in IN_SOAK),
            *[pytest.mark.first] * (name in IN_FIRST_TIER),
            *[pytest.mark.spark] * (name in WITH_EVERY_SPARK),
            *[NO_LIMIT_IN_V2] * ((name, checkpoint_format) == ("limit in append mode", 2)),
        ],
    )
    for number, name in enumerate(CASES, 1)
    for checkpoint_format in (1, 2)
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "checkpoint_format"), IN_TURN)
def test_query_output_equals_sparks_store(
    spark: Any,
    tmp_path_factory: pytest.TempPathFactory,
    recordings: Recordings,
    name: str,
    checkpoint_format: int,
) -> None:
    reads_state = checkpoint_format <= NEWEST_READABLE_FORMAT

    def live(provider: str, checkpoint_format: int) -> Life:
        directory = tmp_path_factory.mktemp("query")
        return life_of(spark, name, directory, provider, checkpoint_format, reads_state=reads_state)

    life = live(OURS, checkpoint_format)
    assert any(rows for output in life[0] for _, rows in output), "no output is compared"
    recordings.compare(name + " without state" * (not reads_state), life, lambda: live(SPARKS, 1))

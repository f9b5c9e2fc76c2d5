"""transformWithState in Python has the output and state of Spark's RocksDB store, batch by batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.spark.golden import Recordings
from tests.spark.processors import DAY, OUTPUT, Interpreter, Rebuilt, TimedInterpreter
from tests.spark.processors_query import (
    NO_EMPTY_BATCHES,
    ROCKS,
    SCHEMA,
    Build,
    Life,
    ProcessorQuery,
    batches,
    in_scala,
    life_of,
)
from tests.spark.queries import OURS
from tests.support.spark_versions import NEWEST_READABLE_FORMAT


@dataclass(frozen=True)
class Case:
    """A query of transformWithState."""

    build: Build
    checkpoint_format: int
    mode: str = "append"
    keeps_clock: bool = False
    timers: Sequence[int] = ()
    large: bool = False
    # Batches in each run.
    parts: Sequence[int] = (2, 1)
    confs: Mapping[str, str] = field(default_factory=dict)


def with_ttl_and_timers(stream: Any, run: int) -> Any:
    # Values kept for a day are checked beside those that expire with their batch.
    ttl = DAY if run == 0 else 1
    processor = Interpreter("string", ttl=ttl, timers="processing", pandas=True)
    session = stream.sparkSession
    start = session.createDataFrame(
        [("a", "old"), ("a", None), ("only at the start", "")], "k string, v string"
    )
    return stream.groupBy("k").transformWithStateInPandas(
        processor, OUTPUT, "update", "processingTime", initialState=start.groupBy("k")
    )


def chained(stream: Any, run: int) -> Any:
    first = (
        stream.withWatermark("ts", "5 minutes")
        .groupBy("k")
        .transformWithState(
            TimedInterpreter("string", timers="event"),
            f"{OUTPUT}, at timestamp",
            "append",
            "eventTime",
            eventTimeColumnName="at",
        )
    )
    second = first.selectExpr(
        "left(event, 5) as k", "xxhash64(content) as seq", "'append' as op", "1L as n", "content as v"
    )
    return second.groupBy("k").transformWithStateInPandas(
        Interpreter("string", pandas=True), OUTPUT, "append", "eventTime"
    )


def rebuilt(stream: Any, run: int) -> Any:
    has, gone = [
        ({"total", "seen"}, set()),
        ({"total", "named"}, {"seen", "never there"}),
        ({"total", "named", "seen"}, set()),
    ][run]
    return stream.groupBy("k").transformWithState(Rebuilt(has, gone), OUTPUT, "update", "processingTime")


BY_THE_CLOCK = [1, 2, 3, DAY, 2 * DAY]
BY_EVENTS = [number * 400_000 + number % 4 for number in range(8)]

CASES = {
    "TTL, timers by processing time and initial state, pandas": Case(
        with_ttl_and_timers,
        checkpoint_format=2,
        mode="update",
        keeps_clock=True,
        timers=BY_THE_CLOCK,
        parts=(1, 2),
        confs=NO_EMPTY_BATCHES,
    ),
    "timers by event time, then another one": Case(chained, checkpoint_format=1, timers=BY_EVENTS),
    "variables that go and come": Case(
        rebuilt,
        checkpoint_format=2,
        mode="update",
        keeps_clock=True,
        large=True,
        parts=(1, 1, 1),
        confs=NO_EMPTY_BATCHES,
    ),
    "TTL, timers by processing time, initial state, and variables that go and come, in Scala": Case(
        in_scala(
            ["one,many,named", "one,named", "one,many,named"],
            ["", "many,never there", ""],
            [DAY, 1, 1],
            "processingTime",
            "append",
        ),
        checkpoint_format=1,
        keeps_clock=True,
        timers=BY_THE_CLOCK,
        parts=(2, 1, 2),
        confs=NO_EMPTY_BATCHES,
    ),
    "timers by event time and initial state, in Scala": Case(
        in_scala(["one,many,named"] * 2, [""] * 2, [0] * 2, "eventTime", "update"),
        checkpoint_format=2,
        mode="update",
        timers=BY_EVENTS,
        parts=(1, 1),
    ),
}


def marks_of(name: str) -> list[pytest.MarkDecorator]:
    is_first = name == "timers by event time and initial state, in Scala"
    is_in_pandas = name == "TTL, timers by processing time and initial state, pandas"
    return [
        *[pytest.mark.first] * is_first,
        *[pytest.mark.spark] * (is_first or is_in_pandas),
        # Another case has the same in Scala, with TTL and timers.
        *[pytest.mark.soak] * (name == "variables that go and come"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(name)) for name in CASES])
def test_transform_with_state_output_and_state_equal_rocksdb(
    spark: Any, tmp_path: Path, recordings: Recordings, name: str
) -> None:
    case = CASES[name]
    batch_iterator = iter(batches(sum(case.parts), case.timers, large=case.large))
    parts = [[next(batch_iterator) for _ in range(count)] for count in case.parts]

    def live(directory: Path, provider: str, checkpoint_format: int) -> Life:
        query = ProcessorQuery(
            spark,
            directory,
            case.build,
            case.mode,
            SCHEMA,
            provider=provider,
            checkpoint_format=checkpoint_format,
            confs=case.confs,
        )
        query.keeps_clock = case.keeps_clock
        return life_of(query, parts)

    checkpoint_format = min(case.checkpoint_format, NEWEST_READABLE_FORMAT)
    life = live(tmp_path / "ours", OURS, checkpoint_format)
    recordings.compare(name, life, lambda: live(tmp_path / "rocks", ROCKS, 1))

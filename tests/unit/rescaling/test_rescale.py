"""Tests of queries that are rescaled from 4 to 7 partitions and back, in Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from spark_statestore.query import QueryCheckpoint
from spark_statestore.query.store_snapshot import read_store
from spark_statestore.savepoints.restore import rescale
from tests.spark import events, processors_query
from tests.spark import test_queries as queries
from tests.spark import test_queries_joins as joins
from tests.spark.queries import JOIN_FORMAT, Output, Query, Rows, side_by_side
from tests.spark.test_checkpoint_formats import CAN_SET
from tests.spark.test_transform_with_state import BY_EVENTS, BY_THE_CLOCK, with_ttl_and_timers

pytestmark = pytest.mark.slow

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"

Builds = Mapping[str, Callable[[Any], Any]]


def beside(builds: Builds) -> Callable[[Any], Any]:
    """One query of many."""
    return lambda stream: side_by_side({name: build(stream) for name, build in builds.items()})


def distinct(stream: Any) -> Any:
    """Keys with columns of many types."""
    columns = {
        "byte": "cast(id % 100 as byte)",
        "short": "cast(id as short)",
        "float": "cast(x as float)",
        "date": "cast(ts as date)",
        "local": "cast(ts as timestamp_ntz)",
        "binary": "cast(k as binary)",
        "boolean": "id % 2 = 0",
        "months": "make_ym_interval(0, cast(id as int))",
        "seconds": "make_dt_interval(0, 0, 0, id)",
        "mixed": "make_interval(0, cast(id as int))",
        "nested": "array(struct(who, tags, big))",
    }
    keys = stream.selectExpr("id", "k", "amount", *(f"{sql} as `{name}`" for name, sql in columns.items()))
    # Python has no values of some of them.
    return keys.dropDuplicates().select("id", "k", "amount")


ONE_KEYED_STATE: Builds = {
    "windows": queries.windows,
    "sessions": queries.sessions,
    "distinct": distinct,
    "distinct_within_watermark": queries.distinct_within_watermark,
    "groups": queries.counts_in_scala,
}


def by_event_time(stream: Any) -> Any:
    build = processors_query.in_scala(["one,many,named"], [""], [0], "eventTime", "update")
    return build(stream, 0)


def outer_join(stream: Any) -> Any:
    condition = f"left_k <=> right_k and left_who = right_who and {joins.NEAR}"
    return joins.join(stream.withWatermark("ts", joins.WATERMARK), "full", condition)


@dataclass(frozen=True)
class Case:
    """A query with operators that keep state."""

    build: Callable[[Any], Any]
    checkpoint_format: int
    mode: str = "append"
    operators: int = 1
    schema: Any = events.SCHEMA
    confs: Mapping[str, str] = field(default_factory=dict)
    batches: Callable[[int], list[Rows]] = events.batches
    # With two there is none after the way back.
    runs: int = 3
    # Whether what it keeps depends on its input alone: on no clock, and on nothing that is drawn.
    is_exact: bool = True


def of_join(state_format: int, checkpoint_format: int) -> Case:
    # In format 4, rows without a time have a number instead that is drawn.
    return Case(
        outer_join,
        checkpoint_format,
        confs={JOIN_FORMAT: str(state_format)},
        is_exact=state_format < 4,
    )


CASES = {
    "operators with one keyed state": Case(beside(ONE_KEYED_STATE), 1, operators=5, runs=2),
    "pandas state": Case(queries.visits_until_event_time, 2, mode="update"),
    "aggregation without keys": Case(queries.aggregate_all, 2, mode="update"),
    "limit": Case(queries.first_rows, 1),
    "join, format 2": of_join(2, 1),
    "join, format 3": of_join(3, 2),
    "join, format 4": of_join(4, 2),
    "variables and timers by event time, in Scala": Case(
        by_event_time,
        2,
        mode="update",
        schema=processors_query.SCHEMA,
        batches=lambda count: processors_query.batches(count, BY_EVENTS),
    ),
    "variables with TTL and timers by processing time, in Python": Case(
        lambda stream: with_ttl_and_timers(stream, 0),
        1,
        mode="update",
        schema=processors_query.SCHEMA,
        confs=processors_query.NO_EMPTY_BATCHES,
        batches=lambda count: processors_query.batches(count, BY_THE_CLOCK),
        is_exact=False,
    ),
}


def live(
    spark: Any, case: Case, directory: Path, partitions: list[int], parts: list[list[Rows]]
) -> tuple[list[Output], Path]:
    """Run a query with each number of partitions on one part of the input: in a copy, then in its place.

    Return the outputs and the last checkpoint.
    """
    query = Query(
        spark,
        directory,
        case.build,
        case.mode,
        case.schema,
        checkpoint_format=case.checkpoint_format,
        confs={**case.confs, SHUFFLE_PARTITIONS: str(partitions[0])},
    )
    outputs = []
    for number, count in enumerate(partitions):
        if number and count != partitions[number - 1]:
            can_stay = number > 1 and (case.checkpoint_format == 2 or CAN_SET)
            new = None if can_stay else str(directory / f"checkpoint-{number}")
            batch = rescale(
                str(query.checkpoint),
                new,
                count,
                in_place=can_stay,
                checkpoint_format=2 if can_stay else None,
                stopped=True,
            )
            assert batch == int(query.commits[-1].name)
            query.checkpoint = query.checkpoint if new is None else Path(new)
        if number < len(parts):
            query.feed(*parts[number])
            outputs.append(query.run())
            actual = [operator["numShufflePartitions"] for operator in query.progress[-1]["stateOperators"]]
            assert actual == [count] * case.operators
    return outputs, query.checkpoint


def rows_of(checkpoint: Path, *, exact: bool) -> Counter[Any]:
    """The rows of all stores of a checkpoint as they are kept, or only the store and the state of each."""
    query = QueryCheckpoint(str(checkpoint))
    return Counter(
        (version.store, state, *(row.values() if exact else ()))
        for version in query.stores()
        for state, rows in read_store(query, version).rows()
        for row in rows.to_pylist()
    )


# Left to make soak: another case has the same rule.
SELDOM = {
    "pandas state",
    "join, format 2",
    "join, format 3",
    "variables with TTL and timers by processing time, in Python",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.soak] * (name in SELDOM)) for name in CASES]
)
def test_rescaled_query_resumes_with_7_and_then_4_partitions(spark: Any, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    parts = [[rows] for rows in case.batches(case.runs)]
    expected, still = live(spark, case, tmp_path / "still", [4, 4, 4], parts)
    outputs, moved = live(spark, case, tmp_path / "moved", [4, 7, 4], parts)
    assert outputs == expected
    assert all(any(rows for _, rows in output) for output in expected)
    expected_rows = rows_of(still, exact=case.is_exact)
    assert expected_rows
    assert rows_of(moved, exact=case.is_exact) == expected_rows


def test_state_data_source_reads_a_rescaled_copy(spark: Any, tmp_path: Path) -> None:
    case = Case(queries.totals, 2, mode="complete")
    _, still = live(spark, case, tmp_path / "query", [4], [[case.batches(1)[0]]])
    rescale(str(still), str(tmp_path / "moved"), 7, stopped=True)

    def read(checkpoint: Path) -> tuple[Counter[str], set[int]]:
        rows = spark.read.format("statestore").load(str(checkpoint)).collect()
        return Counter(repr((row.key, row.value)) for row in rows), {row.partition_id for row in rows}

    rows, partitions = read(tmp_path / "moved")
    assert rows == read(still)[0]
    assert max(partitions) in (4, 5, 6)

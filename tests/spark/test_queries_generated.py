"""Stateful operators by generated keys of many types, against Spark's own store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
from hypothesis import Phase, given, note, settings

from tests.spark.inputs import Input, inputs
from tests.spark.queries import OURS, SPARKS, Query, run_with_restarts, side_by_side
from tests.support.effort import EFFORT


def keys(stream: Any) -> list[str]:
    return [name for name in stream.columns if name not in ("v", "ts")]


def aggregate(stream: Any) -> Any:
    from pyspark.sql import functions as F

    return stream.groupBy(*keys(stream)).agg(F.count("*").alias("n"), F.sum("v").alias("sum"))


def distinct(stream: Any) -> Any:
    return stream.dropDuplicates(keys(stream)).select(*keys(stream))


def count_in_pandas(stream: Any) -> Any:
    def update(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        (n,) = state.get if state.exists else (0,)
        n += sum(len(frame) for frame in frames)
        if n % 4:
            state.update((n,))
        elif state.exists:
            state.remove()
        yield pd.DataFrame({"width": [len(key)], "n": [n]})

    return stream.groupBy(*keys(stream)).applyInPandasWithState(
        update, "width int, n bigint", "n bigint", "update", "NoTimeout"
    )


def by_time(stream: Any) -> Any:
    """Combine all operators that output or drop rows as event time passes."""
    from pyspark.sql import functions as F

    by = keys(stream)
    # A type that input files do not have.
    timely = stream.withColumn("pause", F.expr("make_dt_interval(0, 0, 0, v % 3)")).withWatermark(
        "ts", "10 minutes"
    )
    left = timely.select("v", "ts", *(stream[name].alias(f"l_{name}") for name in by))
    right = timely.where("v % 2 = 0").select(
        F.col("ts").alias("r_ts"), *(stream[name].alias(f"r_{name}") for name in by)
    )
    same = " and ".join(f"l_{name} <=> r_{name}" for name in by[:1]) + "".join(
        f" and l_{name} = r_{name}" for name in by[1:]
    )
    return side_by_side(
        {
            "windows": timely.groupBy(F.window("ts", "10 minutes"), "pause", *by).agg(
                F.count("*"), F.sum("v")
            ),
            "sessions": timely.groupBy(F.session_window("ts", "3 minutes"), *by).agg(F.count("*")),
            "first": timely.dropDuplicatesWithinWatermark(by).select(*by),
            "distinct": timely.dropDuplicates([*by, "ts"]).select(*by, "ts"),
            "joined": left.join(
                right, F.expr(f"{same} and r_ts between ts and ts + interval 5 minutes"), "left"
            ),
        }
    )


def compare(spark: Any, directories: Any, build: Any, mode: str, generated: Input) -> None:
    note(str(generated.schema))
    lives = []
    for provider, checkpoint_format in ((SPARKS, 1), (OURS, generated.checkpoint_format)):
        query = Query(
            spark,
            directories.mktemp("generated"),
            build,
            mode,
            generated.schema,
            provider=provider,
            checkpoint_format=checkpoint_format,
        )
        lives.append((run_with_restarts(query, generated.parts), query.state()))
    assert lives[0] == lives[1]
    assert any(rows for output in lives[0][0] for _, rows in output)


CASES = {
    "aggregation": (aggregate, "update", False, 4),
    "dropDuplicates": (distinct, "append", False, 4),
    "pandas state": (count_in_pandas, "update", False, 2),
    "event time": (by_time, "append", True, 2),
}


@pytest.mark.soak
@pytest.mark.parametrize(
    ("build", "mode", "timed", "examples"), [pytest.param(*case, id=name) for name, case in CASES.items()]
)
def test_key_equality_of_every_type_equals_sparks_store(
    spark: Any, tmp_path_factory: pytest.TempPathFactory, build: Any, mode: str, timed: bool, examples: int
) -> None:
    @settings(max_examples=examples * EFFORT, phases=[Phase.generate], database=None)
    @given(inputs(timed=timed))
    def check(generated: Input) -> None:
        compare(spark, tmp_path_factory, build, mode, generated)

    check()

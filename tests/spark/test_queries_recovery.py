"""Queries whose commit log has lost its newest entry, or whose checkpoint was moved."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.spark import events
from tests.spark.golden import Recordings
from tests.spark.queries import OURS, SPARKS, Output, Query, run_with_restarts, unload_all

pytestmark = pytest.mark.slow


def counts(stream: Any) -> Any:
    from pyspark.sql import functions as F

    return stream.groupBy("id").agg(F.count("*").alias("n"), F.sum("amount").alias("amount"))


def sessions(stream: Any) -> Any:
    from pyspark.sql import functions as F

    late = stream.withWatermark("ts", "15 minutes")
    return late.groupBy(F.session_window("ts", "2 minutes"), "k").agg(F.count("*").alias("n"))


QUERIES = {"counts": (counts, "update"), "sessions": (sessions, "append")}


def make(
    spark: Any, directory: Path, name: str = "counts", provider: str = OURS, checkpoint_format: int = 1
) -> Query:
    build, mode = QUERIES[name]
    return Query(
        spark, directory, build, mode, events.SCHEMA, provider=provider, checkpoint_format=checkpoint_format
    )


def runs_with_lost_commits(query: Query) -> list[Output]:
    batches = events.batches(5)
    outputs = run_with_restarts(query, [batches[:3]])
    query.forget_newest_commit()
    outputs += run_with_restarts(query, [batches[3:4]])
    # The same batch twice, without new input after it.
    for _ in range(2):
        query.forget_newest_commit()
        outputs.append(query.run())
    return [*outputs, *run_with_restarts(query, [batches[4:]])]


@pytest.mark.parametrize(("name", "checkpoint_format"), [("counts", 1), ("sessions", 2)])
def test_repeated_batch_has_the_same_result(
    spark: Any, tmp_path: Path, recordings: Recordings, name: str, checkpoint_format: int
) -> None:
    def live(provider: str, checkpoint_format: int) -> tuple[list[Output], Counter[str]]:
        query = make(spark, tmp_path / provider, name, provider, checkpoint_format)
        return runs_with_lost_commits(query), query.state()

    result = live(OURS, checkpoint_format)
    outputs = result[0]
    assert outputs[2] == outputs[3]
    assert outputs[2], "the batch was run again"
    recordings.compare(name, result, lambda: live(SPARKS, 1))


def test_query_resumes_from_a_copied_checkpoint(spark: Any, tmp_path: Path, recordings: Recordings) -> None:
    batches = events.batches(4)

    def on_sparks_store() -> tuple[list[Output], Counter[str]]:
        stays = make(spark, tmp_path / "stays", provider=SPARKS)
        return run_with_restarts(stays, [batches[:3], batches[3:]]), stays.state()

    moves = make(spark, tmp_path / "moves", checkpoint_format=2)
    outputs = run_with_restarts(moves, [batches[:3]])
    copy = tmp_path / "elsewhere" / "a copy"
    # Its maintenance may still write.
    unload_all(spark)
    shutil.copytree(moves.checkpoint, copy)
    assert list(copy.glob("state/*/*/shared/*")), "some state is in files of its own"
    shutil.rmtree(moves.checkpoint)
    moves.checkpoint = copy
    outputs += run_with_restarts(moves, [batches[3:]])

    # Spark's reader of state cannot handle the blank in the name.
    moves.checkpoint = tmp_path / "elsewhere" / "copy"
    shutil.copytree(copy, moves.checkpoint)
    recordings.compare("copied checkpoint", (outputs, moves.state()), on_sparks_store)
    assert not (tmp_path / "moves" / "checkpoint").exists()

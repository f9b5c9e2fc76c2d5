"""Aggregations and limits, restarted once, with the output and state of Spark's own store."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.spark import events
from tests.spark.queries import OURS, SPARKS, Output, Query
from tests.spark.test_queries import CASES
from tests.support.spark_versions import NEWEST_READABLE_FORMAT


def life_of(spark: Any, name: str, directory: Path, provider: str) -> tuple[list[Output], Any]:
    """Run a query, and once more with further input; return its output and its state."""
    case = CASES[name]
    # Settings are those of a session, and the queries run concurrently.
    query = Query(
        spark.newSession(),
        directory,
        case.build,
        case.mode,
        events.SCHEMA,
        provider=provider,
        checkpoint_format=NEWEST_READABLE_FORMAT if provider == OURS else 1,
        confs=case.confs,
        collect=case.collect,
    )
    outputs = []
    for batch in events.batches(2):
        query.feed(batch)
        outputs.append(query.run())
    return outputs, query.state()


def compare(spark: Any, directory: Path, names: Sequence[str]) -> None:
    """Compare queries, several at a time, with the same ones on Spark's own store."""
    with ThreadPoolExecutor(3) as pool:
        lives = {
            (name, provider): pool.submit(life_of, spark, name, directory / f"{number}" / store, provider)
            for number, name in enumerate(names)
            for store, provider in (("ours", OURS), ("sparks", SPARKS))
        }
    for name in names:
        outputs, state = lives[name, OURS].result()
        assert any(rows for output in outputs for _, rows in output), f"{name}: no output is compared"
        assert (outputs, state) == lives[name, SPARKS].result(), name


@pytest.mark.first
def test_aggregations_equal_sparks_store(spark: Any, tmp_path: Path) -> None:
    compare(
        spark,
        tmp_path,
        ("aggregation in update mode", "windows in append mode", "limit in append mode", "session windows"),
    )

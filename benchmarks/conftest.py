"""Comparison of stores in the session of the tests."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks.streaming import Batches, Comparison, Plan, RunningQuery, run_in_turns

Compare = Callable[[Comparison, Plan], Batches]


@pytest.fixture
def compare_here(spark: Any, tmp_path: Path) -> Compare:
    """Return `compare`, with all stores in one session."""

    def compare(comparison: Comparison, plan: Plan) -> Batches:
        directory = tmp_path / str(len(list(tmp_path.iterdir())))
        directory.mkdir()
        with ExitStack() as stack:
            queries = {}
            for store in comparison.stores:
                queries[store.name] = RunningQuery(spark, directory, comparison, store)
                stack.callback(queries[store.name].stop)
            return run_in_turns(directory, comparison, queries, plan)

    return compare

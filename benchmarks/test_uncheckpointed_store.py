"""The store that keeps nothing has right answers, and its newest version alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError

from benchmarks import stores
from benchmarks.conftest import Compare
from benchmarks.groups.limit import COLUMNS, START
from benchmarks.nexmark.events import input_table
from benchmarks.nexmark.queries import transform_with_state
from benchmarks.sessions import SessionSettings, session_processes
from benchmarks.stores import LIMIT, LIMIT_EXTENSIONS, LIMIT_PROVIDER, OURS
from benchmarks.streaming import Comparison, Plan, compare, config_of

STORES = tuple(map(config_of, (OURS, LIMIT)))
ROWS = 30


def moments(number: int) -> pa.Table:
    """Return ten minutes of events first, and then a minute of each."""
    random = np.random.default_rng(number)
    minutes, begin = (1, START + timedelta(minutes=9 + number)) if number else (10, START)
    ts = np.datetime64(begin.replace(tzinfo=None), "us") + random.integers(
        0, minutes * 60_000_000, ROWS * minutes
    )
    k = random.integers(0, ROWS, ROWS * minutes)
    return pa.table([k, pa.array(ts, pa.timestamp("us", tz="UTC")), k], schema=COLUMNS)


def windowed_count(stream: Any) -> Any:
    from pyspark.sql import functions as F

    return stream.withWatermark("ts", "2 minutes").groupBy(F.window("ts", "1 minute"), "k").count()


def deduplication(stream: Any) -> Any:
    return stream.withWatermark("ts", "2 minutes").dropDuplicates(["k", "ts"])


@pytest.mark.slow
@pytest.mark.parametrize("build", [windowed_count, deduplication])
def test_uncheckpointed_store_removes_expired_rows_as_others_do(compare_here: Compare, build: Any) -> None:
    batches = compare_here(Comparison("expiry", build, moments, STORES), Plan(0, 3))
    rows = [batch.rows for batch in batches[LIMIT]]
    assert rows == [batch.rows for batch in batches[OURS]]
    # Few rows remain of the ten minutes of the first batch, and of the later ones.
    assert 0 < rows[-1] < 6 * ROWS
    assert all(batch.output[0] > 0 for batch in batches[LIMIT])


@pytest.mark.soak
def test_uncheckpointed_store_keeps_the_state_of_python_code(built: Path, tmp_path: Path) -> None:
    own_settings = SessionSettings(spark_files="backend")
    settings = {
        OURS: own_settings,
        LIMIT: replace(own_settings, confs={"spark.sql.extensions": LIMIT_EXTENSIONS}),
    }
    events = partial(input_table, 500, 200)
    python = Comparison("Python", transform_with_state, events, STORES, "update")
    with session_processes(tmp_path / "sessions", settings) as processes:
        batches = compare(processes, tmp_path, python, Plan(0, 3))
    # It fails if their answers differ, of which those of later batches need the state of earlier ones.
    assert [batch.rows for batch in batches[LIMIT]] == [batch.rows for batch in batches[OURS]]
    assert all(batch.output[0] > 0 for batch in batches[LIMIT])


@pytest.mark.slow
def test_uncheckpointed_store_has_its_newest_version_alone(spark: Any, tmp_path: Path) -> None:
    store = stores.bench(spark).StoreBenchmark(LIMIT_PROVIDER, f"file:{tmp_path}", {}, 0)
    store.fill(100)
    # It compares what it reads with what it has put.
    store.batch(50, 1)
    again = stores.bench(spark).StoreBenchmark(LIMIT_PROVIDER, f"file:{tmp_path}", {}, 0)
    with pytest.raises(Py4JJavaError, match=r"version 0 of .* is lost: .* has version 2 alone"):
        again.fill(100)
    store.change(10, 1)
    with pytest.raises(Py4JJavaError, match="changed by a batch that did not commit"):
        store.batch(50, 2)
    assert list(tmp_path.iterdir()) == []
    store.close()

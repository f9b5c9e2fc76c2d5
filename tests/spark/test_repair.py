"""What Spark writes is verified whole; broken, the query is repaired, and goes on; orphans can be collected as it runs."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_statestore.checkpoint.query.gc import DAY, gc
from spark_statestore.checkpoint.query.verify import verify
from spark_statestore.savepoint.repair import repair
from tests.spark.queries import Query, unload_all

WORDS = pa.schema([("word", pa.string())])


def counts(events: Any) -> Any:
    return events.groupBy("word").count()


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_a_query_whose_newest_batch_is_broken_is_repaired(
    spark: Any, tmp_path: Path, checkpoint_format: int
) -> None:
    query = Query(spark, tmp_path, counts, "update", WORDS, checkpoint_format=checkpoint_format)
    query.feed(*([{"word": f"{number % (7 + batch)}"} for number in range(50)] for batch in range(3)))
    output, state = query.run(), query.state()
    unload_all(spark)
    url = str(query.checkpoint)
    for batch in (0, 1, 2):
        assert verify(url, batch).problems == ()
    for path in query.checkpoint.glob("state/0/1/chk-3*/_metadata"):
        path.write_bytes(path.read_bytes()[:-1])
    assert not verify(url).ok
    assert repair(url).batch == 1
    assert query.run() == output[2:]
    assert query.state() == state
    assert verify(url).problems == ()
    unload_all(spark)
    # What was rolled back is kept for as long as the log entries are.
    assert gc(url, stopped=True).orphans == ()
    assert query.state() == state


@pytest.mark.slow
def test_orphans_are_collected_while_the_query_runs(spark: Any, tmp_path: Path) -> None:
    """However young they are: what a commit is about to name must stay all the same."""
    query = Query(spark, tmp_path, counts, "update", WORDS, checkpoint_format=2)
    query.feed(*([{"word": f"{number}"} for number in range(30)] for _ in range(8)))
    url = str(query.checkpoint)
    collections = 0
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(query.run)
        while not running.done():
            if list(query.checkpoint.glob("commits/[0-9]*")):
                gc(url, older_than=-DAY)
                collections += 1
            time.sleep(0.02)
        running.result()
    assert collections > 8
    unload_all(spark)
    assert verify(url).problems == ()
    assert {"count=8)" in row for row in query.state()} == {True}

"""`verify`, `repair` and `gc` on checkpoints written by Spark, intact and damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_statestore.query.gc import gc
from spark_statestore.query.repair import repair
from spark_statestore.query.verify import verify
from tests.spark.queries import STATE_STORE, Query, unload_all

WORDS = pa.schema([("word", pa.string())])


def counts(events: Any) -> Any:
    return events.groupBy("word").count()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("commit", "checkpoint_format", "newest"),
    [("task", 1, "0/1/chk-3*/_metadata"), ("batch", 2, "_merged/3-3-*")],
)
def test_repair_restores_a_query_with_a_damaged_newest_batch(
    spark: Any, tmp_path: Path, commit: str, checkpoint_format: int, newest: str
) -> None:
    confs = {STATE_STORE + "backend.commit": commit}
    query = Query(spark, tmp_path, counts, "update", WORDS, checkpoint_format=checkpoint_format, confs=confs)
    query.feed(*([{"word": f"{number % (7 + batch)}"} for number in range(50)] for batch in range(3)))
    output, state = query.run(), query.state()
    unload_all(spark)
    url = str(query.checkpoint)
    for batch in (0, 1, 2):
        assert verify(url, batch).problems == ()
    for path in query.checkpoint.glob(f"state/{newest}"):
        path.write_bytes(path.read_bytes()[:-1])
    assert not verify(url).ok
    assert repair(url, stopped=True).batch == 1
    assert query.run() == output[2:]
    assert query.state() == state
    assert verify(url).problems == ()
    unload_all(spark)
    # Rolled back files are kept for as long as the log entries are.
    assert gc(url, stopped=True).orphans == ()
    assert query.state() == state

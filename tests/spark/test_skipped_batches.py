"""Batches that the sink has and Spark's commit log lacks: the sink skips them, and their state is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import spark_statestore
from spark_statestore.options import PROVIDER_KEY
from spark_statestore.query import QueryCheckpoint
from spark_statestore.query.query_checkpoint import COMMITS
from tests.spark.counting import Program
from tests.spark.queries import OURS, SPARKS
from tests.support.windows import answer, run_windows, write_input

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("built")]

FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"

BATCH = 2


# Format v1 loses the state of a skipped batch; in v2 the commit log lacks its checkpoint ids. The query keeps
# its provider, whatever the session that goes on with it has.
@pytest.mark.parametrize(
    ("sink", "record", "checkpoint_format", "provider"),
    [
        pytest.param(
            *("parquet", f"_spark_metadata/{BATCH}", "1", SPARKS),
            id="file",
            marks=[pytest.mark.spark, pytest.mark.oldest],
        ),
        pytest.param(
            *("directories", f"batch={BATCH}/_SUCCESS", "2", OURS),
            id="function",
            marks=[pytest.mark.spark, pytest.mark.oldest],
        ),
    ],
)
def test_query_killed_after_its_sinks_commit_equals_the_batch_answer(
    spark: Any, tmp_path: Path, sink: str, record: str, checkpoint_format: str, provider: str
) -> None:
    write_input(tmp_path)
    has_batch = str(tmp_path / "output" / record)
    confs = {FORMAT: checkpoint_format}
    with Program(
        "until_sink_has", directory=str(tmp_path), format=sink, file=has_batch, confs=confs
    ) as program:
        program.next("killed")
    assert max(QueryCheckpoint(str(tmp_path / "checkpoint")).logged(COMMITS)) == BATCH - 1
    session = spark.newSession()
    session.conf.set(FORMAT, checkpoint_format)
    session.conf.set(PROVIDER_KEY, provider)
    run_windows(session, tmp_path, sink)
    frame = session.read.parquet(str(tmp_path / "output"))
    rows = frame.select("start", "n", "total").orderBy("start").collect()
    assert [tuple(row) for row in rows] == answer(session, tmp_path)
    assert not spark_statestore.verify(str(tmp_path / "checkpoint")).problems

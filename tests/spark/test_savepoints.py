"""Savepoints of running queries: their timing, and their independence of retention."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_statestore import (
    OptionError,
    SavepointError,
    load_savepoint,
    savepoint,
    trigger_savepoint,
)
from spark_statestore.query import QueryCheckpoint
from spark_statestore.savepoints.savepoint_holds import list_holds
from tests.spark.counting import wait_until
from tests.spark.queries import STATE_STORE, Output, Query
from tests.unit.savepoints.written_query import Content, content

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
BACKEND = STATE_STORE + "backend."
RETENTION = {
    "spark.sql.streaming.minBatchesToRetain": "1",
    # Unreferenced files are deleted by the next maintenance, which runs every five seconds.
    BACKEND + "fileStateThreshold": "0",
    "spark.sql.streaming.ratioExtraSpaceAllowedInCheckpoint": "0",
}


def counted(events: Any) -> Any:
    from pyspark.sql import functions as F

    return events.groupBy("k").agg(F.count("*"), F.sum("v"))


def versions(store: Path) -> set[int]:
    return {int(path.parent.name[4:].partition("_")[0]) for path in store.glob("chk-*/_metadata")}


class Running:
    """A query that processes each file as it arrives."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.out: Output = []
        self.batches = 0
        self.feed()
        self.spark_query = query.start(self.out, processingTime="0 seconds")

    def feed(self) -> int:
        """Feed one more batch, and return its number."""
        number = self.batches
        self.query.feed([{"k": (number * 7 + row) % 50, "v": row} for row in range(40)])
        self.batches += 1
        return number

    def do_batch(self) -> int:
        number = self.feed()
        assert wait_until(lambda: self.newest() == number, 40)
        return number

    def newest(self) -> int:
        batches = self.checkpoint().batches() if (self.query.checkpoint / "commits").exists() else []
        return max(batches, default=-1)

    def checkpoint(self) -> QueryCheckpoint:
        return QueryCheckpoint(str(self.query.checkpoint))


@contextmanager
def running(spark: Any, directory: Path, checkpoint_format: int = 1, **confs: str) -> Iterator[Running]:
    query = Query(
        spark,
        directory,
        counted,
        "update",
        SCHEMA,
        checkpoint_format=checkpoint_format,
        confs=RETENTION | confs,
    )
    instance = Running(query)
    try:
        assert wait_until(lambda: instance.newest() == 0, 40)
        yield instance
    finally:
        instance.spark_query.stop()


@pytest.mark.spark
@pytest.mark.oldest
@pytest.mark.parametrize("checkpoint_format", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_retention_keeps_savepoints_of_a_running_query(
    spark: Any, tmp_path: Path, checkpoint_format: int
) -> None:
    target = str(tmp_path / "target")
    expected: dict[str, Content] = {}
    # A file for each version of a store: merged files are deleted after a later batch.
    by_task = {BACKEND + "commit": "task"}
    with running(spark, tmp_path, checkpoint_format, **by_task) as query:
        query.do_batch()
        promises = {
            kind: trigger_savepoint(query.spark_query, target, kind, timeout=60)
            for kind in ("pointer", "canonical")
        }
        time.sleep(0.5)
        assert not any(promise.done() for promise in promises.values())
        assert query.do_batch() == 2
        for kind, promise in promises.items():
            savepoint = promise.result(60)
            assert (savepoint.kind, savepoint.batch, savepoint.partitions) == (kind, 2, 2)
            expected[savepoint.path] = content(query.checkpoint(), 2)
        # From a process without the query and without Spark.
        program = f"""
import sys
sys.modules["pyspark"] = None
import spark_statestore
print(spark_statestore.savepoint({str(query.query.checkpoint)!r}, {target!r}, "pointer").path)
"""
        number = query.do_batch()
        external_path = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout.strip()
        assert load_savepoint(external_path).batch == number
        expected[external_path] = content(query.checkpoint(), number)
        assert len(list_holds(query.checkpoint())) == 2
        for _ in range(4):
            query.do_batch()
        stores = [query.query.checkpoint / f"state/0/{partition}" for partition in range(2)]
        # Spark has requested version 7, so that 6 is kept too.
        assert wait_until(lambda: all(versions(store) == {3, 4, 6, 7, 8} for store in stores), 40)
        # Spark is not involved.
        assert query.query.metadata()
        assert sum(query.query.state().values()) == 50
    for path, rows in expected.items():
        assert rows
        assert content(load_savepoint(path).checkpoint()) == rows


def test_failed_savepoint_error_has_the_cause(spark: Any, tmp_path: Path) -> None:
    target = str(tmp_path / "target")
    with running(spark, tmp_path) as query:
        with pytest.raises(OptionError, match="savepointsDir"):
            trigger_savepoint(query.spark_query)
        with pytest.raises(OptionError, match="the kind of savepoint is"):
            trigger_savepoint(query.spark_query, target, "native")  # type: ignore[arg-type]
        with pytest.raises(SavepointError, match="no batch was committed in time"):
            savepoint(query.spark_query, target, timeout=0.2)
        # An earlier batch need not be waited for.
        assert savepoint(query.spark_query, target, "pointer", batch=0).batch == 0
        given_up = trigger_savepoint(query.spark_query, target)
        assert given_up.cancel()
        (tmp_path / "file").write_bytes(b"")
        impossible = trigger_savepoint(query.spark_query, str(tmp_path / "file"))
        assert query.do_batch() == 1
        assert isinstance(impossible.exception(60), SavepointError)
        late = trigger_savepoint(query.spark_query, target)
        query.spark_query.stop()
        assert "the query was stopped" in str(late.exception(60))
        after = trigger_savepoint(query.spark_query, target)
        assert "the query was stopped" in str(after.exception(60))
        # For a query that has ended, the checkpoint is used.
        assert savepoint(query.spark_query, target).batch == 1


def test_trigger_uses_the_savepoint_directory_and_reports_query_failures(spark: Any, tmp_path: Path) -> None:
    with running(
        spark,
        tmp_path,
        **{
            BACKEND + "savepointsDir": str(tmp_path / "default"),
            BACKEND + "checkpointsDir": str(tmp_path / "elsewhere"),
        },
    ) as query:
        promise = trigger_savepoint(query.spark_query)
        query.do_batch()
        savepoint = promise.result(60)
        assert savepoint.path.startswith(f"file://{tmp_path}/default/savepoint-")
        assert savepoint.checkpoints_dir == str(tmp_path / "elsewhere")
        assert sum(len(rows) for rows in content(savepoint.checkpoint()).values()) == 47
        failed = trigger_savepoint(query.spark_query)
        # No file of the expected kind.
        bad = tmp_path / "input" / "999.parquet"
        bad.write_bytes(b"PAR1 and nothing that follows")
        error = failed.exception(60)
        assert "the query has failed" in str(error)
        assert "999.parquet" in str(error)


def test_savepoint_rejects_state_on_the_driver(spark: Any, tmp_path: Path) -> None:
    with running(spark, tmp_path, **{BACKEND + "storage": "memory"}) as query:
        promise = trigger_savepoint(query.spark_query, str(tmp_path / "target"))
        assert "is on the driver" in str(promise.exception(60))
        with pytest.raises(SavepointError):
            savepoint(str(query.query.checkpoint), str(tmp_path / "target"))
    assert not (tmp_path / "target").exists()

"""Commits that tasks hand over are durable before Spark's commit log gets their batch, or the batch fails."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.errors import StreamingQueryException

from spark_statestore.options import OPTION_PREFIX
from tests.spark.counting import (
    backend_pid,
    finish,
    run_to,
    start_counting,
    wait_for_batch,
    wait_until,
)
from tests.support.slow import SlowStorage

pytestmark = pytest.mark.slow

FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"


def start(spark: Any, checkpoint: Path, slow: SlowStorage, commit: str, **options: str) -> Any:
    """Start the query with its state on the storage, and Spark's own files on local files."""
    session = spark.newSession()
    settings = {"commit": commit, "python": slow.interpreter(), "checkpointsDir": slow.url} | options
    return session, start_counting(
        session, checkpoint, confs={OPTION_PREFIX + key: value for key, value in settings.items()}
    )


@pytest.mark.parametrize("commit", ["task", "batch"])
def test_driver_waits_for_what_tasks_handed_over(
    spark: Any, slow: SlowStorage, tmp_path: Path, commit: str
) -> None:
    session, query = start(spark, tmp_path / "checkpoint", slow, commit)
    wait_for_batch(query, 1)
    slow.calls(delay=1)
    batch = query.lastProgress.batchId + 2
    wait_for_batch(query, batch)
    durations = query.lastProgress.durationMs
    slow.calls()
    waited = {"task": durations["addBatch"], "batch": durations["commitOffsets"]}
    # A commit that was handed over is on its way while its task ends.
    assert waited[commit] > 900
    assert waited["batch" if commit == "task" else "task"] < 900
    finish(session, query, batch)


def test_log_gets_no_batch_whose_commits_are_pending(spark: Any, slow: SlowStorage, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    session, query = start(spark, checkpoint, slow, "batch")
    wait_for_batch(query, 1)
    began = time.monotonic()
    with slow.hanging("write", "/_merged/") as hang:
        hang.wait()
        offsets = {int(file.name) for file in checkpoint.glob("offsets/[0-9]*")}
        commits = {int(file.name) for file in checkpoint.glob("commits/[0-9]*")}
        assert commits == offsets - {max(offsets)}
        before = uncommitted_age_ms(session, query, checkpoint)
        time.sleep(0.5)
        assert before + 500 <= uncommitted_age_ms(session, query, checkpoint)
        assert uncommitted_age_ms(session, query, checkpoint) < (time.monotonic() - began) * 1000
        # The tasks have ended, and the driver waits.
        tracker = session.sparkContext.statusTracker()
        assert wait_until(lambda: not tracker.getActiveJobsIds(), 20)
        assert {int(file.name) for file in checkpoint.glob("commits/[0-9]*")} == commits
    finish(session, query, max(offsets) + 1)
    assert uncommitted_age_ms(session, query, checkpoint) == 0


def uncommitted_age_ms(session: Any, query: Any, checkpoint: Path) -> int:
    """Return the metric of that name of a query's run."""
    figures = session._jvm.org.apache.spark.sql.statestore.driver.CommitFigures
    return figures.uncommittedAgeMs(f"file:{checkpoint}/commits", str(query.runId))


@pytest.mark.parametrize(
    ("hung", "threshold", "error"),
    [
        ("/_merged/", "1m", "storage did not answer within 1 s.* of the commits of all stores of batch"),
        # Changes in a file of their own, written before the barrier.
        ("/shared/", "0", "storage did not answer within 1 s"),
    ],
    ids=["merged", "alone"],
)
def test_failed_commit_fails_its_batch(
    spark: Any, slow: SlowStorage, tmp_path: Path, hung: str, threshold: str, error: str
) -> None:
    checkpoint = tmp_path / "checkpoint"
    session, query = start(
        spark,
        checkpoint,
        slow,
        "batch",
        storageTimeoutSeconds="1",
        fileStateThreshold=threshold,
    )
    wait_for_batch(query, 1)
    with contextlib.ExitStack() as stack:
        # A commit that fails with those of other stores is sent again alone.
        hangs = [stack.enter_context(slow.hanging("write", hung)) for _ in range(4)]
        hangs[0].wait()
        with pytest.raises(StreamingQueryException, match=error):
            query.awaitTermination(60)
        offsets = {int(file.name) for file in checkpoint.glob("offsets/[0-9]*")}
        commits = {int(file.name) for file in checkpoint.glob("commits/[0-9]*")}
        assert commits == offsets - {max(offsets)}
    # In the same session: nothing of the failed run counts.
    session, query = start(spark, checkpoint, slow, "batch")
    finish(session, query, max(offsets) + 1)


def test_batch_survives_the_end_of_its_backend(spark: Any, slow: SlowStorage, tmp_path: Path) -> None:
    session, query = start(spark, tmp_path / "checkpoint", slow, "batch")
    wait_for_batch(query, 2)
    with slow.hanging("write", "/_merged/") as hang:
        hang.wait()
        version = query.lastProgress.batchId + 2
        # It had the commits of all tasks in memory.
        psutil.Process(backend_pid(spark, slow.interpreter())).kill()
    wait_for_batch(query, version)
    merged = {file.name for file in slow.directory.glob("*/_merged/*")}
    assert f"{version}-{version}-0" not in merged
    assert f"{version + 1}-{version + 1}-0" in merged
    # The state in memory was sent again, with a file for each store.
    assert list(slow.directory.glob(f"*/0/*/chk-{version}*/_metadata"))
    finish(session, query, version + 1)


def test_small_commits_are_sent_together(spark: Any, slow: SlowStorage, tmp_path: Path) -> None:
    """Send up to 16 commits of a batch in one exchange with the backend."""
    partitions, batches = 64, 3
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", str(partitions))
    settings = {"commit": "batch", "python": slow.interpreter(), "checkpointsDir": slow.url}
    confs = {OPTION_PREFIX + key: value for key, value in settings.items()}
    query = start_counting(session, tmp_path / "checkpoint", confs=confs)
    wait_for_batch(query, 2)
    harness = spark._jvm.org.apache.spark.sql.statestore.ProviderHarness
    first, before = query.lastProgress.batchId, harness.backendRoundTrips(slow.interpreter())
    wait_for_batch(query, first + batches)
    # Another batch may be under way.
    round_trips = harness.backendRoundTrips(slow.interpreter()) - before
    assert round_trips / (query.lastProgress.batchId + 1 - first) < partitions / 6
    finish(session, query, query.lastProgress.batchId + 1)


def test_commits_of_a_batch_are_published_together_by_default(spark: Any, tmp_path: Path) -> None:
    run_to(spark.newSession(), tmp_path / "checkpoint", 2)
    state = tmp_path / "checkpoint" / "state"
    assert len(list((state / "_merged").iterdir())) >= 2
    # The first version of a store has a file of its own.
    assert {path.name.partition("_")[0] for path in state.glob("0/*/chk-*")} == {"chk-1"}


def test_run_with_another_file_manager_does_not_count_on_an_earlier_one(spark: Any, tmp_path: Path) -> None:
    """The commit log of the later run has no barrier, while the earlier query's objects are still in use."""
    checkpoint = tmp_path / "checkpoint"
    batches = {OPTION_PREFIX + "commit": "batch"}
    earlier = start_counting(spark.newSession(), checkpoint, confs=batches)
    wait_for_batch(earlier, 1)
    earlier.stop()
    session = spark.newSession()
    session.conf.unset(FILE_MANAGER)
    later = start_counting(session, checkpoint, confs=batches)
    with pytest.raises(StreamingQueryException, match=r"'batch', which needs .* nothing was changed"):
        later.awaitTermination(60)
    assert earlier.lastProgress is not None
    later = start_counting(session, checkpoint, confs={OPTION_PREFIX + "commit": "auto"})
    finish(session, later, 3)

"""Move stores between two executors, with pointer savepoints and rollbacks in between.

The only argument is a JSON object: ``directory``, and the number of ``moves``. It reports how often a store
moved, and the problems.

Two executors of one core each run a query with ``commit=batch``, checkpoint format v2. A job that sleeps
occupies one of them, so that the query's tasks run on the other; a move is a second job there, and the end of
the first. An executor to which a store returns has a directory listing of earlier times. Every third batch
changes so much that each store's version has a file of its own; the others' are merged by the driver, over
bases that are uploaded in the background.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import spark_statestore
from tests.spark.counting import cluster_environment, failure_of, report, wait_until
from tests.support.sessions import cluster_builder
from tests.support.trees import problem_of, retained_batches

KEYS = 12_007
ROWS = 4_000
"""Rows of a large batch, of which each store gets more than 64 KiB of changes.

Others have one of twenty of them.
"""

LARGE = 3

RETAINED = 10
HELD = 3

CONFS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.locality.wait": "0",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.minBatchesToRetain": str(RETAINED),
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    "spark.sql.streaming.stateStore.maintenanceInterval": "200ms",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "3",
}


def changes(batch: int) -> list[tuple[int, int]]:
    values = range(batch * ROWS, (batch + 1) * ROWS)
    return [(value % KEYS, value) for value in values if batch % LARGE == LARGE - 1 or value % 20 == 0]


def expected(batch: int) -> dict[int, tuple[int, int, str]]:
    """Return the state after a batch: count, sum and the largest digest of each key."""
    state: dict[int, tuple[int, int, str]] = {}
    for number in range(batch + 1):
        for key, value in changes(number):
            n, s, digest = state.get(key, (0, 0, ""))
            state[key] = n + 1, s + value, max(digest, hashlib.sha256(str(value).encode()).hexdigest())
    return state


class Blocker:
    """A job that occupies one core until it is released; the jobs of two of them occupy both executors."""

    def __init__(self, spark: Any, directory: Path, number: int) -> None:
        self._running, self._released = directory / f"running-{number}", directory / f"released-{number}"
        running, released = str(self._running), str(self._released)

        def block(_: Any) -> list[int]:
            # The parent is the daemon of one executor's workers.
            with open(f"{running}-", "w", encoding="utf-8") as file:
                file.write(str(os.getppid()))
            os.rename(f"{running}-", running)
            while not os.path.exists(released):
                time.sleep(0.02)
            return []

        self._job = threading.Thread(
            target=lambda: spark.sparkContext.parallelize([0], 1).mapPartitions(block).collect(), daemon=True
        )
        self._job.start()
        assert wait_until(self._running.exists, 60), "no executor is free"
        self.executor = int(self._running.read_text())

    def release(self) -> None:
        self._released.touch()
        self._job.join()


class Moving:
    """The query, and what is retained and held of it, with its checkpoint and savepoints in a directory."""

    def __init__(self, spark: Any, directory: Path) -> None:
        self.problems: list[str] = []
        self.checked = self.moved = 0
        self.savepoints: deque[Any] = deque()
        self._spark = spark
        self._directory = directory
        self._checkpoint = str(directory / "checkpoint")
        self._query: Any = None

    def start(self) -> None:
        from pyspark.sql import functions as F

        numbers = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
        is_large = F.expr(f"(value div {ROWS}) % {LARGE} = {LARGE - 1}")
        digest = F.sha2(F.col("value").cast("string"), 256)
        state = (
            numbers.where(is_large | (F.col("value") % 20 == 0))
            .groupBy((F.col("value") % KEYS).alias("k"))
            .agg(F.count("*").alias("n"), F.sum("value").alias("s"), F.max(digest).alias("d"))
        )
        sink = state.writeStream.outputMode("update").format("noop")
        self._query = sink.option("checkpointLocation", self._checkpoint).start()

    def wait_for_batches(self, count: int) -> None:
        """Wait until the query has committed some more batches."""
        newest = max(self.committed(), default=-1)

        def has_batches() -> bool:
            if not self._query.isActive:
                raise RuntimeError(f"the query failed: {failure_of(self._query)}")
            return max(self.committed(), default=-1) >= newest + count

        assert wait_until(has_batches, 120), f"no batch after {newest}"

    def committed(self) -> list[int]:
        return sorted(int(log.name) for log in Path(self._checkpoint, "commits").glob("[0-9]*"))

    def hold(self) -> None:
        """Take a pointer savepoint of the running query, and dispose of the oldest one."""
        target = str(self._directory / "savepoints")
        self.savepoints.append(spark_statestore.savepoint(self._query, target, "pointer", timeout=120))
        if len(self.savepoints) > HELD:
            spark_statestore.dispose_savepoint(self.savepoints.popleft().path)

    def stop_and_check(self, *, back: int) -> None:
        """Stop the query, check what is retained and held, and roll it back by a number of batches."""
        self._query.stop()
        committed = retained_batches(Path(self._checkpoint), RETAINED)
        for batch in committed:
            self._check(self._checkpoint, batch, f"retained batch {batch} of {committed[-1]}")
        for savepoint in self.savepoints:
            self._check_restored(savepoint)
        if back:
            spark_statestore.rollback(self._checkpoint, committed[-1] - back, stopped=True)

    def _check_restored(self, savepoint: Any) -> None:
        restored = self._directory / "restored"
        subject = f"held batch {savepoint.batch}"
        try:
            spark_statestore.restore(savepoint.path, str(restored))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a problem
            self.checked += 1
            self.problems.append(f"{subject} cannot be restored: {error}")
        else:
            self._check(str(restored), savepoint.batch, subject)
        shutil.rmtree(restored, ignore_errors=True)

    def _check(self, checkpoint: str, batch: int, subject: str) -> None:
        self.checked += 1
        if problem := problem_of(checkpoint, batch):
            self.problems.append(f"{subject}: {problem}")
            return
        rows = spark_statestore.read_state(checkpoint, batch=batch).to_pylist()
        state = {next(iter(row["key"].values())): tuple(row["value"].values()) for row in rows}
        if state != expected(batch):
            self.problems.append(f"{subject} has the wrong state: {next(iter(state.items()), None)}")


def move(spark: Any, moving: Moving, directory: Path, moves: int) -> None:
    """Move the stores from one executor to the other again and again."""
    blocker = Blocker(spark, directory, 0)
    for number in range(1, moves + 1):
        following = Blocker(spark, directory, number)
        blocker.release()
        moving.moved += following.executor != blocker.executor
        blocker = following
        # Maintenance runs several times, and a large batch is among them now and then.
        moving.wait_for_batches(1 + number % 4)
        time.sleep(0.5)
        if number % 3 == 0:
            moving.hold()
        if number % 10 == 0:
            moving.stop_and_check(back=number // 10 % 2 * (RETAINED - 2))
            report(
                "checked",
                {"move": number, "versions": moving.checked, "problems": len(moving.problems)},
            )
            moving.start()
    blocker.release()


def main() -> None:
    arguments = json.loads(sys.argv[1])
    directory = Path(arguments["directory"])
    os.environ.update(cluster_environment(directory), PYSPARK_PYTHON=sys.executable)
    builder = cluster_builder()
    builder.config(map=CONFS)
    spark = spark_statestore.configure(builder, commit="batch").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    moving = Moving(spark, directory)
    moving.start()
    try:
        move(spark, moving, directory, arguments["moves"])
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a problem
        moving.problems.append(f"after {moving.moved} moves: {error}")
    # After a failure this tells whether a version is damaged, or could only not be loaded there.
    moving.stop_and_check(back=0)
    report("moved", moving.moved)
    report("problems", moving.problems)
    spark.stop()


if __name__ == "__main__":
    main()

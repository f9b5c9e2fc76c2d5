"""State metrics in a query's progress, number by number."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.spark.queries import JOIN_FORMAT, STATE_STORE, Query, Rows, run_with_restarts

pytestmark = pytest.mark.slow

PARTITIONS = 2
INTERVAL = 3
SCHEMA = pa.schema([("k", pa.int64()), ("text", pa.string())])

# The figures of a commit are those of its own version.
BY_TASK = {STATE_STORE + "backend.commit": "task"}

# The keys of each batch; the query is restarted before the last two, the very last has none.
KEYS = [
    range(400),
    range(20),
    range(20, 40),
    range(390, 410),
    range(60),
    range(5, 25),
    range(30, 60),
    range(0),
]
RESTART = 6


def latest(stream: Any) -> Any:
    from pyspark.sql import functions as F

    return stream.groupBy("k").agg(F.max("text").alias("text"), F.count("*").alias("n"))


def rows(keys: range, text: str = "") -> Rows:
    return [{"k": key, "text": f"{key:08}{text}"} for key in keys]


@pytest.fixture(scope="module")
def operator(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the progress of the stateful operator in each batch."""
    query = Query(
        spark,
        tmp_path_factory.mktemp("metrics"),
        latest,
        "update",
        SCHEMA,
        checkpoint_format=2,
        confs={
            **BY_TASK,
            STATE_STORE + "minDeltasForSnapshot": str(INTERVAL),
            # All of this state fits into the metadata.
            STATE_STORE + "backend.fileStateThreshold": "1m",
            # Incompressible, so that bytes depend on the number of written rows only.
            STATE_STORE + "backend.compression": "none",
        },
    )
    reports = []
    batches = [rows(keys) for keys in KEYS]
    for part in (batches[:RESTART], batches[RESTART:]):
        run_with_restarts(query, [part])
        reports += [progress["stateOperators"][0] for progress in query.progress]
    return reports


def shown_in_the_ui(spark: Any) -> dict[str, str]:
    """Return the metrics in the UI of the newest execution of a stateful operator, by description."""
    store = spark._jsparkSession.sharedState().statusStore()
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(30_000)
    executions = store.executionsList()
    for at in reversed(range(executions.size())):
        execution = executions.apply(at)
        metrics = execution.metrics()
        names = {metrics.apply(i).name(): metrics.apply(i).accumulatorId() for i in range(metrics.size())}
        values = store.executionMetrics(execution.executionId())
        if any(name.startswith("streams that a load") for name in names):
            return {name: values.apply(number) for name, number in names.items() if values.contains(number)}
    raise AssertionError("no execution of a stateful operator")


def series(operator: list[dict[str, Any]], name: str) -> list[int]:
    return [progress["customMetrics"][name] for progress in operator]


def test_row_count_metrics_are_exact(operator: list[dict[str, Any]]) -> None:
    all_keys: set[int] = set()
    for keys, progress in zip(KEYS, operator, strict=True):
        all_keys.update(keys)
        assert progress["numRowsTotal"] == len(all_keys)
        assert progress["numRowsUpdated"] == len(keys)
        assert progress["memoryUsedBytes"] > len(all_keys) * 16


def test_inline_commit_writes_one_object_per_partition(operator: list[dict[str, Any]]) -> None:
    assert series(operator, "checkpointObjectsWritten") == [PARTITIONS] * len(KEYS)
    # A batch without changes has a version as well.
    assert min(series(operator, "checkpointBytesWritten")) > 0
    sizes = series(operator, "checkpointBytesWritten")
    assert sizes[1] < sizes[0] / 2


def test_chain_grows_until_the_next_snapshot(operator: list[dict[str, Any]]) -> None:
    # The last batch changes nothing, and so adds no stream.
    lengths = [1, 2, 3, 4, 1, 2, 3, 3]
    assert series(operator, "checkpointMaxChainLength") == lengths
    ages = [0, 1, 2, 3, 0, 1, 2, 3]
    assert series(operator, "checkpointMaxSnapshotAge") == ages
    full = [PARTITIONS if age == 0 else 0 for age in ages]
    assert series(operator, "checkpointFullSnapshots") == full


def test_chain_length_and_snapshot_age_are_maxima_over_partitions(spark: Any, tmp_path: Path) -> None:
    # One key, and so one partition of two, changes after the first batch; the other one's chain stays.
    query = Query(
        spark,
        tmp_path,
        latest,
        "update",
        SCHEMA,
        confs=BY_TASK | {STATE_STORE + "minDeltasForSnapshot": "100"},
    )
    run_with_restarts(query, [[rows(range(400)), *([rows(range(1), str(n)) for n in range(3)])]])
    operator = [progress["stateOperators"][0] for progress in query.progress]
    assert series(operator, "checkpointMaxChainLength") == [1, 2, 3, 4]
    assert series(operator, "checkpointMaxSnapshotAge") == [0, 1, 2, 3]
    (largest,) = set(series(operator, "stateTableMaxRows"))
    by_partition = Counter(
        row.partition_id for row in spark.read.format("statestore").load(str(query.checkpoint)).collect()
    )
    assert largest == max(by_partition.values()) > 400 / PARTITIONS
    shown = shown_in_the_ui(spark)
    assert shown["streams that a load of this version reads, maximum over partitions"] == "4"
    assert shown["versions since the last full snapshot, maximum over partitions"] == "3"


def test_chain_length_of_a_join_is_the_maximum_over_its_stores(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    def joined(stream: Any) -> Any:
        left = stream.where("k < 1000").withColumnRenamed("text", "left")
        right = stream.where("k >= 1000").select((F.col("k") - 1000).alias("k"), F.col("text").alias("right"))
        return left.join(right, "k").select("k", "left", "right")

    query = Query(
        spark,
        tmp_path,
        joined,
        "append",
        SCHEMA,
        # Each side has two stores of its own in this format.
        confs=BY_TASK | {STATE_STORE + "minDeltasForSnapshot": "100", JOIN_FORMAT: "2"},
    )
    # The left side alone grows.
    batches = [rows(range(50)) + rows(range(1000, 1050)), rows(range(50, 100)), rows(range(100, 150))]
    run_with_restarts(query, [batches])
    operator = [progress["stateOperators"][0] for progress in query.progress]
    assert series(operator, "checkpointMaxChainLength") == [1, 2, 3]
    assert series(operator, "checkpointMaxSnapshotAge") == [0, 1, 2]


@pytest.mark.spark
@pytest.mark.oldest
def test_state_is_loaded_only_after_a_restart(operator: list[dict[str, Any]]) -> None:
    loaded = series(operator, "checkpointLoadBytes")
    assert loaded[RESTART] > 0
    assert sum(loaded) == loaded[RESTART]
    # A commit is one request, and so is a load.
    trips = [PARTITIONS] * len(KEYS)
    trips[RESTART] *= 2
    assert series(operator, "backendRoundTrips") == trips


def test_time_and_memory_metrics_are_set(operator: list[dict[str, Any]]) -> None:
    for name in ("checkpointCommitEncodeTimeUs", "checkpointCommitSendTimeUs", "checkpointCommitStoreTimeUs"):
        assert 0 < sum(series(operator, name)) < 120_000_000
    times = series(operator, "checkpointLoadTimeUs")
    assert times[RESTART] > 0
    assert max(times) < 60_000_000
    assert all(5 << 20 < memory < 2 << 30 for memory in series(operator, "backendMemoryBytes"))
    assert sum(series(operator, "backendRestarts")) == 0

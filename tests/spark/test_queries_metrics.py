"""What a query's progress reports of its state, number by number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.spark.queries import STATE_STORE, Query, Rows, run_with_restarts

pytestmark = pytest.mark.slow

METRICS = {
    "checkpointLoadTimeUs",
    "checkpointLoadBytes",
    "checkpointCommitSealTimeUs",
    "checkpointCommitSendTimeUs",
    "checkpointCommitStoreTimeUs",
    "checkpointBytesWritten",
    "checkpointObjectsWritten",
    "checkpointChainLength",
    "checkpointSnapshotAge",
    "checkpointFullSnapshots",
    "stateTableCompactions",
    "backendRoundTrips",
    "backendRestarts",
    "storageRetries",
    "backendMemoryBytes",
}

PARTITIONS = 2
INTERVAL = 3
SCHEMA = pa.schema([("k", pa.int64()), ("text", pa.string())])

# The keys of each batch; the query is started anew before the last two, the very last has none.
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


@pytest.fixture(scope="module", params=[1, 2], ids=["format 1", "format 2"])
def operator(
    spark: Any, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> list[dict[str, Any]]:
    """What the progress of each batch says of the stateful operator."""
    query = Query(
        spark,
        tmp_path_factory.mktemp("metrics"),
        latest,
        "update",
        SCHEMA,
        checkpoint_format=request.param,
        confs={
            STATE_STORE + "minDeltasForSnapshot": str(INTERVAL),
            # All of this state fits into the metadata.
            STATE_STORE + "backend.fileStateThreshold": "1m",
            # So that bytes tell how many rows were written, not how alike they are.
            STATE_STORE + "backend.compression": "none",
        },
    )
    found = []
    batches = [rows(keys) for keys in KEYS]
    for part in (batches[:RESTART], batches[RESTART:]):
        run_with_restarts(query, [part])
        found += [progress["stateOperators"][0] for progress in query.progress]
    return found


def series(operator: list[dict[str, Any]], name: str) -> list[int]:
    return [progress["customMetrics"][name] for progress in operator]


def test_every_metric_is_reported_in_every_batch(operator: list[dict[str, Any]]) -> None:
    assert len(operator) == len(KEYS)
    for progress in operator:
        assert progress["customMetrics"].keys() >= METRICS


def test_the_number_of_rows_is_exact(operator: list[dict[str, Any]]) -> None:
    seen: set[int] = set()
    for keys, progress in zip(KEYS, operator, strict=True):
        seen.update(keys)
        assert progress["numRowsTotal"] == len(seen)
        assert progress["numRowsUpdated"] == len(keys)
        assert progress["memoryUsedBytes"] > len(seen) * 16


def test_a_commit_that_fits_inline_writes_one_object_per_partition(operator: list[dict[str, Any]]) -> None:
    assert series(operator, "checkpointObjectsWritten") == [PARTITIONS] * len(KEYS)
    # Also where nothing changed there is a version to name.
    assert min(series(operator, "checkpointBytesWritten")) > 0
    sizes = series(operator, "checkpointBytesWritten")
    assert sizes[1] < sizes[0] / 2


def test_a_chain_grows_until_a_snapshot_replaces_it(operator: list[dict[str, Any]]) -> None:
    # The last batch changes nothing, and so adds no stream.
    lengths = [1, 2, 3, 4, 1, 2, 3, 3]
    assert series(operator, "checkpointChainLength") == [n * PARTITIONS for n in lengths]
    ages = [0, 1, 2, 3, 0, 1, 2, 3]
    assert series(operator, "checkpointSnapshotAge") == [n * PARTITIONS for n in ages]
    full = [PARTITIONS if age == 0 else 0 for age in ages]
    assert series(operator, "checkpointFullSnapshots") == full


def test_state_is_loaded_after_a_restart_alone(operator: list[dict[str, Any]]) -> None:
    loaded = series(operator, "checkpointLoadBytes")
    assert loaded[RESTART] > 0
    assert sum(loaded) == loaded[RESTART]
    # A commit is one request, and so is a load.
    trips = [PARTITIONS] * len(KEYS)
    trips[RESTART] *= 2
    assert series(operator, "backendRoundTrips") == trips


def test_times_and_memory_are_filled_in(operator: list[dict[str, Any]]) -> None:
    for name in ("checkpointCommitSealTimeUs", "checkpointCommitSendTimeUs", "checkpointCommitStoreTimeUs"):
        assert 0 < sum(series(operator, name)) < 120_000_000
    times = series(operator, "checkpointLoadTimeUs")
    assert times[RESTART] > 0
    assert max(times) < 60_000_000
    assert all(5 << 20 < memory < 2 << 30 for memory in series(operator, "backendMemoryBytes"))
    assert sum(series(operator, "backendRestarts")) == 0


def test_rewriting_the_same_rows_compacts_the_table(spark: Any, tmp_path: Path) -> None:
    query = Query(spark, tmp_path, latest, "update", SCHEMA)
    run_with_restarts(query, [[rows(range(200), str(n) * 2000) for n in range(5)]])
    operator = [progress["stateOperators"][0] for progress in query.progress]
    assert sum(series(operator, "stateTableCompactions")) > 0
    # Live rows, and not much more than once as many dead ones.
    assert operator[-1]["memoryUsedBytes"] < 200 * 2000 * 4
    assert operator[-1]["numRowsTotal"] == 200

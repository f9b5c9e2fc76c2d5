"""The plugin's metrics in Spark's metrics system: Prometheus over HTTP, and files of an executor."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_statestore.options import OPTION_PREFIX
from spark_statestore.query import QueryCheckpoint
from tests.spark.counting import cluster_environment, wait_until
from tests.spark.ui import PREFIX, WITH_METRICS, Observed, observed
from tests.support.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("built")]

DASHBOARD = json.loads((ROOT / "conf" / "grafana-dashboard.json").read_text())
PAGE = (ROOT / "docs" / "monitoring.md").read_text()
PARTITIONS = 2
MERGED = (
    "mergedLogicalFiles",
    "mergedPhysicalFiles",
    "mergedLiveBytes",
    "mergedStorageBytes",
    "uncommittedAgeMs",
)


@pytest.fixture(scope="module")
def query(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    """Return a query in a session whose metrics are served to Prometheus; tasks publish its commits."""
    confs = WITH_METRICS | {f"{OPTION_PREFIX}commit": "task"}
    with observed(tmp_path_factory.mktemp("observed"), query="orders/1", confs=confs) as running:
        yield running


@pytest.fixture(scope="module")
def exported(query: Observed) -> dict[str, int]:
    return query.metrics()


def sums(query: Observed, name: str) -> int:
    return sum(progress["stateOperators"][0]["customMetrics"][name] for progress in query.progress)


@pytest.mark.spark
def test_metrics_of_an_operator_are_those_of_the_last_batch(
    query: Observed, exported: dict[str, int]
) -> None:
    operator = query.progress[-1]["stateOperators"][0]
    figures = {
        name: operator[name] for name in ("numRowsTotal", "numRowsUpdated", "memoryUsedBytes", "commitTimeMs")
    }
    figures |= {
        name: n for name, n in operator["customMetrics"].items() if not name.startswith("SnapshotLast")
    }
    for name in ("backendRestarts", "storageRetries"):
        assert exported[f"query_orders_1_{name}_Value"] == sums(query, name) == 0
        del figures[name]
    assert len(figures) == 19
    for name, value in figures.items():
        assert exported[f"query_orders_1_operator0_{name}_Value"] == value, name
    assert exported["query_orders_1_batchDurationMs_Value"] == query.progress[-1]["batchDuration"]
    assert exported["query_orders_1_batchId_Value"] == query.progress[-1]["batchId"]
    assert exported["activeQueries_Value"] == 1


@pytest.mark.spark
def test_metrics_of_a_jvm_are_sums_since_its_start(query: Observed, exported: dict[str, int]) -> None:
    assert exported["checkpointCommits_Count"] == PARTITIONS * len(query.progress)
    for name in ("checkpointBytesWritten", "checkpointObjectsWritten"):
        assert exported[f"{name}_Count"] == sums(query, name) > 0
    assert exported["backendRoundTrips_Count"] >= sums(query, "backendRoundTrips")
    assert exported["openStores_Value"] == PARTITIONS
    assert 5 << 20 < exported["backendMemoryBytes_Value"] < 2 << 30
    assert exported["backendRestarts_Count"] == exported["storageRetries_Count"] == 0
    assert exported["stateTableMappedBytes_Value"] == 0


def test_merged_files_of_a_query_are_those_in_its_directory(tmp_path: Path) -> None:
    confs = WITH_METRICS | {f"{OPTION_PREFIX}commit": "batch"}
    with observed(tmp_path, confs=confs) as query:
        exported = query.metrics()
        tab = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", query.get("/state/")))
    merged = QueryCheckpoint(str(tmp_path / "checkpoint")).merged_files()
    files = merged.physical_files()
    # The first version of a store has a file of its own.
    assert len(files) == len(list(tmp_path.glob("checkpoint/state/_merged/*"))) >= len(query.progress) - 1
    usage = merged.usage()
    assert usage.logical_files == PARTITIONS * len(files)
    assert usage.storage_bytes == sum(status.size for status, _ in files)
    assert 0 < usage.live_bytes < usage.storage_bytes
    assert {name: exported[f"query_counts_{name}_Value"] for name in MERGED} == {
        "mergedLogicalFiles": usage.logical_files,
        "mergedPhysicalFiles": len(files),
        "mergedLiveBytes": usage.live_bytes,
        "mergedStorageBytes": usage.storage_bytes,
        "uncommittedAgeMs": 0,
    }
    # Those of the first batch, then those that are merged.
    assert exported["checkpointObjectsWritten_Count"] == PARTITIONS + len(files)
    assert f"Merged files: {usage.logical_files} logical in {len(files)} physical files" in tab


def queries_of_dashboard() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def test_dashboard_selects_exported_metrics_only(query: Observed, exported: dict[str, int]) -> None:
    selectors = [
        (expr, s) for expr in queries_of_dashboard() for s in re.findall(r'__name__=~"([^"]*)"', expr)
    ]
    assert len(selectors) >= len(DASHBOARD["panels"]) > 10
    names = [f"metrics_app_driver_{PREFIX}{name}" for name in exported]
    for expr, selector in selectors:
        assert len([name for name in names if re.fullmatch(selector, name)]) == 1, selector
        for renamed in re.findall(r'"__name__", "([^"]*)"', expr):
            assert [name for name in names if re.fullmatch(renamed, name)], renamed


def test_page_lists_every_metric_of_a_jvm(exported: dict[str, int]) -> None:
    own = {name.rsplit("_", 1)[0] for name in exported if not name.startswith("query_")}
    listed = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    assert own == listed


def test_metrics_of_a_query_end_with_it(tmp_path: Path) -> None:
    with observed(tmp_path, confs=WITH_METRICS) as query:
        assert query.metrics()["query_counts_operator0_numRowsTotal_Value"] == 50
        query.order("stop")
        left = query.metrics()
        assert not [name for name in left if name.startswith("query_")]
        assert left["activeQueries_Value"] == 0
        assert left["checkpointCommits_Count"] > 0


def test_executor_exports_metrics_to_its_own_sinks(tmp_path: Path) -> None:
    directory = tmp_path / "metrics"
    directory.mkdir()
    sink = "spark.metrics.conf.executor.sink.csv."
    confs: dict[str, Any] = {
        "spark.master": "local-cluster[1,1,1024]",
        f"{sink}class": "org.apache.spark.metrics.sink.CsvSink",
        f"{sink}directory": str(directory),
        f"{sink}period": "1",
    }
    with observed(tmp_path, confs=confs, environment=cluster_environment(tmp_path)) as query:
        commits = PARTITIONS * len(query.progress)

        def counted() -> bool:
            # Its columns are the time and the count.
            files = directory.rglob("*.checkpointCommits.csv")
            return [file.read_text().splitlines()[-1].split(",")[1] for file in files] == [str(commits)]

        assert wait_until(counted, 30), list(directory.rglob("*StateStorePlugin*"))
        (memory,) = directory.rglob("*.StateStorePlugin.backendMemoryBytes.csv")
        assert ".driver." not in memory.name

"""A running query in the tab "State" of Spark's UI and in Spark's metrics system, over HTTP and in files."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from spark_statestore.options import OPTION_PREFIX
from spark_statestore.query import QueryCheckpoint
from tests.spark.ui import PREFIX, WITH_METRICS, Observed, cells, observed
from tests.support.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("built")]

DASHBOARD = json.loads((ROOT / "conf" / "grafana-dashboard.json").read_text())
PAGE = (ROOT / "docs" / "monitoring.md").read_text()
PARTITIONS = 2
# An element of HTML, and its name in the metrics.
NAME = "<script>alert(1)</script>"
METRIC = "query__script_alert_1___script_"
OWN_FIGURES = ("numRowsTotal", "numRowsUpdated", "memoryUsedBytes")
CUSTOM_FIGURES = (
    "stateTableMappedBytes",
    "checkpointMaxChainLength",
    "checkpointMaxSnapshotAge",
    "stateTableMaxRows",
    "checkpointLoadTimeUs",
    "checkpointCommitEncodeTimeUs",
    "checkpointCommitSendTimeUs",
    "checkpointCommitStoreTimeUs",
    "checkpointBytesWritten",
    "checkpointObjectsWritten",
    "backendMemoryBytes",
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("observed")


@pytest.fixture(scope="module")
def query(directory: Path) -> Iterator[Observed]:
    """Return a query in a session whose metrics are served to Prometheus; tasks publish its commits."""
    confs = WITH_METRICS | {f"{OPTION_PREFIX}commit": "task"}
    with observed(directory, query=NAME, confs=confs) as running:
        yield running


@pytest.fixture(scope="module")
def exported(query: Observed) -> dict[str, int]:
    return query.metrics()


def figure(progress: dict[str, Any], name: str) -> int:
    operator = progress["stateOperators"][0]
    return operator[name] if name in OWN_FIGURES else operator["customMetrics"][name]


def sums(query: Observed, name: str) -> int:
    return sum(figure(progress, name) for progress in query.progress)


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", page))


# The tab


def link(page: str) -> str:
    match = re.search(r'<h4><a href="([^"]*/state/query/[^"]*)">', page)
    assert match, page
    return match[1]


@pytest.mark.spark
@pytest.mark.oldest
def test_tab_shows_the_figures_of_the_last_batch(query: Observed, directory: Path) -> None:
    page = query.get("/state/")
    for name in OWN_FIGURES + CUSTOM_FIGURES:
        assert cells(page, name) == [figure(query.progress[-1], name)], name
    text = text_of(page)
    assert "Status: running" in text
    assert f"Last batch: {query.progress[-1]['batchId']}, started {query.progress[-1]['timestamp']}" in text
    assert f"{directory}/checkpoint" in text
    assert query.progress[-1]["runId"] in text


@pytest.mark.spark
@pytest.mark.oldest
def test_page_of_a_query_shows_every_batch(query: Observed) -> None:
    page = query.get(link(query.get("/state/")))
    for name in OWN_FIGURES + CUSTOM_FIGURES:
        values = [figure(progress, name) for progress in reversed(query.progress)]
        # The first table has the last batch, the second one all, the newest first.
        assert cells(page, name)[1:] == values or name == "stateTableMappedBytes", name
        assert cells(page, name)[0] == values[0]
    points = re.findall(r'points="([^"]*)"', page)
    assert len(points) == 9, "one line for each figure, three for the phases of a commit"
    assert {len(line.split()) for line in points} == {len(query.progress)}


def test_tab_escapes_the_name_of_a_query(query: Observed) -> None:
    overview = query.get("/state/")
    for page in (overview, query.get(link(overview))):
        assert NAME not in page
        assert html.escape(NAME) in page


def test_page_of_an_unknown_query_says_so(query: Observed) -> None:
    for query_string in ("", "?id=<script>", "?id=00000000-0000-0000-0000-000000000000"):
        page = query.get(f"/state/query/{query_string.replace('<', '%3C').replace('>', '%3E')}")
        assert "There is no such query" in page
        assert "<script></" not in page


@pytest.mark.spark
@pytest.mark.oldest
def test_page_of_structured_streaming_draws_the_custom_metrics(query: Observed) -> None:
    page = query.get(f"/StreamingQuery/statistics/?id={query.progress[-1]['runId']}")
    for name in CUSTOM_FIGURES:
        assert name in page, name


def require_links_below(base: str, page: str) -> None:
    """Check the links of the tab's overview."""
    assert link(page).startswith(f"{base}/state/query/?id=")
    assert f'href="{base}/state/"' in page


def test_links_follow_the_header_of_a_proxy(query: Observed) -> None:
    headers = {"X-Forwarded-Context": "/proxy/app-2"}
    require_links_below("/proxy/app-2", query.get("/state/", **headers))


# Metrics


@pytest.mark.spark
@pytest.mark.oldest
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
    for name in ("backendRestarts", "storageRetries", "streamsRepaired"):
        assert exported[f"{METRIC}_{name}_Value"] == sums(query, name) == 0
        del figures[name]
    assert len(figures) == 20
    for name, value in figures.items():
        assert exported[f"{METRIC}_operator0_{name}_Value"] == value, name
    assert exported[f"{METRIC}_batchDurationMs_Value"] == query.progress[-1]["batchDuration"]
    assert exported[f"{METRIC}_batchId_Value"] == query.progress[-1]["batchId"]
    assert exported["activeQueries_Value"] == 1


@pytest.mark.spark
@pytest.mark.oldest
def test_metrics_of_a_jvm_are_sums_since_its_start(query: Observed, exported: dict[str, int]) -> None:
    assert exported["checkpointCommits_Count"] == PARTITIONS * len(query.progress)
    for name in ("checkpointBytesWritten", "checkpointObjectsWritten"):
        assert exported[f"{name}_Count"] == sums(query, name) > 0
    assert exported["backendRoundTrips_Count"] >= sums(query, "backendRoundTrips")
    assert exported["openStores_Value"] == PARTITIONS
    assert 5 << 20 < exported["backendMemoryBytes_Value"] < 2 << 30
    assert exported["backendRestarts_Count"] == exported["storageRetries_Count"] == 0
    assert exported["streamsRepaired_Count"] == 0
    assert exported["stateTableMappedBytes_Value"] == 0


def test_dashboard_selects_exported_metrics_only(exported: dict[str, int]) -> None:
    expressions = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    selectors = [(e, selector) for e in expressions for selector in re.findall(r'__name__=~"([^"]*)"', e)]
    assert len(selectors) >= len(DASHBOARD["panels"]) > 10
    names = [f"metrics_app_driver_{PREFIX}{name}" for name in exported]
    for expression, selector in selectors:
        assert len([name for name in names if re.fullmatch(selector, name)]) == 1, selector
        for renamed in re.findall(r'"__name__", "([^"]*)"', expression):
            assert [name for name in names if re.fullmatch(renamed, name)], renamed


def test_documentation_lists_every_metric_of_a_jvm(exported: dict[str, int]) -> None:
    own = {name.rsplit("_", 1)[0] for name in exported if not name.startswith("query_")}
    assert own == set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))


# An application that one user may view, below a proxy


PROXY = "/proxy/app-1"
ALICE, MALLORY = {"X-User": "alice"}, {"X-User": "mallory"}


@dataclass
class Failure:
    """A query whose batches have published merged files, and what was seen of it before and after it failed.

    Attributes
    ----------
    batches
        Number of its batches.
    in_directory
        Number of merged files in its directory before it failed.
    files
        The merged files that its checkpoint has then, with their statuses.
    usage
        Their sizes.
    pages
        Overview of the tab while it ran, and after it failed.
    statuses
        Status of each page for the user and for another one, while it ran.
    before
        Metrics while it ran.
    after
        Metrics after it failed.
    """

    batches: int
    in_directory: int
    files: Any
    usage: Any
    pages: tuple[str, str]
    statuses: dict[str, tuple[int, int]]
    before: dict[str, int]
    after: dict[str, int]


@pytest.fixture(scope="module")
def failure(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Failure:
    directory = tmp_path_factory.mktemp("merged")
    confs = WITH_METRICS | {
        f"{OPTION_PREFIX}commit": "batch",
        "spark.acls.enable": "true",
        "spark.ui.view.acls": "alice",
        "spark.ui.filters": "org.apache.spark.sql.statestore.UserOfHeader",
    }
    environment = {"APPLICATION_WEB_PROXY_BASE": PROXY}
    with observed(directory, confs=confs, jar=str(built), environment=environment) as query:
        page, before = query.get("/state/", **ALICE), query.metrics(**ALICE)
        statuses = {
            path: (query.status(path, **ALICE), query.status(path, **MALLORY))
            for path in ("/state/", link(page).removeprefix(PROXY), "/jobs/")
        }
        in_directory = len(list(directory.glob("checkpoint/state/_merged/*")))
        merged = QueryCheckpoint(str(directory / "checkpoint")).merged_files()
        files, usage = merged.physical_files(), merged.usage()
        query.order("fail")
        pages = (page, query.get("/state/", **ALICE))
        after, batches = query.metrics(**ALICE), len(query.progress)
        return Failure(batches, in_directory, files, usage, pages, statuses, before, after)


def test_tab_is_for_those_who_may_view_the_application(failure: Failure) -> None:
    require_links_below(PROXY, failure.pages[0])
    assert len(failure.statuses) == 3
    assert set(failure.statuses.values()) == {(200, 403)}


def test_tab_shows_the_error_of_a_failed_query(failure: Failure) -> None:
    page = failure.pages[1]
    assert "<span>failed</span>" in page
    error = re.search(r'<pre class="state-error">(.*?)</pre>', page, re.DOTALL)
    assert error, page
    assert "id &gt;= 0" in error[1] or "assert" in error[1].lower()


def test_merged_files_of_a_query_are_those_in_its_directory(failure: Failure) -> None:
    files, usage = failure.files, failure.usage
    # The first version of a store has a file of its own.
    assert len(files) == failure.in_directory >= failure.batches - 1
    assert usage.logical_files == PARTITIONS * len(files)
    assert usage.storage_bytes == sum(status.size for status, _ in files)
    assert 0 < usage.live_bytes < usage.storage_bytes
    expected = {
        "mergedLogicalFiles": usage.logical_files,
        "mergedPhysicalFiles": len(files),
        "mergedLiveBytes": usage.live_bytes,
        "mergedStorageBytes": usage.storage_bytes,
        "uncommittedAgeMs": 0,
    }
    assert {name: failure.before[f"query_counts_{name}_Value"] for name in expected} == expected
    # Those of the first batch, then those that are merged.
    assert failure.before["checkpointObjectsWritten_Count"] == PARTITIONS + len(files)
    assert f"Merged files: {usage.logical_files} logical in {len(files)} physical files" in text_of(
        failure.pages[0]
    )


def test_metrics_of_a_query_end_with_it(failure: Failure) -> None:
    assert failure.before["query_counts_operator0_numRowsTotal_Value"] == 50
    assert not [name for name in failure.after if name.startswith("query_")]
    assert failure.after["activeQueries_Value"] == 0
    assert failure.after["checkpointCommits_Count"] > 0

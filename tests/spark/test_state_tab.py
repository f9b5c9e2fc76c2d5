"""The tab "State" of Spark's UI, fetched over HTTP from a real query."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.ui import Observed, cells, observed

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("built")]

NAME = "<script>alert(1)</script>"
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
    """Return a query whose name is an element of HTML."""
    with observed(directory, query=NAME) as running:
        yield running


def figure(progress: dict[str, Any], name: str) -> int:
    operator = progress["stateOperators"][0]
    return operator[name] if name in OWN_FIGURES else operator["customMetrics"][name]


def link(page: str) -> str:
    found = re.search(r'<h4><a href="([^"]*/state/query/[^"]*)">', page)
    assert found, page
    return found[1]


@pytest.mark.spark
def test_tab_shows_the_figures_of_the_last_batch(query: Observed, directory: Path) -> None:
    page = query.get("/state/")
    for name in OWN_FIGURES + CUSTOM_FIGURES:
        assert cells(page, name) == [figure(query.progress[-1], name)], name
    text = re.sub(r"<[^>]+>", "", page)
    assert "Status: running" in text
    assert f"Last batch: {query.progress[-1]['batchId']}, started {query.progress[-1]['timestamp']}" in text
    assert f"{directory}/checkpoint" in text
    assert query.progress[-1]["runId"] in text


@pytest.mark.spark
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
    for asked in ("", "?id=<script>", "?id=00000000-0000-0000-0000-000000000000"):
        page = query.get(f"/state/query/{asked.replace('<', '%3C').replace('>', '%3E')}")
        assert "There is no such query" in page
        assert "<script></" not in page


@pytest.mark.spark
def test_page_of_structured_streaming_draws_the_custom_metrics(query: Observed) -> None:
    page = query.get(f"/StreamingQuery/statistics/?id={query.progress[-1]['runId']}")
    for name in CUSTOM_FIGURES:
        assert name in page, name


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no Chromium")
def test_tab_in_a_browser(query: Observed) -> None:
    page = link(query.get("/state/"))
    browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", query.url + page]
    shown = subprocess.run(browser, capture_output=True, text=True, timeout=100, check=True).stdout
    assert shown.count("<polyline") == 9
    assert cells(shown, "numRowsTotal")[0] == figure(query.progress[-1], "numRowsTotal")


def test_tab_shows_the_error_of_a_failed_query(tmp_path: Path) -> None:
    with observed(tmp_path) as query:
        query.order("fail")
        page = query.get("/state/")
        assert "<span>failed</span>" in page
        error = re.search(r'<pre class="state-error">(.*?)</pre>', page, re.DOTALL)
        assert error, page
        assert "id &gt;= 0" in error[1] or "assert" in error[1].lower()


def require_links_below(base: str, query: Observed, **headers: str) -> None:
    page = query.get("/state/", **headers)
    assert link(page).startswith(f"{base}/state/query/?id=")
    assert f'href="{base}/state/"' in page
    assert query.status(link(page).removeprefix(base), **headers) == 200


def test_links_follow_the_header_of_a_proxy(query: Observed) -> None:
    require_links_below("/proxy/app-2", query, **{"X-Forwarded-Context": "/proxy/app-2"})


@pytest.mark.parametrize("by", ["setting", "environment"])
def test_links_follow_the_base_of_a_proxy(tmp_path: Path, by: str) -> None:
    proxied: dict[str, Any] = {
        "setting": {"confs": {"spark.ui.proxyBase": "/proxy/app-1"}},
        "environment": {"environment": {"APPLICATION_WEB_PROXY_BASE": "/proxy/app-1"}},
    }[by]
    with observed(tmp_path, **proxied) as query:
        require_links_below("/proxy/app-1", query)


def test_tab_is_for_those_who_may_view_the_application(built: Path, tmp_path: Path) -> None:
    confs = {
        "spark.acls.enable": "true",
        "spark.ui.view.acls": "alice",
        "spark.ui.filters": "org.apache.spark.sql.statestore.UserOfHeader",
    }
    with observed(tmp_path, confs=confs, jar=str(built)) as query:
        target = link(query.get("/state/", **{"X-User": "alice"}))
        for path in ("/state/", target, "/jobs/"):
            assert query.status(path, **{"X-User": "mallory"}) == 403, path
            assert query.status(path, **{"X-User": "alice"}) == 200, path


def test_query_runs_without_a_ui(tmp_path: Path) -> None:
    with observed(tmp_path, confs={"spark.ui.enabled": "false"}) as query:
        assert query.url is None
        assert figure(query.progress[-1], "numRowsTotal") == 50

"""Tests of the command ``assess``."""

from __future__ import annotations

import re
import sys
from dataclasses import astuple
from pathlib import Path

import pytest

from spark_statestore.assess.model import RATIOS
from tests.support.paths import ROOT
from tests.unit.assess.logs import DATA, HDFS_LOG, OUR_LOG, ROCKSDB_LOG, events, progress, write
from tests.unit.cli.commands import invoke, node, output_of


def test_assess_prints_parts_operators_requests_and_the_estimate() -> None:
    text = output_of("assess", HDFS_LOG, "--skip", 20)
    assert "query HDFSBacked (" in text
    assert "41 batches with data, of which the last 21 count; 2 cores; 20000 rows a batch" in text
    assert re.search(r"^state: commit +\d+ +\d+ +\d+$", text, re.MULTILINE)
    assert re.search(r"^ +0  stateStoreSave +8 +8 +300000 +\d+ +0 +67\.9 MiB", text, re.MULTILINE)
    assert re.search(r"^HDFSBacked +52\.2 +38\.4 ", text, re.MULTILINE)
    assert re.search(r"^spark-statestore +4\.0 +0\.0 ", text, re.MULTILINE)
    assert re.search(
        r"estimate with spark-statestore: [\d,]+ ms a batch, [\d,]+ to [\d,]+ \(0\.\d\d times", text
    )
    assert "\n* Opening the stores takes" in text


def test_assess_as_json_has_every_query() -> None:
    report = node("assess", HDFS_LOG, ROCKSDB_LOG, OUR_LOG)
    assert [query["provider"] for query in report["queries"]] == ["HDFSBacked", "RocksDB", "spark-statestore"]
    first, _, last = report["queries"]
    assert (first["batches"], first["counted"], first["cores"]) == (41, 31, 2)
    assert first["estimate"]["low"] < first["estimate"]["milliseconds"] < first["milliseconds"]["total"]
    assert first["operators"][0]["rows"] == 300_000
    assert last["estimate"] is None
    assert report["incomplete"] == []
    assert report["prices"]["put"] == 0.005
    assert invoke("assess").exit_code == 2


def test_prices_and_cores_are_options(tmp_path: Path) -> None:
    dear = node("assess", HDFS_LOG, "--put-price", 1, "--get-price", 0)["queries"][0]["requests"]
    assert dear["present"]["usd"] == pytest.approx(dear["present"]["put"] / 1000)
    assert dear["here"]["usd"] == pytest.approx(0.004)
    alone = write(tmp_path / "progress", progress())
    assert [node("assess", alone, "--cores", n)["queries"][0]["parallelism"] for n in (3, 8)] == [3, 8]


def test_truncated_last_line_is_mentioned(tmp_path: Path) -> None:
    log = write(tmp_path / "log", events())
    log.write_bytes(log.read_bytes()[:-30])
    text = output_of("assess", log)
    assert f"{log} ends in the middle of a line: its application runs" in text
    assert node("assess", log)["incomplete"] == [str(log)]


def test_query_without_stateful_operators_is_listed(tmp_path: Path) -> None:
    stateless = [each | {"stateOperators": []} for each in progress()]
    text = output_of("assess", write(tmp_path / "log", stateless))
    assert "The query has no stateful operators" in text
    assert "estimate" not in text
    assert re.search(r"^whole batch +\d+ +100$", text, re.MULTILINE)


def test_report_is_one_file_with_a_plot_of_each_query(tmp_path: Path) -> None:
    renamed = [event | {"name": "<b>"} if "runId" in event else event for event in events()]
    log = write(tmp_path / "log", renamed)
    report = tmp_path / "report.html"
    assert f"report: {report}" in output_of("assess", log, OUR_LOG, "--html", report)
    text = report.read_text()
    assert text.count('src="data:image/png;base64,iVBOR') == 2
    assert text.count("<h2>") == 2
    assert "<h2>&lt;b&gt;</h2>" in text
    # Nothing is loaded from elsewhere.
    assert not re.search(r"(src|href)=\"?http|<script|@import", text)
    missing = invoke("assess", log, "--html", tmp_path / "none" / "report.html")
    assert missing.exit_code == 1
    assert "No such file or directory" in missing.stderr


def test_report_without_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    failed = invoke("assess", HDFS_LOG, "--html", tmp_path / "report.html")
    assert failed.exit_code == 1
    assert "pip install 'spark-statestore[plot]'" in failed.stderr
    assert output_of("assess", HDFS_LOG)


def test_page_has_the_output_and_the_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/assess.md").read_text()
    monkeypatch.chdir(DATA)
    lines = output_of("assess", HDFS_LOG.name).splitlines()
    assert "".join(f"    {line}".rstrip() + "\n" for line in lines) in page
    for provider, ratios in RATIOS.items():
        assert f"| {provider} | " + " | ".join(f"{value:g}" for value in astuple(ratios)) + " |" in page

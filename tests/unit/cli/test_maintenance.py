"""Tests of output and exit codes of ``verify``, ``repair`` and ``gc``."""

from __future__ import annotations

from tests.unit.cli.commands import node, output_of
from tests.unit.query.stored_query import StoredQuery


def spoil(query: StoredQuery) -> None:
    (path,) = query.directory.glob("state/0/1/chk-3_*/_metadata")
    path.write_bytes(b"broken")


def test_verify_prints_an_intact_batch(query: StoredQuery) -> None:
    assert "batch 2 is intact: 2 stores" in output_of("verify", query.url)
    report = node("verify", query.url, "--batch", 1)
    assert (report["ok"], report["batch"], report["problems"]) == (True, 1, [])


def test_verify_lists_problems(query: StoredQuery) -> None:
    spoil(query)
    (problem,) = node("verify", query.url, code=1)["problems"]
    assert (problem["what"], problem["kind"]) == ("operator 0, partition 1, store default", "damaged")
    assert "operator 0, partition 1" in output_of("verify", query.url, code=1)


def test_repair_rolls_back(query: StoredQuery) -> None:
    assert "nothing to repair" in output_of("repair", query.url)
    spoil(query)
    before = query.files()
    assert "would be rolled back to batch 1" in output_of("repair", query.url, "--dry-run")
    assert query.files() == before
    assert node("repair", query.url, code=1)["error"]["type"] == "QueryRunningError"
    assert query.files() == before
    report = node("repair", query.url, "--stopped")
    assert (report["batch"], report["dry_run"]) == (1, False)
    assert any(url.endswith("commits/2") for url in report["moved"])
    output_of("verify", query.url)


def test_gc_removes_orphans_and_names_a_skipped_store(query: StoredQuery) -> None:
    query.snapshot(0)
    assert "removed: 0 files, 0 B" in output_of("gc", query.url)
    before = query.files()
    assert "would be removed: 1 files" in output_of("gc", query.url, "--stopped", "--dry-run")
    assert query.files() == before
    (orphan,) = node("gc", query.url, "--stopped")["orphans"]
    assert orphan["reason"] == "no metadata refers to it"
    assert len(before) - len(query.files()) == 1
    output_of("gc", query.url, "--older-than", -1, code=2)
    spoil(query)
    assert "operator 0, partition 1" in output_of("gc", query.url, code=1)


def test_repair_undoes_a_rollback_of_a_running_query(query: StoredQuery) -> None:
    output_of("rollback", query.url, 0, "--stopped")
    query.run(ann=4)
    assert "no entry of batches 1 to 2" in output_of("verify", query.url, code=1)
    assert "made while the query ran, would be undone" in output_of("repair", query.url, "--dry-run")
    assert "made while the query ran, was undone" in output_of("repair", query.url, "--stopped")
    assert "batch 3 is intact" in output_of("verify", query.url)

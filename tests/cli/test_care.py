"""``verify``, ``repair`` and ``gc``: what they print, and how they exit."""

from __future__ import annotations

from tests.checkpoint.query.stored import StoredQuery
from tests.cli.running import node, said


def spoil(query: StoredQuery) -> None:
    (path,) = query.directory.glob("state/0/1/chk-3_*/_metadata")
    path.write_bytes(b"broken")


def test_verify_says_that_all_is_whole(query: StoredQuery) -> None:
    assert "batch 2 is whole: 2 stores" in said("verify", query.url)
    found = node("verify", query.url, "--batch", 1)
    assert (found["ok"], found["batch"], found["problems"]) == (True, 1, [])


def test_verify_names_what_is_broken(query: StoredQuery) -> None:
    spoil(query)
    (problem,) = node("verify", query.url, code=1)["problems"]
    assert (problem["what"], problem["kind"]) == ("operator 0, partition 1, store default", "damaged")
    assert "operator 0, partition 1" in said("verify", query.url, code=1)


def test_repair_goes_back(query: StoredQuery) -> None:
    assert "nothing to repair" in said("repair", query.url)
    spoil(query)
    before = query.files()
    assert "would be set back to batch 1" in said("repair", query.url, "--dry-run")
    assert query.files() == before
    done = node("repair", query.url)
    assert (done["batch"], done["dry_run"]) == (1, False)
    assert any(url.endswith("commits/2") for url in done["moved"])
    said("verify", query.url)


def test_gc_collects(query: StoredQuery) -> None:
    query.snapshot(0)
    assert "removed: 0 files, 0 B" in said("gc", query.url)
    before = query.files()
    assert "would be removed: 1 files" in said("gc", query.url, "--stopped", "--dry-run")
    assert query.files() == before
    (orphan,) = node("gc", query.url, "--stopped")["orphans"]
    assert orphan["reason"] == "no metadata names it"
    assert len(before) - len(query.files()) == 1


def test_gc_says_which_store_it_left_alone(query: StoredQuery) -> None:
    spoil(query)
    assert "operator 0, partition 1" in said("gc", query.url, code=1)


def test_a_negative_age_is_wrong_usage(query: StoredQuery) -> None:
    said("gc", query.url, "--older-than", -1, code=2)

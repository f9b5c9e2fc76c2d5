"""Savepoints, copies and roll-backs by command."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_statestore.checkpoint.query.verify import verify
from tests.checkpoint.query.stored import StoredQuery
from tests.cli.running import node, said


def count(checkpoint: str | Path) -> dict[str, int]:
    """What ``get`` finds of two words."""
    found = [node("get", str(checkpoint), word)["rows"] for word in ("ann", "carl")]
    return {row["key"]["word"]: row["value"]["count"] for rows in found for row in rows}


@pytest.mark.parametrize("kind", ["canonical", "pointer"])
def test_a_savepoint_is_taken_listed_shown_restored_and_disposed_of(
    query: StoredQuery, tmp_path: Path, kind: str
) -> None:
    target = tmp_path / "savepoints"
    assert "no savepoints" in said("savepoint", "list", target)
    made = node("savepoint", "trigger", query.url, "--target", target, "--kind", kind)
    assert (made["kind"], made["batch"]) == (kind, 2)
    (listed,) = node("savepoint", "list", target)["savepoints"]
    assert listed["path"] == made["path"]
    assert node("savepoint", "show", made["path"])["query_id"] == made["query_id"]
    assert made["path"] in said("savepoint", "show", made["path"])
    assert node("verify", made["path"])["ok"]
    query.run(ann=9)
    assert count(made["path"]) == {"ann": 3, "carl": 2}
    assert node("ls", made["path"])["batch"] == node("show", made["path"])["batch"] == 2
    assert node("show", made["path"], "--operator", 0)["version"] == 3
    new = tmp_path / "new"
    assert node("savepoint", "restore", made["path"], new)["batch"] == 2
    assert verify(str(new)).ok
    assert count(new) == {"ann": 3, "carl": 2}
    planned = node("savepoint", "dispose", made["path"], "--dry-run")["removed"]
    assert planned
    assert node("savepoint", "list", target)["savepoints"]
    assert node("savepoint", "dispose", made["path"])["removed"] == planned
    assert node("savepoint", "list", target)["savepoints"] == []
    assert node("savepoint", "dispose", made["path"], code=1)["error"]["type"] == "SavepointNotFoundError"


def test_a_savepoint_of_an_earlier_batch_can_be_claimed(query: StoredQuery, tmp_path: Path) -> None:
    path = said("savepoint", "trigger", query.url, "--target", tmp_path / "savepoints", "--batch", 1).strip()
    new = tmp_path / "new"
    options = ["--claim-mode", "claim", "--partitions", 3, "--keep-query-id"]
    assert "goes on after batch 1" in said("savepoint", "restore", path, new, *options)
    assert count(new) == {"ann": 1, "carl": 2}
    assert node("ls", new)["stores"][0]["partitions"] == 3
    assert node("ls", new)["query_id"] == node("ls", query.url)["query_id"]
    assert "no savepoints" in said("savepoint", "list", tmp_path / "savepoints")


def test_a_checkpoint_is_cloned_and_rescaled(query: StoredQuery, tmp_path: Path) -> None:
    assert node("clone", query.url, tmp_path / "clone", "--batch", 1)["batch"] == 1
    assert count(tmp_path / "clone") == {"ann": 1, "carl": 2}
    assert node("rescale", query.url, tmp_path / "wide", 5) == {
        "checkpoint": str(tmp_path / "wide"),
        "batch": 2,
    }
    assert len(node("ls", tmp_path / "wide", "--by-partition")["stores"]) == 5
    assert count(tmp_path / "wide") == {"ann": 3, "carl": 2}
    assert node("clone", query.url, tmp_path / "wide", code=1)["error"]["type"]


def test_a_query_is_rolled_back(query: StoredQuery) -> None:
    before = query.files()
    planned = node("rollback", query.url, 1, "--dry-run")["moved_aside"]
    assert query.files() == before
    assert "moved aside" in said("rollback", query.url, 1)
    assert {Path(url).name for url in planned} == {"2"}
    assert count(query.url) == {"ann": 1, "carl": 2}
    said("rollback", query.url, 2, code=1)


@pytest.mark.parametrize(
    "arguments",
    [
        ["savepoint", "trigger", "c"],
        ["savepoint", "trigger", "c", "--target", "t", "--kind", "native"],
        ["savepoint", "restore", "s", "n", "--partitions", "0"],
        ["rollback", "c", "-1"],
        ["rescale", "c", "n", "none"],
        ["savepoint", "give"],
    ],
    ids=lambda arguments: " ".join(arguments),
)
def test_wrong_usage(arguments: list[str]) -> None:
    said(*arguments, code=2)

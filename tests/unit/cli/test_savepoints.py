"""Tests of the commands for savepoints, copies and rollbacks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_statestore.query import QueryCheckpoint
from spark_statestore.query.verify import verify
from spark_statestore.savepoints.savepoint_holds import hold
from tests.unit.cli.commands import node, output_of
from tests.unit.query.stored_query import StoredQuery


def count(checkpoint: str | Path) -> dict[str, int]:
    """Return the counts that ``get`` prints for two words."""
    answers = [node("get", str(checkpoint), f'"{word}"')["rows"] for word in ("ann", "carl")]
    return {row["key"]["word"]: row["value"]["count"] for rows in answers for row in rows}


@pytest.mark.parametrize("kind", ["canonical", "pointer"])
def test_savepoint_commands_cover_its_life(query: StoredQuery, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "savepoints"
    assert f"no directory file://{target}" in output_of("savepoint", "list", target, code=1)
    assert node("savepoint", "list", target, code=1)["error"]["type"] == "CheckpointNotFoundError"
    target.mkdir()
    assert "no savepoints" in output_of("savepoint", "list", target)
    savepoint = node("savepoint", "trigger", query.url, "--target", target, "--kind", kind)
    assert (savepoint["kind"], savepoint["batch"]) == (kind, 2)
    (listed,) = node("savepoint", "list", target)["savepoints"]
    assert listed["path"] == savepoint["path"]
    assert node("savepoint", "show", savepoint["path"])["query_id"] == savepoint["query_id"]
    text = output_of("savepoint", "show", savepoint["path"])
    assert savepoint["path"] in text
    assert "{" not in text
    # A pointer savepoint has a line for each retained version of a store.
    lines = [line.split() for line in text.splitlines()]
    attempts = [["0", "default", str(number), attempt.id] for number, attempt in enumerate(query.counted[2])]
    assert all((line in lines) == (kind == "pointer") for line in attempts)
    assert max(map(len, text.splitlines())) < len(str(target)) + 80
    assert node("verify", savepoint["path"])["ok"]
    query.run(ann=9)
    assert count(savepoint["path"]) == {"ann": 3, "carl": 2}
    assert node("ls", savepoint["path"])["batch"] == node("show", savepoint["path"])["batch"] == 2
    assert node("show", savepoint["path"], "--operator", 0)["version"] == 3
    new = tmp_path / "new"
    assert node("savepoint", "restore", savepoint["path"], new)["batch"] == 2
    assert verify(str(new)).ok
    assert count(new) == {"ann": 3, "carl": 2}
    planned = node("savepoint", "dispose", savepoint["path"], "--dry-run")["removed"]
    assert planned
    assert node("savepoint", "list", target)["savepoints"]
    assert node("savepoint", "dispose", savepoint["path"])["removed"] == planned
    assert node("savepoint", "list", target)["savepoints"] == []
    assert (
        node("savepoint", "dispose", savepoint["path"], code=1)["error"]["type"] == "SavepointNotFoundError"
    )


def test_restore_claims_a_savepoint_of_an_earlier_batch(query: StoredQuery, tmp_path: Path) -> None:
    path = output_of(
        "savepoint", "trigger", query.url, "--target", tmp_path / "savepoints", "--batch", 1
    ).strip()
    new = tmp_path / "new"
    options = ["--claim-mode", "claim", "--partitions", 3, "--keep-query-id"]
    assert "resumes after batch 1" in output_of("savepoint", "restore", path, new, *options)
    assert count(new) == {"ann": 1, "carl": 2}
    assert node("ls", new)["stores"][0]["partitions"] == 3
    assert node("ls", new)["query_id"] == node("ls", query.url)["query_id"]
    assert "no savepoints" in output_of("savepoint", "list", tmp_path / "savepoints")


@pytest.mark.parametrize("claim_mode", ["claim", "no_claim"])
def test_restore_dry_run_changes_nothing(query: StoredQuery, tmp_path: Path, claim_mode: str) -> None:
    path = output_of("savepoint", "trigger", query.url, "--target", tmp_path / "savepoints").strip()
    before = sorted(tmp_path.rglob("*"))
    restore = ["savepoint", "restore", path]
    options = ["--claim-mode", claim_mode, "--checkpoints-dir", tmp_path / "states"]
    planned = node(*restore, tmp_path / "new", *options, "--dry-run")
    would_remove = node("savepoint", "dispose", path, "--dry-run")["removed"]
    assert planned == {
        "checkpoint": str(tmp_path / "new"),
        "batch": 2,
        "dry_run": True,
        "removed": would_remove if claim_mode == "claim" else [],
    }
    text = output_of(*restore, tmp_path / "new", *options, "--dry-run")
    assert f"would be removed: {len(planned['removed'])} files" in text
    assert sorted(tmp_path.rglob("*")) == before
    # What the restore refuses, the dry run refuses too.
    refused = node(*restore, query.url, *options, "--dry-run", code=1)["error"]
    assert refused["type"] == "CheckpointExistsError"
    assert sorted(tmp_path.rglob("*")) == before
    assert node(*restore, query.url, *options, code=1)["error"] == refused
    output_of(*restore, tmp_path / "new", *options)
    paths = {Path(url.removeprefix("file://")) for url in planned["removed"]}
    assert not [file for file in paths if file.exists()]
    assert Path(path.removeprefix("file://")).exists() == (claim_mode == "no_claim")


def test_clone_and_rescale_copy_a_checkpoint(query: StoredQuery, tmp_path: Path) -> None:
    assert node("clone", query.url, tmp_path / "clone", "--batch", 1)["batch"] == 1
    assert count(tmp_path / "clone") == {"ann": 1, "carl": 2}
    assert "--stopped" in output_of("rescale", query.url, tmp_path / "wide", 5, code=1)
    assert node("rescale", query.url, tmp_path / "wide", 5, "--stopped") == {
        "checkpoint": str(tmp_path / "wide"),
        "batch": 2,
    }
    assert len(node("ls", tmp_path / "wide", "--by-partition")["stores"]) == 5
    assert count(tmp_path / "wide") == {"ann": 3, "carl": 2}
    assert node("clone", query.url, tmp_path / "wide", code=1)["error"]["type"]


def test_rollback_moves_a_query_back(query: StoredQuery) -> None:
    before = query.files()
    planned = node("rollback", query.url, 1, "--dry-run")["moved"]
    assert query.files() == before
    assert "--stopped" in output_of("rollback", query.url, 1, code=1)
    assert query.files() == before
    assert "moved: " in output_of("rollback", query.url, 1, "--stopped")
    assert {Path(url).name for url in planned} == {"2"}
    assert count(query.url) == {"ann": 1, "carl": 2}
    assert "no batch 2" in output_of("rollback", query.url, 2, "--stopped", code=1)


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
def test_invalid_arguments_are_wrong_usage(arguments: list[str]) -> None:
    output_of(*arguments, code=2)


def test_holds_lists_holds_and_removes_those_without_a_savepoint(query: StoredQuery, tmp_path: Path) -> None:
    assert "no holds" in output_of("holds", query.url)
    target = tmp_path / "savepoints"
    savepoint = node("savepoint", "trigger", query.url, "--target", target, "--kind", "pointer")
    # A process that was killed before its savepoint was complete left it.
    dead = hold(QueryCheckpoint(query.url), 1, "savepoint-f013e4-0123456789ab", f"file://{target}/dead")
    elsewhere = hold(QueryCheckpoint(query.url), 1, "savepoint-f013e4-0123456789ac", "file:///nowhere/dead")

    def statuses() -> dict[str, str]:
        return {entry["holder"]: entry["status"] for entry in node("holds", query.url)["holds"]}

    young = {savepoint["path"]: "needed", dead.holder(): "young", elsewhere.holder(): "unknown"}
    assert statuses() == young
    assert "less than a day old" in output_of("holds", query.url, "--remove", dead.name, code=1)
    for path in (query.directory / "state/_holds").iterdir():
        os.utime(path, (0, 0))
    assert statuses() == young | {dead.holder(): "unneeded"}
    for name in (f"3-{savepoint['name']}", elsewhere.name):
        assert "stays" in output_of("holds", query.url, "--remove", name, code=1)
    assert "it has 2-savepoint" in output_of("holds", query.url, "--remove", "2-x", code=1)
    before = query.files()
    assert node("holds", query.url, "--remove", dead.name, "--dry-run")["removed"] == [dead.url]
    assert query.files() == before
    assert node("holds", query.url, "--remove", dead.name)["removed"] == [dead.url]
    assert before.keys() - query.files().keys() == {f"state/_holds/{dead.name}"}
    output_of("verify", savepoint["path"])

"""Tests of ``migrate``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.commands import node, output_of
from tests.unit.query.stored_query import StoredQuery
from tests.unit.writing.test_write import counts


@pytest.fixture
def started(tmp_path: Path) -> StoredQuery:
    query = StoredQuery(tmp_path / "started", 2, 3)
    query.run(sample=1)
    return query


def test_state_is_taken(query: StoredQuery, started: StoredQuery, target: Path) -> None:
    before = counts(query.url)
    column = ["--column", "0:value.count=value.count + 1"]
    text = output_of("migrate", query.url, started.url, target, "--dry-run", *column)
    assert f"operator 0, default: {len(before)} keys of operator 0, default\n    key.word" in text
    assert text.endswith("dry run: nothing was written\n")
    assert not target.exists()
    report = node("migrate", query.url, started.url, target, *column)
    assert report["checkpoint"] == str(target)
    assert report["states"][0]["columns"] == [
        ["key.word", "key.word"],
        ["value.count", "value.count + 1"],
    ]
    assert counts(target) == {word: count + 1 for word, count in before.items()}


def test_state_is_left(query: StoredQuery, started: StoredQuery, target: Path) -> None:
    report = node("migrate", query.url, started.url, target, "--operator", "0=none", "--drop", "0")
    assert report["dropped"] == [["operator 0 (stateStoreSave)", len(counts(query.url))]]
    assert counts(target) == {}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--column", "value.count=1"], 2, "--column 'value.count=1' has another form"),
        (["--column", "0/x:value.count=1"], 2, "has no state 'x'"),
        (["--operator", "0=first"], 2, "--operator '0=first' has another form"),
        (["--operator", "0=2"], 2, "the old query has no stateful operator 2"),
        (["--state", "0=x"], 2, "--state '0=x' has another form"),
        (["--state", "0/default=x"], 2, "has no state 'x'"),
        (["--state", "0/default=none"], 2, "drop=[(0, 'default')]"),
        (["--drop", "all"], 2, "--drop 'all' has another form"),
        (["--drop", "0/seen"], 2, "no state (0, 'seen') to drop"),
        (["--batch", "9"], 1, "batch 9"),
    ],
)
def test_wrong_arguments_leave_nothing(
    query: StoredQuery, started: StoredQuery, target: Path, arguments: list[str], code: int, message: str
) -> None:
    text = output_of("migrate", query.url, started.url, target, *arguments, code=code)
    assert message in " ".join(text.split())
    assert not target.exists()

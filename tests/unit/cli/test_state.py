"""Tests of ``state put`` and ``state delete``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from tests.unit.cli.commands import node, output_of
from tests.unit.query.stored_query import StoredQuery
from tests.unit.writing.test_write import counts, table


def changes(tmp_path: Path, **words: int) -> Path:
    path = tmp_path / "changes"
    path.write_text("".join(json.dumps(row) + "\n" for row in table(words).to_pylist()))
    return path


def test_put_changes_keys(query: StoredQuery, tmp_path: Path, target: Path) -> None:
    before = counts(query.url)
    report = node("state", "put", query.url, target, changes(tmp_path, ann=7, new=1))
    assert report == {"checkpoint": str(target), "batch": 2, "added": 1, "changed": 1, "removed": 0}
    assert counts(target) == before | {"ann": 7, "new": 1}
    assert counts(query.url) == before


def test_put_replaces_an_earlier_state(query: StoredQuery, tmp_path: Path, target: Path) -> None:
    pyarrow.parquet.write_table(table({"ann": 7}), tmp_path / "changes.parquet")
    text = output_of(
        "state", "put", query.url, target, tmp_path / "changes.parquet", "--mode", "replace", "--batch", 1
    )
    assert text == (
        f"{target} is ready: a query that is started there resumes after batch 1\n"
        "keys: 0 added, 1 changed, 101 removed\n"
    )
    assert counts(target) == {"ann": 7}


def test_delete_removes_keys_of_a_file_or_by_a_condition(
    query: StoredQuery, tmp_path: Path, target: Path
) -> None:
    before = counts(query.url)
    # Values and keys that are not there are ignored.
    report = node("state", "delete", query.url, target, changes(tmp_path, ann=0, never=0))
    assert (report["batch"], report["removed"]) == (2, 1)
    assert counts(target) == {word: n for word, n in before.items() if word != "ann"}
    where = "value.count < 90 and key.word <> 'ann'"
    report = node("state", "delete", query.url, tmp_path / "second", "--where", where)
    assert counts(tmp_path / "second") == {w: n for w, n in before.items() if n >= 90 or w == "ann"}
    assert report["removed"] == len(before) - len(counts(tmp_path / "second"))


def test_state_changes_in_place(query: StoredQuery, tmp_path: Path) -> None:
    before = counts(query.url)
    file = changes(tmp_path, ann=7, new=1)
    arguments = ("--in-place", "--stopped")
    # The asserted stop is needed: the batches were written just now.
    failed = node("state", "put", query.url, file, "--in-place", code=1)
    assert failed["error"]["type"] == "QueryRunningError"
    report = node("state", "put", query.url, file, *arguments)
    assert report == {"checkpoint": query.url, "batch": 2, "added": 1, "changed": 1, "removed": 0}
    assert counts(query.url) == before | {"ann": 7, "new": 1}
    assert output_of("state", "delete", query.url, "--where", "key.word = 'new'", *arguments) == (
        f"{query.url} is changed: the query that is started there resumes after batch 2\n"
        "keys: 0 added, 0 changed, 1 removed\n"
    )
    assert node("state", "delete", query.url, changes(tmp_path, ann=0), *arguments)["removed"] == 1
    assert counts(query.url) == {word: n for word, n in before.items() if word != "ann"}


@pytest.mark.parametrize("arguments", [["FILE", "--where", "true"], []])
def test_delete_needs_either_a_file_or_a_condition(
    query: StoredQuery, target: Path, arguments: list[Any]
) -> None:
    text = output_of("state", "delete", query.url, target, *arguments, code=2)
    assert "either as FILE or with --where" in text


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["put", "SOURCE", "TARGET", "none"], 2, "there is no file none with changes"),
        (["put", "SOURCE", "TARGET", "FILE", "--mode", "delete"], 2, "'delete' is not one of"),
        (["put", "SOURCE", "TARGET", "FILE", "--operator", 3], 1, "no stateful operator 3"),
        (["put", "SOURCE", "TARGET", "FILE", "--store", "x"], 1, "no column family 'x'"),
        (["put", "SOURCE", "TARGET", "FILE", "--column-family", "x"], 1, "no column family 'x'"),
        (["put", "SOURCE", "TARGET", "FILE", "--batch", 9], 1, "batch 9"),
        (["put", "SOURCE", "SOURCE", "FILE"], 1, "is not empty"),
        (["delete", "SOURCE", "TARGET", "--where", "count < 1"], 2, "cannot be evaluated"),
        (["delete", "SOURCE", "TARGET", "FILE", "--operator", 3], 1, "no stateful operator 3"),
        (["put", "SOURCE"], 2, "give a TARGET for the copy, or --in-place"),
        (["put", "SOURCE", "FILE"], 2, "give a TARGET for the copy and a FILE"),
        (["put", "SOURCE", "--in-place"], 2, "or FILE alone with --in-place"),
        (["delete", "SOURCE", "FILE"], 2, "and either a TARGET for the copy or --in-place"),
        (["put", "SOURCE", "TARGET", "FILE", "--in-place"], 2, "either a TARGET or --in-place"),
        (["put", "SOURCE", "TARGET", "FILE", "--stopped"], 2, "--stopped is for --in-place"),
        (["put", "SOURCE", "FILE", "--in-place", "--stopped", "--batch", 1], 2, "the batch is 1"),
        (["delete", "SOURCE", "--where", "true"], 2, "give a TARGET for the copy, or --in-place"),
        (["delete", "SOURCE", "TARGET", "FILE", "--in-place"], 2, "either a TARGET or --in-place"),
        (
            ["delete", "SOURCE", "TARGET", "--where", "true", "--in-place"],
            2,
            "or with --where, and either a TARGET",
        ),
        (["delete", "SOURCE", "--in-place"], 2, "either as FILE or with --where"),
        (["delete", "SOURCE", "TARGET", "--where", "true", "--stopped"], 2, "--stopped is for --in-place"),
    ],
)
def test_wrong_arguments_change_nothing(
    query: StoredQuery, tmp_path: Path, target: Path, arguments: list[Any], code: int, message: str
) -> None:
    values = {"SOURCE": query.url, "TARGET": target, "FILE": changes(tmp_path, ann=1)}
    before = query.files()
    text = output_of("state", *(values.get(argument, argument) for argument in arguments), code=code)
    assert message in " ".join(text.split())
    assert not target.exists()
    assert query.files().items() >= before.items()


def test_put_refuses_unknown_fields(query: StoredQuery, tmp_path: Path, target: Path) -> None:
    path = tmp_path / "changes"
    path.write_text('{"key": {"wrod": "ann"}, "value": {"count": 1}}\n')
    assert "unexpected field" in output_of("state", "put", query.url, target, path, code=1)
    path.write_text('{"key": {"word": "ann"}}\n')
    text = output_of("state", "put", query.url, target, path, code=1)
    assert "row 0 of the changes lacks a field, which is null only if it says so: 'value'" in text
    assert not target.exists()

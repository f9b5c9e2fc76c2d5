"""Search for keys in all that a query's stores have in storage."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from spark_statestore import (
    OptionError,
    QueryRunningError,
    erase,
    read_state,
    verify,
    verify_absent,
    write_state,
)
from tests.unit.cli.commands import node, output_of
from tests.unit.query.stored_query import StoredQuery
from tests.unit.writing.test_write import WORDS

ANN = "key.word = 'ann'"


@pytest.fixture(params=[1, 2])
def query(request: pytest.FixtureRequest, tmp_path: Path) -> StoredQuery:
    query = StoredQuery(tmp_path / "query", request.param, partitions=3)
    query.run(**WORDS, ann=1)
    query.run(other=2)
    return query


def test_key_is_found_in_every_batch_that_needs_it(query: StoredQuery, tmp_path: Path) -> None:
    absence = verify_absent(query.url, ANN)
    assert not absence.ok
    assert [(keys.batch, keys.records) for keys in absence.found] == [(0, 1)]
    assert "default" in absence.found[0].state
    query.run(ann=2)
    absence = verify_absent(query.url, pc.field("key", "word") == "ann")
    assert [(keys.batch, keys.records) for keys in absence.found] == [(0, 1), (2, 1)]
    assert absence.batches == (0, 1, 2)
    assert not absence.unknown
    assert verify_absent(query.url, "key.word = 'missing'").ok


def test_copy_without_a_key_has_none_of_its_bytes(query: StoredQuery, tmp_path: Path) -> None:
    target = tmp_path / "target"
    write_state(query.url, str(target), ANN, mode="delete")
    absence = verify_absent(str(target), ANN)
    assert absence.ok
    assert (absence.batches, absence.unknown) == ((1,), ())
    assert absence.streams
    assert not verify_absent(str(target), "key.word = 'word 1'").ok
    # A file that nothing needs may have it.
    stream = next(query.directory.glob("state/0/*/shared/*"), None) or next(
        query.directory.glob("state/0/*/chk-1*/_metadata")
    )
    orphan = target / "state/0/0/shared/orphan"
    orphan.parent.mkdir(exist_ok=True)
    shutil.copy(stream, orphan)
    absence = verify_absent(str(target), ANN)
    assert not absence.ok
    assert not absence.found
    assert [Path(url).name for url in absence.unknown] == ["orphan"]


def test_damaged_merged_files_are_not_known(query: StoredQuery, tmp_path: Path) -> None:
    target = tmp_path / "target"
    write_state(query.url, str(target), ANN, mode="delete")
    merged = target / "state/_merged/1-1-7"
    merged.parent.mkdir()
    merged.write_bytes(b"")
    (damaged,) = verify_absent(str(target), ANN).unknown
    assert "1-1-7 is empty: it is damaged" in damaged


@pytest.mark.parametrize(
    "condition", ["key.missing = 1", "value.count = 1", pc.field("partition_id") == 1], ids=str
)
def test_conditions_on_other_columns_are_refused(query: StoredQuery, tmp_path: Path, condition: Any) -> None:
    write_state(query.url, str(tmp_path / "empty"), "true", mode="delete")
    for path in (query.url, str(tmp_path / "empty")):
        with pytest.raises(OptionError, match="cannot be evaluated"):
            verify_absent(path, condition)


def test_command_fails_if_there_is_a_key(query: StoredQuery, tmp_path: Path) -> None:
    report = node("verify", query.url, "--absent", ANN, code=1)
    assert (report["ok"], len(report["found"])) == (False, 1)
    assert "1 records of such keys in" in output_of("verify", query.url, "--absent", ANN, code=1)
    write_state(query.url, str(tmp_path / "target"), ANN, mode="delete")
    assert node("verify", tmp_path / "target", "--absent", ANN)["ok"]
    assert "leave --batch" in output_of("verify", query.url, "--absent", ANN, "--batch", 0, code=2)


def test_key_is_erased_from_all_batches(tmp_path: Path) -> None:
    query = StoredQuery(tmp_path / "query", 2, partitions=3)
    query.run(**WORDS, ann=1)
    query.run(other=2)
    query.run(ann=2)
    before = query.files()
    erasure = erase(query.url, ANN, stopped=True)
    assert (erasure.batches, erasure.stores, erasure.rows) == ((0, 1, 2), 3, 1)
    assert erasure.absence.ok
    assert erasure.files
    assert verify_absent(query.url, ANN).ok
    for batch, words in enumerate((WORDS, WORDS | {"other": 2}, WORDS | {"other": 2})):
        rows = read_state(query.url, batch=batch).to_pylist()
        assert {row["key"]["word"]: row["value"]["count"] for row in rows} == words
        assert not verify(query.url, batch).problems
    # Stores without the key are as they were.
    unchanged = [
        name for name in before if name.startswith("state/") and before[name] == query.files().get(name)
    ]
    assert len(unchanged) > len(before) // 4
    again = erase(query.url, ANN, stopped=True)
    assert (again.batches, again.stores, again.rows, again.files) == ((), 0, 0, 0)


def test_erasure_is_refused_before_anything_is_changed(query: StoredQuery) -> None:
    before = query.files()
    if query.format == 1:
        with pytest.raises(OptionError, match="has checkpoint format v1"):
            erase(query.url, ANN, stopped=True)
    else:
        with pytest.raises(QueryRunningError, match="It seems to run"):
            erase(query.url, ANN)
        with pytest.raises(OptionError, match="cannot be evaluated"):
            erase(query.url, "value.count = 1", stopped=True)
    assert query.files() == before

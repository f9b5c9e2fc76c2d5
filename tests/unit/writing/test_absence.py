"""Search for keys in all that a query's stores have in storage."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from spark_statestore import OptionError, verify_absent, write_state
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
    found = verify_absent(query.url, ANN)
    assert not found.ok
    assert [(keys.batch, keys.records) for keys in found.found] == [(0, 1)]
    assert "default" in found.found[0].state
    query.run(ann=2)
    found = verify_absent(query.url, pc.field("key", "word") == "ann")
    assert [(keys.batch, keys.records) for keys in found.found] == [(0, 1), (2, 1)]
    assert found.batches == (0, 1, 2)
    assert not found.unknown
    assert verify_absent(query.url, "key.word = 'nobody'").ok


def test_copy_without_a_key_has_none_of_its_bytes(query: StoredQuery, tmp_path: Path) -> None:
    target = tmp_path / "target"
    write_state(query.url, str(target), ANN, mode="delete")
    found = verify_absent(str(target), ANN)
    assert found.ok
    assert (found.batches, found.unknown) == ((1,), ())
    assert found.streams
    assert not verify_absent(str(target), "key.word = 'word 1'").ok
    # A file that nothing needs may have it.
    stream = next(query.directory.glob("state/0/*/shared/*"), None) or next(
        query.directory.glob("state/0/*/chk-1*/_metadata")
    )
    orphan = target / "state/0/0/shared/orphan"
    orphan.parent.mkdir(exist_ok=True)
    shutil.copy(stream, orphan)
    found = verify_absent(str(target), ANN)
    assert not found.ok
    assert not found.found
    assert [Path(url).name for url in found.unknown] == ["orphan"]


def test_older_merged_files_are_not_known(query: StoredQuery, tmp_path: Path) -> None:
    target = tmp_path / "target"
    write_state(query.url, str(target), ANN, mode="delete")
    merged = target / "state/_merged/1-1-7"
    merged.parent.mkdir()
    merged.write_bytes(b"")
    assert [Path(url).name for url in verify_absent(str(target), ANN).unknown] == ["1-1-7"]


@pytest.mark.parametrize(
    "condition", ["key.missing = 1", "value.count = 1", pc.field("partition_id") == 1], ids=str
)
def test_conditions_on_other_columns_are_refused(query: StoredQuery, tmp_path: Path, condition: Any) -> None:
    write_state(query.url, str(tmp_path / "empty"), "true", mode="delete")
    for path in (query.url, str(tmp_path / "empty")):
        with pytest.raises(OptionError, match="cannot be evaluated"):
            verify_absent(path, condition)


def test_command_fails_if_there_is_a_key(query: StoredQuery, tmp_path: Path) -> None:
    found = node("verify", query.url, "--absent", ANN, code=1)
    assert (found["ok"], len(found["found"])) == (False, 1)
    assert "1 records of such keys in" in output_of("verify", query.url, "--absent", ANN, code=1)
    write_state(query.url, str(tmp_path / "target"), ANN, mode="delete")
    assert node("verify", tmp_path / "target", "--absent", ANN)["ok"]
    assert "leave --batch" in output_of("verify", query.url, "--absent", ANN, "--batch", 0, code=2)

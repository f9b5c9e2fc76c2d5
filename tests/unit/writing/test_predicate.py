"""Tests of `write_state` with a predicate in place of keys."""

from __future__ import annotations

import datetime
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_statestore import (
    MissingPackageError,
    OptionError,
    RescaleError,
    WrittenState,
    read_state,
    verify,
    write_state,
)
from spark_statestore.writing import predicate as predicates
from spark_statestore.writing.predicate import ExpressionPredicate, SqlPredicate
from tests.unit.query.stored_query import StoredQuery
from tests.unit.writing.test_write import WORDS, counts, placed, renamed, table

COUNT = pc.field("value", "count")
WORD = pc.field("key", "word")


@pytest.fixture
def query(tmp_path: Path) -> StoredQuery:
    query = StoredQuery(tmp_path / "query", partitions=3)
    query.run(**WORDS)
    return query


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (COUNT < 10, range(10)),
        ("value.count < 10", range(10)),
        ((COUNT >= 30) | (WORD == "word 3"), [3, *range(30, 40)]),
        ("value.count >= 30 or key.word = 'word 3'", [3, *range(30, 40)]),
        (pc.scalar(False), []),
        ("false", []),
        (pc.scalar(True), range(40)),
        ("partition_id >= 0", range(40)),
    ],
    ids=str,
)
def test_predicate_removes_matching_keys(
    query: StoredQuery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, condition: Any, expected: Any
) -> None:
    monkeypatch.setattr(predicates, "_BATCH_ROWS", 4)
    target = tmp_path / "target"
    result = write_state(query.url, str(target), condition, mode="delete")
    assert result == WrittenState(batch=0, added=0, changed=0, removed=len(expected))
    assert counts(target) == {word: n for word, n in WORDS.items() if n not in expected}
    assert placed(target).items() <= placed(query.url).items()
    assert not verify(str(target)).problems
    assert counts(query.url) == WORDS


def test_predicate_removes_keys_of_partitions_beyond_the_memory_limit(
    query: StoredQuery, tmp_path: Path
) -> None:
    query.run(**{"word 3": -3})
    result = write_state(query.url, str(tmp_path / "target"), COUNT < 10, mode="delete", memory=400)
    assert result.removed == 10
    assert counts(tmp_path / "target") == {word: n for word, n in WORDS.items() if n >= 10}


@pytest.mark.parametrize("form", [1, 2])
@pytest.mark.parametrize("condition", [pc.field("partition_id") == 1, "partition_id = 1"], ids=str)
def test_predicate_may_have_the_partition(tmp_path: Path, condition: Any, form: int) -> None:
    query = StoredQuery(tmp_path / "query", form, partitions=3)
    query.run(**WORDS)
    write_state(query.url, str(tmp_path / "target"), condition, mode="delete")
    assert set(placed(tmp_path / "target").values()) == {0, 2}


@pytest.mark.parametrize("condition", [COUNT < 0, "value.count < 0"], ids=str)
def test_predicate_keeps_rows_for_which_it_is_null(tmp_path: Path, condition: Any) -> None:
    query = StoredQuery(tmp_path / "query")
    query.run(a=1)
    # Counts of an aggregation are never null.
    renamed(query, "dedupe")
    keys = table({"b": 0, "c": 0})
    values = pa.array([{"count": None}, {"count": -1}], keys["value"].type)
    write_state(str(tmp_path / "query"), str(tmp_path / "full"), keys.set_column(1, "value", values))
    result = write_state(str(tmp_path / "full"), str(tmp_path / "target"), condition, mode="delete")
    assert result.removed == 1
    assert counts(tmp_path / "target") == {"a": 1, "b": None}


def test_sql_has_the_semantics_of_duckdb() -> None:
    times = [datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), None, None, None]
    rows = pa.RecordBatch.from_pydict(
        {
            "key": [{"x": x} for x in (1.0, math.nan, None, -1.0)],
            "value": [{"t": time} for time in times],
        }
    )
    for condition, expected in {
        "key.x > 0": [0, 1],
        "key.x < 0 -- with a comment": [3],
        "key.x is null": [2],
        "value.t = '2024-01-01'": [0],
        "key.x in (select 1.0)": [0],
    }.items():
        positions = SqlPredicate(condition).matching(rows)
        assert positions.dtype == np.int64
        assert positions.tolist() == expected, condition
        assert SqlPredicate(condition).matching(rows.slice(0, 0)).tolist() == []
    assert ExpressionPredicate(pc.field("key", "x") < 0).matching(rows).tolist() == [3]


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (pc.field("count") < 1, "cannot be evaluated: No match for FieldRef"),
        (COUNT, "cannot be evaluated: .*bool"),
        (COUNT == "a", "cannot be evaluated"),
        ("count < 1", 'cannot be evaluated: .*column "count" not found'),
        ("value.count", "has the type BIGINT, but it must be BOOLEAN"),
        ("true, false", "has the type BOOLEAN, BOOLEAN, but"),
        ("true; drop table x", "cannot be evaluated"),
        ("true) or (true", "cannot be evaluated"),
        ("", "cannot be evaluated"),
        ("sum(value.count) > 1", "cannot be evaluated: .* aggregates"),
        ("row_number() over () = 1", "cannot be evaluated: .* window"),
        ("exists (select * from table)", "cannot be evaluated"),
        # A variable of the function that calls DuckDB.
        ("exists (select * from rows)", "rows does not exist"),
        # Found with the first row.
        ("key.word::int = 1", "cannot be evaluated: .* Could not convert string"),
    ],
    ids=str,
)
def test_wrong_predicates_are_refused(
    query: StoredQuery, tmp_path: Path, condition: Any, message: str
) -> None:
    with pytest.raises(OptionError, match=f"the predicate .*{message}.* No copy was made"):
        write_state(query.url, str(tmp_path / "target"), condition, mode="delete")
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("condition", [pc.field("count") < 1, "count < 1"], ids=str)
def test_wrong_predicates_are_refused_without_rows(
    query: StoredQuery, tmp_path: Path, condition: Any
) -> None:
    write_state(query.url, str(tmp_path / "empty"), table({}), mode="replace")
    with pytest.raises(OptionError, match="cannot be evaluated"):
        write_state(str(tmp_path / "empty"), str(tmp_path / "target"), condition, mode="delete")


@pytest.mark.parametrize("mode", ["upsert", "replace"])
@pytest.mark.parametrize("condition", [COUNT < 1, "value.count < 1"], ids=str)
def test_predicates_select_keys_to_delete_only(
    query: StoredQuery, tmp_path: Path, condition: Any, mode: Any
) -> None:
    with pytest.raises(OptionError, match=f"selects keys to delete, but the mode is '{mode}'"):
        write_state(query.url, str(tmp_path / "target"), condition, mode=mode)


def test_sql_without_duckdb_is_refused(
    query: StoredQuery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingPackageError, match="pip install duckdb"):
        write_state(query.url, str(tmp_path / "target"), "true", mode="delete")
    assert not (tmp_path / "target").exists()
    assert write_state(query.url, str(tmp_path / "target"), COUNT < 1, mode="delete").removed == 1


def test_predicate_removes_keys_in_any_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.query.stored_query.partition_of", lambda word, partitions: 0)
    query = StoredQuery(tmp_path / "query", partitions=3)
    query.run(**WORDS)
    with pytest.raises(RescaleError, match="keys are not in the partition that Spark gives them"):
        write_state(query.url, str(tmp_path / "target"), read_state(query.url), mode="delete")
    assert write_state(query.url, str(tmp_path / "target"), COUNT < 5, mode="delete").removed == 5
    assert len(counts(tmp_path / "target")) == 35

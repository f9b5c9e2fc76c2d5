"""Tests of `read_state`, `iter_state` and `diff_state` on checkpoints of every kind of state."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

import spark_statestore
from spark_statestore import diff_state, iter_state, read_state
from spark_statestore.errors import CheckpointNotFoundError, CorruptCheckpointError, OptionError
from spark_statestore.rows import diff
from spark_statestore.rows.columns import StateColumns
from spark_statestore.store.changelog_apply import ROW_SCHEMA
from spark_statestore.store.metadata import ColumnFamily
from tests.support.effort import EFFORT
from tests.unit.query.stored_query import StoredQuery
from tests.unit.rows.encoder import encode
from tests.unit.rows.typed_query import KEY, VALUE, Change, Changes, State, TypedQuery, row_key

keys = st.sampled_from(["", "a", "b", "a longer key", "größe"])
put = st.tuples(st.just("put"), keys, st.integers(0, 3))
single: st.SearchStrategy[Change] = put | st.tuples(st.just("delete"), keys, st.just(0))
several: st.SearchStrategy[Change] = single | st.tuples(st.just("merge"), keys, st.integers(0, 3))
in_partition = st.lists(
    st.tuples(st.just("default"), st.lists(single, max_size=6))
    | st.tuples(st.just("lists"), st.lists(several, max_size=6)),
    max_size=4,
)
batches = st.lists(st.fixed_dictionaries({0: in_partition, 1: in_partition}), min_size=1, max_size=4)

FamilyRows = dict[tuple[int, str], State]


FAMILIES = ("default", "lists")


@contextmanager
def ran(changes_by_batch: list[Changes], **options: Any) -> Iterator[TypedQuery]:
    """A query that has run some batches."""
    with tempfile.TemporaryDirectory() as directory:
        query = TypedQuery(directory, **options)
        for changes in changes_by_batch:
            query.change(changes)
        yield query


def rows_of(column_families: FamilyRows, family: str) -> list[dict[str, Any]]:
    return [
        {"key": row_key(key), "value": {"v": value}, "partition_id": partition}
        for (partition, name), state in column_families.items()
        for key, values in state.items()
        for value in values
        if name == family
    ]


def values_of(rows: list[dict[str, Any]], key_row: dict[str, Any]) -> list[Any]:
    """The values of the same key, in their order."""
    same = [
        row for row in rows if (row["partition_id"], row["key"]) == (key_row["partition_id"], key_row["key"])
    ]
    return [row["value"] for row in same]


def counted(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(map(repr, rows))


def check_rows(rows: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Compare rows in any order, but for the values of a key."""
    assert counted(rows) == counted(expected)
    for row in expected:
        assert values_of(rows, row) == values_of(expected, row)


@given(
    changes_by_batch=batches,
    with_ids=st.booleans(),
    memory=st.sampled_from([1, 200, 700, 10**9]),
    most=st.integers(1, 5),
)
@settings(max_examples=15 * EFFORT)
def test_state_is_read_whole_in_pieces_and_by_its_changes(
    changes_by_batch: list[Changes], with_ids: bool, memory: int, most: int
) -> None:
    with ran(changes_by_batch, with_ids=with_ids) as query:
        for number, family in product(range(len(changes_by_batch)), FAMILIES):
            rows = read_state(query.url, column_family=family, batch=number).to_pylist()
            check_rows(rows, rows_of(query.states[number], family))
        for family in FAMILIES:
            pieces = list(iter_state(query.url, column_family=family, memory=memory, batch_rows=most))
            schema = read_state(query.url, column_family=family).schema
            assert all(piece.schema == schema for piece in pieces)
            assert max(piece.num_rows for piece in pieces) <= most
            rows = [row for piece in pieces for row in piece.to_pylist()]
            check_rows(rows, rows_of(query.states[-1], family))
        ends = [(0, query.batch), (query.batch, 0), (query.batch, query.batch)]
        for (first, second), family in product(ends, FAMILIES):
            difference = diff_state(query.url, first, second, column_family=family)
            difference.validate(full=True)
            expected = changed(query.states[first], query.states[second], family)
            assert counted(difference.to_pylist()) == counted(expected)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(diff, "_BATCH_BYTES", 50)
                parts = diff_state(query.url, first, second, column_family=family)
            assert parts.to_pylist() == difference.to_pylist()
            assert all(batch.num_rows == 1 for batch in parts.to_batches())


@pytest.mark.slow
def test_diff_takes_rows_of_more_than_2_gib() -> None:
    # The chunks share their memory.
    value = pa.array([bytes(64 << 20)])
    rows = pa.table(
        [pa.chunked_array([[b"%d" % key] for key in range(33)]), pa.chunked_array([value] * 33)],
        ROW_SCHEMA.names,
    )
    changes = diff._Changes(rows, rows.slice(1))
    assert changes.key_bytes(changes.keys).to_pylist() == [b"0"]
    values = diff._take_rows(rows["value"], np.array([32, 0, 5]), np.array([False, False, True]))
    assert (values.is_valid().to_pylist(), values[0].as_py() == value[0].as_py()) == (
        [True, True, False],
        True,
    )


def changed(before: FamilyRows, after: FamilyRows, family: str) -> list[dict[str, Any]]:
    def shown(values: list[int] | None) -> Any:
        if values is None:
            return None
        return {"v": values[0]} if family == "default" else [{"v": value} for value in values]

    rows = []
    for partition in (0, 1):
        old, new = before[partition, family], after[partition, family]
        for key in old.keys() | new.keys():
            if old.get(key) != new.get(key):
                change = "added" if key not in old else "removed" if key not in new else "changed"
                rows.append(
                    {
                        "change": change,
                        "key": row_key(key),
                        "before": shown(old.get(key)),
                        "after": shown(new.get(key)),
                        "partition_id": partition,
                    }
                )
    return rows


@pytest.fixture
def query(tmp_path: Path) -> TypedQuery:
    typed_query = TypedQuery(str(tmp_path))
    typed_query.change(
        {0: [("default", [("put", "a", 1)])], 1: [("default", [("put", "b", 2), ("put", "", 3)])]}
    )
    typed_query.change({1: [("default", [("delete", "b", 0)])]})
    return typed_query


def test_read_state_decodes_selected_columns_and_fields(query: TypedQuery) -> None:
    def read(*columns: str) -> list[dict[str, Any]]:
        table = read_state(query.url, columns=columns)
        assert table.schema == next(iter_state(query.url, columns=columns)).schema
        return table.to_pylist()

    assert read("value") == [{"value": {"v": 1}}, {"value": {"v": 3}}]
    assert read("partition_id", "key.n") == [
        {"partition_id": 0, "key": {"n": 1}},
        {"partition_id": 1, "key": {"n": 0}},
    ]
    assert read("key.n", "value.v", "key.k")[0] == {"key": {"n": 1, "k": "a"}, "value": {"v": 1}}
    assert read("key.n", "key") == read("key")
    for wrong in ("k", "key.x", "value.v.w", "partition_id.x"):
        with pytest.raises(OptionError, match="there is no column"):
            read(wrong)
        with pytest.raises(OptionError):
            iter_state(query.url, columns=[wrong])


def test_read_state_reads_one_partition(query: TypedQuery) -> None:
    assert read_state(query.url, partition=1).to_pylist() == [
        {"key": {"k": None, "n": 0}, "value": {"v": 3}, "partition_id": 1}
    ]
    assert read_state(query.url, column_family="lists").num_rows == 0
    assert diff_state(query.url, 0, 1, partition=0).num_rows == 0
    assert diff_state(query.url, 0, 1, partition=1)["change"].to_pylist() == ["removed"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"operator": 1}, r"no stateful operator 1, it has 0 \(stateStoreSave\)"),
        ({"store": "left"}, "no column family 'left' in the store 'default'; it has default, lists"),
        ({"store": "left", "column_family": "x"}, "no store 'left', it has default"),
        ({"column_family": "x"}, "no column family 'x'"),
        ({"batch": 7}, "no batch 7: it has the batches 0 to 1"),
        ({"partition": 2}, "no partition 2, it has 2, from 0 on"),
        ({"partition": -1}, "no partition -1"),
    ],
)
def test_read_state_names_the_alternatives_of_an_unknown_name(
    query: TypedQuery, arguments: dict[str, Any], expected: str
) -> None:
    for reader in (read_state, iter_state):
        with pytest.raises(CheckpointNotFoundError, match=expected):
            reader(query.url, **arguments)
    if "batch" not in arguments:
        with pytest.raises(CheckpointNotFoundError, match=expected):
            diff_state(query.url, 0, 1, **arguments)


@pytest.mark.parametrize("kind", ["canonical", "pointer"])
def test_read_state_reads_a_savepoint(query: TypedQuery, tmp_path: Path, kind: str) -> None:
    query.change({0: [("lists", [("merge", "a", 1), ("merge", "a", 2)])]})
    savepoint = spark_statestore.savepoint(query.url, str(tmp_path / "savepoints"), kind)
    query.change({0: [("lists", [("delete", "a", 0)])]})
    for family in FAMILIES:
        rows = read_state(savepoint.path, column_family=family).to_pylist()
        assert counted(rows) == counted(rows_of(query.states[savepoint.batch], family))
    # The name of the column family may stand for that of its store.
    assert read_state(savepoint.path, store="lists") == read_state(savepoint.path, column_family="lists")


def test_read_state_reads_a_savepoint_whose_batch_ran_again(query: TypedQuery, tmp_path: Path) -> None:
    savepoint = spark_statestore.savepoint(query.url, str(tmp_path / "savepoints"), "pointer")
    query.batch -= 1
    query.restart()
    query.change({0: [("default", [("put", "a", 7)])]})
    assert read_state(query.url, partition=0)["value"].to_pylist() == [{"v": 7}]
    assert read_state(savepoint.path, partition=0)["value"].to_pylist() == [{"v": 1}]


def test_read_state_decodes_fields_of_a_map_variable() -> None:
    nodes = {"key": KEY, "userKey": VALUE}
    fields = [{"name": name, "type": node} for name, node in nodes.items()]
    key = {"type": "struct", "fields": fields}
    state = ColumnFamily("m", 1, json.dumps(key), json.dumps(VALUE), "prefix", 1)
    row = {"key": {"k": "x", "n": 1}, "userKey": {"v": 2}}
    rows = pa.RecordBatch.from_pylist(
        [{"key": encode(key, row), "value": encode(VALUE, {"v": 3})}], ROW_SCHEMA
    )

    def read(*columns: str) -> list[dict[str, Any]]:
        typed = StateColumns(state, "MapState", columns or None)
        table = typed.decode(rows, 5)
        assert table.schema == typed.schema
        return table.to_pylist()

    whole = {
        "key": {"k": "x", "n": 1},
        "user_map_key": {"v": 2},
        "user_map_value": {"v": 3},
        "partition_id": 5,
    }
    assert read() == [whole]
    assert read("user_map_key") == [{"user_map_key": {"v": 2}}]
    assert read("user_map_key.v", "key.n") == [{"user_map_key": {"v": 2}, "key": {"n": 1}}]
    assert read("key.n", "user_map_value", "user_map_key") == [
        {"key": {"n": 1}, "user_map_value": {"v": 3}, "user_map_key": {"v": 2}}
    ]


def test_read_state_of_damaged_state_returns_no_rows(query: TypedQuery, tmp_path: Path) -> None:
    path = tmp_path / "state" / "0" / "1" / "chk-2" / "_metadata"
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptCheckpointError, match="partition 1"):
        read_state(query.url)
    assert read_state(query.url, partition=0).num_rows == 1
    with pytest.raises(CorruptCheckpointError):
        list(iter_state(query.url))


def test_iter_state_looks_once_for_what_replaces_a_damaged_stream(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not for each part of a state beyond the memory limit, since that reads all streams each time."""
    query = StoredQuery(tmp_path / "checkpoint", partitions=1)
    query.run(**{f"w{number}": number for number in range(500)})
    query.run(ann=1)
    query.run({0: query.snapshot(0)}, bob=2)
    (base,) = query.directory.glob("state/0/0/shared/2-*")
    base.unlink()
    batches = iter_state(query.url, memory=4000)
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert {row["key"]["word"]: row["value"]["count"] for row in rows} == query.state()
    assert len(rows) == 502
    (warning,) = caplog.records
    assert base.name in warning.message

"""What a chain of changes leaves: the rows of a dict to which the same was done."""

from __future__ import annotations

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from spark_statestore.state.changes import APPEND, CHANGE_SCHEMA, PUT, REMOVE
from spark_statestore.state.fold import ROW_SCHEMA, fold
from tests.effort import EFFORT

Change = tuple[int, bytes, bytes | None]

keys = st.binary(max_size=1)
values = st.binary(max_size=2)
changes = st.tuples(st.sampled_from([PUT, APPEND]), keys, values) | st.tuples(
    st.just(REMOVE), keys, st.none()
)


def batch(rows: list[Change]) -> pa.RecordBatch:
    arrays = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(CHANGE_SCHEMA)]
    return pa.RecordBatch.from_arrays(arrays, schema=CHANGE_SCHEMA)


def applied(batches: list[list[Change]]) -> dict[bytes, list[bytes | None]]:
    """The values of each key, keys in the order in which they were last put."""
    state: dict[bytes, list[bytes | None]] = {}
    for op, key, value in (change for rows in batches for change in rows):
        if op == APPEND and key in state:
            state[key].append(value)
            continue
        state.pop(key, None)
        if op != REMOVE:
            state[key] = [value]
    return state


@given(st.lists(st.lists(changes, max_size=8), max_size=5))
@settings(max_examples=200 * EFFORT)
def test_the_rows_are_those_of_a_dict(batches: list[list[Change]]) -> None:
    found = fold(map(batch, batches))
    assert found.schema == ROW_SCHEMA
    found.validate(full=True)
    expected = applied(batches)
    left: dict[bytes, list[bytes]] = {}
    for row in found.to_pylist():
        left.setdefault(row["key"], []).append(row["value"])
    assert left == expected


@given(st.lists(st.lists(changes.filter(lambda change: change[0] != APPEND), max_size=8), max_size=5))
@settings(max_examples=100 * EFFORT)
def test_keys_are_in_the_order_in_which_they_were_last_put(batches: list[list[Change]]) -> None:
    assert fold(map(batch, batches))["key"].to_pylist() == list(applied(batches))


@pytest.mark.parametrize("batches", [[], [[]], [[], []], [[(PUT, b"a", b"1"), (REMOVE, b"a", None)]]])
def test_what_leaves_nothing_has_the_schema_of_rows(batches: list[list[Change]]) -> None:
    assert fold(map(batch, batches)) == ROW_SCHEMA.empty_table()


def test_batches_that_are_slices_of_others_are_folded() -> None:
    whole = batch([(PUT, b"a", b"1"), (PUT, b"b", b"2"), (APPEND, b"b", b"3"), (PUT, b"a", b"4")])
    found = fold([whole.slice(1, 2), whole.slice(3)])
    assert found.to_pylist() == [
        {"key": b"b", "value": b"2"},
        {"key": b"b", "value": b"3"},
        {"key": b"a", "value": b"4"},
    ]

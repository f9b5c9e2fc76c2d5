"""Applying changelogs gives the rows of a dict with the same changes."""

from __future__ import annotations

import random

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from spark_statestore.formats.change_batches import CHANGE_SCHEMA
from spark_statestore.store.changelog import DELETE, MERGE, PUT
from spark_statestore.store.changelog_apply import ROW_SCHEMA, apply_changelog, numbered
from tests.support.effort import EFFORT
from tests.unit.store.stores import Change, change_batch

keys = st.binary(max_size=1)
values = st.binary(max_size=2)
changes = st.tuples(st.sampled_from([PUT, MERGE]), keys, values) | st.tuples(st.just(DELETE), keys, st.none())


def applied(batches: list[list[Change]]) -> dict[bytes, list[bytes | None]]:
    """The values of each key, keys in the order in which they were last put."""
    state: dict[bytes, list[bytes | None]] = {}
    for op, key, value in (change for rows in batches for change in rows):
        if op == MERGE and key in state:
            state[key].append(value)
            continue
        state.pop(key, None)
        if op != DELETE:
            state[key] = [value]
    return state


@given(st.lists(st.lists(changes, max_size=8), max_size=5))
@settings(max_examples=200 * EFFORT)
def test_apply_changelog_gives_the_rows_of_a_dict(batches: list[list[Change]]) -> None:
    rows = apply_changelog(map(change_batch, batches))
    assert rows.schema == ROW_SCHEMA
    rows.validate(full=True)
    values_by_key: dict[bytes, list[bytes]] = {}
    for row in rows.to_pylist():
        values_by_key.setdefault(row["key"], []).append(row["value"])
    assert values_by_key == applied(batches)


@given(st.lists(st.lists(changes.filter(lambda change: change[0] != MERGE), max_size=8), max_size=5))
@settings(max_examples=100 * EFFORT)
def test_apply_changelog_orders_keys_by_their_last_put(batches: list[list[Change]]) -> None:
    assert apply_changelog(map(change_batch, batches))["key"].to_pylist() == list(applied(batches))


def test_apply_changelog_takes_sliced_batches() -> None:
    whole = change_batch([(PUT, b"a", b"1"), (PUT, b"b", b"2"), (MERGE, b"b", b"3"), (PUT, b"a", b"4")])
    rows = apply_changelog([whole.slice(1, 2), whole.slice(3)])
    assert rows.to_pylist() == [
        {"key": b"b", "value": b"2"},
        {"key": b"b", "value": b"3"},
        {"key": b"a", "value": b"4"},
    ]


def test_numbered_has_64_bit_offsets() -> None:
    # The distinct values of a partition can be more than 2 GiB; the soak test below has as many.
    _, values = numbered(pa.chunked_array([pa.array([b"a", b"b"])]))
    assert values.type == pa.large_binary()


@pytest.mark.soak
def test_apply_changelog_takes_more_than_2_gib_of_keys() -> None:
    size = 64 << 20
    memory = pa.py_buffer(random.Random(1).randbytes(size + 40 * 8))

    def put(number: int) -> pa.RecordBatch:
        offsets = pa.py_buffer(np.array([8 * number, 8 * number + size], np.int32))
        key = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, memory])
        return pa.RecordBatch.from_arrays(
            [pa.array([PUT], pa.uint8()), key, pa.array([b"1"])], schema=CHANGE_SCHEMA
        )

    assert apply_changelog(map(put, [*range(33), 0, 1])).num_rows == 33

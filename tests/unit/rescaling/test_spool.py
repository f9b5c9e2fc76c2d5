"""Tests of the spool file of redistribution."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from spark_statestore.rescaling.redistribute import _Spool
from spark_statestore.store.changelog_apply import ROW_SCHEMA


def batch(*values: int) -> pa.RecordBatch:
    rows = [{"key": b"k", "value": b"%d" % value} for value in values]
    return pa.RecordBatch.from_pylist(rows, ROW_SCHEMA)


def kept(spool: _Spool, partition: int) -> list[tuple[str, list[int]]]:
    return [
        (state, [int(value) for value in table["value"].to_pylist()])
        for state, table in spool.rows(partition)
    ]


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads that take turns all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_spool_joins_the_parts_of_a_table() -> None:
    spool = _Spool()
    first, second = spool.new_table(), spool.new_table()
    for table, state, values in [
        (first, "a", (1, 2)),
        (second, "b", (3,)),
        (first, "a", (4,)),
        (second, "b", (5, 6)),
    ]:
        spool.add(0, table, state, batch(*values))
    spool.add(1, spool.new_table(), "b", batch(7))
    for _ in range(2):
        assert kept(spool, 0) == [("a", [1, 2, 4]), ("b", [3, 5, 6])]
        assert kept(spool, 1) == [("b", [7])]
    assert kept(spool, 2) == []


@pytest.mark.usefixtures("hasty")
def test_spool_is_thread_safe() -> None:
    spool = _Spool()
    numbers = range(200)

    def write(state: str) -> None:
        table = spool.new_table()
        for number in numbers:
            spool.add(number % 3, table, state, batch(number))

    names = [f"s{number}" for number in range(8)]
    with ThreadPoolExecutor(8) as workers:
        list(workers.map(write, names))
        read = list(workers.map(lambda partition: sorted(kept(spool, partition)), [0, 1, 2] * 3))
    assert read == [[(name, list(numbers)[partition::3]) for name in names] for partition in (0, 1, 2)] * 3

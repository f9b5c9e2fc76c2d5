"""Tests of the spool file of redistribution."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

from spark_statestore.rescaling.spool import Spool
from spark_statestore.store.changelog_apply import ROW_SCHEMA


def rows(*values: int) -> pa.Table:
    # Several batches, as tables of many versions have.
    batches = [
        pa.RecordBatch.from_pylist([{"key": b"k", "value": b"%d" % value}], ROW_SCHEMA) for value in values
    ]
    return pa.Table.from_batches(batches, ROW_SCHEMA)


def rows_of(spool: Spool, partition: int) -> list[tuple[str, list[int]]]:
    return [
        (state, [int(value) for value in table["value"].to_pylist()])
        for state, table in spool.tables(partition)
    ]


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads that take turns all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty")
def test_spool_is_thread_safe() -> None:
    spool = Spool(ROW_SCHEMA)
    numbers = np.arange(200)

    def write(state: str) -> None:
        spool.add(state, rows(*numbers.tolist()), numbers % 3, 3)

    names = [f"s{number}" for number in range(8)]
    with ThreadPoolExecutor(8) as workers:
        list(workers.map(write, names))
        contents = list(workers.map(lambda partition: sorted(rows_of(spool, partition)), [0, 1, 2] * 3))
    assert (
        contents
        == [[(name, numbers[partition::3].tolist()) for name in names] for partition in (0, 1, 2)] * 3
    )

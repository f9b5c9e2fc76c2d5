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
        # Several batches, as tables of many versions have.
        rows = [{"key": b"k", "value": b"%d" % number} for number in numbers]
        batches = [pa.RecordBatch.from_pylist([row], ROW_SCHEMA) for row in rows]
        spool.add(state, pa.Table.from_batches(batches, ROW_SCHEMA), numbers % 3, 3)

    def read(partition: int) -> list[tuple[str, list[int]]]:
        tables = spool.tables(partition)
        return sorted((state, list(map(int, table["value"].to_pylist()))) for state, table in tables)

    names = [f"s{number}" for number in range(8)]
    with ThreadPoolExecutor(8) as workers:
        list(workers.map(write, names))
        contents = list(workers.map(read, [0, 1, 2] * 3))
    assert (
        contents
        == [[(name, numbers[partition::3].tolist()) for name in names] for partition in (0, 1, 2)] * 3
    )

"""Batches with broadcast state whose snapshot is taken in the block, before a slow sink, and at its end."""

from __future__ import annotations

import functools
import operator
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks import report
from benchmarks.report import Criterion, Result
from benchmarks.sessions import log
from spark_statestore.operator_state import MapStateDescriptor, QueryOperatorState

ENTRY_BYTES = 1_000
FULL, QUICK = 100_000, 1_000
ROUNDS = 7
MOST = 0.75

ABOUT = """Each batch puts one entry into a broadcast state of {megabytes} MB, on local files, without Spark.
Its sink takes as long as the state takes to be written: it waits, as for a database, or computes in Python.
At best, a batch that takes its snapshot before the sink has half the time. *Blocked* is the time of
`store.snapshot()` as a share of the time that writing takes. Bytes are shared with the snapshot; lists and
dicts, which can change, are copied in the call and compared at the end of the block."""

VALUES: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "bytes": (pa.binary(), lambda number: number.to_bytes(4, "little") * (ENTRY_BYTES // 4)),
    "lists of integers": (pa.list_(pa.int64()), lambda number: [number] * (ENTRY_BYTES // 8)),
}


def wait(seconds: float) -> None:
    """Write to a sink that answers after some time."""
    time.sleep(seconds)


def compute(seconds: float) -> None:
    """Write to a sink that needs the processor, for as many seconds of this thread."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(1_000))


def run(scratch: Path, quick: bool) -> Result:
    """Measure both kinds of values with both kinds of sinks."""
    entries = QUICK if quick else FULL
    rows, criteria = [], []
    for kind, (type_, value) in VALUES.items():
        batches = _Batches(str(scratch / kind.partition(" ")[0]), type_)
        filled = {number: value(number) for number in range(entries)}
        batches.run(operator.methodcaller("put_all", filled))
        batch_seconds = report.median([batches.run(_change) for _ in range(ROUNDS)])
        for name, sink in (("waits", wait), ("computes", compute)):
            late, early, blocked = [], [], []
            write = functools.partial(sink, batch_seconds)
            for _ in range(ROUNDS):
                late.append(batches.run(_change, write))
                early.append(batches.run(_change, write, early=True))
                blocked.append(batches.blocked)
            medians = [report.median(times) for times in (late, early, blocked)]
            ratio = medians[1] / medians[0]
            log(f"{kind}, sink {name}: {ratio:.2f}")
            rows.append([kind, name, *report.figures(*medians[:2], ratio, medians[2] / batch_seconds)])
            if (kind, name) == ("bytes", "waits"):
                work = "batch with its snapshot before a sink that waits"
                criteria.append(Criterion(work, medians[1], MOST, "s", medians[0], "snapshot at its end"))
    header = ["values", "sink", "at the end, s", "in the block, s", "ratio", "blocked"]
    table = report.table("Snapshot of operator state before the sink", header, rows)
    return Result(f"{ABOUT.format(megabytes=entries * ENTRY_BYTES // 1_000_000)}\n\n{table}", criteria)


def _change(state: Any) -> None:
    state.put(0, next(iter(state.immutable_entries.values())))


class _Batches:
    """Batches of one query, with the time of the last call of `store.snapshot()`."""

    def __init__(self, location: str, type_: pa.DataType) -> None:
        self._state = QueryOperatorState(location, "rules", num_retained=2)
        self._rules = MapStateDescriptor("rules", pa.int64(), type_)
        self._batch = 0
        self.blocked = 0.0

    def run(
        self, change: Callable[[Any], None], sink: Callable[[], None] = lambda: None, *, early: bool = False
    ) -> float:
        """Run a batch and return its seconds."""
        began = time.perf_counter()
        with self._state.batch(self._batch) as store:
            change(store.get_broadcast_state(self._rules))
            if early:
                called = time.perf_counter()
                store.snapshot()
                self.blocked = time.perf_counter() - called
            sink()
        self._batch += 1
        return time.perf_counter() - began

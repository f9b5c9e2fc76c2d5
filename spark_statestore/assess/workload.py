"""Cost model of a query's state on a cluster: memory, disk, bytes written, requests, cores and load time.

Its constants were measured on one machine. docs/plan.md says where it stops being true, and
tests/unit/test_plan.py compares it with the measurements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from spark_statestore.options import DEFAULT_MIN_DELTAS
from spark_statestore.storage.snapshot_plan import FAN_OUT, MEDIUM_STATE_REMOTE, MOST_ON_TOP

HEADER: Final = 16
"""Bytes of a record besides its key and value, see `docs/performance.md`, "Memory"."""

INDEX: Final = 8 / 0.45
"""Bytes of a row's entry in the index, whose segments are 0.3 to 0.6 full."""

MARK: Final = 4
"""Bytes of the mark of a superseded record.

A page in a mapped file has a mark for each smallest record that fits.
"""

GARBAGE: Final = 1.25
"""Mean size of the log to that of its live rows: compaction begins at 2."""

LEAST_DELTAS: Final = 5
"""Number of deltas below which no run is written."""

COMMIT_REQUESTS: Final = 4
"""Requests of a batch with `commit=batch`: source log, offsets, the commits of all stores, commit log."""

UPLOAD_REQUESTS: Final = 2
"""A base or a run is put, and looked for when a commit uses it first."""

LOADED_ROWS: Final = 7_000_000
"""Rows that one core loads in a second into the heap, up to 10,000,000 keys.

Measured by `python -m benchmarks --only amplification`.
"""

LOADED_ROWS_MAPPED: Final = 2_000_000
"""The same where most of the state is in mapped files (`tests/system/soak/test_large_state.py`)."""

COPIES: Final = 2
"""Local copies of a partition that a host keeps at most, see `docs/tune.md`, "Restart at once"."""

HEAP_SHARE: Final = 0.5
"""Share of an executor's heap that state may have: the default of `maxHeapBytes`."""

STORE_SECONDS: Final = 0.0015
"""Seconds that a batch takes in a store, beside its changes (`python -m benchmarks --only amplification`)."""

CHANGE_SECONDS: Final = 0.7e-6
"""Seconds that a changed row takes: a look-up, an update, and its part of the commit. From the same runs."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A query's state, and the executors that have it.

    Parameters
    ----------
    rows
        Rows of state.
    row_bytes
        Bytes of a row's key and value as Spark's UnsafeRow: 8 for each of the two, and 8 for each long.
    stored_bytes
        Bytes of a row in storage, compressed.
    changed
        Rows that a batch changes, at random.
    seconds
        Seconds from batch to batch.
    partitions, executors, cores
        Shuffle partitions, executors, and cores of each.
    heap
        Bytes of `maxHeapBytes` of each executor.
    key_bytes
        Bytes of a row's key alone.
    retained
        Batches that the checkpoint keeps: Spark's `minBatchesToRetain`.
    """

    rows: float = 100_000_000
    row_bytes: float = 56
    stored_bytes: float = 23
    changed: float = 100_000
    seconds: float = 10
    partitions: int = 200
    executors: int = 4
    cores: int = 4
    heap: float = 8e9
    key_bytes: float = 24
    retained: int = 100


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a workload in its steady state.

    Attributes
    ----------
    memory
        Bytes of state in each executor, in the heap and in mapped files.
    mapped
        Share of it in mapped files.
    least_heap
        Bytes of `maxHeapBytes` below which index and marks are in mapped files, too.
    written_bytes
        Bytes that are written to storage in an hour.
    amplification
        Bytes written for each byte of a changed key and value.
    requests
        Requests to object storage in an hour, without deletions.
    base
        Bytes of a full snapshot in storage.
    stored
        Most bytes in storage: the bases of the retained batches, and all of their deltas and runs.
    disk
        Bytes of an executor's local disk: rows in mapped files, and local copies on remote storage.
    core_seconds
        Seconds of a core that a batch's work on state takes, without Spark's own.
    load_seconds
        Seconds until all executors have loaded their state after a start of the query.
    """

    memory: float
    mapped: float
    least_heap: float
    written_bytes: float
    amplification: float
    requests: float
    base: float
    stored: float
    disk: float
    core_seconds: float
    load_seconds: float


def cost(workload: Workload) -> Cost:
    """Return the cost of a workload in its steady state."""
    rows = workload.rows / workload.executors
    marks = bytes_of_marks(workload.row_bytes, workload.key_bytes)
    in_heap = rows * bytes_in_memory(workload.row_bytes)
    # Each byte of the log in a file has its part of the marks in the heap.
    log = rows * bytes_of_log(workload.row_bytes)
    in_files = min(log, max(0.0, in_heap - workload.heap) / (1 - rows * marks / log))
    memory = in_heap + rows * marks * in_files / log
    mapped = max(in_files, memory - workload.heap) / memory
    bytes_written = bytes_of_a_batch(workload)
    hourly = 3600 / workload.seconds
    base, cycle = workload.rows * workload.stored_bytes, batches_of_a_base(workload)
    deltas = workload.retained * bytes_of_changes(workload, cycle)
    loaded = LOADED_ROWS_MAPPED if mapped > 0.5 else LOADED_ROWS
    return Cost(
        memory=memory,
        mapped=mapped,
        least_heap=rows * (INDEX + marks),
        written_bytes=bytes_written * hourly,
        amplification=bytes_written / (workload.changed * workload.row_bytes),
        requests=(COMMIT_REQUESTS + UPLOAD_REQUESTS * uploads_of_a_batch(workload)) * hourly,
        base=base,
        stored=base * (1 + workload.retained / cycle) + deltas,
        disk=memory * mapped + COPIES * rows * (workload.row_bytes + HEADER + INDEX),
        core_seconds=workload.partitions * STORE_SECONDS + workload.changed * CHANGE_SECONDS,
        load_seconds=workload.rows / (workload.executors * workload.cores * loaded),
    )


def bytes_in_memory(row_bytes: float) -> float:
    """Return the bytes that a row takes in the heap."""
    return bytes_of_log(row_bytes) + INDEX


def bytes_of_log(row_bytes: float) -> float:
    """Return the bytes of a row in the log."""
    return (HEADER + row_bytes) * GARBAGE


def bytes_of_marks(row_bytes: float, key_bytes: float) -> float:
    """Return the bytes of heap for the marks of a row whose log page is in a file.

    The smallest record is a removed key.
    """
    return MARK * bytes_of_log(row_bytes) / (HEADER + key_bytes)


def batches_of_a_base(workload: Workload) -> float:
    """Return the number of batches after which the base is written again."""
    return max(1.0, MOST_ON_TOP * workload.rows / workload.changed)


def levels(batches: float) -> float:
    """Return how often a changed byte is written in runs, if so many batches pass until the next base."""
    return max(0.0, math.log(batches / LEAST_DELTAS, FAN_OUT))


def bytes_of_changes(workload: Workload, batches: float) -> float:
    """Return the bytes of a batch's delta, and of its part of the runs until the next base."""
    return workload.stored_bytes * workload.changed * (1 + levels(batches))


def bytes_of_a_batch(workload: Workload, batches: float = math.inf) -> float:
    """Return the mean of the bytes that a batch and the background write.

    They are a delta, runs, and the batch's part of the next base.

    Parameters
    ----------
    batches
        Number of batches since the first base; without it many.
    """
    cycle = batches_of_a_base(workload)
    bases = 1 / cycle if math.isinf(batches) else batches // cycle / batches
    return bytes_of_changes(workload, min(cycle, batches)) + workload.rows * workload.stored_bytes * bases


def uploads_of_a_batch(workload: Workload) -> float:
    """Return the mean number of bases and runs of all partitions that a batch causes."""
    if workload.rows / workload.partitions * bytes_in_memory(workload.row_bytes) <= MEDIUM_STATE_REMOTE:
        return 0
    cycle = batches_of_a_base(workload)
    return workload.partitions * (1 / cycle + (1 / DEFAULT_MIN_DELTAS if cycle > DEFAULT_MIN_DELTAS else 0))

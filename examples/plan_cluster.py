"""Cost model of a query's state on a cluster: memory, bytes written, requests and load time.

python examples/plan_cluster.py --rows 1e9 --changed 1e6 --executors 20 --partitions 800

Its constants were measured on one machine. docs/plan.md says where it stops being true, and
tests/unit/test_plan.py compares it with the measurements.
"""

import argparse
import math
from dataclasses import dataclass, fields

HEADER, INDEX_ENTRY = 16, 8
"""Bytes that a row takes in memory besides its key and value, see `docs/performance.md`, "Memory"."""

INDEX_LOAD = 0.45
"""Mean share of the index that is in use: segments are 0.3 to 0.6 full."""

MARK = 4
"""Bytes of the mark of a superseded record.

A page in a mapped file has a mark for each smallest record that fits.
"""

GARBAGE = 1.25
"""Mean size of the log to that of its live rows: compaction begins at 2."""

MOST_ON_TOP = 0.25
"""Share of the state that changes until a base is written again (`SnapshotPolicy.MostOnTop`)."""

FAN_OUT, LEAST_DELTAS = 8, 5
"""Runs of one size that are merged into one (`SnapshotPolicy.FanOut`).

The second is the number of deltas below which none is written.
"""

COMMIT_REQUESTS = 4
"""Requests of a batch with `commit=batch`: source log, offsets, the commits of all stores, commit log."""

UPLOAD_REQUESTS = 2
"""A base or a run is put, and looked for when a commit uses it first."""

SMALL_STATE = 1 << 20
"""Bytes of a partition's state up to which its bases are in the commits' object.

See `SnapshotPolicy.inBackground`.
"""

DELTAS_OF_A_RUN = 10
"""Default of Spark's `minDeltasForSnapshot`: a run is written after more deltas."""

LOADED_ROWS = 7_000_000
"""Rows that one core loads in a second into the heap, up to 10,000,000 keys.

Measured by `python -m benchmarks --only amplification`.
"""

LOADED_ROWS_MAPPED = 2_000_000
"""The same where most of the state is in mapped files (`tests/system/soak/test_large_state.py`)."""


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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
    written
        Bytes that are written to storage in an hour.
    amplification
        Bytes written for each byte of a changed key and value.
    requests
        Requests to object storage in an hour, without deletions.
    stored
        Most bytes of a base in storage; retained versions have up to `1 + retained versions x changed / (rows
        / 4)` of them.
    load_seconds
        Seconds until all executors have loaded their state after a start of the query.
    """

    memory: float
    mapped: float
    least_heap: float
    written: float
    amplification: float
    requests: float
    stored: float
    load_seconds: float


def cost(of: Workload) -> Cost:
    """Return the cost of a workload in its steady state."""
    rows = of.rows / of.executors
    marks = bytes_of_marks(of.row_bytes, of.key_bytes)
    in_heap = rows * bytes_in_memory(of.row_bytes)
    # Each byte of the log in a file has its part of the marks in the heap.
    log = rows * bytes_of_log(of.row_bytes)
    in_files = min(log, max(0.0, in_heap - of.heap) / (1 - rows * marks / log))
    memory = in_heap + rows * marks * in_files / log
    mapped = max(in_files, memory - of.heap) / memory
    written = bytes_of_a_batch(of)
    hourly = 3600 / of.seconds
    loaded = LOADED_ROWS_MAPPED if mapped > 0.5 else LOADED_ROWS
    return Cost(
        memory=memory,
        mapped=mapped,
        least_heap=rows * (INDEX_ENTRY / INDEX_LOAD + marks),
        written=written * hourly,
        amplification=written / (of.changed * of.row_bytes),
        requests=(COMMIT_REQUESTS + UPLOAD_REQUESTS * uploads_of_a_batch(of)) * hourly,
        stored=of.rows * of.stored_bytes,
        load_seconds=of.rows / (of.executors * of.cores * loaded),
    )


def bytes_in_memory(row_bytes: float) -> float:
    """Return the bytes that a row takes in the heap."""
    return bytes_of_log(row_bytes) + INDEX_ENTRY / INDEX_LOAD


def bytes_of_log(row_bytes: float) -> float:
    """Return the bytes of a row in the log."""
    return (HEADER + row_bytes) * GARBAGE


def bytes_of_marks(row_bytes: float, key_bytes: float) -> float:
    """Return the bytes of heap for the marks of a row whose log page is in a file.

    The smallest record is a removed key.
    """
    return MARK * bytes_of_log(row_bytes) / (HEADER + key_bytes)


def batches_of_a_base(of: Workload) -> float:
    """Return the number of batches after which the base is written again."""
    return max(1.0, MOST_ON_TOP * of.rows / of.changed)


def levels(batches: float) -> float:
    """Return how often a changed byte is written in runs, if so many batches pass until the next base."""
    return max(0.0, math.log(batches / LEAST_DELTAS, FAN_OUT))


def bytes_of_a_batch(of: Workload, batches: float = math.inf) -> float:
    """Return the mean of the bytes that a batch and the background write.

    They are a delta, runs, and the batch's part of the next base.

    Parameters
    ----------
    batches
        Number of batches since the first base; without it many.
    """
    cycle = batches_of_a_base(of)
    bases = 1 / cycle if math.isinf(batches) else batches // cycle / batches
    return of.stored_bytes * (of.changed * (1 + levels(min(cycle, batches))) + of.rows * bases)


def uploads_of_a_batch(of: Workload) -> float:
    """Return the mean number of bases and runs of all partitions that a batch causes."""
    if of.rows / of.partitions * bytes_in_memory(of.row_bytes) <= SMALL_STATE:
        return 0
    cycle = batches_of_a_base(of)
    return of.partitions * (1 / cycle + (1 / DELTAS_OF_A_RUN if cycle > DELTAS_OF_A_RUN else 0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for field in fields(Workload):
        option = f"--{field.name.replace('_', '-')}"
        parser.add_argument(option, type=float, default=field.default, help=f"default {field.default:,}")
    workload = Workload(**vars(parser.parse_args()))
    found = cost(workload)
    print(f"{workload.rows:,.0f} rows, {workload.changed:,.0f} changed every {workload.seconds:g} s")
    for name, value in {
        "memory of an executor, GB": found.memory / 1e9,
        "of that in mapped files, %": 100 * found.mapped,
        "heap that index and marks need, GB": found.least_heap / 1e9,
        "written in an hour, GB": found.written / 1e9,
        "written for each changed byte": found.amplification,
        "requests in an hour, object storage": found.requests,
        "a base in storage, GB": found.stored / 1e9,
        "load after a start, seconds": found.load_seconds,
    }.items():
        print(f"{name}: {value:,.{0 if value >= 100 else 2}f}")


if __name__ == "__main__":
    main()

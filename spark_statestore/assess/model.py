"""Model of a query's batch time with this store, from the time that its present store takes.

A batch is time without state, which is kept, and parts of the state store, each of which is multiplied by a
measured ratio. docs/assess.md has the measurements, and the errors of the estimates.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Final

from spark_statestore.assess.queries import CHANGELOG, HDFS, OURS, ROCKSDB, Batch, OperatorBatch, Query


@dataclass(frozen=True, slots=True)
class Parts:
    """Milliseconds of a batch by part, as shares of the time from trigger to end.

    Attributes
    ----------
    total
        From trigger to end.
    planning
        Planning of the query, and reading the input's description.
    logs
        Spark's own files of the checkpoint, and the search for input.
    opening
        Of the tasks with state, what is in no metric: their start, and opening the stores.
    update, removal, commit
        Spark's metrics of the stateful operators. The update includes what an operator reads: the shuffle,
        and the operators below it.
    other
        The rest: other stages, the sink, scheduling.
    python
        Python workers, within the others; None if the log has no such metric.
    """

    total: float
    planning: float
    logs: float
    opening: float
    update: float
    removal: float
    commit: float
    other: float
    python: float | None = None


@dataclass(frozen=True, slots=True)
class Ratios:
    """Ratios of the time that a part of a batch takes with this store to that with another one."""

    logs: float
    opening: float
    update: float
    removal: float
    commit: float


RATIOS: Final = {
    HDFS: Ratios(logs=0.3, opening=1.0, update=0.4, removal=0.3, commit=0.15),
    ROCKSDB: Ratios(logs=0.2, opening=1.3, update=0.15, removal=0.1, commit=0.04),
    CHANGELOG: Ratios(logs=0.2, opening=1.3, update=0.35, removal=0.1, commit=0.13),
}
"""By the replaced provider.

Between those of five runs of `tests/system/assess` of 2026-11-30, see docs/assess.md. With a changelog,
updates and commits are those of RocksDB by docs/performance.md, "One store".
"""

COPIED_ROW_US: Final = 0.26
"""Microseconds in which HDFSBacked copies a row of its map when a batch opens a store.

docs/performance.md, "By the size of the state": a batch with 10,000 and with 1,000,000 rows of state.
"""

TASK_START_MS: Final = 9.0
"""Milliseconds of a task's opening without a copy, from the same runs as `RATIOS`.

The quotient of the two is used alone, which depends little on the machine.
"""

ERRORS: Final = {True: 0.25, False: 0.5}
"""Bounds of an estimate's error, as a share of the measured time, with and without metrics of tasks."""

PRICE_DATE: Final = "2025-06"
PRICE_SOURCE: Final = "Amazon S3 Standard, us-east-1, https://aws.amazon.com/s3/pricing/"
PUT_PRICE: Final = 0.005
"""US dollars for 1,000 requests that are PUT, COPY, POST or LIST, at `PRICE_SOURCE` and `PRICE_DATE`."""
GET_PRICE: Final = 0.0004
"""The same for GET, HEAD and all others."""


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests to object storage of one batch: PUT and LIST, and the cheaper GET and HEAD."""

    puts: float
    gets: float

    def dollars(self, put_price: float, get_price: float) -> float:
        """Return their price, by the prices of 1,000."""
        return (self.puts * put_price + self.gets * get_price) / 1000


SPARKS_BATCH: Final = Requests(puts=20.2, gets=22.4)
SPARKS_STORE: Final = Requests(puts=4.0, gets=2.0)
"""Requests of Spark's own files, and of each store of HDFSBacked or RocksDB, through hadoop-aws.

docs/performance.md, "Queries with their checkpoints on S3": 92.6 requests with 8 stores, 1,242 with 200, and
4,842 with 800. The kinds are in its results; DELETE, which costs nothing, is left out.
"""

OURS_BATCH: Final = Requests(puts=4.0, gets=0.0)
"""Requests of a batch with ``commit=batch``, from the same page."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Batch time with this store.

    Attributes
    ----------
    milliseconds
        Median over the batches that count.
    low, high
        The range that the errors of measured estimates leave open.
    confidence
        ``medium``, or ``low`` if the log has no metrics of tasks, few batches, or a checkpoint elsewhere than
        in local files, on which the ratios were measured.
    parts
        Medians of the parts of a batch with this store.
    reasons
        Sentences that explain the estimate.
    """

    milliseconds: float
    low: float
    high: float
    confidence: str
    basis: str
    parts: Parts
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Assessment:
    """Figures of a query: medians over the `counted` batches, of its operators too."""

    query: Query
    counted: tuple[Batch, ...]
    input_rows: int
    parallelism: float
    parts: Parts
    operators: tuple[OperatorBatch, ...]
    requests: Requests | None
    requests_here: Requests | None
    estimate: Estimate | None

    @property
    def no_estimate(self) -> str:
        """The reason for the absence of an estimate."""
        if self.query.provider == OURS:
            return "the query runs on this store."
        return "its state store is neither HDFSBacked nor RocksDB, and no other one was measured."


def assess_query(query: Query, *, skip: int | None = None, cores: int | None = None) -> Assessment:
    """Assess a query with at least one batch.

    Parameters
    ----------
    query
        The query.
    skip
        Number of first batches that do not count: they load state, and compile code. By default 10, or a
        third of all if that is less.
    cores
        Task slots, where the log does not have them.
    """
    first = min(10, len(query.batches) // 3) if skip is None else min(skip, len(query.batches) - 1)
    counted = query.batches[first:]
    if query.is_stateful:
        counted = [batch for batch in counted if batch.operators] or counted
    slots = query.cores or cores
    parts = [_parts(batch, slots) for batch in counted]
    medians = _medians(parts)
    is_known = query.is_stateful and query.provider in {*RATIOS, OURS}
    return Assessment(
        query,
        tuple(counted),
        round(statistics.median(batch.input_rows for batch in counted)),
        statistics.median(_parallelism(batch, slots) for batch in counted),
        medians,
        tuple(
            _operator([batch.operators[number] for batch in counted if number < len(batch.operators)])
            for number in range(len(counted[-1].operators))
        ),
        _requests(query, counted) if is_known else None,
        OURS_BATCH if is_known else None,
        _estimate(query, counted, parts, medians) if query.is_stateful and query.provider in RATIOS else None,
    )


def _parallelism(batch: Batch, cores: int | None) -> float:
    """Return how many tasks with state run at a time."""
    if batch.tasks and batch.tasks.tasks:
        return batch.tasks.parallelism
    # At least as many as their times need within the batch.
    busy = sum(operator.task_ms for operator in batch.operators)
    least = max(1.0, busy / max(1, batch.durations["addBatch"]))
    partitions = max((operator.partitions for operator in batch.operators), default=0)
    return least if cores is None else max(least, min(cores, partitions or cores))


def _parts(batch: Batch, cores: int | None) -> Parts:
    durations = batch.durations
    planning = sum(durations.get(name, 0) for name in ("queryPlanning", "getBatch", "getEndOffset"))
    logs = sum(durations.get(name, 0) for name in ("walCommit", "commitOffsets", "latestOffset"))
    parallelism = _parallelism(batch, cores)
    tasks = batch.tasks if batch.tasks and batch.tasks.tasks else None
    times = (
        (tasks.opening_ms, tasks.update_ms, tasks.removal_ms, tasks.commit_ms)
        if tasks
        else (
            0,
            sum(operator.update_ms for operator in batch.operators),
            sum(operator.removal_ms for operator in batch.operators),
            sum(operator.commit_ms for operator in batch.operators),
        )
    )
    state = [time / parallelism for time in times]
    # Several operators of one stage measure the time of those below them, too.
    within = min(1.0, durations["addBatch"] / max(1.0, sum(state)))
    opening, update, removal, commit = (within * time for time in state)
    other_ms = max(0.0, batch.milliseconds - planning - logs - within * sum(state))
    python = batch.tasks.python_ms / parallelism if batch.tasks and batch.tasks.python_ms else None
    return Parts(batch.milliseconds, planning, logs, opening, update, removal, commit, other_ms, python)


def _estimate(query: Query, batches: Sequence[Batch], parts: Sequence[Parts], now: Parts) -> Estimate:
    here = _medians(
        [_with_ratios(query.provider, batch, part) for batch, part in zip(batches, parts, strict=True)]
    )
    has_tasks = all(batch.tasks for batch in batches)
    is_local = query.checkpoint is not None and query.checkpoint.startswith(("file:", "/"))
    error = ERRORS[has_tasks]
    return Estimate(
        here.total,
        here.total / (1 + error),
        here.total / (1 - error),
        "medium" if has_tasks and is_local and len(batches) >= 10 else "low",
        f"measured basis, {'with' if has_tasks else 'without'} metrics of tasks",
        here,
        tuple(_reasons(query, batches[-1], now, here)),
    )


def _with_ratios(provider: str, batch: Batch, part: Parts) -> Parts:
    """Return the parts of a batch with this store."""
    ratios = RATIOS[provider]
    opening = ratios.opening
    if provider == HDFS:
        rows = sum(operator.rows for operator in batch.operators) / max(1, batch.stores)
        opening *= TASK_START_MS / (TASK_START_MS + rows * COPIED_ROW_US / 1000)
    scaled = {
        "logs": part.logs * ratios.logs,
        "opening": part.opening * opening,
        "update": part.update * ratios.update,
        "removal": part.removal * ratios.removal,
        "commit": part.commit * ratios.commit,
    }
    total = part.planning + part.other + sum(scaled.values())
    return Parts(total, part.planning, other=part.other, python=part.python, **scaled)


def _reasons(query: Query, batch: Batch, now: Parts, here: Parts) -> list[str]:
    fixed_ms = here.planning + here.other
    reasons = [
        f"{fixed_ms:,.0f} ms are left with any state store: planning, other stages, the sink, scheduling."
    ]
    rows = sum(operator.rows for operator in batch.operators)
    if now.commit - here.commit > 0.05 * now.total:
        reasons.append(
            f"Commits take {now.commit:,.0f} ms: {query.provider} writes files for each of {batch.stores} "
            "stores. Here the changes of all stores are published as one file before Spark's commit log."
        )
    if now.opening - here.opening > 0.05 * now.total:
        reasons.append(
            f"Opening the stores takes {now.opening:,.0f} ms: HDFSBacked copies its map of "
            f"{rows // max(1, batch.stores):,} rows of each store in each batch. Here a version is an offset."
        )
    if now.update - here.update > 0.05 * now.total:
        cause = (
            "HDFSBacked creates a file, and compresses each row into it"
            if query.provider == HDFS
            else "each get and put of RocksDB is a call of native code"
        )
        reasons.append(
            f"Updates take {now.update:,.0f} ms, with what they read: {cause}. Here a put appends a row to a "
            "log on the heap."
        )
    if now.python:
        reasons.append(f"Python workers run for {now.python:,.0f} ms of it, with any store.")
    if here.total > 0.9 * now.total:
        reasons.append("The state store takes little of a batch: no other one changes much.")
    if query.provider == HDFS and rows < 300_000:
        reasons.append(
            "HDFSBacked takes less memory than this store below 300,000 rows on an executor, since the "
            "backend has 57 MiB."
        )
    if query.provider != HDFS:
        reasons.append("RocksDB takes less memory than this store, which has the rows in the heap.")
    return reasons


def _requests(query: Query, batches: Sequence[Batch]) -> Requests:
    if query.provider == OURS:
        return OURS_BATCH
    stores = batches[-1].stores
    puts = SPARKS_BATCH.puts + SPARKS_STORE.puts * stores
    if query.provider == ROCKSDB:
        # Without a changelog a commit uploads new files of the database, too.
        puts += statistics.median(
            sum(operator.custom.get("rocksdbFilesCopied", 0) for operator in batch.operators)
            for batch in batches
        )
    return Requests(puts, SPARKS_BATCH.gets + SPARKS_STORE.gets * stores)


def _medians(parts: Sequence[Parts]) -> Parts:
    def median(name: str) -> float | None:
        values = [value for part in parts if (value := getattr(part, name)) is not None]
        return statistics.median(values) if values else None

    return Parts(**{field.name: median(field.name) for field in fields(Parts)})  # type: ignore[arg-type]


def _operator(batches: Sequence[OperatorBatch]) -> OperatorBatch:
    """Return the medians of an operator's figures; its rows and its size are those of the newest batch."""

    def median(value_of: Callable[[OperatorBatch], int]) -> int:
        return round(statistics.median(map(value_of, batches)))

    newest = batches[-1]
    return OperatorBatch(
        newest.name,
        newest.rows,
        median(lambda operator: operator.updated),
        median(lambda operator: operator.removed),
        newest.memory_bytes,
        median(lambda operator: operator.update_ms),
        median(lambda operator: operator.removal_ms),
        median(lambda operator: operator.commit_ms),
        newest.partitions,
        newest.stores,
        {name: median(lambda operator, name=name: operator.custom.get(name, 0)) for name in newest.custom},  # type: ignore[misc]
    )

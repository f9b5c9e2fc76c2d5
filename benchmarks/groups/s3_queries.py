"""Whole queries with the whole checkpoint on S3: batch times, requests and bytes, by partitions and delay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks import report
from benchmarks.nexmark import queries
from benchmarks.nexmark.events import input_table
from benchmarks.report import Criterion, Result, figures
from benchmarks.s3 import stores
from benchmarks.s3.relay import Relay, relaying
from benchmarks.s3.requests import KINDS, Request, Trace, by_kind, tracing
from benchmarks.sessions import SessionProcess, log, session_processes
from benchmarks.stores import HDFS, LIMIT, OURS, better
from benchmarks.streaming import Batches, Comparison, Plan, best, p50, p99, run_in_turns, running
from tests.support.services import Service, minio

MOST_REQUESTS = 1 + 4
"""Requests of a batch, at most: one for each executor, here the driver's process alone, and four."""

UNWANTED = ("LIST", "COPY")

MANY_PARTITIONS = 200
MOST_P50_OF_MANY = 0.25
"""Largest p50 as a share of the better store's, with so many partitions and a delay."""

PYTHON = "transformWithState in Python"
FAST_PYTHON = f"{PYTHON}, worker_daemon, Unix domain sockets"
QUERIES: dict[str, tuple[queries.Build, str]] = {
    "windowed count": (queries.windowed_count, "update"),
    "dedup": (queries.deduplication, "append"),
    "stream-stream join": (queries.join, "append"),
    PYTHON: (queries.transform_with_state, "update"),
    FAST_PYTHON: (queries.transform_with_state, "update"),
}

CONFS: dict[str, Mapping[str, str]] = {
    FAST_PYTHON: {
        "spark.python.daemon.module": "spark_statestore.worker_daemon",
        "spark.python.unix.domain.socket.enabled": "true",
    }
}
"""Settings of the session of a query, on all stores, beside those of every session."""


@dataclass(frozen=True)
class Size:
    """Amount of work."""

    queries: tuple[str, ...] = tuple(QUERIES)
    plans: Mapping[int, Plan] = field(default_factory=lambda: {8: Plan(2, 10), 200: Plan(2, 2)})
    """Numbers of batches by shuffle partitions.

    With ten a store compacts the source's log, and makes snapshots, once.
    """
    delays: tuple[int, ...] = (0, 30)
    """Milliseconds for which each request is held back."""
    fill: int = 20_000
    """Events that fill the state; a fifth with Python code for each row, as of `rows`."""
    rows: int = 5_000
    """Events in a batch."""


FULL = Size()
QUICK = Size(queries=("windowed count", "stream-stream join"), plans={8: Plan(2, 10)})


@dataclass(frozen=True)
class Row:
    """Measurements of one query with a number of partitions and a delay in milliseconds, by store."""

    name: str
    partitions: int
    batches: Batches
    requests: dict[str, list[Request]]
    delay: int = 0

    def number(self, store: str) -> int:
        """Return the number of measured batches of a store, with those without data."""
        return sum(batch.batches for batch in self.batches[store])

    def per_batch(self, store: str) -> dict[str, float]:
        """Return the requests of a store by kind, of one batch."""
        counted = by_kind(self.requests[store])
        return {kind: counted[kind] / self.number(store) for kind in KINDS}

    def bytes_per_batch(self, store: str) -> float:
        """Return the bytes that a store sent and received, of one batch."""
        return sum(request.size for request in self.requests[store]) / self.number(store)


def run(scratch: Path, quick: bool) -> Result:
    """Run every query on all stores, without and with the delay."""
    size = QUICK if quick else FULL
    rows: list[Row] = []
    with minio() as service, relaying(service.endpoint) as relay, tracing(service) as trace:
        for delay in size.delays:
            rows += measure(scratch / f"{delay}", size, service, trace, relay, delay)
    return Result("\n\n".join([about(size), *map(table_of, rows)]), judge(rows))


def measure(scratch: Path, size: Size, service: Service, trace: Trace, relay: Relay, delay: int) -> list[Row]:
    """Measure every query with one delay."""
    rows = []
    endpoint = relay.url if delay else service.endpoint
    for number, names in enumerate(by_session(size.queries)):
        settings = stores.session_settings(service, endpoint, CONFS.get(names[0], {}))
        taking_part = {name for query in names for name in stores_of(query)}
        settings = {name: own for name, own in settings.items() if name in taking_part}
        directory = scratch / f"{number}"
        with session_processes(directory / "sessions", settings) as processes:
            for name, process in processes.items():
                process.run(stores.require_isolation, name)
            for partitions, plan in size.plans.items():
                for query in names:
                    buckets = {name: service.new_container().partition("://")[2] for name in stores_of(query)}
                    comparison = comparison_of(size, query, partitions, delay, buckets)
                    # Warming up with a delay would take longer than the measurement.
                    warmed = partial(relay.delay, delay)
                    rows.append(traced(processes, directory, comparison, plan, trace, buckets, delay, warmed))
                    relay.delay(0)
                    log(table_of(rows[-1]))
    return rows


def by_session(names: tuple[str, ...]) -> list[list[str]]:
    """Return the queries of each session: those of `CONFS` have one of their own."""
    shared = [name for name in names if name not in CONFS]
    return [part for part in (shared, *([name] for name in names if name in CONFS)) if part]


def stores_of(query: str) -> tuple[str, ...]:
    """Return the stores that support a query."""
    # HDFSBacked supports no column families, which transformWithState needs.
    return tuple(name for name in stores.STORES if name != HDFS or not query.startswith(PYTHON))


def traced(
    processes: Mapping[str, SessionProcess],
    directory: Path,
    comparison: Comparison,
    plan: Plan,
    trace: Trace,
    buckets: Mapping[str, str],
    delay: int = 0,
    warmed: Callable[[], None] = lambda: None,
) -> Row:
    """Compare the stores; return the batches that count, and each store's requests to its bucket."""
    begin = 0

    def begin_measurement() -> None:
        nonlocal begin
        warmed()
        begin = trace.mark()

    with running(processes, directory, comparison) as queries:
        batches = run_in_turns(directory, comparison, queries, plan, begin_measurement)
        trace.mark()
        all_requests = trace.since(begin)
    requests = {
        name: [request for request in all_requests if request.bucket == buckets[name]] for name in batches
    }
    return Row(comparison.name, comparison.partitions, batches, requests, delay)


def comparison_of(
    size: Size, query: str, partitions: int, delay: int, buckets: Mapping[str, str]
) -> Comparison:
    """Return a query on the stores that support it."""
    build, mode = QUERIES[query]
    divisor = 5 if query.startswith(PYTHON) else 1
    table = partial(input_table, size.fill // divisor, size.rows // divisor)
    configs = stores.store_configs(buckets, is_join=build is queries.join)
    name = f"{query}, {partitions} partitions, {delay} ms"
    return Comparison(name, build, table, configs, mode, partitions)


def judge(rows: list[Row]) -> list[Criterion]:
    """Require each row to beat both stores, by far with many partitions and a delay, with few requests."""
    criteria = []
    for row in rows:
        name = f"S3, {row.name}"
        rivals = [store for store in row.batches if store not in stores.WITH_BACKEND]
        most_p50 = MOST_P50_OF_MANY if row.delay and row.partitions >= MANY_PARTITIONS else 1
        for percent, figure, most in ((50, p50, most_p50), (99, p99, 1)):
            rival = best(row.batches, figure, rivals)
            times = figure(row.batches[OURS]), most, "ms", figure(row.batches[rival]), rival
            criteria.append(Criterion(f"{name}: p{percent}", *times))
        requests = {store: sum(row.per_batch(store).values()) for store in row.batches}
        sizes = {store: row.bytes_per_batch(store) for store in row.batches}
        for quantity, unit, measured in (("requests", "", requests), ("bytes", "bytes", sizes)):
            rival = better(measured, rivals)
            criteria.append(Criterion(f"{name}: {quantity}", measured[OURS], 1, unit, measured[rival], rival))
        criteria += few_requests(row, MOST_REQUESTS)
    return criteria


def few_requests(row: Row, most: int) -> list[Criterion]:
    """Require few requests, whatever the number of partitions, and none that lists or copies."""
    requests = row.per_batch(OURS)
    return [
        Criterion(f"S3, {row.name}: requests, absolute", sum(requests.values()), most),
        Criterion(f"S3, {row.name}: LIST and COPY", sum(requests[kind] for kind in UNWANTED), 0),
    ]


def about(size: Size) -> str:
    """Describe the measurement."""
    plans = size.plans.values()
    return (
        "Each store has its whole checkpoint in a bucket of its own of one MinIO on this machine, and a JVM "
        "of its own with "
        f"8 task threads: ours, with both modes of the option `commit`, and the store that *{LIMIT}*, a map "
        "in memory, without "
        'hadoop-aws (`spark_files="backend"`), Spark\'s own through s3a of hadoop-aws with '
        f"`AbortableStreamBasedCheckpointFileManager` ({stores.CLOUD}), uploads buffered in memory, and no "
        "wait before an upload "
        "(`fs.s3a.connection.expect.continue=false`). With a delay, a relay holds back for so long what "
        "clients send. "
        f"{' or '.join(str(plan.batches) for plan in plans)} batches of {size.rows:,} Nexmark events "
        "(Python: a fifth), with "
        f"{' or '.join(map(str, size.plans))} partitions, after one of {size.fill:,} and "
        f"{next(iter(plans)).warmup} to warm up without "
        "delay and all stores at once; batch by batch in turn, in changing order. Two batches are retained, "
        "so "
        "that old files are removed in each. No maintenance, and no batches without data. The join has state "
        "format 4, on HDFSBacked and "
        "the map 2. Times in milliseconds from trigger to trigger; of few batches, p99 is the longest. "
        "Requests and bytes (both ways, with "
        "headers) are of one batch, from MinIO's own trace; a DELETE may name many objects."
    )


def table_of(row: Row) -> str:
    """Return the table of a row."""
    header = ["store", "batches", "p50", "p99", "p50 to ours", *REQUESTS]
    lines = []
    for store, batches in row.batches.items():
        times = figures(p50(batches), p99(batches), p50(batches) / p50(row.batches[OURS]))
        lines.append([store, str(row.number(store)), *times, *request_cells(row, store)])
    return report.table(row.name, header, lines)


REQUESTS = ("requests", *KINDS, "bytes")


def request_cells(row: Row, store: str) -> list[str]:
    """Return the cells of `REQUESTS`."""
    counted = row.per_batch(store)
    kinds = (f"{counted[kind]:.1f}" if counted[kind] else "" for kind in KINDS)
    return [f"{sum(counted.values()):.1f}", *kinds, f"{row.bytes_per_batch(store):,.0f}"]

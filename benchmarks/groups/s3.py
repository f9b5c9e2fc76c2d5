"""Whole queries with the whole checkpoint on S3: batch times, requests and bytes, by partitions and delay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from benchmarks import race, race_apart, report, session
from benchmarks.contest import HDFS, LIMIT, OURS
from benchmarks.groups.python_workers import DAEMONS, UNIX
from benchmarks.groups.queries import nexmark_table, p50, p99
from benchmarks.nexmark import queries
from benchmarks.race import Laps, Race
from benchmarks.report import figures
from benchmarks.result import Criterion, Result
from benchmarks.s3 import stores
from benchmarks.s3.relay import Relay, relaying
from benchmarks.s3.requests import KINDS, Request, Trace, by_kind, tracing
from tests.support.services import Service, minio

MOST_REQUESTS = 1 + 4
"""Requests of a batch, at most: one for each executor, here the driver's process alone, and four."""

UNWANTED = ("LIST", "COPY")

MANY_PARTITIONS = 200
MOST_P50_OF_MANY = 0.25
"""Largest p50 as a share of the better store's, with so many partitions and a delay."""

PYTHON = "transformWithState in Python"
QUERIES: dict[str, tuple[queries.Build, str]] = {
    "windowed count": (queries.windowed_count, "update"),
    "dedup": (queries.deduplication, "append"),
    "stream-stream join": (queries.join, "append"),
    PYTHON: (queries.transform_with_state, "update"),
    f"{PYTHON}, {UNIX}": (queries.transform_with_state, "update"),
}

CONFS: dict[str, Mapping[str, str]] = {f"{PYTHON}, {UNIX}": DAEMONS[UNIX]}
"""Settings of the session of a query, on all stores, beside those of every session."""


@dataclass(frozen=True)
class Plan:
    """Amount of work.

    Parameters
    ----------
    queries
        Names of `QUERIES`.
    partitions
        Numbers of shuffle partitions.
    delays
        Milliseconds for which each request is held back.
    fill, rows
        Number of events that fill the state, and of a batch; a fifth of them with Python code for each row.
    warmup
        Number of warm-up batches.
    batches
        Number of measured batches, for each of `partitions`: ten if a store is to compact the source's log, and
        to make a snapshot of each partition, once.
    """

    queries: tuple[str, ...] = tuple(QUERIES)
    partitions: tuple[int, ...] = (8, 200)
    delays: tuple[int, ...] = (0, 30)
    fill: int = 20_000
    rows: int = 5_000
    warmup: int = 2
    batches: tuple[int, ...] = (10, 2)


FULL = Plan()
QUICK = Plan(queries=("windowed count", "stream-stream join"), partitions=(8,), batches=(10,))


@dataclass(frozen=True)
class Row:
    """Measurements of one query with a number of partitions and a delay in milliseconds, by store."""

    name: str
    partitions: int
    laps: Laps
    requests: dict[str, list[Request]]
    delay: int = 0

    def batches(self, store: str) -> int:
        """Return the number of measured batches of a store, with those without data."""
        return sum(lap.batches for lap in self.laps[store])

    def per_batch(self, store: str) -> dict[str, float]:
        """Return the requests of a store by kind, of one batch."""
        counted = by_kind(self.requests[store])
        return {kind: counted[kind] / self.batches(store) for kind in KINDS}

    def bytes_per_batch(self, store: str) -> float:
        """Return the bytes that a store sent and received, of one batch."""
        return sum(r.received + r.sent for r in self.requests[store]) / self.batches(store)


def run(scratch: Path, quick: bool) -> Result:
    """Run every query on all stores, without and with the delay."""
    plan = QUICK if quick else FULL
    rows: list[Row] = []
    with minio() as service, relaying(service.endpoint) as relay:
        keys = (service.environment[f"AWS_{name}"] for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"))
        with tracing(service.endpoint, *keys) as trace:
            for delay in plan.delays:
                rows += measure(scratch / f"{delay}", plan, service, trace, relay, delay)
    return Result("s3", tables(rows, plan), criteria(rows), {"plan": asdict(plan), "rows": _samples(rows)})


def measure(scratch: Path, plan: Plan, service: Service, trace: Trace, relay: Relay, delay: int) -> list[Row]:
    """Measure every query with one delay."""
    rows = []
    endpoint = relay.url if delay else service.endpoint
    for session_number, names in enumerate(by_session(plan.queries)):
        taking_part = {name for query in names for name in stores_of(query)}
        hosts_of = stores.hosts(service, endpoint, CONFS.get(names[0], {}))
        apart = {name: host for name, host in hosts_of.items() if name in taking_part}
        own = scratch / f"session-{session_number}"
        with race_apart.hosting(own / "hosts", apart) as hosts:
            for name in apart:
                hosts.ask(name, stores.require_isolation, name)
            for partitions, batches in zip(plan.partitions, plan.batches, strict=True):
                directory = own / f"{partitions}"
                directory.mkdir()
                for query in names:
                    buckets = {name: service.new_container().partition("://")[2] for name in stores_of(query)}
                    entered = entered_race(plan, query, partitions, delay, buckets)
                    # Warming up with a delay would take longer than the measurement.
                    relay.delay(0)
                    laps, requests = race_traced(
                        hosts,
                        directory,
                        entered,
                        (plan.warmup, batches),
                        trace,
                        buckets,
                        warmed=partial(relay.delay, delay),
                    )
                    relay.delay(0)
                    rows.append(Row(entered.name, partitions, laps, requests, delay))
                    session.log(_table_of(rows[-1]))
    return rows


def by_session(names: tuple[str, ...]) -> list[list[str]]:
    """Return the queries of each session: those of `CONFS` have one of their own."""
    shared = [name for name in names if name not in CONFS]
    return [part for part in (shared, *([name] for name in names if name in CONFS)) if part]


def stores_of(query: str) -> tuple[str, ...]:
    """Return the stores that support a query."""
    # HDFSBacked supports no column families, which transformWithState needs.
    return tuple(name for name in stores.STORES if name != HDFS or not query.startswith(PYTHON))


def race_traced(
    hosts: race_apart.Hosts,
    directory: Path,
    entered: Race,
    batches: tuple[int, int],
    trace: Trace,
    buckets: Mapping[str, str],
    warmed: Callable[[], object] = lambda: None,
) -> tuple[Laps, dict[str, list[Request]]]:
    """Run a race; return its measured batches, and the requests that each store made in them to its bucket.

    Parameters
    ----------
    batches
        Number of warm-up batches, and of measured ones.
    warmed
        Called once all are warmed up.
    """
    begin = 0

    def begin_measurement() -> None:
        nonlocal begin
        warmed()
        begin = trace.mark()

    with race_apart.queries(hosts, directory, entered) as running:
        laps = race.take_turns(
            directory,
            entered,
            running,
            *batches,
            session.log,
            warm_up_together=True,
            warmed=begin_measurement,
        )
        trace.mark()
        seen = trace.since(begin)
    return laps, {name: [request for request in seen if request.bucket == buckets[name]] for name in laps}


def entered_race(plan: Plan, query: str, partitions: int, delay: int, buckets: dict[str, str]) -> Race:
    """Return the race of a query, between the stores that support it."""
    build, mode = QUERIES[query]
    divisor = 5 if query.startswith(PYTHON) else 1
    return Race(
        f"{query}, {partitions} partitions, {delay} ms",
        build,
        partial(nexmark_table, plan.fill // divisor, plan.rows // divisor),
        stores.entrants(buckets, is_join=build is queries.join),
        mode,
        {"spark.sql.shuffle.partitions": str(partitions)},
    )


def criteria(rows: list[Row]) -> list[Criterion]:
    """Require each row to beat both stores, by far with many partitions and a delay, with few requests."""
    judged = []
    for row in rows:
        rivals = [store for store in row.laps if store not in stores.WITH_BACKEND]
        most_p50 = MOST_P50_OF_MANY if row.delay and row.partitions >= MANY_PARTITIONS else 1
        for percent, of, most in ((50, p50, most_p50), (99, p99, 1)):
            best = min(rivals, key=lambda store: of(row.laps[store]))
            judged.append(
                Criterion(
                    f"S3, {row.name}: p{percent}", of(row.laps[OURS]), most, "ms", of(row.laps[best]), best
                )
            )
        requests = {store: sum(row.per_batch(store).values()) for store in row.laps}
        best = min(rivals, key=requests.__getitem__)
        judged.append(Criterion(f"S3, {row.name}: requests", requests[OURS], 1, "", requests[best], best))
        judged.append(Criterion(f"S3, {row.name}: requests, absolute", requests[OURS], MOST_REQUESTS))
        best = min(rivals, key=row.bytes_per_batch)
        judged.append(
            Criterion(
                f"S3, {row.name}: bytes",
                row.bytes_per_batch(OURS),
                1,
                "bytes",
                row.bytes_per_batch(best),
                best,
            )
        )
        unwanted = sum(row.per_batch(OURS)[kind] for kind in UNWANTED)
        judged.append(Criterion(f"S3, {row.name}: LIST and COPY", unwanted, 0))
    return judged


def tables(rows: list[Row], plan: Plan) -> str:
    """Return a table for each query, number of partitions and delay."""
    about = (
        "Each store has its whole checkpoint in a bucket of its own of one MinIO on this machine, and a JVM of its own with "
        f"8 task threads: ours, with both modes of the option `commit`, and the store that *{LIMIT}*, a map in memory, without "
        'hadoop-aws (`spark_files="backend"`), Spark\'s own through s3a of hadoop-aws with '
        f"`AbortableStreamBasedCheckpointFileManager` ({stores.CLOUD}), uploads buffered in memory, and no wait before an upload "
        "(`fs.s3a.connection.expect.continue=false`). With a delay, a relay holds back for so long what clients send. "
        f"{' or '.join(map(str, plan.batches))} batches of {plan.rows:,} Nexmark events (Python: a fifth), with "
        f"{' or '.join(map(str, plan.partitions))} partitions, after one of {plan.fill:,} and {plan.warmup} to warm up without "
        "delay and all stores at once; batch by batch in turn, in changing order. Two batches are retained, so "
        "that old files are removed in each. No maintenance, and no batches without data. The join has state format 4, on HDFSBacked and the map 2. Times in milliseconds from "
        "trigger to trigger; of few batches, p99 is the longest. Requests and bytes (both ways, with headers) are of one batch, "
        "from MinIO's own trace; a DELETE may name many objects."
    )
    return "\n\n".join([about, *(_table_of(row) for row in rows)])


def _table_of(row: Row) -> str:
    header = ["store", "batches", "p50", "p99", "p50 to ours", "requests", *KINDS, "bytes"]
    lines = []
    for store, laps in row.laps.items():
        counted = row.per_batch(store)
        ratio = p50(laps) / p50(row.laps[OURS])
        lines.append(
            [
                store,
                str(row.batches(store)),
                *figures(p50(laps), p99(laps), ratio),
                f"{sum(counted.values()):.1f}",
                *(f"{counted[kind]:.1f}" if counted[kind] else "" for kind in KINDS),
                f"{row.bytes_per_batch(store):,.0f}",
            ]
        )
    return report.table(row.name, header, lines)


def _samples(rows: list[Row]) -> list[dict[str, object]]:
    return [
        {
            "name": row.name,
            "stores": {
                store: {
                    "milliseconds": [lap.milliseconds for lap in laps],
                    "batches": row.batches(store),
                    "requests": dict(Counter(request.name for request in row.requests[store])),
                    "bytes": row.bytes_per_batch(store),
                }
                for store, laps in row.laps.items()
            },
        }
        for row in rows
    ]

"""Requests of a batch with the whole checkpoint on S3, by the number of partitions: one process, and a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from benchmarks import race_apart, report, session
from benchmarks.contest import OURS
from benchmarks.groups.queries import nexmark_table
from benchmarks.groups.s3 import QUERIES, UNWANTED, Row, race_traced
from benchmarks.race import Race
from benchmarks.race_apart import Host
from benchmarks.result import Criterion, Result
from benchmarks.s3 import stores
from benchmarks.s3.requests import KINDS, Trace, tracing
from tests.spark.counting import cluster_environment
from tests.support.services import Service, minio

V2 = "sql__streaming__stateStore__checkpointFormatVersion"


@dataclass(frozen=True, eq=False)
class Master:
    """Where tasks run.

    Parameters
    ----------
    name
        Name in the report.
    url
        For ``spark.master``.
    executors
        Number of executors.
    confs
        Further settings below ``spark.``.
    """

    name: str
    url: str
    executors: int
    confs: Mapping[str, str]


MASTERS = (
    Master("one process", "local[8]", 1, {}),
    # Executors hand their commits over in checkpoint format v2.
    Master("cluster", "local-cluster[2,4,1024]", 2, {V2: "2"}),
)

MOST_BESIDES_EXECUTORS = 4
"""Requests of a batch, at most, beside one for each executor."""


@dataclass(frozen=True)
class Plan:
    """Amount of work.

    Parameters
    ----------
    queries
        Names of `benchmarks.groups.s3.QUERIES`.
    partitions
        Numbers of shuffle partitions.
    fill, rows
        Number of events that fill the state, and of a batch.
    warmup, batches
        Number of warm-up batches, and of measured ones.
    """

    queries: tuple[str, ...] = ("windowed count", "dedup")
    partitions: tuple[int, ...] = (8, 200, 1_000)
    fill: int = 20_000
    rows: int = 5_000
    warmup: int = 2
    batches: int = 5


FULL = Plan()
QUICK = Plan(queries=("dedup",), partitions=(8,), batches=2)


def run(scratch: Path, quick: bool) -> Result:
    """Run every query with every number of partitions."""
    plan = QUICK if quick else FULL
    rows: dict[Master, list[Row]] = {}
    with minio() as service:
        keys = (service.environment[f"AWS_{name}"] for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"))
        with tracing(service.endpoint, *keys) as trace:
            for number, master in enumerate(MASTERS):
                rows[master] = measure(scratch / f"{number}", plan, master, service, trace)
    judged = [judged for master, found in rows.items() for row in found for judged in criteria(master, row)]
    return Result("s3_requests", table_of(rows), judged, {"plan": asdict(plan)})


def measure(scratch: Path, plan: Plan, master: Master, service: Service, trace: Trace) -> list[Row]:
    """Measure the queries on one master."""
    reached = {"FSSPEC_S3_ENDPOINT_URL": service.endpoint}
    environment = {**service.environment, **reached, **cluster_environment(scratch)}
    confs = {**stores.SHARED, "master": master.url, **master.confs}
    host = Host(memory="1g", spark_files="backend", confs=confs, environment=environment)
    rows = []
    with race_apart.hosting(scratch / "hosts", {OURS: host}) as hosts:
        for partitions in plan.partitions:
            for query in plan.queries:
                bucket = service.new_container().partition("://")[2]
                build, mode = QUERIES[query]
                entered = Race(
                    f"{query}, {partitions} partitions, {master.name}",
                    build,
                    partial(nexmark_table, plan.fill, plan.rows),
                    stores.entrants({OURS: bucket}, is_join=False),
                    mode,
                    {"spark.sql.shuffle.partitions": str(partitions)},
                )
                directory = scratch / f"{partitions}"
                directory.mkdir(exist_ok=True)
                laps, requests = race_traced(
                    hosts, directory, entered, (plan.warmup, plan.batches), trace, {OURS: bucket}
                )
                rows.append(Row(entered.name, partitions, laps, requests))
                session.log(f"{entered.name}: {sum(rows[-1].per_batch(OURS).values()):.1f} requests a batch")
    return rows


def criteria(master: Master, row: Row) -> list[Criterion]:
    """Require few requests, whatever the number of partitions, and none that lists or copies."""
    requests = row.per_batch(OURS)
    most = master.executors + MOST_BESIDES_EXECUTORS
    return [
        Criterion(f"S3, {row.name}: requests, absolute", sum(requests.values()), most),
        Criterion(f"S3, {row.name}: LIST and COPY", sum(requests[kind] for kind in UNWANTED), 0),
    ]


def table_of(rows: Mapping[Master, list[Row]]) -> str:
    """Return one table of all rows."""
    header = ["query", "executors", "requests", *KINDS, "bytes"]
    lines = []
    for master, found in rows.items():
        for row in found:
            counted = row.per_batch(OURS)
            lines.append(
                [
                    row.name,
                    str(master.executors),
                    f"{sum(counted.values()):.1f}",
                    *(f"{counted[kind]:.1f}" if counted[kind] else "" for kind in KINDS),
                    f"{row.bytes_per_batch(OURS):,.0f}",
                ]
            )
    return report.table("requests of a batch", header, lines)

"""Requests of a batch with the whole checkpoint on S3, by the number of partitions.

Measured in one process, and on a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks import report
from benchmarks.groups import s3_queries
from benchmarks.groups.s3_queries import Row, Size
from benchmarks.report import Criterion, Result
from benchmarks.s3 import stores
from benchmarks.s3.requests import Trace, tracing
from benchmarks.sessions import SessionSettings, log, session_processes
from benchmarks.stores import OURS
from benchmarks.streaming import Plan
from tests.spark.counting import cluster_environment
from tests.support.services import Service, minio

ABOUT = """This store alone, as in `s3_queries`, without a delay: with tasks in the driver's process, and on a
cluster of two executors (`local-cluster`), which hand their commits over to the driver."""

MASTERS: dict[str, tuple[int, dict[str, str]]] = {
    "one process": (1, {"spark.master": "local[8]"}),
    # Executors hand their commits over in checkpoint format v2.
    "cluster": (2, {"spark.master": "local-cluster[2,4,1024]"}),
}
"""Number of executors, and settings of the session."""

MOST_BESIDES_EXECUTORS = 4
"""Requests of a batch, at most, beside one for each executor."""

FULL = Size(("windowed count", "dedup"), dict.fromkeys((8, 200, 1_000), Plan(2, 5)), delays=(0,))
QUICK = replace(FULL, queries=("dedup",), plans={8: Plan(2, 2)})


def run(scratch: Path, quick: bool) -> Result:
    """Run every query with every number of partitions."""
    size = QUICK if quick else FULL
    rows: dict[str, list[Row]] = {}
    with minio() as service, tracing(service) as trace:
        for number, master in enumerate(MASTERS):
            rows[master] = measure(scratch / f"{number}", size, master, service, trace)
    return Result(f"{ABOUT}\n\n{table_of(rows)}", judge(rows))


def measure(scratch: Path, size: Size, master: str, service: Service, trace: Trace) -> list[Row]:
    """Measure the queries on one master."""
    reached = {"FSSPEC_S3_ENDPOINT_URL": service.endpoint}
    environment = {**service.environment, **reached, **cluster_environment(scratch)}
    settings = SessionSettings("1g", "backend", stores.SHARED | MASTERS[master][1], environment=environment)
    rows = []
    with session_processes(scratch / "sessions", {OURS: settings}) as processes:
        for partitions, plan in size.plans.items():
            for query in size.queries:
                bucket = service.new_container().partition("://")[2]
                comparison = s3_queries.comparison_of(size, query, partitions, 0, {OURS: bucket})
                comparison = replace(comparison, name=f"{query}, {partitions} partitions, {master}")
                rows.append(s3_queries.traced(processes, scratch, comparison, plan, trace, {OURS: bucket}))
                log(f"{comparison.name}: {sum(rows[-1].per_batch(OURS).values()):.1f} requests a batch")
    return rows


def judge(rows: Mapping[str, list[Row]]) -> list[Criterion]:
    """Require few requests of each row."""
    criteria = []
    for master, measured in rows.items():
        for row in measured:
            criteria += s3_queries.few_requests(row, MASTERS[master][0] + MOST_BESIDES_EXECUTORS)
    return criteria


def table_of(rows: Mapping[str, list[Row]]) -> str:
    """Return one table of all rows."""
    lines = [
        [row.name, str(MASTERS[master][0]), *s3_queries.request_cells(row, OURS)]
        for master, measured in rows.items()
        for row in measured
    ]
    return report.table("Requests of a batch", ["query", "executors", *s3_queries.REQUESTS], lines)

"""The cost of looking: a query with 200 partitions with Spark's UI, the tab "State" and metrics, and without them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import spark_statestore
from benchmarks import race_apart, report, session
from benchmarks.groups.limit import Work, count_by_key
from benchmarks.groups.operators import visits
from benchmarks.groups.queries import p50, samples
from benchmarks.race import Entrant, Laps, Race
from benchmarks.race_apart import CONFS, Host
from benchmarks.report import figures
from benchmarks.result import Criterion, Result

OBSERVED, UNOBSERVED = "observed", "unobserved"

MOST = 1.02
"""Largest p50 of the observed query as a share of the other's."""

_SERVLET = "metrics__conf__*__sink__prometheusServlet__"

HOSTS = {
    OBSERVED: Host(
        spark_files="backend",
        confs=CONFS
        | {
            "ui__enabled": "true",
            "ui__port": "0",
            "plugins": spark_statestore.PLUGIN_CLASS,
            f"{_SERVLET}class": "org.apache.spark.metrics.sink.PrometheusServlet",
            f"{_SERVLET}path": "/metrics/prometheus",
        },
    ),
    UNOBSERVED: Host(spark_files="backend", confs=CONFS),
}

ABOUT = """A count by key of {rows:,} events a batch over {keys:,} keys in {partitions} partitions, in this store, on two sessions in turn, each
with its own JVM. One has Spark's UI with the tab "State", the plugin, and its metrics in Spark's Prometheus servlet; the other has none of
them. So Spark's own part of both is in the difference. Times in milliseconds, from trigger to trigger; processor time of the JVM, its
workers and the backend."""


FULL = Work(200, 10_000, 340_000, warmup=10, least=60, batches=60)
QUICK = Work(8, 100, 1_000, warmup=0, least=2, batches=2)


def run(scratch: Path, quick: bool) -> Result:
    """Run the query in both sessions."""
    work = QUICK if quick else FULL
    entered = Race(
        work.name,
        count_by_key,
        visits(work.keys, work.rows),
        tuple(Entrant(name, spark_statestore.PROVIDER_CLASS) for name in HOSTS),
        "update",
        {"spark.sql.shuffle.partitions": str(work.partitions)},
    )
    with race_apart.hosting(scratch / "hosts", HOSTS) as hosts:
        laps = race_apart.run(
            hosts, scratch, entered, work.warmup, work.batches, session.log, least=work.least
        )
    bound = Criterion("observation: p50", p50(laps[OBSERVED]), MOST, "ms", p50(laps[UNOBSERVED]), UNOBSERVED)
    kept = samples(laps)
    return Result("observation", table_of(work, laps), [bound], {"plan": asdict(work), "queries": kept})


def table_of(work: Work, laps: Laps) -> str:
    """Return the table of both sessions."""
    rows = [
        [
            name,
            str(len(of)),
            *figures(p50(of), report.median([lap.cpu for lap in of])),
            f"{p50(of) / p50(laps[UNOBSERVED]):.3f}",
        ]
        for name, of in laps.items()
    ]
    header = ["session", "batches", "p50", "processor", "p50 to the unobserved"]
    return f"{ABOUT.format(**asdict(work))}\n\n{report.table(work.name, header, rows)}"

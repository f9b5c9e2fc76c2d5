"""Scheduled jobs: a process that starts a session, runs a query on what is there, and ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

from benchmarks import report
from benchmarks.groups.limit import count_by_key, visits
from benchmarks.report import Criterion, Result, figures, median
from benchmarks.sessions import log
from benchmarks.stores import CHANGELOG, HDFS, LIMIT, OURS, PREFIX, UNFORKED_FILES, UNFORKED_RIVALS, turns
from benchmarks.streaming import config_of, processor_times
from tests.support.paths import ROOT, TEST_JAR
from tests.support.sessions import local_builder

RIVALS = (HDFS, CHANGELOG, *UNFORKED_RIVALS)
STORES = (OURS, LIMIT, *RIVALS)

MOST_TO_LIMIT = 1.15
"""Largest time of a query of 60 batches as a share of the limit's."""

ABOUT = """The count by key of the group `queries`, as a scheduled job: a new Python process starts a session
with a heap of 1 GiB, PySpark's default, runs the query with `availableNow` over so many files, a batch each,
stops the session and ends. Then a second process continues from the checkpoint with as many files. Stores
take turns. Spark's run as PySpark comes, without this package, or *unforked*. Seconds, medians; processor
time is that of all processes. No JVM is warm."""


@dataclass(frozen=True)
class Work:
    """The number of shuffle partitions, of events in a batch, of keys, of batches of a job, and of rounds."""

    partitions: int
    rows: int
    keys: int
    batches: int
    rounds: int = 3

    @property
    def name(self) -> str:
        return f"{self.batches} batches, {self.partitions} partitions, {self.rows:,} rows"


FULL = (
    *(Work(8, 1_000, 60_000, batches) for batches in (6, 60)),
    *(Work(200, 10_000, 340_000, batches) for batches in (6, 60)),
    Work(8, 50_000, 950_000, 6),
)
QUICK = (Work(2, 100, 1_000, 2, rounds=1),)

JOBS = ("new", "restart")
FIGURES = ("process", "query", "processor")

Job = dict[str, float]
"""Figures of a job: seconds of the process, of the query, and of processors."""


def run(scratch: Path, quick: bool) -> Result:
    """Run every row on all stores."""
    tables, criteria = [ABOUT.replace("\n", " ")], []
    for number, work in enumerate(QUICK if quick else FULL):
        jobs = jobs_of(scratch / f"{number}", work)
        tables.append(table_of(work, jobs))
        criteria += judge(work, jobs)
    return Result("\n\n".join(tables), criteria)


def jobs_of(scratch: Path, work: Work) -> dict[tuple[str, str], list[Job]]:
    """Return the jobs of a row by store and kind."""
    jobs: dict[tuple[str, str], list[Job]] = {(store, kind): [] for store in STORES for kind in JOBS}
    for round_, _, order in turns(dict.fromkeys(STORES), work.rounds):
        for store in order:
            root = scratch / f"{round_}-{STORES.index(store)}"
            (root / "input").mkdir(parents=True)
            # The limit's has nothing to continue from.
            for job, kind in enumerate(JOBS[:1] if store == LIMIT else JOBS):
                for number in range(job * work.batches, (job + 1) * work.batches):
                    pq.write_table(visits(work.keys, work.rows)(number), root / f"input/{number:03}.parquet")
                jobs[store, kind].append(start(store, root, work))
        log(f"{work.name}: round {round_ + 1} of {work.rounds}")
    return jobs


def start(store: str, root: Path, work: Work) -> Job:
    """Run one job in a process of its own."""
    parameters = {"store": store, "root": str(root), "partitions": work.partitions, "batches": work.batches}
    began = time.monotonic()
    return run_job(__name__, parameters) | {"process": time.monotonic() - began}


def run_job(module: str, parameters: dict[str, Any]) -> Job:
    """Run a module as a job in a process of its own, and return the figures that it prints."""
    command = [sys.executable, "-m", module, json.dumps(parameters)]
    process = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    job: Job = json.loads(process.stdout.splitlines()[-1])
    return job


def seconds(jobs: list[Job], figure: str) -> float:
    """Return the median of a figure."""
    return median([job[figure] for job in jobs])


def judge(work: Work, jobs: dict[tuple[str, str], list[Job]]) -> list[Criterion]:
    """Require jobs to take no longer than with the better of Spark's stores, as they come and unforked."""
    criteria = []
    for kind in JOBS:
        for names, about in (((HDFS, CHANGELOG), "as they come"), (UNFORKED_RIVALS, "unforked")):
            rival = min(names, key=lambda name: seconds(jobs[name, kind], "process"))
            own_seconds, rival_seconds = (
                seconds(jobs[OURS, kind], "process"),
                seconds(jobs[rival, kind], "process"),
            )
            criteria.append(
                Criterion(f"{kind} job, {work.name}, {about}", own_seconds, 1, "s", rival_seconds, rival)
            )
        if work.batches >= 60 and jobs[LIMIT, kind]:
            own_seconds, limit = seconds(jobs[OURS, kind], "query"), seconds(jobs[LIMIT, kind], "query")
            name = f"{kind} job, {work.name}: query to the limit"
            criteria.append(Criterion(name, own_seconds, MOST_TO_LIMIT, "s", limit, LIMIT))
    return criteria


def table_of(work: Work, jobs: dict[tuple[str, str], list[Job]]) -> str:
    """Return the table of a row."""
    columns = [(kind, figure) for kind in JOBS for figure in FIGURES]
    header = ["store", *(f"{kind}: {figure}" for kind, figure in columns)]
    rows = [
        [store, *figures(*(seconds(jobs[store, kind], figure) for kind, figure in columns))]
        for store in STORES
    ]
    return report.table(work.name, header, rows)


def session(store: str, root: Path, partitions: int, memory: str = "1g") -> Any:
    """Return the session of a job: as its user starts it, with a store for its queries."""
    import spark_statestore

    builder = local_builder("job", memory=memory, with_hadoop_defaults=True).config(
        "spark.local.dir", str(root / "local")
    )
    if store in UNFORKED_RIVALS or store == LIMIT:
        builder.config("spark.jars", str(TEST_JAR))
    if store in (OURS, LIMIT):
        spark_statestore.configure(builder)
    spark = builder.getOrCreate()
    if store in UNFORKED_RIVALS:
        for key, value in UNFORKED_FILES.items():
            spark.conf.set(key, value)
    spark.sparkContext.setLogLevel("ERROR")
    config = config_of(store)
    spark.conf.set("spark.sql.shuffle.partitions", partitions)
    spark.conf.set(f"{PREFIX}providerClass", config.provider)
    for key, value in config.settings.items():
        spark.conf.set(PREFIX + key, value)
    return spark


def processor_seconds() -> float:
    """Return the processor time of this process and those that it has started."""
    own = psutil.Process().cpu_times()
    seconds: float = own.user + own.system + sum(processor_times().values()) / 1000
    return seconds


def main() -> None:
    """Be a job."""
    parameters = json.loads(sys.argv[1])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    root = Path(parameters["root"])
    spark = session(parameters["store"], root, parameters["partitions"])
    began = time.monotonic()
    stream = spark.readStream.schema("k long, ts timestamp, v long").option("maxFilesPerTrigger", 1)
    query = (
        count_by_key(stream.parquet(str(root / "input")))
        .writeStream.outputMode("update")
        .option("checkpointLocation", str(root / "checkpoint"))
        .format("noop")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    query_seconds = time.monotonic() - began
    progress = [p for p in query.recentProgress if p["numInputRows"]]
    if len(progress) != parameters["batches"]:
        raise RuntimeError(f"{len(progress)} batches ran, and not {parameters['batches']}")
    processor = processor_seconds()
    spark.stop()
    print(json.dumps({"query": query_seconds, "processor": processor}), flush=True)


if __name__ == "__main__":
    main()

"""Nexmark, by its numbers, as jobs of a process each, and the restart of each job."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

from benchmarks import report
from benchmarks.groups.first_minutes import Job, run_job, session
from benchmarks.nexmark.events import FIRST_EVENT, SCHEMA, Generator
from benchmarks.nexmark.standard import QUERIES
from benchmarks.report import Criterion, Result, figures, median
from benchmarks.sessions import log
from benchmarks.stores import OURS, UNFORKED_RIVALS, turns
from benchmarks.streaming import observe_output

STORES = (OURS, *UNFORKED_RIVALS)
LARGE = 1_000_000
"""Rows of state from which on this store is to be ahead."""
MOST = 1.05

ABOUT = """Nexmark's queries, as `benchmarks/nexmark/standard.py` has them, over {events:,} events from
{files} Parquet files, a batch each: {rate:,} events in a second of event time, 92 in a hundred of them bids,
some late and some twice. A process starts a session with a heap of {memory}, {partitions} partitions and a
store, runs the query with `availableNow`, and ends; a second one goes on with one more file. Spark's stores
are unforked. Stores take turns in {rounds} rounds, of which medians follow, and in one round if the state
outgrows {large:,} rows. Number and hashes of the rows of the output are equal on all stores. *Processor* is
the time of all processes of the first job in seconds, *memory* their largest resident size together in MB,
*disk* the MB that they wrote to it, *restart* the seconds from the start of the second query to the end of
its batch."""


@dataclass(frozen=True)
class Work:
    """Number of events in a file and of files, events in a second, partitions, heap, and number of rounds."""

    rows: int = 100_000
    files: int = 20
    rate: int = 5_000
    partitions: int = 8
    memory: str = "6g"
    rounds: int = 5


FULL, QUICK = Work(), Work(rows=20_000, files=3, rate=100, partitions=2, memory="2g", rounds=1)

Jobs = tuple[Job, Job]
"""Figures of a query's first job, and of its restart."""


def run(scratch: Path, quick: bool) -> Result:
    """Run every query on each store."""
    work = QUICK if quick else FULL
    events = scratch / "events"
    events.mkdir()
    generator = Generator(rate=work.rate)
    for number in range(work.files + 1):
        table = generator.table(FIRST_EVENT + number * work.rows, work.rows)
        pq.write_table(table, events / f"{number:03}.parquet")
    about = ABOUT.format(events=work.rows * work.files, large=LARGE, **vars(work))
    tables, criteria = [about.replace("\n", " ")], []
    for name in chosen_queries():
        jobs = rounds_of(scratch, name, work)
        tables.append(table_of(name, jobs))
        criteria += judge(name, jobs)
    return Result("\n\n".join(tables), criteria)


def chosen_queries() -> list[str]:
    """Return the queries to run: all, or those that `NEXMARK_QUERIES` in the environment names."""
    chosen = os.environ.get("NEXMARK_QUERIES")
    return [name for name in QUERIES if chosen is None or name in chosen.split(",")]


def rounds_of(scratch: Path, query: str, work: Work) -> dict[str, Jobs]:
    """Return the medians of a query's jobs on each store."""
    rounds: dict[str, list[Jobs]] = {store: [] for store in STORES}
    for round_, _, order in turns(dict.fromkeys(STORES), work.rounds):
        for store in order:
            rounds[store].append(jobs_of(scratch / f"{round_}", query, store, work, scratch / "events"))
        answers = {
            (first["output"], first["hash"], last["hash"]) for jobs in rounds.values() for first, last in jobs
        }
        if len(answers) != 1:
            raise RuntimeError(f"{query}: the stores have other outputs: {rounds}")
        if rounds[OURS][0][0]["rows"] >= LARGE:
            break
    return {
        store: (medians([first for first, _ in jobs]), medians([last for _, last in jobs]))
        for store, jobs in rounds.items()
    }


def medians(jobs: list[Job]) -> Job:
    """Return the median of each figure."""
    return {figure: median([job[figure] for job in jobs]) for figure in jobs[0]}


def root_of(scratch: Path, query: str, store: str) -> Path:
    """Return the directory of a query's jobs on a store."""
    return scratch / f"{query}-{STORES.index(store)}"


def jobs_of(scratch: Path, query: str, store: str, work: Work, events: Path, module: str = __name__) -> Jobs:
    """Return the figures of a query's first job on a store, and of its restart with the last file of events.

    The jobs are of `module`, which gets their numbers, 0 and 1.
    """
    root = root_of(scratch, query, store)
    (root / "input").mkdir(parents=True)
    *files, last = sorted(events.iterdir())
    jobs = []
    for number, new_files in enumerate((files, [last])):
        for file in new_files:
            (root / "input" / file.name).hardlink_to(file)
        parameters = {"query": query, "store": store, "root": str(root), "job": number}
        jobs.append(run_job(module, parameters | vars(work)))
    first, restart = jobs
    log(
        f"{query}, {store}: {first['query']:.1f} s, processor {first['processor']:.1f} s, "
        f"restart {restart['query']:.1f} s"
    )
    return first, restart


def judge(name: str, jobs: dict[str, Jobs]) -> list[Criterion]:
    """Require less processor time and a shorter restart than the better of Spark's stores."""
    criteria = []
    most = 1.0 if jobs[OURS][0]["rows"] >= LARGE else MOST
    for job, figure, about in ((0, "processor", "processor time"), (1, "query", "restart")):
        rival = min(UNFORKED_RIVALS, key=lambda store: jobs[store][job][figure])
        own_seconds, rival_seconds = jobs[OURS][job][figure], jobs[rival][job][figure]
        criteria.append(Criterion(f"Nexmark {name}: {about}", own_seconds, most, "s", rival_seconds, rival))
    return criteria


def table_of(name: str, jobs: dict[str, Jobs]) -> str:
    """Return the table of a query."""
    columns = ("query", "processor", "memory", "disk")
    lines = [
        [store, *figures(*(first[figure] for figure in columns), last["query"])]
        for store, (first, last) in jobs.items()
    ]
    first, _ = jobs[OURS]
    title = f"{name}: {first['rows']:,.0f} rows of state at most, {first['output']:,.0f} of output"
    return report.table(title, ["store", *columns, "restart"], lines)


class ProcessWatch:
    """Watches the memory of a program and of all that it has started, together."""

    def __init__(self, program: psutil.Process) -> None:
        self._program = program
        self._most = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> Job:
        """Return the processor time in seconds, and the largest memory and what was written to disk in MB."""
        self._end.set()
        self._thread.join()
        return {
            "processor": self._sum(lambda process: sum(process.cpu_times()[:2])),
            "memory": self._most / 1e6,
            "disk": self._sum(lambda process: process.io_counters().write_bytes) / 1e6,
        }

    def _watch(self) -> None:
        while not self._end.wait(0.5):
            self._most = max(self._most, self._sum(lambda process: process.memory_info().rss))

    def _sum(self, figure: Callable[[psutil.Process], float]) -> float:
        total = 0.0
        with suppress(psutil.NoSuchProcess):
            for process in (self._program, *self._program.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    total += figure(process)
        return total


def run_query(parameters: dict[str, Any], source: Any, sink: Any) -> Job:
    """Run a query in a session of its own, and return the figures of this process.

    Parameters
    ----------
    source
        Returns the events, of a session's stream reader and the directory of the input.
    sink
        Takes the query's output, and returns a stream writer without a checkpoint.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    root = Path(parameters["root"])
    watch = ProcessWatch(psutil.Process())
    spark = session(parameters["store"], root, parameters["partitions"], parameters["memory"])
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", 1000)
    began = time.monotonic()
    events = source(spark.readStream.option("maxFilesPerTrigger", 1), str(root / "input"))
    output = QUERIES[parameters["query"]](events).transform(observe_output)
    checkpoint = str(root / "checkpoint")
    query = sink(output).option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    seconds = time.monotonic() - began
    progress = query.recentProgress
    outputs = [p["observedMetrics"]["output"] for p in progress]
    job = {
        "query": seconds,
        **watch.stop(),
        "rows": max(sum(operator["numRowsTotal"] for operator in p["stateOperators"]) for p in progress),
        "output": sum(output["rows"] for output in outputs),
        "hash": sum(output["hash"] or 0 for output in outputs),
    }
    spark.stop()
    return job


def main() -> None:
    """Be a job."""
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = from_arrow_schema(SCHEMA)
    job = run_query(
        json.loads(sys.argv[1]),
        lambda reader, directory: reader.schema(schema).parquet(directory),
        lambda output: output.writeStream.format("noop"),
    )
    print(json.dumps(job), flush=True)


if __name__ == "__main__":
    main()

"""Nexmark's queries on this store and on Flink, from and to the same files of text."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Self

import psutil
import pyarrow as pa
from pyarrow import csv

from benchmarks import report
from benchmarks.groups.first_minutes import Job
from benchmarks.groups.nexmark import (
    FULL,
    QUICK,
    ProcessWatch,
    Work,
    chosen_queries,
    jobs_of,
    root_of,
    run_query,
)
from benchmarks.nexmark import flink_job
from benchmarks.nexmark.events import FIRST_EVENT, SCHEMA, Generator
from benchmarks.report import Result, figures
from benchmarks.sessions import log
from benchmarks.stores import OURS
from tests.spark.counting import wait_until
from tests.support.paths import ROOT

FLINK = "apache-flink==2.3.0"
ENVIRONMENT = ROOT / "build/flink"
BACKENDS = ("hashmap", "rocksdb", "forst")
NEVER = 1 << 60
CHECKPOINT_SECONDS = 300

ABOUT = """The same queries on this store and on Flink {version} (PyPI) with each of its state backends. The
events are text (CSV), as Flink's package reads no Parquet without Hadoop, and the output is text, too. No
event is late or sent twice, as each engine drops what is late by its own watermark: Spark's changes with a
batch, Flink's with an event. Rows are compared; as its input ends, Flink also returns windows that Spark
leaves open, and these alone may be more. Spark runs {files} batches of {rows:,} events, each a checkpoint;
Flink reads one file and takes an incremental checkpoint each second, with {slots} slots, a managed memory of
1 GiB and a heap of {memory}. Once. *Restart* is for Spark as above; for Flink from the submission of a job,
whose predecessor was killed after half of its time, to its first checkpoint. Not comparable: Flink's
times have the start of its cluster in the program's process, and its disk the jars that it unpacks, about
65 MB; Spark's restart ends with a whole batch; Flink has no batches, so that its results come earlier."""

OUTPUTS = {
    "q3": ("name", "city", "state", "auction"),
    "q4": ("unix_millis(window.end)", "category", "price"),
    "q5": ("unix_millis(window.end)", "hottest.count", "hottest.auction"),
    "q7": ("unix_millis(time)", "auction", "bidder", "price"),
    "q8": ("unix_millis(window.end)", "id", "name"),
    "q9": (
        "unix_millis(final)",
        *("id", "category", "highest.price", "unix_millis(highest.placed)", "highest.bidder"),
    ),
    "q11": ("unix_millis(session_window.end)", "bidder", "count"),
}
"""Columns of the output of a query for Spark, in the order of Flink's."""

OPEN_AT_END = {"q4", "q5", "q7", "q9", "q11"}
"""Queries whose first column is a time until which windows are final."""

Rows = Counter[tuple[Any, ...]]


def run(scratch: Path, quick: bool) -> Result:
    """Run every query on this store and on Flink."""
    work = QUICK if quick else FULL
    write_events(scratch / "events", work)
    python = flink_python()
    about = ABOUT.format(version=FLINK.split("=")[-1], slots=os.cpu_count(), **vars(work))
    tables = [about.replace("\n", " ")]
    for name in chosen_queries():
        first, restart = jobs_of(scratch, name, OURS, work, scratch / "events", __name__)
        jobs = {OURS: first | {"restart": restart["query"]}}
        expected = rows_of(root_of(scratch, name, OURS) / "output-0")
        for backend in BACKENDS:
            root = scratch / f"{name}-{backend}"
            jobs[f"Flink, {backend}"] = flink_job_of(
                python, scratch / "events.csv", root, name, backend, work
            )
            compare(name, backend, expected, rows_of(root / "output"))
        tables.append(table_of(name, jobs, len(expected)))
    return Result("\n\n".join(tables), [])


def write_events(directory: Path, work: Work) -> None:
    """Write the events as files for Spark, one more for its restart, and as one file for Flink."""
    directory.mkdir()
    generator = Generator(rate=work.rate, late=NEVER, repeated=NEVER)
    options = csv.WriteOptions(include_header=False, quoting_style="none")
    with (directory.parent / "events.csv").open("wb") as whole:
        for number in range(work.files + 1):
            table = generator.table(FIRST_EVENT + number * work.rows, work.rows)
            path = directory / f"{number:03}.csv"
            csv.write_csv(flat(table), path, options)
            if number < work.files:
                whole.write(path.read_bytes())


def flat(table: pa.Table) -> pa.Table:
    """Return events without structs, and with times in milliseconds, as Flink's watermarks have them."""
    leaves = table.flatten()
    columns = [
        column.cast(pa.timestamp("ms"), safe=False) if pa.types.is_timestamp(column.type) else column
        for column in leaves.columns
    ]
    return pa.table(columns, names=[name.replace(".", "_") for name in leaves.column_names])


def flink_python() -> Path:
    """Return the interpreter of an environment with Flink, which is made once."""
    ready = ENVIRONMENT / f".{FLINK}"
    python = ENVIRONMENT / "bin/python"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", FLINK], check=True)
        ready.touch()
    return python


class FlinkProcess:
    """A query on Flink, in processes that end with this object's context."""

    def __init__(self, python: Path, job: dict[str, Any], root: Path, work: Work) -> None:
        command = [str(python), flink_job.__file__, json.dumps(job)]
        with (root / "log").open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                env=os.environ | {"JAVA_TOOL_OPTIONS": f"-Xmx{work.memory}"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        self._root = root
        self._line()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def result(self) -> Job:
        """Return the figures of the query after its end."""
        watch = ProcessWatch(psutil.Process(self._process.pid))
        job: Job = json.loads(self._line())
        return job | watch.stop()

    def _line(self) -> bytes:
        """Return the next line that the process prints."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"Flink has failed: {(self._root / 'log').read_text()[-4000:]}")
        return bytes(line)


def settings_of(checkpoints: Path, backend: str) -> dict[str, str]:
    """Return Flink's settings."""
    slots = str(os.cpu_count())
    return {
        "parallelism.default": slots,
        "taskmanager.numberOfTaskSlots": slots,
        "taskmanager.memory.managed.size": "1g",
        "table.local-time-zone": "UTC",
        "restart-strategy.type": "none",
        "state.backend.type": backend,
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.dir": checkpoints.as_uri(),
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    }


def flink_job_of(python: Path, events: Path, root: Path, query: str, backend: str, work: Work) -> Job:
    """Return the figures of a query on Flink, and of a restart from a checkpoint halfway."""
    root.mkdir()
    settings = settings_of(root / "checkpoints", backend)
    job = {"query": query, "events": events.as_uri(), "settings": settings}
    job["output"] = (root / "output").as_uri()
    with FlinkProcess(python, job, root, work) as process:
        figures_of_job = process.result()
    shutil.rmtree(root / "checkpoints")
    job["output"] = (root / "more").as_uri()
    with FlinkProcess(python, job, root, work):
        time.sleep(figures_of_job["query"] / 2)
        await_checkpoint(root, set())
    checkpoints = checkpoints_in(root)
    settings["execution.state-recovery.path"] = max(checkpoints, key=number_of).as_uri()
    with FlinkProcess(python, job, root, work):
        began = time.monotonic()
        await_checkpoint(root, checkpoints)
        figures_of_job["restart"] = time.monotonic() - began
    seconds, restart = figures_of_job["query"], figures_of_job["restart"]
    log(f"{query}, Flink, {backend}: {seconds:.1f} s, restart {restart:.1f} s")
    return figures_of_job


def await_checkpoint(root: Path, earlier: set[Path]) -> None:
    """Wait until there is another complete checkpoint than earlier ones."""
    if not wait_until(lambda: not checkpoints_in(root) <= earlier, CHECKPOINT_SECONDS):
        raise RuntimeError(f"Flink has no checkpoint: {(root / 'log').read_text()[-4000:]}")


def checkpoints_in(root: Path) -> set[Path]:
    """Return the directories of complete checkpoints."""
    return {path.parent for path in root.glob("checkpoints/*/chk-*/_metadata")}


def number_of(checkpoint: Path) -> int:
    """Return the number of a checkpoint."""
    return int(checkpoint.name.removeprefix("chk-"))


def rows_of(directory: Path) -> Rows:
    """Return the rows of an output, with times in milliseconds."""
    rows: Rows = Counter()
    names = csv.ReadOptions(autogenerate_column_names=True)
    for path in directory.glob("part-*"):
        if path.stat().st_size:
            columns = csv.read_csv(path, names).columns
            rows.update(zip(*(values_of(column) for column in columns), strict=True))
    return rows


def values_of(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column, of which times are milliseconds."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms")).cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


def compare(query: str, backend: str, expected: Rows, rows: Rows) -> None:
    """Require the same rows, but for windows that are not final: all of them if Spark has returned none."""
    missing, more = expected - rows, rows - expected
    has_windows = query in OPEN_AT_END
    last = max((row[0] for row in expected), default=-1)
    wrong = [row for row in more if not has_windows or row[0] <= last]
    if missing or wrong or not (expected or has_windows):
        raise RuntimeError(
            f"{query}: Flink with {backend} has other rows: {len(expected)} are expected, "
            f"{list(missing)[:5]} missing, {wrong[:5]} more"
        )


def table_of(name: str, jobs: dict[str, Job], output: int) -> str:
    """Return the table of a query."""
    columns = ("query", "processor", "memory", "disk", "restart")
    lines = [[store, *figures(*(job[figure] for figure in columns))] for store, job in jobs.items()]
    title = f"{name}, from text: {jobs[OURS]['rows']:,.0f} rows of state at most, {output:,} of output"
    return report.table(title, ["engine", *columns], lines)


def main() -> None:
    """Be a job of Spark."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_schema

    parameters = json.loads(sys.argv[1])
    leaves = SCHEMA.empty_table().flatten().schema
    schema = from_arrow_schema(pa.schema([field.with_name(field.name.replace(".", "_")) for field in leaves]))

    def events(reader: Any, directory: str) -> Any:
        structs = [
            F.struct(*(F.col(f"{field.name}_{leaf.name}").alias(leaf.name) for leaf in field.type)).alias(
                field.name
            )
            for field in SCHEMA
            if pa.types.is_struct(field.type)
        ]
        return reader.schema(schema).csv(directory).select("kind", "time", *structs)

    def text(output: Any) -> Any:
        columns = output.selectExpr(*OUTPUTS[parameters["query"]])
        path = str(Path(parameters["root"]) / f"output-{parameters['job']}")
        return columns.writeStream.format("csv").option("path", path)

    print(json.dumps(run_query(parameters, events, text)), flush=True)


if __name__ == "__main__":
    main()

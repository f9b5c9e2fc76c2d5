"""Runs queries of the matrix with the PySpark that it finds, several at a time.

    python -m tests.system.upgrades.program JOBS RESULTS

JOBS is a file with a JSON list of jobs: the query, checkpoint format, checkpoint location and input. RESULTS
becomes the list of what each did: its output batch by batch, the number of rows in its state after each, and
its error if it failed.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import spark_statestore
from benchmarks.stores import UNFORKED_FILES
from tests.spark.processors_query import NO_EMPTY_BATCHES
from tests.spark.queries import STATE_STORE
from tests.support.sessions import STARTS, UNCONNECTED, local_builder
from tests.system.upgrades.cases import CASES, Case, start

AT_ONCE = 4

SECONDS = 200

_python_starts = threading.Lock()


def main(jobs: Path, results: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        builder = local_builder("upgrades", memory="2g")
        builder.config("spark.jars", os.environ["TEST_JAR"])
        builder.config("spark.sql.warehouse.dir", f"{scratch}/warehouse")
        builder.config("spark.local.dir", f"{scratch}/local")
        spark = spark_statestore.configure(builder).getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        for key, value in UNFORKED_FILES.items():
            spark.sparkContext._jsc.hadoopConfiguration().set(key, value)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            outcomes = list(
                pool.map(lambda job: run_job(spark.newSession(), job), json.loads(jobs.read_text()))
            )
        results.write_text(json.dumps(outcomes))
        spark.stop()


def run_job(spark: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Run a query to the end of its input, and return the job with what it did."""
    case = CASES[job["case"]]
    settings = {
        # Otherwise restarts would divide the input into other batches.
        **NO_EMPTY_BATCHES,
        STATE_STORE + "checkpointFormatVersion": str(job["format"]),
        STATE_STORE + "providerClass": case.provider,
        # Some state is too large to be inside the metadata.
        STATE_STORE + "backend.fileStateThreshold": "600",
        "spark.sql.shuffle.partitions": "1",
    }
    # Later the query's offset log sets what else it started with.
    if not Path(job["checkpoint"]).exists():
        settings |= case.confs
    for key, value in settings.items():
        spark.conf.set(key, value)
    output: list[list[str]] = []
    rows: dict[int, list[int]] = {}
    for _ in range(STARTS):
        with _python_starts if case.starts_python else nullcontext():
            error = _run_once(spark, job, case, output, rows)
        if error is None or UNCONNECTED not in error:
            break
    counts = [rows[number] for number in sorted(rows)]
    return {**job, "output": output, "rows": counts, "error": error}


def _run_once(
    spark: Any, job: dict[str, Any], case: Case, output: list[list[str]], rows: dict[int, list[int]]
) -> str | None:
    """Run a query to the end of its input, and return its error."""

    def sink(batch: Any, _: int) -> None:
        output.append(sorted(map(repr, batch.collect())))

    query = None
    try:
        query = start(spark, case, job["input"], job["checkpoint"], sink)
        return None if query.awaitTermination(SECONDS) else "it does not end"
    except Exception as failure:  # noqa: BLE001 - what Spark raises is the result
        return _reason(failure)
    finally:
        if query is not None:
            query.stop()
            for progress in query.recentProgress:
                rows[progress["batchId"]] = [
                    operator["numRowsTotal"] for operator in progress["stateOperators"]
                ]


def _reason(failure: Exception) -> str:
    """Return the message of what caused an error, without stack traces and the query's plan."""
    text = str(failure).partition("\n=== Streaming Query ===")[0].rpartition("terminated with exception: ")[2]
    causes = re.findall(r"Caused by: (?:[\w.$]+: )?(.+)", text)
    return causes[-1] if causes else text.strip()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

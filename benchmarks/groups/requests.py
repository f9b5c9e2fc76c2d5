"""Requests of a store to S3 in 1,000 batches, counted by the service."""

from __future__ import annotations

import json
import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import parse_qs

from benchmarks import contest, session
from benchmarks.contest import OURS
from benchmarks.report import table
from benchmarks.result import Criterion, Result
from tests.support.s3 import client_of, environment_of, s3_service

KINDS = ("PUT", "COPY", "LIST", "GET", "HEAD", "DELETE", "other")
CHANGED, UNCHANGED, MAINTENANCE, LOAD = (
    "batches with changes",
    "batches without",
    "maintenance",
    "a cold load",
)

ABOUT = """A store of {keys:,} rows in a bucket that a moto server holds, after its first {warmup} batches, and with
them the first cleanup of its instance, which scans for orphaned files. {batches:,} batches change 100 rows each, with
maintenance after each tenth, as are the {unchanged} that follow without a change, and a new instance then loads the
newest version. A DELETE may name many objects. What maintenance PUTs are snapshots."""


def run(scratch: Path, quick: bool) -> Result:
    """Count the requests of a store."""
    keys, batches = (10_000, 30) if quick else (10_000, 1_000)
    warmup, unchanged = (20 if quick else 150), batches // 10
    with counted_service() as counts:
        found = measure(scratch, keys, warmup, batches, unchanged, counts)
    about = ABOUT.format(keys=keys, warmup=warmup, batches=batches, unchanged=unchanged)
    times = {CHANGED: batches, UNCHANGED: unchanged}
    rows = [
        [phase, str(times.get(phase, "")), *(f"{found[phase][kind]:,}" for kind in KINDS)] for phase in found
    ]
    return Result(
        "requests",
        f"{about}\n\n{table('Requests to S3', ['while', 'batches', *KINDS], rows)}",
        criteria(found, batches),
        {"batches": batches, "unchanged": unchanged, "requests": {p: dict(found[p]) for p in found}},
    )


def measure(
    scratch: Path, keys: int, warmup: int, batches: int, unchanged: int, counts: Counter[str]
) -> dict[str, Counter[str]]:
    """Return the requests of each phase."""
    found = {phase: Counter[str]() for phase in (CHANGED, UNCHANGED, MAINTENANCE, LOAD)}

    def counting(phase: str, work: Callable[[], object]) -> None:
        counts.clear()
        work()
        found[phase] += counts

    def unchanged_batch() -> None:
        store.change()
        store.commit()

    # Spark's file with the query's id: state in a directory of many queries is below that id.
    (scratch / "query").mkdir()
    (scratch / "query" / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    with session.running(scratch) as spark:
        settings: dict[str, Any] = {"backend__checkpointsDir": "s3://bucket/checkpoints"}
        store = contest.open_store(spark, scratch / "query" / "state", OURS, **settings)
        store.fill(keys)
        settle = contest.bench(spark).StoreBenchmark.settle
        for number in range(warmup + batches + unchanged):
            changed = number < warmup + batches
            work = (lambda seed=number: store.batch(100, seed)) if changed else unchanged_batch
            counting(CHANGED if changed else UNCHANGED, work)
            counting(MAINTENANCE, settle)
            if number % 10 == 9:
                counting(MAINTENANCE, store.maintenance)
            if number == warmup - 1:
                for of in found.values():
                    of.clear()
            if number % 100 == 99:
                session.log(f"batch {number + 1}")
        counting(LOAD, store.coldLoad)
        store.close()
    return found


@contextmanager
def counted_service() -> Iterator[Counter[str]]:
    """Start a service with a bucket for this process's children, and yield its requests by kind."""
    import moto.server

    counts: Counter[str] = Counter()
    application = moto.server.DomainDispatcherApplication
    serve = application.__call__

    def count(self: Any, environ: dict[str, Any], start_response: Any) -> Any:
        counts[kind_of(environ)] += 1
        return serve(self, environ, start_response)

    with patch.object(application, "__call__", count), s3_service() as url:
        os.environ |= environment_of(url)
        client_of(url).create_bucket(Bucket="bucket")
        yield counts


def kind_of(environ: dict[str, Any]) -> str:
    """Classify a request."""
    method, asked = environ["REQUEST_METHOD"], parse_qs(environ["QUERY_STRING"], keep_blank_values=True)
    key = environ["PATH_INFO"].strip("/").partition("/")[2]
    if "HTTP_X_AMZ_COPY_SOURCE" in environ:
        return "COPY"
    if method == "POST" and "delete" in asked:
        return "DELETE"
    if method == "GET" and not key:
        return "LIST"
    return method if method in KINDS and key else "other"


def criteria(found: dict[str, Counter[str]], batches: int) -> list[Criterion]:
    """Require one PUT for each batch, and no listing and no copy in any batch or in maintenance."""
    steady = found[CHANGED] + found[UNCHANGED] + found[MAINTENANCE]
    return [
        Criterion("S3: PUTs of a batch of one partition", found[CHANGED]["PUT"] / batches, 1),
        Criterion(f"S3: LISTs of {batches:,} batches", steady["LIST"], 0),
        Criterion(f"S3: COPYs of {batches:,} batches", steady["COPY"], 0),
    ]

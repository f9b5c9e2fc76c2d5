"""Estimates from the event logs of HDFSBacked and RocksDB are near the batch time measured on this store.

python -m pytest -m "alone and soak" -s tests/system/assess

It runs the queries, several minutes each on a quiet machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from spark_statestore.assess.event_log import EventLog
from spark_statestore.assess.model import assess_query
from spark_statestore.assess.queries import OURS, read_queries
from tests.support.paths import ROOT

pytestmark = [pytest.mark.alone, pytest.mark.soak, pytest.mark.timeout(3600)]

RUNS = {
    "count": {"query": "count", "keys": 300_000, "rows": 20_000, "batches": 40, "partitions": 8},
    "count, small": {"query": "count", "keys": 200_000, "rows": 10_000, "batches": 35, "partitions": 8},
    "deduplication": {"query": "dedup", "keys": 300_000, "rows": 20_000, "batches": 40, "partitions": 8},
    "deduplication, small": {
        "query": "dedup",
        "keys": 200_000,
        "rows": 10_000,
        "batches": 30,
        "partitions": 4,
    },
}
BOUND = 0.25


@pytest.mark.parametrize("name", RUNS)
def test_estimates_are_near_the_measured_batch_time(tmp_path: Path, name: str) -> None:
    arguments = RUNS[name] | {"root": str(tmp_path), "events": str(tmp_path / "events")}
    program = [sys.executable, "-m", "tests.system.assess.program", json.dumps(arguments)]
    subprocess.run(program, check=True, cwd=ROOT)
    (log,) = (tmp_path / "events").iterdir()
    measured, errors = compare(str(log))
    shown = (f"estimate from {provider} {100 * error:+.0f} %" for provider, error in errors.items())
    print(f"{name}: measured {measured:,.0f} ms, {', '.join(shown)}")
    assert len(errors) == 2
    assert max(map(abs, errors.values())) < BOUND


def compare(log: str) -> tuple[float, dict[str, float]]:
    """Return the median batch time on this store, and the errors of the estimates from the other queries."""
    assessed = [assess_query(query) for query in read_queries(EventLog(log))]
    (measured,) = (each.parts.total for each in assessed if each.query.provider == OURS)
    return measured, {
        each.query.provider: each.estimate.milliseconds / measured - 1 for each in assessed if each.estimate
    }

"""The benchmark in real-time mode: pauses from the times of results, its bounds, and a quick run."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.groups import real_time
from benchmarks.groups.real_time import ROCKSDB, STORES, WORKS, Measured, judge, pauses, table_of
from benchmarks.stores import LIMIT, OURS
from tests.support.commands import run
from tests.support.paths import ROOT
from tests.support.services import ServiceUnavailableError
from tests.support.services.kafka import connector, fetch
from tests.support.spark_versions import since


def test_pause_is_the_longest_time_without_a_result_around_a_start() -> None:
    # A result each 10 ms, but for two pauses and a gap within a batch.
    times = np.arange(0, 15_000, 10)
    gaps = ((5_000, 5_300), (7_500, 7_900), (10_000, 10_200))
    result_millis = times[~np.any([(times > begin) & (times < end) for begin, end in gaps], axis=0)]
    assert pauses(result_millis, [5_010.0, 10_010.0]) == [300, 200]
    # Without results there is no pause.
    assert pauses(result_millis, [50_000.0]) == []


def test_work_has_a_result_for_each_record_but_duplicates() -> None:
    assert [work.num_results(1_000) for work in WORKS] == [800, 1_000, 1_000]


def test_p99_is_judged_by_that_of_rocksdb() -> None:
    def stores(own: float) -> dict[str, Measured]:
        slowest = {OURS: own, LIMIT: 50.0, ROCKSDB: 100.0}
        return {
            name: Measured([1.0] * 98 + [each] * 2, [each], [{"addBatch": 3_000, "commitOffsets": 12}])
            for name, each in slowest.items()
        }

    for own, is_met in ((75.0, True), (76.0, False)):
        (criterion,) = judge({"count": stores(own)})
        assert criterion.work == "real-time mode, count: p99"
        assert criterion.met is is_met
    lines = [line for line in table_of("count", stores(60.0)).splitlines() if OURS in line]
    latencies, steps = ([cell.strip() for cell in line.split("|")[2:-1]] for line in lines)
    assert latencies == ["100", "1", "1.00", "1.00", "60.00", "0.60", "60.00"]
    assert steps == ["0.00", "0.00", "3,000", "0.00", "12.00", "0.00"]


@pytest.mark.soak
@pytest.mark.kafka
@since("4.3", "stateful queries in real-time mode")
def test_quick_run_measures_every_store(built: Path, tmp_path: Path) -> None:
    try:
        fetch(), connector()
    except ServiceUnavailableError as error:
        pytest.skip(f"Kafka cannot be fetched: {error}")
    command = [sys.executable, "-m", "benchmarks", "--quick", "--only", real_time.__name__.rpartition(".")[2]]
    quick = run([*command, "--directory", tmp_path], cwd=ROOT, timeout=580)
    printed, _, summary = quick.stdout.partition("## Summary")
    for name in STORES:
        assert sum(line.startswith(f"| {name} ") for line in printed.splitlines()) == 2
    assert "| real-time mode, transformWithState: p99 " in summary
    assert list(tmp_path.iterdir()) == []

"""Up to two thousand stores on one executor, used by sixty-four threads at a time."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.stores import OURS, open_many
from tests.spark.counting import backend_of, jvm_of

THREADS = 64
ROWS = 20


def sockets(process: psutil.Process) -> int:
    """Return the number of open sockets of any family."""
    count = 0
    for entry in os.scandir(f"/proc/{process.pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(entry.path).startswith("socket:")
    return count


def names_of_threads(spark: Any) -> list[str]:
    """Return the names of the JVM's own threads.

    Those of its collector and compilers are not among them: their number follows the machine's processors.
    Nor are those of Spark's block manager, which removes what earlier queries left at any time.
    """
    threads = spark._jvm.java.lang.Thread.getAllStackTraces().keySet()
    return [name for thread in threads if not (name := thread.getName()).startswith("block-manager-")]


def figures(spark: Any, jvm: psutil.Process, backend: psutil.Process) -> dict[str, int]:
    return {
        "jvm threads": len(names_of_threads(spark)),
        "jvm files": jvm.num_fds(),
        "jvm sockets": sockets(jvm),
        "backend threads": backend.num_threads(),
        "backend files": backend.num_fds(),
        "backend MiB": backend.memory_info().rss >> 20,
    }


@pytest.mark.slow
@pytest.mark.parametrize("count", [100, pytest.param(2_000, marks=pytest.mark.soak)])
def test_many_stores_serve_sixty_four_threads(spark: Any, tmp_path: Path, count: int) -> None:
    stores = open_many(spark, tmp_path, OURS, count)
    try:
        # The content of each store is compared with the written rows.
        stores.fill(ROWS)
        jvm = psutil.Process(jvm_of(spark))
        backend = backend_of(spark)
        # Earlier tests have connections to other backends.
        earlier_sockets = sockets(jvm)
        samples = []
        for number in range(3):
            stores.change(ROWS // 2, number)
            millis = stores.commit(THREADS) / 1e6
            samples.append(figures(spark, jvm, backend) | {"milliseconds": round(millis)})
            print(f"\n{samples[-1]}", end="")
        # As after a restart; a sample of the rows of each is compared.
        print(f"\n{THREADS} loaded within {stores.reloadConcurrently(THREADS) / 1e6:.0f} ms")
        reported = [json.loads(metrics) for metrics in stores.metrics()]
        assert sum(metrics["checkpointObjectsWritten"] for metrics in reported) == count
        assert sum(metrics["backendRestarts"] for metrics in reported) == 0
        # A connection for each thread at most, and nothing for each store.
        for sample in samples:
            assert sample["backend threads"] <= THREADS + 20
            assert sample["backend files"] <= 2 * THREADS + 100
            assert sample["jvm sockets"] <= earlier_sockets + THREADS + 20
            # The number of connections depends on how many threads commit at the same moment.
            sample["jvm files"] -= sample["jvm sockets"]
            sample["backend files"] -= sample["backend threads"]
        for name, more in {"jvm threads": 8, "jvm files": 8, "backend files": 8, "backend MiB": 100}.items():
            assert samples[-1][name] <= samples[1][name] + more, (name, names_of_threads(spark))
    finally:
        stores.close()
    assert len(list(tmp_path.glob("0/*"))) == count

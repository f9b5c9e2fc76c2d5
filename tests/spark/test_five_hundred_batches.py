"""Hundreds of batches do not increase a backend's memory, open files and stored files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from spark_statestore.options import OPTION_PREFIX
from tests.spark.counting import (
    backend_of,
    finish,
    jvm_of,
    start_counting,
    wait_for_batch,
)
from tests.spark.harness import IMMEDIATE_CLEANUP, Provider

RETAINED = 5
KEYS = 2_000
CHANGED = 100


def sockets(process: psutil.Process) -> int:
    """Return the number of open sockets of any family."""
    count = 0
    for entry in os.scandir(f"/proc/{process.pid}/fd"):
        try:
            count += os.readlink(entry.path).startswith("socket:")
        except FileNotFoundError:
            continue
    return count


def figures(jvm: psutil.Process, backend: psutil.Process, state: Path) -> dict[str, int]:
    return {
        "rss_kib": backend.memory_info().rss // 1024,
        "backend_fds": backend.num_fds(),
        "backend_threads": backend.num_threads(),
        "jvm_sockets": sockets(jvm),
        "files": sum(1 for f in state.rglob("*") if f.is_file()),
    }


def check(samples: dict[int, dict[str, int]], record: Callable[[str, object], None], most_files: int) -> None:
    print()
    for number, sample in samples.items():
        print(f"batch {number:4}: {sample}")
        record(f"batch {number}", sample)
    warm, *_, last = samples.values()
    for name in "backend_fds", "backend_threads", "jvm_sockets":
        assert last[name] <= warm[name] + 4, name
    # Memory that an allocator keeps is not growth.
    assert last["rss_kib"] <= warm["rss_kib"] * 1.2
    assert max(sample["files"] for sample in samples.values()) <= most_files


@pytest.mark.slow
def test_backend_resources_are_constant_over_five_hundred_versions(
    spark: Any, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    partitions = 2
    providers = [
        Provider(
            spark,
            f"file:{tmp_path}",
            partition=partition,
            backend__numRetained=str(RETAINED),
            backend__snapshotInterval="10",
            **IMMEDIATE_CLEANUP,
        )
        for partition in range(partitions)
    ]
    jvm = psutil.Process(jvm_of(spark))
    samples = {}
    rows = [{} for _ in providers]
    for version in range(500):
        for provider, expected in zip(providers, rows, strict=True):
            store = provider.open(version)
            first = 0 if version == 0 else version * CHANGED % KEYS
            for number in range(first, first + (KEYS if version == 0 else CHANGED)):
                key, value = (f"key {number % KEYS}", number % KEYS), (version, "x" * 20)
                store.put(key, value)
                expected[key] = value
            store.commit()
        if version % 20 == 19:
            for provider in providers:
                provider.snapshot()
                provider.cleanup()
        if version + 1 in (150, 250, 350, 500):
            backend = backend_of(spark)
            samples[version + 1] = figures(jvm, backend, tmp_path)
    for provider, expected in zip(providers, rows, strict=True):
        store = provider.open_read(500)
        assert dict(store.rows()) == expected
        store.release()
        provider.close()
    check(samples, record_property, most_files=160)


@pytest.mark.soak
def test_backend_resources_are_constant_over_five_hundred_batches(
    spark: Any, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    session = spark.newSession()
    jvm = psutil.Process(jvm_of(spark))
    query = start_counting(session, tmp_path, confs={OPTION_PREFIX + "numRetained": RETAINED})
    samples = {}
    start = time.monotonic()
    for batch in 150, 250, 350, 500:
        wait_for_batch(query, batch, seconds=900)
        backend = backend_of(spark)
        samples[batch] = figures(jvm, backend, tmp_path / "state")
    print(f"\n{500 / (time.monotonic() - start):.1f} batches a second")
    finish(session, query, 500)
    check(samples, record_property, most_files=400)

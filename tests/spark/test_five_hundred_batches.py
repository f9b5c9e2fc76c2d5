"""Hundreds of versions do not increase a backend's memory, open files and stored files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.spark.counting import backend_of, jvm_of
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


@pytest.mark.soak
def test_backend_resources_are_constant_over_five_hundred_versions(
    spark: Any, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    partitions = 2
    providers = [
        Provider(
            spark,
            f"file:{tmp_path}",
            partition=partition,
            **{"spark.sql.streaming.minBatchesToRetain": str(RETAINED)},
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
    for number, sample in samples.items():
        print(f"version {number:4}: {sample}")
        record_property(f"version {number}", sample)
    warm, *_, last = samples.values()
    for name in "backend_fds", "backend_threads", "jvm_sockets":
        assert last[name] <= warm[name] + 4, name
    # Memory that an allocator keeps is not growth.
    assert last["rss_kib"] <= warm["rss_kib"] * 1.2
    assert max(sample["files"] for sample in samples.values()) <= 160

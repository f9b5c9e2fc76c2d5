"""Stores of several providers, timed beside each other in one JVM."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import spark_statestore

_PREFIX = "spark.sql.streaming.stateStore."
_SPARKS = "org.apache.spark.sql.execution.streaming.state."

OURS = "spark-statestore"

PROVIDERS: dict[str, tuple[str, dict[str, str]]] = {
    OURS: (spark_statestore.PROVIDER_CLASS, {}),
    "HDFSBacked": (_SPARKS + "HDFSBackedStateStoreProvider", {}),
    "RocksDB": (_SPARKS + "RocksDBStateStoreProvider", {}),
    "RocksDB, changelog": (
        _SPARKS + "RocksDBStateStoreProvider",
        {"rocksdb.changelogCheckpointing.enabled": "true", "rocksdb.trackTotalNumberOfRows": "false"},
    ),
}
"""What is compared: provider class, and settings below ``spark.sql.streaming.stateStore.``.

RocksDB takes part twice: with its defaults, and as one sets it up for short commits.
"""


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    sizes: tuple[int, ...]
    warmup: int
    batches: int
    operations: int = 10_000
    small_operations: int = 100
    small_batches: int = 20
    maintenance_every: int = 10
    cold_loads: int = 7


@dataclass
class Samples:
    """What was measured of one store, times in milliseconds."""

    batch: list[float] = field(default_factory=list)
    small_batch: list[float] = field(default_factory=list)
    maintenance: list[float] = field(default_factory=list)
    cold_load: list[float] = field(default_factory=list)
    metrics: list[dict[str, int]] = field(default_factory=list)
    small_metrics: list[dict[str, int]] = field(default_factory=list)


Samplings = dict[tuple[str, int], Samples]


def measure(spark: Any, directory: Path, plan: Plan, say: Callable[[str], None]) -> Samplings:
    """Measure every provider at every size, all interleaved batch by batch in changing order."""
    jvm = spark._jvm.org.apache.spark.sql.statestore
    samples: Samplings = {}
    with _stores(spark, directory, plan, say) as stores:
        order = list(stores)
        shuffled = random.Random(1)

        def each(operations: int, count: int, note: Callable[[Samples, float, dict[str, int]], None]) -> None:
            for number in range(count):
                shuffled.shuffle(order)
                seed = shuffled.randrange(2**62)
                for key in order:
                    millis = stores[key].batch(operations, seed) / 1e6
                    note(samples[key], millis, json.loads(stores[key].metrics()))
                    jvm.StoreBenchmark.settle()
                if (number + 1) % plan.maintenance_every == 0:
                    for key in order:
                        samples[key].maintenance.append(stores[key].maintenance() / 1e6)

        def note_batch(of: Samples, millis: float, metrics: dict[str, int]) -> None:
            of.batch.append(millis)
            of.metrics.append(metrics)

        def note_small(of: Samples, millis: float, metrics: dict[str, int]) -> None:
            of.small_batch.append(millis)
            of.small_metrics.append(metrics)

        samples = {key: Samples() for key in stores}
        say(f"{plan.warmup} batches to warm up")
        each(plan.operations, plan.warmup, lambda *_: None)
        say(f"{plan.batches} batches of {plan.operations:,} rows")
        each(plan.operations, plan.batches, note_batch)
        say(f"{plan.small_batches} batches of {plan.small_operations:,} rows")
        each(plan.small_operations, plan.warmup, lambda *_: None)
        each(plan.small_operations, plan.small_batches, note_small)
        say("cold loads")
        for _ in range(plan.cold_loads):
            shuffled.shuffle(order)
            for key in order:
                samples[key].cold_load.append(stores[key].coldLoad() / 1e6)
    return samples


@contextmanager
def _stores(
    spark: Any, directory: Path, plan: Plan, say: Callable[[str], None]
) -> Iterator[dict[tuple[str, int], Any]]:
    jvm = spark._jvm.org.apache.spark.sql.statestore
    shared = {key: value for key, value in spark.conf.getAll.items() if key.startswith(_PREFIX)}
    stores: dict[tuple[str, int], Any] = {}
    try:
        for size in plan.sizes:
            for number, (name, (provider, settings)) in enumerate(PROVIDERS.items()):
                confs = shared | {_PREFIX + key: value for key, value in settings.items()}
                root = f"file:{directory}/{number}-{size}/state"
                store = jvm.StoreBenchmark(provider, root, confs)
                stores[name, size] = store
                millis = store.fill(size) / 1e6
                jvm.StoreBenchmark.settle()
                store.maintenance()
                say(f"{name}: {size:,} keys in {millis:,.0f} ms")
        yield stores
    finally:
        for store in stores.values():
            store.close()

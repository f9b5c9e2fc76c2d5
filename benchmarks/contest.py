"""The compared stores, and their turns in one JVM."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import spark_statestore

PREFIX = "spark.sql.streaming.stateStore."
_SPARKS = "org.apache.spark.sql.execution.streaming.state."

OURS, HDFS, ROCKSDB, CHANGELOG = "spark-statestore", "HDFSBacked", "RocksDB", "RocksDB, changelog"

PROVIDERS: dict[str, tuple[str, dict[str, str]]] = {
    OURS: (spark_statestore.PROVIDER_CLASS, {}),
    HDFS: (_SPARKS + "HDFSBackedStateStoreProvider", {}),
    ROCKSDB: (_SPARKS + "RocksDBStateStoreProvider", {}),
    CHANGELOG: (
        _SPARKS + "RocksDBStateStoreProvider",
        {"rocksdb.changelogCheckpointing.enabled": "true", "rocksdb.trackTotalNumberOfRows": "false"},
    ),
}
"""Compared stores: provider class, and settings below ``spark.sql.streaming.stateStore.``.

RocksDB takes part twice: with its defaults, and as tuned for short commits.
"""

UNFORKED_FILES = {
    "fs.file.impl": "org.apache.spark.sql.statestore.bench.UnforkedFileSystem",
    "fs.file.impl.disable.cache": "true",
    "fs.AbstractFileSystem.file.impl": "org.apache.spark.sql.statestore.bench.UnforkedFileContext",
}
"""Session settings that write local files without Hadoop's external programs."""

UNFORKED: dict[str, tuple[str, dict[str, str]]] = {
    f"{name}, unforked": (provider, settings | UNFORKED_FILES)
    for name, (provider, settings) in PROVIDERS.items()
    if name != OURS
}
"""Spark's own stores, on local files without Hadoop's external programs.

Whole queries are judged against the better of these and `PROVIDERS`. Groups of single operations list them, and their bounds
are those of stock Spark, which is what users of local files run.
"""

UNFORKED_RIVALS = (f"{HDFS}, unforked", f"{CHANGELOG}, unforked")
"""Those of `UNFORKED` that take part in whole queries; RocksDB's defaults commit in ten times as long as its changelog."""

ABOUT_UNFORKED = """Hadoop without its native library, which PySpark does not bring along, starts programs (`chmod`,
`readlink`) several times in each commit to local files; a store that is *unforked* has local files without that, and is
not judged here, but in whole queries."""

BY_TASK = f"{OURS}, commit=task"
"""Name of this store with commits that tasks publish; by default those of a batch are published together."""

LIMIT = "keeps nothing"
"""Name of a store that only has a map in memory, so that its query is the least that a query can take."""

LIMIT_PROVIDER = "org.apache.spark.sql.statestore.bench.UncheckpointedStateStoreProvider"
"""Class of that store."""

LIMIT_EXTENSIONS = "org.apache.spark.sql.statestore.bench.UncheckpointedExtensions"
"""For ``spark.sql.extensions``: allows that store for Python's transformWithState, which Spark restricts to RocksDB."""

Key = TypeVar("Key")
Value = TypeVar("Value")


def confs(spark: Any, name: str, **settings: str) -> tuple[str, dict[str, str]]:
    """Return the class of a store, and all its settings; more can be passed with ``__`` for a dot."""
    provider, own = (PROVIDERS | UNFORKED)[name]
    shared = {key: value for key, value in spark.conf.getAll.items() if key.startswith(PREFIX)}
    more = {key.replace("__", "."): value for key, value in settings.items()}
    own = {key if key.startswith("fs.") else PREFIX + key: value for key, value in (own | more).items()}
    return provider, shared | own


def root(directory: Path, name: str, *more: object) -> Path:
    """Return the directory of a store; paths of all stores are equally long."""
    return (
        directory / "-".join(str(part) for part in (list(PROVIDERS | UNFORKED).index(name), *more)) / "state"
    )


def open_store(spark: Any, path: Path | str, name: str, noise: int = 1, **settings: str) -> Any:
    """Open one store of the benchmark, see StoreBenchmark."""
    provider, set_to = confs(spark, name, **settings)
    return bench(spark).StoreBenchmark(provider, f"file:{path}", set_to, 0, noise)


def open_many(spark: Any, path: Path, name: str, count: int, **settings: str) -> Any:
    """Open the stores of one operator, see ManyStores."""
    provider, set_to = confs(spark, name, **settings)
    return bench(spark).ManyStores(provider, f"file:{path}", set_to, count, 1)


def bench(spark: Any) -> Any:
    """Return the benchmark's classes in the JVM."""
    return spark._jvm.org.apache.spark.sql.statestore.bench


@contextmanager
def closing(stores: Mapping[Any, Any]) -> Iterator[None]:
    """Close all values of the mapping at the end of the block."""
    try:
        yield
    finally:
        for store in stores.values():
            store.close()


def warm_up(store: Any, seconds: float, batch: Callable[[int], object]) -> None:
    """Warm a store up by itself for the same time as the others, since a JVM compiles frequent code.

    Parameters
    ----------
    batch
        Runs one, given a seed.
    """
    until = time.monotonic() + seconds
    number = 0
    while time.monotonic() < until:
        batch(number)
        store.settle()
        number += 1


def turns(of: Iterable[Key], rounds: int, seed: int = 1) -> Iterator[tuple[int, int, list[Key]]]:
    """Yield for each round its number, a shared seed, and the participants in a new order."""
    shuffled = random.Random(seed)
    order = list(of)
    for number in range(rounds):
        shuffled.shuffle(order)
        yield number, shuffled.randrange(2**62), list(order)


def in_order(found: Mapping[tuple[str, Any], Value]) -> list[tuple[tuple[str, Any], Value]]:
    """Return the results by store and size, in order of size and in the stores' usual order."""
    names = list(PROVIDERS | UNFORKED)
    return sorted(
        found.items(), key=lambda of: (of[0][1], names.index(of[0][0]) if of[0][0] in names else len(names))
    )

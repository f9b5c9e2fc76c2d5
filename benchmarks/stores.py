"""The compared stores, and the turns in which they are measured."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import spark_statestore
from benchmarks.sessions import Remote, SessionProcess, SessionSettings, session_processes

PREFIX = "spark.sql.streaming.stateStore."
_SPARKS = "org.apache.spark.sql.execution.streaming.state."
_BENCH = "org.apache.spark.sql.statestore.bench."

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
    "fs.file.impl": f"{_BENCH}UnforkedFileSystem",
    "fs.file.impl.disable.cache": "true",
    "fs.AbstractFileSystem.file.impl": f"{_BENCH}UnforkedFileContext",
}
"""Session settings that write local files without Hadoop's external programs."""

UNFORKED: dict[str, tuple[str, dict[str, str]]] = {
    f"{name}, unforked": (provider, settings | UNFORKED_FILES)
    for name, (provider, settings) in PROVIDERS.items()
    if name != OURS
}
"""Spark's own stores, on local files without Hadoop's external programs.

Whole queries are judged against the better of these and `PROVIDERS`. Groups of single operations list them,
and their bounds are those of stock Spark, which is what users of local files run.
"""

UNFORKED_RIVALS = (f"{HDFS}, unforked", f"{CHANGELOG}, unforked")
"""Those of `UNFORKED` that take part in whole queries.

A commit of RocksDB with defaults takes ten times as long as with changelog.
"""

ABOUT_UNFORKED = """Hadoop without its native library, which PySpark does not bring along, starts programs
(`chmod`, `readlink`) several times in each commit to local files; a store that is *unforked* has local files
without that, and is not judged here, but in whole queries."""

BY_TASK = f"{OURS}, commit=task"
"""Name of this store with commits that tasks publish; by default those of a batch are published together."""

LIMIT = "keeps nothing"
"""Name of a store that only has a map in memory, so that its query is the least that a query can take."""

LIMIT_PROVIDER = f"{_BENCH}UncheckpointedStateStoreProvider"
"""Class of that store."""

LIMIT_EXTENSIONS = f"{_BENCH}UncheckpointedExtensions"
"""For ``spark.sql.extensions``: allows that store for Python's transformWithState.

Spark restricts that to RocksDB.
"""

COPY = f"{OURS}, local copy"
"""Name of this store where loads start from copies of full snapshots on the host's disk."""

Key = TypeVar("Key")
Value = TypeVar("Value")
Participant = TypeVar("Participant")


def directory_of(scratch: Path, name: str, *more: object) -> Path:
    """Return the directory of a store; paths of all stores are equally long."""
    number = list(PROVIDERS | UNFORKED).index(name)
    return scratch / "-".join(str(part) for part in (number, *more)) / "state"


def bench(spark: Any) -> Any:
    """Return the benchmark's classes in the JVM."""
    return spark._jvm.org.apache.spark.sql.statestore.bench


def open_benchmark(
    spark: Any, kind: str, path: Path, name: str, arguments: tuple[Any, ...], settings: Mapping[str, str]
) -> Any:
    """Create an object of a class in the benchmark's jar on a store.

    Parameters
    ----------
    kind
        The class, such as ``StoreBenchmark``.
    path
        The state's directory.
    arguments
        Arguments after the provider, the directory and the settings.
    settings
        Settings below `PREFIX` beside those of the store.
    """
    provider, own = (PROVIDERS | UNFORKED)[name]
    confs = {key: value for key, value in spark.conf.getAll.items() if key.startswith(PREFIX)}
    for key, value in (own | dict(settings)).items():
        confs[key if key.startswith("fs.") else PREFIX + key] = value
    return getattr(bench(spark), kind)(provider, f"file:{path}", confs, *arguments)


def open_store(spark: Any, path: Path, name: str, settings: Mapping[str, str] = {}) -> Any:
    """Open one store, see StoreBenchmark."""
    return open_benchmark(spark, "StoreBenchmark", path, name, (0,), settings)


def open_many(spark: Any, path: Path, name: str, count: int) -> Any:
    """Open the stores of one operator, see ManyStores."""
    return open_benchmark(spark, "ManyStores", path, name, (count,), {})


@contextmanager
def store_processes(scratch: Path, names: Iterable[str]) -> Iterator[dict[str, SessionProcess]]:
    """Run a process for each store for the duration of the block."""
    settings = {name: SessionSettings() for name in dict.fromkeys(names)}
    with session_processes(scratch / "sessions", settings) as processes:
        yield processes


@contextmanager
def closing(stores: Mapping[Any, Remote]) -> Iterator[None]:
    """Close all stores of the mapping at the end of the block."""
    try:
        yield
    finally:
        for store in stores.values():
            store.close()


@contextmanager
def opened_stores(scratch: Path, settings: Mapping[str, str] = {}) -> Iterator[dict[str, Remote]]:
    """Open every compared store, in a process of its own, for the duration of the block."""
    names = PROVIDERS | UNFORKED
    with store_processes(scratch, names) as processes:
        opened = {
            name: processes[name].create(open_store, directory_of(scratch, name), name, settings)
            for name in names
        }
        with closing(opened):
            yield opened


@contextmanager
def opened_with_copies(scratch: Path, settings: Mapping[str, str]) -> Iterator[dict[str, Remote]]:
    """Open `COPY`, in a process of its own, for the duration of the block."""
    copies = scratch / "copies"
    copies.mkdir()
    settings = {**settings, "backend.localRecovery": str(copies)}
    with session_processes(scratch / "sessions", {COPY: SessionSettings()}) as processes:
        opened = {COPY: processes[COPY].create(open_store, scratch / "copied" / "state", OURS, settings)}
        with closing(opened):
            yield opened


def warm_up(seconds: float, batch: Callable[[int], object]) -> None:
    """Run batches for the same time as every other store, since a JVM compiles frequent code.

    Parameters
    ----------
    batch
        Runs one, given a seed.
    """
    until = time.monotonic() + seconds
    number = 0
    while time.monotonic() < until:
        batch(number)
        number += 1


def turns(participants: Iterable[Participant], rounds: int) -> Iterator[tuple[int, int, list[Participant]]]:
    """Yield for each round its number, a shared seed, and the participants in a new order."""
    shuffled = random.Random(1)
    order = list(participants)
    for number in range(rounds):
        shuffled.shuffle(order)
        yield number, shuffled.randrange(2**62), list(order)


def better(measured: Mapping[str, float], rivals: Iterable[str]) -> str:
    """Return the rival with the least measurement."""
    return min(rivals, key=measured.__getitem__)


def in_order(measured: Mapping[tuple[str, Any], Value]) -> list[tuple[tuple[str, Any], Value]]:
    """Return the measurements by store and size, in order of size and in the stores' usual order."""
    names = [*PROVIDERS, COPY, *UNFORKED]
    return sorted(measured.items(), key=lambda entry: (entry[0][1], names.index(entry[0][0])))

"""The same streaming query on several state stores, each in a JVM of its own, batch by batch in turn."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.report import median, percentile
from benchmarks.sessions import Remote, SessionProcess, SessionSettings, log
from benchmarks.stores import (
    BY_TASK,
    LIMIT,
    LIMIT_PROVIDER,
    OURS,
    PREFIX,
    PROVIDERS,
    UNFORKED,
    UNFORKED_FILES,
    turns,
)
from tests.spark.queries import configured, unload_all

CONFS = {
    # Queries that wait for their turn should not poll for input.
    "spark.sql.streaming.pollingDelay": "200ms",
    # Maintenance would slow down batches of any query, without attribution.
    f"{PREFIX}maintenanceInterval": "1h",
}
"""Settings of all sessions whose queries are compared."""


@dataclass(frozen=True)
class StoreConfig:
    """A state store of a query, of which the session has the same name."""

    name: str
    provider: str
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings below `PREFIX`."""
    confs: Mapping[str, str] = field(default_factory=dict)
    """Further settings while its query starts."""
    checkpoints: str = ""
    """URL below which its queries have their checkpoints; by default a local directory."""


@dataclass(frozen=True)
class Comparison:
    """A query, and the input of each of its batches."""

    name: str
    build: Callable[[Any], Any]
    """Builds the query from the stream of the input."""
    table: Callable[[int], pa.Table]
    """The input of the batch with a number. That of number 0 fills the state."""
    stores: tuple[StoreConfig, ...]
    """The first is ours."""
    mode: str = "append"
    partitions: int = 2


@dataclass
class Batch:
    """Figures of one store for the input of one batch, including the following batches without data."""

    milliseconds: float
    """From trigger to trigger."""
    steps: dict[str, float] = field(default_factory=dict)
    """Milliseconds of its parts.

    Those of operators are sums over partitions, so more than the batch's own time.
    """
    rows: int = 0
    """Rows of state."""
    input_rows: int = 0
    output: tuple[int, int] = (0, 0)
    """Number of output rows, and an order-independent sum of their hashes."""
    cpu: float = 0
    """Milliseconds of processor time of Spark's JVM, its Python workers and the backend."""
    batches: int = 1
    """Number of batches, with those without data."""

    @property
    def answer(self) -> dict[str, Any]:
        """Return the figures that must be equal on every store."""
        return {"rows in": self.input_rows, "rows out and their sum": self.output}


Batches = dict[str, list[Batch]]
"""Measured batches by store."""


@dataclass(frozen=True)
class Plan:
    """Number of batches."""

    warmup: int
    """Warm-up batches, after the one that fills the state."""
    batches: int
    """Measured batches."""
    least: int = 1
    """Measured batches of stores that are far behind."""
    seconds: float = float("inf")
    """Time in which batches beyond `least` begin."""
    far_behind: float = float("inf")
    """Factor at which a store runs no more than the `least` batches.

    It compares its best of them with the first store's worst.
    """
    rewarm: int = 0
    """Further warm-up batches of the others, after which alone batches count for them."""


def config_of(name: str) -> StoreConfig:
    """Return the configuration of a compared store; whether it is unforked depends on its session."""
    provider, own = PROVIDERS[OURS]
    more = {LIMIT: (LIMIT_PROVIDER, {}), BY_TASK: (provider, own | {"backend.commit": "task"})}
    provider, settings = (PROVIDERS | UNFORKED | more)[name]
    return StoreConfig(name, provider, {key: settings[key] for key in settings if not key.startswith("fs.")})


def sessions_of(stores: Iterable[str]) -> dict[str, SessionSettings]:
    """Return each store's session: ours as `configure` sets it, Spark's as they come or unforked."""
    return {
        name: SessionSettings(
            # Small, as each store has a heap of its own at the same time.
            memory="2g",
            spark_files="backend" if name in (OURS, BY_TASK, LIMIT) else "hadoop",
            confs=CONFS,
            runtime_confs=UNFORKED_FILES if name in UNFORKED else {},
        )
        for name in stores
    }


def compare(
    processes: Mapping[str, SessionProcess],
    directory: Path,
    comparison: Comparison,
    plan: Plan,
) -> Batches:
    """Run a query on each store as by `running`, and return the batches that count."""
    with running(processes, directory, comparison) as queries:
        return run_in_turns(directory, comparison, queries, plan)


@contextmanager
def running(
    processes: Mapping[str, SessionProcess], directory: Path, comparison: Comparison
) -> Iterator[dict[str, Remote]]:
    """Run a query on each store, in the session of the store's name, for the duration of the block."""
    with ExitStack() as stack:
        queries = {}
        for store in comparison.stores:
            query = processes[store.name].create(RunningQuery, directory, comparison, store)
            queries[store.name] = query
            stack.callback(query.stop)
        yield queries


def run_in_turns(
    directory: Path,
    comparison: Comparison,
    queries: Mapping[str, Any],
    plan: Plan,
    warmed: Callable[[], None] = lambda: None,
) -> Batches:
    """Give running queries the same input in turn, in changing order, and return the batches that count.

    Parameters
    ----------
    warmed
        Called before the first batch that counts.

    Raises
    ------
    RuntimeError
        The stores' answers differ, so their times mean nothing.
    """
    end = float("inf")
    batches: Batches = {name: [] for name in queries}
    dropped: set[str] = set()
    first = 1 + plan.warmup
    rewarmed = range(first + plan.least, first + plan.least + plan.rewarm)
    rounds = first + plan.batches + (plan.least + plan.rewarm if plan.rewarm else 0)
    for number, _, order in turns(queries, rounds):
        is_warmup = number < first or number in rewarmed
        if number == first:
            warmed()
        if number == rewarmed.start:
            for name in _far_behind(batches, comparison.stores[0].name, plan.far_behind):
                dropped.add(name)
                queries[name].stop()
            if plan.rewarm:
                batches |= {name: [] for name in queries if name not in dropped}
        if number == rewarmed.stop:
            end = monotonic() + plan.seconds
        if monotonic() > end:
            break
        names = [name for name in order if name not in dropped]
        path = directory / f"{number:03}.parquet"
        pq.write_table(comparison.table(number), path)
        # Queries in processes of their own warm up at the same time.
        with ThreadPoolExecutor(len(names) if is_warmup else 1) as pool:
            last = list(pool.map(lambda name, path=path: queries[name].process(path), names))
        for name, batch in zip(names, last, strict=True):
            if batch.answer != last[0].answer:
                raise RuntimeError(
                    f"{comparison.name}, batch {number}: the answer of {name} is {batch.answer}, and that of "
                    f"{names[0]} {last[0].answer}"
                )
            if not is_warmup:
                batches[name].append(batch)
            elif number == 0:
                log(f"{comparison.name}, {name}: {batch.rows:,} rows in {batch.milliseconds:,.0f} ms")
        path.unlink()
    return batches


def _far_behind(batches: Batches, leader: str, times: float) -> list[str]:
    most = times * max(batch.milliseconds for batch in batches[leader])
    rivals = ((name, measured) for name, measured in batches.items() if name != leader)
    return [name for name, measured in rivals if min(batch.milliseconds for batch in measured) > most]


class RunningQuery:
    """A query on one store, which runs until it is stopped."""

    def __init__(self, spark: Any, directory: Path, comparison: Comparison, store: StoreConfig) -> None:
        self._spark = spark
        self._newest_batch = -1
        root = directory / comparison.name.replace(" ", "-") / store.name.replace(" ", "-")
        self._watched = root / "input"
        self._watched.mkdir(parents=True)
        location = str(root / "checkpoint")
        if store.checkpoints:
            location = f"{store.checkpoints}/{root.parent.name}/{root.name}"
        confs = {PREFIX + key: value for key, value in store.settings.items()} | dict(store.confs)
        confs |= {f"{PREFIX}providerClass": store.provider}
        confs |= {"spark.sql.shuffle.partitions": str(comparison.partitions)}
        with configured(spark, confs):
            schema = spark.createDataFrame(comparison.table(0).slice(0, 1)).schema
            stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
            self._query = (
                comparison.build(stream.parquet(str(self._watched)))
                .transform(observe_output)
                .writeStream.outputMode(comparison.mode)
                .option("checkpointLocation", location)
                .format("noop")
                .start()
            )

    def process(self, table: Path) -> Batch:
        """Add a file, wait until it is processed, and return the figures."""
        before = processor_times()
        os.link(table, self._watched / table.name)
        self._query.processAllAvailable()
        # By process, as one that ends meanwhile takes its time away.
        cpu = sum(time - before.get(process, 0) for process, time in processor_times().items())
        progress = [dict(p) for p in self._query.recentProgress if p.batchId > self._newest_batch]
        # Spark reports progress of idle queries too.
        progress = [p for p in progress if "addBatch" in p["durationMs"]]
        self._newest_batch = max(p["batchId"] for p in progress)
        steps: dict[str, float] = {}
        for reported in progress:
            times = list(reported["durationMs"].items())
            for operator in reported["stateOperators"]:
                names = ("allUpdatesTimeMs", "allRemovalsTimeMs", "commitTimeMs")
                times += [(name, operator[name]) for name in names]
            for name, value in times:
                steps[name] = steps.get(name, 0) + value
        observed = [p["observedMetrics"]["output"] for p in progress]
        return Batch(
            milliseconds=steps["triggerExecution"],
            steps=steps,
            rows=sum(operator["numRowsTotal"] for operator in progress[-1]["stateOperators"]),
            input_rows=sum(p["numInputRows"] for p in progress),
            output=(sum(o["rows"] for o in observed), sum(o["hash"] or 0 for o in observed)),
            cpu=cpu,
            batches=len(progress),
        )

    def stop(self) -> None:
        """Stop the query, and unload its stores."""
        self._query.stop()
        unload_all(self._spark)


def processor_times() -> dict[psutil.Process, float]:
    """Return the processor time of each child process in milliseconds."""
    times: dict[psutil.Process, float] = {}
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            used = child.cpu_times()
            times[child] = 1000 * (used.user + used.system)
    return times


def observe_output(output: Any) -> Any:
    from pyspark.sql import functions as F

    # Remainders, since a sum of hashes would overflow.
    hashed = F.sum(F.xxhash64(F.struct("*")) % (1 << 31))
    return output.observe("output", F.count(F.lit(1)).alias("rows"), hashed.alias("hash"))


def p50(batches: list[Batch]) -> float:
    return median([batch.milliseconds for batch in batches])


def p99(batches: list[Batch]) -> float:
    return percentile([batch.milliseconds for batch in batches], 99)


def best(batches: Batches, figure: Callable[[list[Batch]], float], rivals: Iterable[str]) -> str:
    """Return the rival with the least figure."""
    return min(rivals, key=lambda name: figure(batches[name]))

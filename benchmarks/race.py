"""The same streaming query on several state stores in one session, batch by batch in turn."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.contest import BY_TASK, LIMIT, LIMIT_PROVIDER, OURS, PROVIDERS, UNFORKED
from tests.spark.queries import STATE_STORE, configured


@dataclass(frozen=True)
class Entrant:
    """A participant.

    Parameters
    ----------
    name
        Name in the report.
    provider
        Class of its state store.
    settings
        Settings below ``STATE_STORE``.
    confs
        Further settings while its query starts.
    checkpoints
        URL below which its queries have their checkpoints; by default a local directory.
    """

    name: str
    provider: str
    settings: Mapping[str, str] = field(default_factory=dict)
    confs: Mapping[str, str] = field(default_factory=dict)
    checkpoints: str = ""


def entrant_of(name: str) -> Entrant:
    """Return the participant of a compared store; whether it is unforked depends on its session."""
    provider, own = PROVIDERS[OURS]
    more = {LIMIT: (LIMIT_PROVIDER, {}), BY_TASK: (provider, own | {"backend.commit": "task"})}
    provider, settings = (PROVIDERS | UNFORKED | more)[name]
    return Entrant(name, provider, {key: settings[key] for key in settings if not key.startswith("fs.")})


@dataclass(frozen=True)
class Race:
    """A query, and the input of each of its batches.

    Parameters
    ----------
    name
        Name in the report.
    build
        Builds the query from the stream of the input.
    table
        The input of the batch with a number. That of number 0 fills the state.
    entrants
        The stores; the first is ours.
    mode
        The query's output mode.
    confs
        Further settings while the query starts.
    """

    name: str
    build: Callable[[Any], Any]
    table: Callable[[int], pa.Table]
    entrants: tuple[Entrant, ...]
    mode: str = "append"
    confs: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Lap:
    """Figures of one entrant for the input of one batch, including the following batches without data."""

    milliseconds: float
    steps: dict[str, float]
    rows: int
    input_rows: int
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


Laps = dict[str, list[Lap]]


def run(
    spark: Any,
    directory: Path,
    race: Race,
    warmup: int,
    batches: int,
    log: Callable[[str], None],
    **limits: Any,
) -> Laps:
    """Run every entrant on the same input in turn, in changing order, and time the batches after the warm-up.

    The `limits` are those of `take_turns`.

    Raises
    ------
    RuntimeError
        The stores' answers differ, so their times mean nothing.
    """
    with ExitStack() as stack:
        queries = {e.name: stack.enter_context(running(spark, directory, race, e)) for e in race.entrants}
        return take_turns(directory, race, queries, warmup, batches, log, **limits)


def take_turns(
    directory: Path,
    race: Race,
    queries: Mapping[str, Batches],
    warmup: int,
    batches: int,
    log: Callable[[str], None],
    *,
    least: int = 1,
    seconds: float = float("inf"),
    hopeless: float = float("inf"),
    rewarm: int = 0,
    warm_up_together: bool = False,
    warmed: Callable[[], None] = lambda: None,
) -> Laps:
    """Time running queries as in `run`, and call `warmed` before the first batch that counts.

    All run the `least` measured batches; further ones begin for so many `seconds`. An entrant
    whose best of those batches took `hopeless` times as long as the first entrant's worst runs no more.
    With `rewarm` the others warm up for so many batches more, and only what follows counts for them.
    Queries in processes of their own can warm up at the same time.
    """
    end = float("inf")
    laps: Laps = {name: [] for name in queries}
    shuffled = random.Random(1)
    order = list(queries)
    rewarmed = range(1 + warmup + least, 1 + warmup + least + rewarm)
    uncounted = least + rewarm if rewarm else 0
    for number in range(1 + warmup + uncounted + batches):
        is_warmup = number <= warmup or number in rewarmed
        if number == warmup + 1:
            warmed()
        if number == rewarmed.start:
            for name in _behind(laps, race.entrants[0].name, hopeless):
                order.remove(name)
                queries[name].stop()
            if rewarm:
                laps |= {name: [] for name in order}
        if number == rewarmed.stop:
            end = time.monotonic() + seconds
        if time.monotonic() > end:
            break
        made = directory / f"{number:03}.parquet"
        pq.write_table(race.table(number), made)
        shuffled.shuffle(order)
        threads = len(order) if warm_up_together and is_warmup else 1
        with ThreadPoolExecutor(threads) as pool:
            futures = [pool.submit(queries[name].batch, made) for name in order]
        last = [future.result() for future in futures]
        for name, lap in zip(order, last, strict=True):
            first = last[0]
            if lap.answer != first.answer:
                raise RuntimeError(
                    f"{race.name}, batch {number}: {name} has {lap.answer}, and {order[0]} {first.answer}"
                )
            if not is_warmup:
                laps[name].append(lap)
            elif number == 0:
                log(f"{race.name}, {name}: {lap.rows:,} rows of state in {lap.milliseconds:,.0f} ms")
        made.unlink()
    return laps


def _behind(laps: Laps, leader: str, times: float) -> list[str]:
    most = times * max(lap.milliseconds for lap in laps[leader])
    others = ((name, of) for name, of in laps.items() if name != leader)
    return [name for name, of in others if min(lap.milliseconds for lap in of) > most]


class Batches(Protocol):
    """A query that runs, in this process or another."""

    def batch(self, table: Path) -> Lap: ...

    def stop(self) -> None: ...


class Running:
    """A query that runs for the duration of the race."""

    def __init__(self, query: Any, watched: Path) -> None:
        self.query = query
        self._watched = watched
        self._seen = -1

    def batch(self, table: Path) -> Lap:
        """Add a file, wait until it is processed, and return the time."""
        before = _processor_times()
        os.link(table, self._watched / table.name)
        self.query.processAllAvailable()
        # By process, as one that ends meanwhile takes its time away.
        cpu = sum(taken - before.get(process, 0) for process, taken in _processor_times().items())
        found = [dict(p) for p in self.query.recentProgress if p.batchId > self._seen]
        # Spark reports progress of idle queries too.
        found = [p for p in found if "addBatch" in p["durationMs"]]
        self._seen = max(p["batchId"] for p in found)
        steps: dict[str, float] = {}
        for progress in found:
            for name, value in progress["durationMs"].items():
                steps[name] = steps.get(name, 0) + value
            for operator in progress["stateOperators"]:
                # Sums over partitions, so more than the batch's own time if they run in parallel.
                for name in ("allUpdatesTimeMs", "allRemovalsTimeMs", "commitTimeMs"):
                    steps[name] = steps.get(name, 0) + operator[name]
        return Lap(
            milliseconds=steps["triggerExecution"],
            steps=steps,
            rows=sum(operator["numRowsTotal"] for operator in found[-1]["stateOperators"]),
            input_rows=sum(p["numInputRows"] for p in found),
            output=_sums([p["observedMetrics"]["output"] for p in found]),
            cpu=cpu,
            batches=len(found),
        )

    def stop(self) -> None:
        """Stop the query."""
        self.query.stop()


@contextmanager
def running(spark: Any, directory: Path, race: Race, entrant: Entrant) -> Iterator[Running]:
    """Run the query of one entrant in a directory for the duration of the block."""
    root = directory / race.name.replace(" ", "-") / entrant.name.replace(" ", "-")
    watched = root / "input"
    watched.mkdir(parents=True)
    location = str(root / "checkpoint")
    if entrant.checkpoints:
        location = f"{entrant.checkpoints}/{root.parent.name}/{root.name}"
    store = {"providerClass": entrant.provider} | dict(entrant.settings)
    of_store = {STATE_STORE + key: value for key, value in store.items()}
    confs = {**of_store, **race.confs, **entrant.confs}
    with configured(spark, confs):
        schema = spark.createDataFrame(race.table(0).slice(0, 1)).schema
        stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(watched))
        query = (
            race.build(stream)
            .transform(_observed)
            .writeStream.outputMode(race.mode)
            .option("checkpointLocation", location)
            .format("noop")
            .start()
        )
    try:
        yield Running(query, watched)
    finally:
        query.stop()


def _processor_times() -> dict[psutil.Process, float]:
    """Return the processor time of each child process in milliseconds."""
    taken: dict[psutil.Process, float] = {}
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            times = child.cpu_times()
            taken[child] = 1000 * (times.user + times.system)
    return taken


def _observed(output: Any) -> Any:
    from pyspark.sql import functions as F

    # Remainders, since a sum of hashes would overflow.
    hashed = F.sum(F.xxhash64(F.struct("*")) % (1 << 31))
    return output.observe("output", F.count(F.lit(1)).alias("rows"), hashed.alias("hash"))


def _sums(observed: list[Any]) -> tuple[int, int]:
    return sum(o["rows"] for o in observed), sum(o["hash"] or 0 for o in observed)

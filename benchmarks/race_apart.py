"""The same streaming query on several state stores, each in a JVM of its own, batch by batch in turn.

Settings of a session, its class path and the environment of its processes can differ.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks import race, session
from benchmarks.contest import BY_TASK, LIMIT, OURS, UNFORKED, UNFORKED_FILES
from benchmarks.race import Entrant, Lap, Laps, Race
from benchmarks.session import SparkFiles
from tests.spark.queries import unload_all


@dataclass(frozen=True)
class Host:
    """A process with a session, and the settings of both.

    Parameters
    ----------
    memory, spark_files, confs
        See `session.running`.
    settings
        Settings of the session once it runs; they may name classes of its jars.
    environment
        Variables of the process, its JVM and the backend.
    """

    memory: str = "3g"
    spark_files: SparkFiles = "hadoop"
    confs: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


CONFS = {
    # Queries that wait for their turn should not poll for input.
    "sql__streaming__pollingDelay": "200ms",
    # Maintenance would slow down batches of any query, without attribution.
    "sql__streaming__stateStore__maintenanceInterval": "1h",
}


def hosts_of(stores: Iterable[str]) -> dict[str, Host]:
    """Return the session of each compared store: ours as `configure` sets it, Spark's as they come or unforked."""
    return {
        name: Host(
            # Small, as each store has a heap of its own at the same time.
            memory="2g",
            spark_files="backend" if name in (OURS, BY_TASK, LIMIT) else "hadoop",
            confs=CONFS,
            settings=UNFORKED_FILES if name in UNFORKED else {},
        )
        for name in stores
    }


class Hosts:
    """Processes with a session each, by name.

    Parameters
    ----------
    scratch
        Directory for the JVMs' temporary files.
    hosts
        The settings of each.
    """

    def __init__(self, scratch: Path, hosts: Mapping[str, Host]) -> None:
        self._stack = ExitStack()
        self._pools: dict[str, ProcessPoolExecutor] = {}
        try:
            begun = []
            for number, (name, host) in enumerate(hosts.items()):
                pool = self._stack.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn")))
                self._pools[name] = pool
                begun.append(pool.submit(session.call, _begin, scratch / f"host-{number}", host))
            for future in begun:
                future.result()
        except BaseException:
            self.close()
            raise

    def __getitem__(self, name: str) -> ProcessPoolExecutor:
        return self._pools[name]

    def ask(self, name: str, function: Any, *arguments: Any) -> Any:
        """Call a function of a session and further arguments where the session is."""
        return self._pools[name].submit(session.call, _ask, function, arguments).result()

    def close(self) -> None:
        """End the processes."""
        self._stack.close()


class QueryApart:
    """A query in the process of its session."""

    def __init__(self, hosts: Hosts, name: str) -> None:
        self._hosts = hosts
        self._name = name

    def batch(self, table: Path) -> Lap:
        """Add a file, wait until it is processed, and return the time."""
        lap = self._hosts.ask(self._name, _batch, table)
        assert isinstance(lap, Lap)
        return lap

    def stop(self) -> None:
        """Stop the query."""
        self._hosts.ask(self._name, _stop)


@contextmanager
def hosting(scratch: Path, hosts: Mapping[str, Host]) -> Iterator[Hosts]:
    """Run processes for the duration of the block."""
    running = Hosts(scratch, hosts)
    try:
        yield running
    finally:
        running.close()


@contextmanager
def queries(hosts: Hosts, directory: Path, entered: Race) -> Iterator[dict[str, QueryApart]]:
    """Run the query of each entrant, in the host of its name, for the duration of the block."""
    with ExitStack() as stack:
        running = {}
        for entrant in entered.entrants:
            hosts.ask(entrant.name, _start, directory, entered, entrant)
            running[entrant.name] = QueryApart(hosts, entrant.name)
            stack.callback(running[entrant.name].stop)
        yield running


def run(
    hosts: Hosts,
    directory: Path,
    entered: Race,
    warmup: int,
    batches: int,
    log: Callable[[str], None],
    **limits: Any,
) -> Laps:
    """Run every entrant as `race.run` does, in the host of its name; all warm up at the same time."""
    with queries(hosts, directory, entered) as running:
        return race.take_turns(
            directory, entered, running, warmup, batches, log, warm_up_together=True, **limits
        )


# The following functions run in the process of a host.
_spark: Any = None
_queries = ExitStack()
_running: race.Running | None = None


def _begin(scratch: Path, host: Host) -> None:
    global _spark
    os.environ |= host.environment
    scratch.mkdir(parents=True)
    stack = ExitStack()
    _spark = stack.enter_context(
        session.running(scratch, host.memory, spark_files=host.spark_files, **host.confs)
    )
    atexit.register(stack.close)
    for key, value in host.settings.items():
        _spark.conf.set(key, value)


def _ask(function: Any, arguments: tuple[Any, ...]) -> Any:
    return function(_spark, *arguments)


def _start(spark: Any, directory: Path, entered: Race, entrant: Entrant) -> None:
    global _running
    _running = _queries.enter_context(race.running(spark, directory, entered, entrant))


def _batch(_: Any, table: Path) -> Lap:
    assert _running is not None
    return _running.batch(table)


def _stop(spark: Any) -> None:
    _queries.close()
    unload_all(spark)

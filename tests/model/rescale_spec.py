"""Specification of rescales in place against drivers that start, run and die, see `query.journal`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.checker import put


class Journal(NamedTuple):
    """The journal: its entry in the log of offsets, the number of partitions, the files still to change."""

    entry: int
    count: int
    # Positions of the entries in the log of offsets, and the one in the commit log.
    offsets: tuple[int, ...]
    commit: int


class Driver(NamedTuple):
    """One driver of the query, and the backend that settles its partitions.

    `batch` is the one that runs; `count` its number of partitions, `loaded` that of the state which it
    loads; `begun` is the rescale that it computes.
    """

    step: str = "off"
    batch: int = 0
    count: int = 0
    loaded: int = 0
    begun: Journal | None = None


class State(NamedTuple):
    """Both logs of Spark, as the number of partitions of each batch, the journal, and the drivers."""

    offsets: tuple[int, ...]
    commits: tuple[int, ...]
    journal: Journal | None
    drivers: tuple[Driver, ...]


@dataclass(frozen=True)
class RescaleSpec:
    """Drivers whose sessions want different numbers of partitions, with injected faults.

    A driver whose session lacks the extension wants None. Such drivers run alone, as nothing but Spark's own
    files protects them.
    """

    partitions: tuple[int | None, ...] = (2, 3)
    batches: int = 4
    faults: frozenset[str] = frozenset()

    def init(self) -> Iterator[State]:
        drivers = tuple(Driver() for _ in self.partitions)
        for planned in ((2,), (2, 2)):
            yield State(planned, (2,), None, drivers)

    def key(self, state: State) -> Hashable:
        return state

    def next(self, state: State) -> Iterator[tuple[str, State]]:
        for number, driver in enumerate(state.drivers):
            if driver.step != "off":
                yield f"kill {number}", state._replace(drivers=put(state.drivers, number, Driver()))
            others_run = any(
                other_driver.step != "off" for other_driver in state.drivers if other_driver is not driver
            )
            if driver.step == "off" and others_run and None in self.partitions:
                continue
            for label, after, to in self._step(state, driver, self.partitions[number]):
                yield f"{label} by {number}", after._replace(drivers=put(state.drivers, number, to))

    def _step(
        self, state: State, driver: Driver, partitions: int | None
    ) -> Iterator[tuple[str, State, Driver]]:
        if driver.step == "off":
            yield from self._start(state, partitions)
        elif driver.step == "rescale" and driver.begun is not None:
            # The log that a running query writes, too: one of both is first.
            is_free = driver.begun.entry == len(state.offsets) and state.journal is None
            if "journal of its own" in self.faults:
                is_free = state.journal is None
            if "no journal" in self.faults:
                yield "skip", state, driver._replace(step="apply")
            elif is_free:
                yield "journal", state._replace(journal=driver.begun), driver._replace(step="apply")
            else:
                yield "refuse", state, Driver()
        elif driver.step == "apply" and driver.begun is not None:
            yield from self._apply(state, driver, driver.begun)
        elif driver.step == "read":
            is_counted = partitions is not None and "ids not counted" not in self.faults
            # The commit log is read after the log of offsets.
            loaded = driver.loaded or state.commits[-1]
            if is_counted and loaded != driver.count:
                yield "mismatch", state, Driver()
            else:
                yield "load", state, driver._replace(step="run", loaded=loaded)
        elif driver.step == "run":
            if driver.batch == len(state.commits):
                commits = (*state.commits, driver.count)
                yield "commit", state._replace(commits=commits), driver._replace(step="next")
            else:
                yield "fail", state, Driver()
        elif driver.step == "next" and len(state.commits) < self.batches:
            yield from self._plan(state, driver._replace(batch=driver.batch + 1, loaded=driver.count))

    def _start(self, state: State, partitions: int | None) -> Iterator[tuple[str, State, Driver]]:
        if state.journal is not None and "journal of its own" not in self.faults:
            if partitions is not None:
                yield "find journal", state, Driver("apply", begun=state.journal)
            return
        newest, committed = state.offsets[-1], state.commits[-1]
        is_equal = len(state.offsets) > len(state.commits) or newest == committed
        if partitions is not None and (partitions != newest or not is_equal):
            last = len(state.commits) - 1
            planned = range(last, last + 1 if "planned batch kept" in self.faults else len(state.offsets))
            yield (
                "begin",
                state,
                Driver("rescale", begun=Journal(len(state.offsets), partitions, (*planned,), last)),
            )
            return
        batch = len(state.commits)
        if len(state.offsets) > batch:
            yield "repeat batch", state, Driver("read", batch, newest)
        elif batch < self.batches:
            yield from self._plan(state, Driver("read", batch, newest, committed))

    def _plan(self, state: State, driver: Driver) -> Iterator[tuple[str, State, Driver]]:
        if len(state.offsets) == driver.batch and (
            state.journal is None or "journal of its own" in self.faults
        ):
            offsets = (*state.offsets, driver.count)
            yield "plan", state._replace(offsets=offsets), driver._replace(step="read")
        else:
            yield "lose", state, Driver()

    def _apply(self, state: State, driver: Driver, begun: Journal) -> Iterator[tuple[str, State, Driver]]:
        journal = state.journal
        is_there = journal is not None and (journal.entry, journal.count) == (begun.entry, begun.count)
        if not is_there and not self.faults & {"late process goes on", "no journal"}:
            # Another process was faster; the query may have gone on.
            yield "stop late", state, Driver()
        elif begun.commit >= 0:
            commits = put(state.commits, begun.commit, begun.count)
            rest = begun._replace(commit=-1)
            yield "change commit", state._replace(commits=commits), driver._replace(begun=rest)
        elif begun.offsets:
            position, *later_positions = begun.offsets
            offsets = put(state.offsets, position, begun.count)
            rest = begun._replace(offsets=(*later_positions,))
            yield "change offsets", state._replace(offsets=offsets), driver._replace(begun=rest)
        else:
            # It deletes the file of that number, whatever it is.
            offsets = state.offsets[: begun.entry] if "late process goes on" in self.faults else state.offsets
            yield "end", state._replace(journal=None, offsets=offsets), Driver()

    def invariants(self) -> Mapping[str, Callable[[State], bool]]:
        def loaded(state: State) -> bool:
            return all(driver.loaded == driver.count for driver in state.drivers if driver.step == "run")

        return {
            "a batch has the state of its own partitions": loaded,
            "a committed batch is in the log of offsets": lambda state: (
                len(state.offsets) >= len(state.commits)
            ),
        }

"""Specification of holds against concurrent cleanups, see `spark_statestore.store.holds`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.checker import put


class Cleaner(NamedTuple):
    """The cleanups of one instance of a store."""

    keep: int
    step: str = ""
    below: int = 0
    holds: frozenset[int] = frozenset()
    marked: int | None = None
    ever: bool = False


class Holder(NamedTuple):
    """A process that holds a version."""

    version: int
    step: str = "flag"
    safe: int = 0


class State(NamedTuple):
    """State of the storage and of the processes."""

    newest: int
    versions: frozenset[int]
    flag: bool
    markers: frozenset[int]
    holds: frozenset[int]
    cleaners: tuple[Cleaner, ...]
    holders: tuple[Holder, ...]


@dataclass(frozen=True)
class HoldSpec:
    """Cleanups that keep different numbers of versions, and several holders, with injected faults."""

    # Number of versions before the newest that each instance keeps.
    keeps: tuple[int, ...] = (1, 2)
    # Versions that are held.
    held_versions: tuple[int, ...] = (1, 2)
    # Number of versions in all.
    versions: int = 4
    faults: frozenset[str] = frozenset()

    def init(self) -> Iterator[State]:
        yield State(
            1,
            frozenset([1]),
            False,
            frozenset(),
            frozenset(),
            tuple(Cleaner(keep) for keep in self.keeps),
            tuple(Holder(version) for version in self.held_versions),
        )

    def key(self, state: State) -> Hashable:
        return state

    def next(self, state: State) -> Iterator[tuple[str, State]]:
        if state.newest < self.versions:
            newest = state.newest + 1
            yield (
                f"accept version {newest}",
                state._replace(newest=newest, versions=state.versions | {newest}),
            )
        for number, cleaner in enumerate(state.cleaners):
            for label, next_state, after in self._clean(state, cleaner):
                cleaners = put(state.cleaners, number, after)
                yield (
                    f"{label} by {number}, which keeps {cleaner.keep}",
                    next_state._replace(cleaners=cleaners),
                )
        for number, holder in enumerate(state.holders):
            for label, next_state, to in self._hold(state, holder):
                holders = put(state.holders, number, to)
                yield f"{label} for the hold on {holder.version}", next_state._replace(holders=holders)

    def _clean(self, state: State, cleaner: Cleaner) -> Iterator[tuple[str, State, Cleaner]]:
        if cleaner.step == "":
            below = state.newest - cleaner.keep
            if any(version < below for version in state.versions):
                yield "begin cleanup", state, cleaner._replace(step="scan", below=below)
        elif cleaner.step == "scan":
            if (
                cleaner.marked is not None
                and cleaner.marked <= cleaner.keep
                and not cleaner.ever
                and not state.flag
            ):
                yield "no flag seen", state, cleaner._replace(step="discard", holds=frozenset())
            elif any(mark <= cleaner.keep for mark in state.markers):
                yield "list", state, self._after_scan(state, cleaner)
            else:
                yield "list without marker", state, self._after_scan(state, cleaner)._replace(step="mark")
        elif cleaner.step == "mark":
            step = "discard" if "no second scan" in self.faults else "scan again"
            next_state = state._replace(markers=state.markers | {cleaner.keep})
            yield "mark", next_state, cleaner._replace(step=step)
        elif cleaner.step == "scan again":
            yield "list again", state, self._after_scan(state, cleaner)
        else:
            gone = {v for v in state.versions if v < cleaner.below and v not in cleaner.holds}
            next_state = state._replace(versions=state.versions - gone)
            yield f"discard {sorted(gone)}", next_state, cleaner._replace(step="", holds=frozenset(), below=0)

    def _after_scan(self, state: State, cleaner: Cleaner) -> Cleaner:
        marked = min(state.markers, default=None)
        return cleaner._replace(
            step="discard", holds=state.holds, marked=marked, ever=state.flag or bool(state.holds)
        )

    def _hold(self, state: State, holder: Holder) -> Iterator[tuple[str, State, Holder]]:
        if holder.step == "flag":
            if holder.version <= state.newest:
                next_state = state if "no flag" in self.faults else state._replace(flag=True)
                yield "flag", next_state, holder._replace(step="write")
        elif holder.step == "write":
            yield (
                "write",
                state._replace(holds=state.holds | {holder.version}),
                holder._replace(step="read markers"),
            )
        elif holder.step == "read markers":
            # The markers first: a later cleanup sees the hold.
            keeps = min(state.markers, default=None)
            if "markers not read" in self.faults:
                keeps = None
            if keeps is None:
                yield "no markers seen", state, holder._replace(step="find")
            else:
                yield "markers seen", state, holder._replace(step="ask", safe=keeps)
        elif holder.step == "ask":
            if holder.version < state.newest - holder.safe:
                next_state = state._replace(holds=state.holds - {holder.version})
                yield "withdraw", next_state, holder._replace(step="withdrawn", safe=0)
            else:
                yield "in time", state, holder._replace(step="find", safe=0)
        elif holder.step == "find":
            if holder.version in state.versions:
                yield "find", state, holder._replace(step="held")
            else:
                next_state = state._replace(holds=state.holds - {holder.version})
                yield "miss", next_state, holder._replace(step="withdrawn")

    def invariants(self) -> Mapping[str, Callable[[State], bool]]:
        def held_versions_exist(state: State) -> bool:
            return all(p.version in state.versions for p in state.holders if p.step == "held")

        return {"held versions exist": held_versions_exist}

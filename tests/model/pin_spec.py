"""The protocol by which pins and clean-ups do not miss each other, see `spark_statestore.checkpoint.pins`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Cleaner(NamedTuple):
    """The clean-ups of one instance of a store."""

    keep: int
    step: str = ""
    below: int = 0
    pinned: frozenset[int] = frozenset()
    marked: int | None = None
    ever: bool = False


class Pinner(NamedTuple):
    """Somebody who pins a version."""

    version: int
    step: str = "flag"
    safe: int = 0


class State(NamedTuple):
    """What lies in storage, and who is at work."""

    newest: int
    versions: frozenset[int]
    flag: bool
    marks: frozenset[int]
    pins: frozenset[int]
    cleaners: tuple[Cleaner, ...]
    pinners: tuple[Pinner, ...]

    def __str__(self) -> str:
        return "\n".join(f"     {name} = {value}" for name, value in zip(self._fields, self, strict=True))


@dataclass(frozen=True)
class PinSpec:
    """Clean-ups that keep different numbers of versions, and several who pin.

    Attributes
    ----------
    keeps
        How many versions before the newest each instance keeps.
    pinned
        The versions that are pinned.
    versions
        How many there come to be.
    faults
        What is done wrong.
    """

    keeps: tuple[int, ...] = (1, 2)
    pinned: tuple[int, ...] = (1, 2)
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
            tuple(Pinner(version) for version in self.pinned),
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
            for label, of, after in self._clean(state, cleaner):
                cleaners = (*state.cleaners[:number], after, *state.cleaners[number + 1 :])
                yield f"{label} by {number}, which keeps {cleaner.keep}", of._replace(cleaners=cleaners)
        for number, pinner in enumerate(state.pinners):
            for label, of, to in self._pin(state, pinner):
                pinners = (*state.pinners[:number], to, *state.pinners[number + 1 :])
                yield f"{label} for the pin on {pinner.version}", of._replace(pinners=pinners)

    def _clean(self, state: State, cleaner: Cleaner) -> Iterator[tuple[str, State, Cleaner]]:
        if cleaner.step == "":
            below = state.newest - cleaner.keep
            if any(version < below for version in state.versions):
                yield "begin clean-up", state, cleaner._replace(step="look", below=below)
        elif cleaner.step == "look":
            if (
                cleaner.marked is not None
                and cleaner.marked <= cleaner.keep
                and not cleaner.ever
                and not state.flag
            ):
                yield "no flag seen", state, cleaner._replace(step="discard", pinned=frozenset())
            elif any(known <= cleaner.keep for known in state.marks):
                yield "list", state, self._seen(state, cleaner)
            else:
                yield "list without mark", state, self._seen(state, cleaner)._replace(step="mark")
        elif cleaner.step == "mark":
            step = "discard" if "no second look" in self.faults else "look again"
            of = state._replace(marks=state.marks | {cleaner.keep})
            yield "mark", of, cleaner._replace(step=step)
        elif cleaner.step == "look again":
            yield "list again", state, self._seen(state, cleaner)
        else:
            gone = {v for v in state.versions if v < cleaner.below and v not in cleaner.pinned}
            of = state._replace(versions=state.versions - gone)
            yield f"discard {sorted(gone)}", of, cleaner._replace(step="", pinned=frozenset(), below=0)

    def _seen(self, state: State, cleaner: Cleaner) -> Cleaner:
        marked = min(state.marks, default=None)
        return cleaner._replace(
            step="discard", pinned=state.pins, marked=marked, ever=state.flag or bool(state.pins)
        )

    def _pin(self, state: State, pinner: Pinner) -> Iterator[tuple[str, State, Pinner]]:
        if pinner.step == "flag":
            if pinner.version <= state.newest:
                of = state if "no flag" in self.faults else state._replace(flag=True)
                yield "flag", of, pinner._replace(step="write")
        elif pinner.step == "write":
            yield "write", state._replace(pins=state.pins | {pinner.version}), pinner._replace(step="look")
        elif pinner.step == "look":
            # The marks first: a clean-up that comes later sees the pin.
            keeps = min(state.marks, default=None)
            if "marks not looked at" in self.faults:
                keeps = None
            if keeps is None:
                yield "no marks seen", state, pinner._replace(step="find")
            else:
                yield "marks seen", state, pinner._replace(step="ask", safe=keeps)
        elif pinner.step == "ask":
            if pinner.version < state.newest - pinner.safe:
                of = state._replace(pins=state.pins - {pinner.version})
                yield "withdraw", of, pinner._replace(step="withdrawn", safe=0)
            else:
                yield "in time", state, pinner._replace(step="find", safe=0)
        elif pinner.step == "find":
            if pinner.version in state.versions:
                yield "find", state, pinner._replace(step="held")
            else:
                of = state._replace(pins=state.pins - {pinner.version})
                yield "miss", of, pinner._replace(step="withdrawn")

    def invariants(self) -> Mapping[str, Callable[[State], bool]]:
        def held(state: State) -> bool:
            return all(p.version in state.versions for p in state.pinners if p.step == "held")

        return {"what is pinned is there": held}

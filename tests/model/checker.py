"""A model checker that visits a specification's reachable states and returns the shortest counterexample.

A specification is written as in TLA+: initial states, steps that lead from one state to the next,
and invariants that hold in all of them. States are immutable values, so the visited set is a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Generic, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)
T = TypeVar("T")


class Spec(Protocol[S]):
    """A specification: initial states, steps and invariants."""

    def init(self) -> Iterable[S]:
        """Return the initial states."""

    def key(self, state: S) -> Hashable:
        """Return a key; of several states with one key, only one is visited (symmetry reduction)."""

    def next(self, state: S) -> Iterator[tuple[str, S]]:
        """Yield every step from a state: its label, and the next state."""

    def invariants(self) -> Mapping[str, Callable[[S], bool]]:
        """Return the invariants by name."""


@dataclass(frozen=True)
class Counterexample(Generic[S]):
    """The shortest path from an initial state to a violation of an invariant."""

    invariant: str
    labels: tuple[str, ...]
    states: tuple[S, ...]

    def __str__(self) -> str:
        steps = [f"{number:3}. {label}" for number, label in enumerate(self.labels, 1)]
        return "\n".join([f"{self.invariant!r} does not hold after", *steps, _described(self.states[-1])])


@dataclass(frozen=True)
class Checked(Generic[S]):
    """Result of a check."""

    # Number of distinct visited states, and steps to the farthest of them.
    states: int
    depth: int
    # Kinds of the executed steps: the first word of each label.
    labels: frozenset[str]
    # None if every invariant holds in every state.
    counterexample: Counterexample[S] | None


def _described(state: object) -> str:
    """Return the fields of a state, a line for each."""
    fields = getattr(state, "_asdict", dict)().items()
    return "\n".join(f"     {name} = {value}" for name, value in fields) or str(state)


class TooManyStates(Exception):
    """The bound was too small; unvisited states are unchecked."""


def follow(spec: Spec[S], state: S, labels: Iterable[str]) -> S:
    """Return the state after some steps, each selected by its label or a prefix of it."""
    for prefix in labels:
        possible = dict(spec.next(state))
        matches = [label for label in possible if label.startswith(prefix)]
        label = prefix if prefix in possible else matches[0] if len(matches) == 1 else None
        if label is None:
            raise ValueError(f"{prefix!r} is not one step of {', '.join(sorted(possible))}")
        state = possible[label]
    return state


def check(spec: Spec[S], most: int = 2_000_000, *, only: str | None = None) -> Checked[S]:
    """Visit every state, breadth first, and check all invariants, or one.

    Raises `TooManyStates` if there are more states than `most`.
    """
    invariants = spec.invariants()
    if only is not None:
        invariants = {only: invariants[only]}
    begin = {spec.key(state): state for state in spec.init()}
    came: dict[Hashable, tuple[Hashable, str, S] | None] = dict.fromkeys(begin)
    kinds: set[str] = set()
    level = list(begin.items())
    depth = 0

    def broken(key: Hashable, state: S) -> Counterexample[S] | None:
        for name, holds in invariants.items():
            if not holds(state):
                return _way(came, key, state, name)
        return None

    for key, state in level:
        if counterexample := broken(key, state):
            return Checked(len(came), 0, frozenset(), counterexample)
    while level:
        further: list[tuple[Hashable, S]] = []
        for key, state in level:
            for label, after in spec.next(state):
                kinds.add(label.partition(" ")[0])
                if (reached := spec.key(after)) in came:
                    continue
                came[reached] = key, label, state
                if counterexample := broken(reached, after):
                    return Checked(len(came), depth + 1, frozenset(kinds), counterexample)
                further.append((reached, after))
        if len(came) > most:
            raise TooManyStates(f"more than {most} states, {depth} steps from the beginning")
        level = further
        depth += bool(further)
    return Checked(len(came), depth, frozenset(kinds), None)


@cache
def passes(spec: Spec[S]) -> Checked[S]:
    """Check a specification that has no counterexample, and print its size."""
    result = check(spec)
    assert result.counterexample is None, str(result.counterexample)
    print(f"{result.states} states, {result.depth} steps")
    return result


def fails(spec: Spec[S], *faults: str, only: str | None = None) -> Counterexample[S]:
    """Return the counterexample that a specification has with some faults."""
    counterexample = check(with_faults(spec, *faults), only=only).counterexample
    assert counterexample is not None
    return counterexample


def with_faults(spec: Spec[S], *faults: str) -> Spec[S]:
    """Return a specification with injected faults."""
    return replace(spec, faults=frozenset(faults))  # type: ignore[type-var]


def put(values: tuple[T, ...], position: int, value: T) -> tuple[T, ...]:
    """Return the values with another one at a position."""
    return (*values[:position], value, *values[position + 1 :])


def _way(
    came: Mapping[Hashable, tuple[Hashable, str, S] | None], key: Hashable, state: S, invariant: str
) -> Counterexample[S]:
    labels: list[str] = []
    states = [state]
    while (step := came[key]) is not None:
        key, label, before = step
        labels.append(label)
        states.append(before)
    return Counterexample(invariant, tuple(reversed(labels)), tuple(reversed(states)))

"""A model checker: visits every state that a specification can reach, and shows the shortest way to a bad one.

A specification is written as in TLA+: states that it may begin in, the steps that lead from one state to the next,
and invariants that hold in all of them. States are immutable values, so what was visited is a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)


class Spec(Protocol[S]):
    """What is checked."""

    def init(self) -> Iterable[S]:
        """The states to begin in."""

    def key(self, state: S) -> Hashable:
        """States of one key are alike: of several, one is looked at."""

    def next(self, state: S) -> Iterator[tuple[str, S]]:
        """Every step from a state: what happens, and the state then."""

    def invariants(self) -> Mapping[str, Callable[[S], bool]]:
        """What holds in every state, by name."""


@dataclass(frozen=True)
class Counterexample(Generic[S]):
    """The shortest way from a beginning to a state in which an invariant does not hold."""

    invariant: str
    labels: tuple[str, ...]
    states: tuple[S, ...]

    def __str__(self) -> str:
        steps = [f"{number:3}. {label}" for number, label in enumerate(self.labels, 1)]
        return "\n".join([f"{self.invariant!r} does not hold after", *steps, str(self.states[-1])])


@dataclass(frozen=True)
class Checked(Generic[S]):
    """What came of it.

    Attributes
    ----------
    states
        How many different ones were visited.
    depth
        Steps to the farthest of them.
    labels
        The kinds of steps that were taken: the first word of each.
    counterexample
        None if every invariant holds in every state.
    """

    states: int
    depth: int
    labels: frozenset[str]
    counterexample: Counterexample[S] | None


class TooManyStates(Exception):
    """The bound was too small: nothing is said of what was not visited."""


def follow(spec: Spec[S], state: S, labels: Iterable[str]) -> S:
    """The state after some steps, each known by its label or by how that begins, and each possible then."""
    for wanted in labels:
        possible = dict(spec.next(state))
        found = [label for label in possible if label.startswith(wanted)]
        label = wanted if wanted in possible else found[0] if len(found) == 1 else None
        if label is None:
            raise ValueError(f"{wanted!r} is not one step of {', '.join(sorted(possible))}")
        state = possible[label]
    return state


def check(spec: Spec[S], most: int = 2_000_000, *, only: str | None = None) -> Checked[S]:
    """Visit every state, nearest first.

    Parameters
    ----------
    most
        States to visit.
    only
        The one invariant to look at.

    Raises
    ------
    TooManyStates
        If there are more.
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
        if found := broken(key, state):
            return Checked(len(came), 0, frozenset(), found)
    while level:
        further: list[tuple[Hashable, S]] = []
        for key, state in level:
            for label, after in spec.next(state):
                kinds.add(label.partition(" ")[0])
                if (reached := spec.key(after)) in came:
                    continue
                came[reached] = key, label, state
                if found := broken(reached, after):
                    return Checked(len(came), depth + 1, frozenset(kinds), found)
                further.append((reached, after))
        if len(came) > most:
            raise TooManyStates(f"more than {most} states, {depth} steps from the beginning")
        level = further
        depth += bool(further)
    return Checked(len(came), depth, frozenset(kinds), None)


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

"""Specification of a batch's publication.

What the stores of a run add in memory of the backend is in storage before the batch's entry. One version of
each store of one run. The backend finds the run's merged files (an *object*) through a registry, and a store
keeps the one that it was opened with. See INVARIANTS.md.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.checker import put

NONE = -1


class Attempt(NamedTuple):
    """An attempt, which is "lost", "written" by itself, or added to an object.

    Then it is in "memory", "taken" by a publication of the object, or in a "file".
    """

    place: str
    owner: int = NONE


class Store(NamedTuple):
    """A store: the object that it has, its attempts, and those in storage.

    Without ids the last attempt counts.
    """

    owner: int = NONE
    attempts: tuple[Attempt, ...] = ()
    files: tuple[int, ...] = ()


class State(NamedTuple):
    """State of the stores, the registered object, the number of objects, and the batch.

    `step` is "tasks", "barrier" (the first answer has arrived, `missing` is published alone), "failed" or
    "committed". `early` is "sent", "answered" (`missing` is published alone), "failed" or "done" once a
    publication of the stores in `included` has begun before the barrier.
    """

    stores: tuple[Store, ...]
    registered: int = NONE
    objects: int = 0
    step: str = "tasks"
    missing: frozenset[int] = frozenset()
    retries: int = 0
    answers: int = 0
    early: str = ""
    included: frozenset[int] = frozenset()


@dataclass(frozen=True)
class PublicationSpec:
    """The protocol of a batch's publication, with injected faults."""

    # Spark's checkpoint format v2.
    with_ids: bool = False
    # Upper bounds on their numbers.
    stores: int = 2
    objects: int = 3
    # Upper bound on tasks that run again and commit in a file of their own.
    retries: int = 0
    # Upper bound on lost answers: the request is repeated while the first publication is in progress.
    answers: int = 0
    # A publication may begin before the barrier, as in real-time mode.
    early: bool = False
    faults: frozenset[str] = frozenset()

    def init(self) -> Iterator[State]:
        yield State((Store(),) * self.stores)

    def key(self, state: State) -> Hashable:
        return state

    def next(self, state: State) -> Iterator[tuple[str, State]]:
        for position, store in enumerate(state.stores):
            if store.owner != NONE:
                yield (
                    f"close store {position}",
                    _collected(_with(state, position, store._replace(owner=NONE))),
                )
        if state.registered != NONE and self._can_forget(state):
            yield "forget the run", _collected(state._replace(registered=NONE))
        for owner in {attempt.owner for attempt in _attempts(state) if attempt.place == "taken"}:
            yield f"end publication of object {owner}", self._published(state, owner, "taken")
            yield f"fail publication of object {owner}", _moved(state, owner, "taken", "lost")
        if state.early == "sent":
            yield from self._answer(state)
        elif state.early == "answered":
            end = ("end early", state._replace(early="done"))
            yield from self._missing_alone(state, end, state._replace(early="failed", missing=frozenset()))
        if state.step == "tasks":
            yield from self._tasks(state)
        elif state.step == "barrier":
            end = ("commit", state._replace(step="committed"))
            yield from self._missing_alone(state, end, state._replace(step="failed"))

    def _can_forget(self, state: State) -> bool:
        if state.objects == self.objects or "runs in use are forgotten" in self.faults:
            return state.objects < self.objects
        if any(store.owner == state.registered for store in state.stores):
            return False
        unpublished = any(
            attempt.owner == state.registered and attempt.place in ("memory", "taken")
            for attempt in _attempts(state)
        )
        return not unpublished or "unpublished is forgotten" in self.faults

    def _tasks(self, state: State) -> Iterator[tuple[str, State]]:
        for position, store in enumerate(state.stores):
            opened = _opened(state, position)
            if not store.attempts:
                added = opened.stores[position]
                added = added._replace(attempts=(Attempt("memory", added.owner),))
                yield f"add in store {position}", _with(opened, position, added)
            elif len(store.attempts) == 1 and state.retries < self.retries:
                yield from self._alone(opened._replace(retries=state.retries + 1), position, 1)
        if self.early and not state.early and any(store.attempts for store in state.stores):
            yield from self._begin_early(state)
        if state.early == "failed" and "early failures are ignored" not in self.faults:
            yield "fail the batch", state._replace(step="failed")
        elif all(store.attempts for store in state.stores) and self._can_publish(state):
            for position in range(self.stores):
                opened = _opened(state, position)
                owner = opened.stores[position].owner
                if state.answers < self.answers:
                    after_take = _moved(opened, owner, "memory", "taken")
                    yield (
                        f"lose answer through store {position}",
                        after_take._replace(answers=state.answers + 1),
                    )
                after_publication = self._published(opened, owner, "memory")
                missing = _missing(after_publication, frozenset(range(self.stores)) - state.included)
                yield (
                    f"publish through store {position}",
                    after_publication._replace(step="barrier", missing=missing),
                )

    # Before the barrier

    def _begin_early(self, state: State) -> Iterator[tuple[str, State]]:
        included = frozenset(position for position, store in enumerate(state.stores) if store.attempts)
        for position in included:
            opened = _opened(state, position)
            after_take = _moved(opened, opened.stores[position].owner, "memory", "taken")
            yield (
                f"begin early through store {position}",
                after_take._replace(early="sent", included=included),
            )

    def _answer(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield the end of the early publication's request, which waits for what the backend has taken."""
        if any(state.stores[position].attempts[0].place == "taken" for position in state.included):
            return
        missing = _missing(state, state.included)
        if missing:
            yield "fail early", state._replace(early="failed")
        yield "answer early", state._replace(early="answered", missing=missing)

    def _can_publish(self, state: State) -> bool:
        return state.early in ("", "done", "failed") or "the barrier does not wait" in self.faults

    def _missing_alone(
        self, state: State, end: tuple[str, State], failed: State
    ) -> Iterator[tuple[str, State]]:
        """Yield the writes of what an answer names as missing, and the end after the last one."""
        if not state.missing:
            yield end
        for position in state.missing:
            if len(state.stores[position].attempts) > 1:
                # The store has gone on.
                yield f"refuse store {position}", failed
                continue
            next_state = state._replace(missing=state.missing - {position})
            yield from self._alone(_opened(next_state, position), position, 0)

    def _alone(self, state: State, position: int, number: int) -> Iterator[tuple[str, State]]:
        """Yield the commit of an attempt in a file of its own."""
        store = state.stores[position]
        label = f"write attempt {number} of store {position}"
        # Those that have its name.
        namesakes = [
            (other_number, attempt.place)
            for other_number, attempt in enumerate(store.attempts)
            if attempt.owner == store.owner and (other_number == number or not self.with_ids)
        ]
        in_memory = [
            (other_number, place) for other_number, place in namesakes if place in ("memory", "taken")
        ]
        is_own = any(other_number == number for other_number, _ in in_memory)
        if is_own and "pending counts as published" in self.faults:
            yield f"answer for attempt {number} of store {position}", state
            return
        if in_memory and "pending is published later" not in self.faults:
            if any(place == "taken" for _, place in in_memory):
                return
            state = self._published(state, store.owner, "memory")
            store = state.stores[position]
        if number < len(store.attempts) and store.attempts[number].place == "file":
            yield label, state
            return
        new_attempt = Attempt("written")
        attempts = (*store.attempts[:number], new_attempt, *store.attempts[number + 1 :])
        yield label, _with(state, position, Store(store.owner, attempts, (*store.files, number)))

    def _published(self, state: State, owner: int, place: str) -> State:
        """Return the state after an object's attempts were published, as the newest at their paths."""
        stores = []
        for store in state.stores:
            numbers = [n for n, attempt in enumerate(store.attempts) if attempt == Attempt(place, owner)]
            stores.append(store._replace(files=(*store.files, *numbers)))
        return _moved(state._replace(stores=tuple(stores)), owner, place, "file")

    def invariants(self) -> Mapping[str, Callable[[State], bool]]:
        def stored(state: State) -> bool:
            return state.step != "committed" or all(
                len(store.attempts) - 1 in store.files for store in state.stores
            )

        def last(state: State) -> bool:
            return (
                self.with_ids
                or state.step != "committed"
                or all(store.files[-1:] == (len(store.attempts) - 1,) for store in state.stores)
            )

        return {"committed attempts are in storage": stored, "the last attempt counts": last}


def _missing(state: State, positions: frozenset[int]) -> frozenset[int]:
    """Return those of some stores whose first attempt an answer names as missing."""
    return frozenset(index for index in positions if state.stores[index].attempts[0].place != "file")


def _attempts(state: State) -> list[Attempt]:
    return [attempt for store in state.stores for attempt in store.attempts]


def _opened(state: State, position: int) -> State:
    """Return the state once a request has opened a store."""
    store = state.stores[position]
    if store.owner != NONE:
        return state
    if state.registered == NONE:
        state = state._replace(registered=state.objects, objects=state.objects + 1)
    return _with(state, position, store._replace(owner=state.registered))


def _collected(state: State) -> State:
    """Return the state after objects that nothing refers to were collected."""
    used = {state.registered, *(store.owner for store in state.stores)}
    for owner in {attempt.owner for attempt in _attempts(state)} - used:
        state = _moved(state, owner, "memory", "lost")
    return state


def _moved(state: State, owner: int, place: str, to: str) -> State:
    stores = (
        store._replace(
            attempts=tuple(
                attempt._replace(place=to) if attempt == Attempt(place, owner) else attempt
                for attempt in store.attempts
            )
        )
        for store in state.stores
    )
    return state._replace(stores=tuple(stores))


def _with(state: State, position: int, store: Store) -> State:
    return state._replace(stores=put(state.stores, position, store))

"""Specification of `commit=batch`: tasks hand over their commits, and the driver awaits their publication.

All runs of a query are in one process, whose kill loses what is in memory. Attempts are numbered per store. A
run has a state store instance of its own for each store. See INVARIANTS.md.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.checker import follow, put

NONE = -1

# A version by number alone (v1), or by number and attempt (v2).
Name = tuple[int, ...]


class Attempt(NamedTuple):
    """One attempt at a version of a store.

    `step` is "task" until its task hands it over, then "pending", until it is "published" or "failed". One
    that was lost or refused before is "gone". `torn` means that its changes were truncated, or mixed with
    those of another attempt. `owns` means that its task uses the state in memory, and not one of its own.
    """

    step: str
    version: int = 0
    run: int = NONE
    parent: int = NONE
    torn: bool = False
    owns: bool = False


GONE = Attempt("gone")


class Run(NamedTuple):
    """A run of the query: `step` is "tasks", "passed" (the barrier), "ended" (failed) or "done"."""

    version: int
    step: str = "tasks"


class Store(NamedTuple):
    """A store in storage, in Spark's commit log, and in memory."""

    attempts: tuple[Attempt, ...] = ()
    metadata: frozenset[tuple[Name, int]] = frozenset()
    # By version: the attempt in the commit log, and the one found in storage when the log was written.
    committed: tuple[int, ...] = ()
    attempts_at_commit: tuple[int, ...] = ()
    # By run: the attempt in memory, and the one that Spark accepted.
    memory: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()


class State(NamedTuple):
    """State of the stores and the runs, and the used bounds."""

    stores: tuple[Store, ...]
    runs: tuple[Run, ...] = ()
    retries: int = 0
    failures: int = 0
    kills: int = 0


@dataclass(frozen=True)
class BatchSpec:
    """The protocol of commits that tasks hand over, with injected faults."""

    # Spark's checkpoint format v2.
    with_ids: bool = False
    # Upper bounds on their numbers.
    stores: int = 2
    versions: int = 2
    runs: int = 2
    # Upper bounds on retries of tasks, failed publications, and kills of the process.
    retries: int = 1
    failures: int = 1
    kills: int = 0
    # A run may begin before the previous run has ended.
    concurrent: bool = False
    # A task may try to hand over its commit after Spark has given up the task.
    late: bool = False
    # A barrier can tell the commits of its run from those of other runs.
    knows_run: bool = True
    # Initial steps, in this order, see `follow`.
    begin: tuple[str, ...] = ()
    faults: frozenset[str] = frozenset()

    def init(self) -> Iterator[State]:
        yield follow(self, State((Store(),) * self.stores), self.begin)

    def key(self, state: State) -> Hashable:
        """Return a key that ignores the order of stores (symmetry reduction)."""
        return state._replace(stores=tuple(sorted(state.stores, key=hash)))

    def next(self, state: State) -> Iterator[tuple[str, State]]:
        if state.runs and state.kills < self.kills:
            yield "kill process", self._killed(state)
        yield from self._begin(state)
        for number, run in enumerate(state.runs):
            if run.step == "tasks":
                yield from self._start(state, number, run)
                yield from self._accept(state, number, run)
                yield from self._await(state, number, run)
            elif run.step == "passed":
                yield self._commit(state, number, run)
            if run.step in ("tasks", "passed") and len(state.runs) < self.runs:
                # A task failed too often, or the query is stopped.
                yield f"end run {number}", self._ended(state, number)
        for position, store in enumerate(state.stores):
            for attempt_id, attempt in enumerate(store.attempts):
                where = f"attempt {attempt_id} of store {position}"
                if (
                    attempt.step == "task"
                    and self._is_awaited(state, attempt)
                    and not self._is_behind(store, attempt)
                ):
                    yield f"hand over {where}", _with(state, position, self._handed_over(store, attempt_id))
                elif attempt.step == "pending":
                    yield from self._publish(state, position, attempt_id, where)

    # Runs

    def _begin(self, state: State) -> Iterator[tuple[str, State]]:
        active = any(run.step in ("tasks", "passed") for run in state.runs)
        version = len(state.stores[0].committed) + 1
        if len(state.runs) == self.runs or version > self.versions or (active and not self.concurrent):
            return
        number = len(state.runs)
        stores = tuple(
            store._replace(
                attempts=_without(store, lambda attempt: self._is_forgotten(state, attempt)),
                memory=(*store.memory, NONE),
                accepted=(*store.accepted, NONE),
            )
            for store in state.stores
        )
        yield (
            f"begin run {number} at version {version}",
            state._replace(stores=stores, runs=(*state.runs, Run(version))),
        )

    def _is_forgotten(self, state: State, attempt: Attempt) -> bool:
        """Return whether a failed attempt does not count for the barriers of a run that begins."""
        if attempt.step != "failed" or "failures of earlier runs count" in self.faults:
            return False
        return state.runs[attempt.run].step == "ended" or "every failure is forgotten" in self.faults

    def _ended(self, state: State, number: int) -> State:
        def is_lost(attempt: Attempt) -> bool:
            return attempt.run == number and attempt.step == "task" and not self.late

        stores = tuple(
            store._replace(
                attempts=_without(store, is_lost),
                memory=put(store.memory, number, NONE),
                accepted=put(store.accepted, number, NONE),
            )
            for store in state.stores
        )
        ended = state.runs[number]._replace(step="ended")
        return state._replace(stores=stores, runs=put(state.runs, number, ended))

    def _killed(self, state: State) -> State:
        nothing = (NONE,) * len(state.runs)
        stores = tuple(
            store._replace(
                attempts=_without(store, lambda attempt: attempt.step != "published"),
                memory=nothing,
                accepted=nothing,
            )
            for store in state.stores
        )
        ended = tuple(run._replace(step="ended") for run in state.runs)
        return state._replace(stores=stores, runs=ended, kills=state.kills + 1)

    # Tasks

    def _start(self, state: State, number: int, run: Run) -> Iterator[tuple[str, State]]:
        for position, store in enumerate(state.stores):
            earlier = [a for a in store.attempts if (a.run, a.version) == (number, run.version)]
            if (earlier and state.retries == self.retries) or self._waits(state, store, number):
                continue
            is_used = any(a.run == number and a.step == "task" and a.owns for a in store.attempts)
            owns = not is_used or "stores share the state" in self.faults
            parent, source = self._parent(store, number, run.version, in_memory=owns)
            attempts = tuple(
                _overtaken(a, run.version, owns) if a.run == number else a for a in store.attempts
            )
            started = store._replace(
                attempts=(*attempts, Attempt("task", run.version, number, parent, owns=owns)),
                memory=put(store.memory, number, parent) if owns else store.memory,
            )
            where = f"store {position} at version {run.version} in run {number}"
            yield (
                f"start attempt {len(attempts)} of {where}, from {parent} in {source}",
                _with(state, position, started)._replace(retries=state.retries + bool(earlier)),
            )

    def _waits(self, state: State, store: Store, number: int) -> bool:
        """Return whether a task waits for pending commits before it loads its store."""
        for attempt in store.attempts:
            if attempt.step == "pending":
                if attempt.run == number:
                    if "retries do not wait" not in self.faults:
                        return True
                elif attempt.run < number and "runs do not wait" not in self.faults:
                    return True
        return False

    def _is_awaited(self, state: State, attempt: Attempt) -> bool:
        """Return whether a task may hand over: the barrier of the latest run's batch is to come."""
        run = state.runs[attempt.run]
        if attempt.run != len(state.runs) - 1 or run.step == "ended":
            return "ended runs hand over" in self.faults
        return (run.step, run.version) == ("tasks", attempt.version) or "late tasks hand over" in self.faults

    def _is_behind(self, store: Store, attempt: Attempt) -> bool:
        """Return whether a task waits for a pending commit of its run before it hands its own over."""
        waits = "attempts do not wait" not in self.faults
        return waits and any(a.step == "pending" and a.run == attempt.run for a in store.attempts)

    def _handed_over(self, store: Store, attempt_id: int) -> Store:
        attempt = store.attempts[attempt_id]
        newest = store.memory[attempt.run]
        handed_over = _stepped(store, attempt_id, "pending")
        if not attempt.owns:
            if self.with_ids and newest != NONE and store.attempts[newest].version >= attempt.version:
                # The first one is kept, which is the one that Spark accepts.
                return handed_over
            # Other stores that are open go on with what they have.
            attempts = tuple(
                a._replace(owns=False) if a.run == attempt.run else a for a in handed_over.attempts
            )
            handed_over = handed_over._replace(attempts=attempts)
        return handed_over._replace(memory=put(handed_over.memory, attempt.run, attempt_id))

    def _parent(self, store: Store, number: int, version: int, *, in_memory: bool) -> tuple[int, str]:
        """Return the attempt that a task starts from, and where it is."""
        if version == 1:
            return NONE, "memory"
        newest = store.memory[number] if in_memory else NONE
        # The state in memory can return to the version before its newest one.
        for candidate in (newest, store.attempts[newest].parent) if newest != NONE else ():
            if candidate == NONE:
                continue
            if (
                candidate == store.committed[version - 2]
                if self.with_ids
                else store.attempts[candidate].version == version - 1
            ):
                return candidate, "memory"
        return self._served(store, version - 1), "storage"

    def _publish(
        self, state: State, position: int, attempt_id: int, where: str
    ) -> Iterator[tuple[str, State]]:
        store = state.stores[position]
        attempt = store.attempts[attempt_id]
        name = self._name(attempt.version, attempt_id)
        present = dict(store.metadata).get(name, NONE)
        failed = _stepped(store, attempt_id, "failed")
        if "failed memory is used" not in self.faults:
            memory = tuple(NONE if other_id == attempt_id else other_id for other_id in store.memory)
            failed = failed._replace(memory=memory)
        # One step with the replacement: INVARIANTS.md describes the remaining window.
        if present != NONE and len(store.committed) >= attempt.version:
            yield f"refuse {where}", _with(state, position, failed)
            return
        other_entries = {(other_name, by) for other_name, by in store.metadata if other_name != name}
        metadata = frozenset(other_entries | {(name, attempt_id)})
        published = _stepped(store, attempt_id, "published")
        yield f"publish {where}", _with(state, position, published._replace(metadata=metadata))
        if state.failures < self.failures:
            next_state = state._replace(failures=state.failures + 1)
            yield f"fail to publish {where}", _with(next_state, position, failed)
            # The storage call took effect, and its answer was lost.
            yield (
                f"fail after writing {where}",
                _with(next_state, position, failed._replace(metadata=metadata)),
            )

    # The driver

    def _accept(self, state: State, number: int, run: Run) -> Iterator[tuple[str, State]]:
        for position, store in enumerate(state.stores):
            for attempt_id, attempt in enumerate(store.attempts):
                if (
                    (attempt.run, attempt.version) == (number, run.version)
                    and attempt.step in ("pending", "published", "failed")
                    and store.accepted[number] != attempt_id
                ):
                    next_store = store._replace(accepted=put(store.accepted, number, attempt_id))
                    yield (
                        f"accept attempt {attempt_id} of store {position} in run {number}",
                        _with(state, position, next_store),
                    )

    def _await(self, state: State, number: int, run: Run) -> Iterator[tuple[str, State]]:
        """Yield the end of the barrier, once every task has ended and no counted commit is pending."""
        own = {a.step for store in state.stores for a in store.attempts if a.run == number}
        if any(store.accepted[number] == NONE for store in state.stores) or ("task" in own and not self.late):
            return
        counted = {
            attempt.step
            for store in state.stores
            for attempt_id, attempt in enumerate(store.attempts)
            if attempt.version == run.version and self._counts(store, attempt_id, number)
        }
        if "pending" in counted and "no barrier" not in self.faults:
            return
        if "failed" in counted and "failures pass" not in self.faults:
            yield f"reject batch of run {number}", self._ended(state, number)
        else:
            passed = run._replace(step="passed")
            yield f"pass barrier of run {number}", state._replace(runs=put(state.runs, number, passed))

    def _counts(self, store: Store, attempt_id: int, number: int) -> bool:
        if "accepted only" in self.faults:
            return store.accepted[number] == attempt_id
        everything = not self.knows_run or "failures of earlier runs count" in self.faults
        return everything or store.attempts[attempt_id].run == number

    def _commit(self, state: State, number: int, run: Run) -> tuple[str, State]:
        if len(state.stores[0].committed) >= run.version:
            return f"conflict in run {number}", self._ended(state, number)
        stores = []
        for store in state.stores:
            next_store = store._replace(
                committed=(*store.committed, store.accepted[number]),
                accepted=put(store.accepted, number, NONE),
            )
            stores.append(
                next_store._replace(
                    attempts_at_commit=(*store.attempts_at_commit, self._served(next_store, run.version))
                )
            )
        after = Run(run.version + 1) if run.version < self.versions else run._replace(step="done")
        return (
            f"commit version {run.version} in run {number}",
            state._replace(stores=tuple(stores), runs=put(state.runs, number, after)),
        )

    # Lookups

    def _name(self, version: int, attempt_id: int) -> Name:
        return (version, attempt_id) if self.with_ids else (version,)

    def _served(self, store: Store, version: int) -> int:
        """Return the attempt found at a committed version, NONE if there is none."""
        return dict(store.metadata).get(self._name(version, store.committed[version - 1]), NONE)

    def invariants(self) -> Mapping[str, Callable[[State], bool]]:
        def is_whole(store: Store, attempt_id: int) -> bool:
            # A replaced attempt is kept beside its successor, see `StoreSpec`.
            there = {by for _, by in store.metadata}
            there |= {by for by, attempt in enumerate(store.attempts) if attempt.step == "published"}
            while attempt_id in there and not store.attempts[attempt_id].torn:
                attempt = store.attempts[attempt_id]
                if attempt.version == 1:
                    return True
                attempt_id = attempt.parent
            return False

        def whole(state: State) -> bool:
            return all(
                is_whole(store, self._served(store, version))
                for store in state.stores
                for version in range(1, len(store.committed) + 1)
            )

        def settled(state: State) -> bool:
            return all(
                self._served(store, version) == attempt_id
                for store in state.stores
                for version, attempt_id in enumerate(store.attempts_at_commit, 1)
            )

        def continued(state: State) -> bool:
            return all(
                attempt.version < 2 or attempt.parent == store.attempts_at_commit[attempt.version - 2]
                for store in state.stores
                for attempt in store.attempts
            )

        return {
            "committed versions are complete": whole,
            "committed versions are immutable": settled,
            "batches start from the version in storage": continued,
        }


def _overtaken(attempt: Attempt, version: int, shares: bool) -> Attempt:
    """Return an attempt after a later task of its run has opened the store, which may share its state."""
    if attempt.step == "task" and attempt.version < version:
        return GONE
    return (
        attempt._replace(torn=True)
        if attempt.step in ("task", "pending") and shares and attempt.owns
        else attempt
    )


def _without(store: Store, is_lost: Callable[[Attempt], bool]) -> tuple[Attempt, ...]:
    """Return the attempts after some were lost; what they wrote stays."""
    with_metadata = {by for _, by in store.metadata}
    return tuple(
        (attempt._replace(step="gone") if attempt_id in with_metadata else GONE)
        if is_lost(attempt)
        else attempt
        for attempt_id, attempt in enumerate(store.attempts)
    )


def _stepped(store: Store, attempt_id: int, step: str) -> Store:
    attempt = store.attempts[attempt_id]._replace(step=step)
    return store._replace(attempts=put(store.attempts, attempt_id, attempt))


def _with(state: State, position: int, store: Store) -> State:
    return state._replace(stores=put(state.stores, position, store))

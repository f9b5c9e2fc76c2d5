"""Specification of `commit=batch` on a cluster.

Executors hand commits over to the driver, which publishes those of a batch. Checkpoint format v2: Spark's
commit log names the attempts. See INVARIANTS.md.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.checker import put

NONE = -1


class Attempt(NamedTuple):
    """One attempt at a version of a store, on an executor, for a run.

    `step` is "task", then "pending" (the state in memory has moved on), then "received" by the driver of its
    run, and its task ends. It is "lost" with its executor before that, or with the driver. `parent` is the
    attempt that it changes.
    """

    store: int
    version: int
    run: int
    executor: int
    parent: int
    step: str = "task"


class State(NamedTuple):
    """The attempts, the driver's run, the executors, storage, and Spark's commit log."""

    attempts: tuple[Attempt, ...] = ()
    run: int = 0
    # "tasks", or "passed": the barrier has published the batch.
    step: str = "tasks"
    # By store: the attempt that Spark has accepted for the batch.
    accepted: tuple[int, ...] = ()
    # By executor and store: the attempt in memory.
    memory: tuple[tuple[int, ...], ...] = ()
    published: frozenset[int] = frozenset()
    # By version, then by store: the attempts in the commit log.
    committed: tuple[tuple[int, ...], ...] = ()
    # Batches that the barrier has refused.
    refused: int = 0
    kills: int = 0
    retries: int = 0


@dataclass(frozen=True)
class ClusterSpec:
    """The protocol of commits that executors hand over to the driver, with injected faults."""

    stores: int = 2
    versions: int = 2
    executors: int = 2
    # Upper bound on the runs of the query.
    runs: int = 2
    # Upper bounds on kills of executors and of the driver, and on further attempts at a store's version.
    kills: int = 1
    retries: int = 1
    faults: frozenset[str] = frozenset()

    def init(self) -> Iterator[State]:
        nothing = (NONE,) * self.stores
        yield State(accepted=nothing, memory=(nothing,) * self.executors)

    def key(self, state: State) -> Hashable:
        return state

    def next(self, state: State) -> Iterator[tuple[str, State]]:
        if len(state.committed) < self.versions:
            yield from self._tasks(state)
            yield from self._barrier(state)
        for number, attempt in enumerate(state.attempts):
            yield from self._progress(state, number, attempt)
        if state.kills < self.kills:
            for executor in range(self.executors):
                yield f"kill executor {executor}", self._killed(state, executor)
            if state.run + 1 < self.runs:
                lost = tuple(attempt._replace(step="lost") for attempt in state.attempts)
                memory = ((NONE,) * self.stores,) * self.executors
                after = state._replace(attempts=lost, memory=memory, kills=state.kills + 1)
                yield "kill driver", self._restarted(after)

    # The driver

    def _barrier(self, state: State) -> Iterator[tuple[str, State]]:
        if NONE in state.accepted:
            return
        if state.step == "passed":
            yield (
                "commit batch",
                state._replace(
                    committed=(*state.committed, state.accepted),
                    step="tasks",
                    accepted=(NONE,) * self.stores,
                ),
            )
            return
        received = {number for number in state.accepted if state.attempts[number].step == "received"}
        whole = len(received) == self.stores
        if whole or "nothing is checked" in self.faults:
            yield "publish batch", state._replace(step="passed", published=state.published | received)
        elif state.run + 1 < self.runs:
            yield "refuse batch", self._restarted(state)._replace(refused=state.refused + 1)
        if "commit before publication" in self.faults and whole:
            yield (
                "commit batch early",
                state._replace(committed=(*state.committed, state.accepted), accepted=(NONE,) * self.stores),
            )

    def _restarted(self, state: State) -> State:
        """Begin another run with its own stores on the executors; those of the old run go on."""
        nothing = (NONE,) * self.stores
        memory = (nothing,) * self.executors
        return state._replace(run=state.run + 1, step="tasks", accepted=nothing, memory=memory)

    # Tasks

    def _tasks(self, state: State) -> Iterator[tuple[str, State]]:
        version = len(state.committed)
        if state.step != "tasks":
            return
        for store in range(self.stores):
            tried = sum(
                (attempt.store, attempt.version, attempt.run) == (store, version, state.run)
                for attempt in state.attempts
            )
            retry = int(tried > 0)
            if state.retries + retry > self.retries or state.accepted[store] != NONE:
                continue
            committed = state.committed[-1][store] if state.committed else NONE
            for executor in range(self.executors):
                present = state.memory[executor][store]
                parent = committed
                if "memory by version" in self.faults and present != NONE:
                    # The version of the batch before, whatever attempt that is.
                    parent = present if state.attempts[present].version == version - 1 else committed
                elif present != committed and committed != NONE and committed not in state.published:
                    parent = NONE
                attempt = Attempt(store, version, state.run, executor, parent)
                yield (
                    f"start store {store} on executor {executor}",
                    state._replace(attempts=(*state.attempts, attempt), retries=state.retries + retry),
                )

    def _progress(self, state: State, number: int, attempt: Attempt) -> Iterator[tuple[str, State]]:
        where = f"attempt {number} of store {attempt.store}"
        is_current = attempt.run == state.run and attempt.version == len(state.committed)
        if attempt.step == "task":
            pending = _with(state, number, "pending")
            if attempt.run == state.run:
                row = put(state.memory[attempt.executor], attempt.store, number)
                pending = pending._replace(memory=put(state.memory, attempt.executor, row))
            yield f"hand over {where}", pending
        elif attempt.step == "pending" and attempt.run == state.run:
            yield f"send {where}", _with(state, number, "received")
        early = "tasks end before the driver has it" in self.faults or "nothing is checked" in self.faults
        ended = attempt.step in ("pending", "received") if early else attempt.step == "received"
        if ended and is_current and state.step == "tasks" and state.accepted[attempt.store] == NONE:
            # Spark has the result of a task whose executor is lost a moment later.
            yield f"accept {where}", state._replace(accepted=put(state.accepted, attempt.store, number))

    def _killed(self, state: State, executor: int) -> State:
        attempts = tuple(
            attempt._replace(step="lost")
            if attempt.executor == executor and attempt.step in ("task", "pending")
            else attempt
            for attempt in state.attempts
        )
        memory = put(state.memory, executor, (NONE,) * self.stores)
        return state._replace(attempts=attempts, memory=memory, kills=state.kills + 1)

    def invariants(self) -> Mapping[str, Callable[[State], bool]]:
        def complete(state: State) -> bool:
            return all(number in state.published for version in state.committed for number in version)

        def continued(state: State) -> bool:
            return all(
                state.attempts[number].parent == (state.committed[version - 1][store] if version else NONE)
                for version, batch in enumerate(state.committed)
                for store, number in enumerate(batch)
            )

        return {
            "committed versions are complete": complete,
            "batches start from the committed version": continued,
            "the barrier refuses no batch": lambda state: state.refused == 0,
        }


def _with(state: State, number: int, step: str) -> State:
    attempt = state.attempts[number]._replace(step=step)
    return state._replace(attempts=put(state.attempts, number, attempt))

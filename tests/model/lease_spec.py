"""Specification of the lease of a checkpoint's logs, see `spark_statestore.query.lease`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.checker import put


class Process(NamedTuple):
    """A process that replaces the content which it has read, once.

    `content` is the one that it has read and replaces, `lease` the number of its lease, `renewed` that of the
    next one, `ignored` the leases that it takes for those of killed processes. One that `is_late` was paused.
    """

    step: str = "read"
    content: int = 0
    lease: int = 0
    renewed: int = 0
    ignored: frozenset[int] = frozenset()
    is_late: bool = False

    @property
    def is_timely(self) -> bool:
        """True if its lease is younger than those that are taken for killed processes'."""
        return self.step == "change" or (self.step == "check" and not self.is_late)


class State(NamedTuple):
    """The log's content, the present leases, the next number of one, the processes, and what was lost."""

    content: int
    leases: frozenset[int]
    number: int
    processes: tuple[Process, ...]
    lost: bool = False


@dataclass(frozen=True)
class LeaseSpec:
    """Processes that change a log, may be killed, and may pause before they go on, with injected faults."""

    processes: int = 3
    # Number of leases that are created in all.
    leases: int = 5
    faults: frozenset[str] = frozenset()

    def init(self) -> Iterator[State]:
        yield State(0, frozenset(), 1, (Process(),) * self.processes)

    def key(self, state: State) -> Hashable:
        return state._replace(processes=tuple(sorted(state.processes, key=repr)))

    def next(self, state: State) -> Iterator[tuple[str, State]]:
        for number, process in enumerate(state.processes):
            for label, after, to in self._step(state, process):
                yield f"{label} by {number}", after._replace(processes=put(state.processes, number, to))
            if process.step not in ("read", "end"):
                yield f"kill {number}", state._replace(processes=put(state.processes, number, Process("end")))

    def _step(self, state: State, process: Process) -> Iterator[tuple[str, State, Process]]:
        if process.step == "read":
            yield "read", state, process._replace(step="create", content=state.content)
        elif process.step == "create" and state.number <= self.leases:
            leases = state.leases | {state.number}
            yield (
                "create",
                state._replace(leases=leases, number=state.number + 1),
                process._replace(step="list", lease=state.number),
            )
        elif process.step == "list":
            live = state.leases - {process.lease} - process.ignored
            if live and "no listing" not in self.faults:
                after = state._replace(leases=state.leases - {process.lease})
                # It waits, and takes the leases that stay for those of killed processes.
                yield "withdraw", after, process._replace(step="create", lease=0)
                # A process that changes the log does so at once, or renews its lease before.
                if not any(owner.is_timely and owner.lease in live for owner in state.processes):
                    yield "wait", after, process._replace(step="create", lease=0, ignored=live)
            else:
                leases = state.leases - process.ignored
                is_late = any(process.lease in waiting.ignored for waiting in state.processes)
                yield "lease", state._replace(leases=leases), process._replace(step="check", is_late=is_late)
        elif process.step == "check":
            is_changed = state.content != process.content
            if is_changed and "checked before" not in self.faults:
                yield "refuse", self._without(state, process), Process("end")
            else:
                yield "check", state, process._replace(step="pause" if process.is_late else "change")
            yield "pause", state, process._replace(is_late=True)
        elif process.step == "pause":
            if "paused process goes on" in self.faults:
                yield "go on", state, process._replace(step="change")
            elif state.number <= self.leases:
                leases = state.leases | {state.number}
                after = state._replace(leases=leases, number=state.number + 1)
                yield "renew", after, process._replace(step="renew", renewed=state.number)
        elif process.step == "renew":
            if state.leases == {process.lease, process.renewed}:
                after = self._without(state, process)
                is_late = any(process.renewed in waiting.ignored for waiting in state.processes)
                step = "pause" if is_late and "renewed once" not in self.faults else "change"
                yield "go on", after, process._replace(step=step, lease=process.renewed, renewed=0)
            else:
                leases = state.leases - {process.lease, process.renewed}
                yield "stop", state._replace(leases=leases), Process("end")
        elif process.step == "change":
            is_lost = state.lost or state.content != process.content
            after = self._without(state, process)._replace(content=state.content + 1, lost=is_lost)
            yield "change", after, Process("end")
            yield "pause", state, process._replace(step="pause")

    def _without(self, state: State, process: Process) -> State:
        return state._replace(leases=state.leases - {process.lease})

    def invariants(self) -> Mapping[str, Callable[[State], bool]]:
        return {"no change is undone": lambda state: not state.lost}

"""Plans of injected faults by number of the call, independent of files."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, get_args

T = TypeVar("T")

FaultKind = Literal["fail", "fail_after", "tear", "delay", "run", "kill", "lose_unsynced"]
"""Kind of a fault, see `Fault`."""


class CrashedError(BaseException):
    """The error of every call after a simulated crash, until the file system is restarted.

    It is no `Exception`: after a real crash no handler runs, so that code that tolerates errors must not
    handle it and report success.
    """


@dataclass(frozen=True, slots=True)
class Fault:
    """One injected fault.

    Attributes
    ----------
    kind
        ``fail``: an `OSError` before anything happens. ``fail_after``: the call takes effect, then
        an `OSError`, as with a lost answer. ``tear``: a call that writes, or removes several
        files, does a part of it, then an `OSError`; any other call fails. ``delay``: the call waits
        first. ``run``: a function is called first, for a second writer between two calls of the
        first one. ``kill``: the process ends; the machine keeps all that was written.
        ``lose_unsynced``: process and machine crash, and what is not durable is gone.
    at
        Number of the call, from 1.
    seconds
        Duration of a ``delay``.
    function
        The function that ``run`` calls. It may use the file system; its calls are counted, too.
    """

    kind: FaultKind
    at: int
    seconds: float = 0.01
    function: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(FaultKind):
            raise ValueError(f"{self.kind!r} is not one of {', '.join(get_args(FaultKind))}")
        if self.at < 1:
            raise ValueError(f"calls are counted from 1, but the fault is at call {self.at}")
        if (self.kind == "run") != (self.function is not None):
            raise ValueError("a fault has a function exactly if its kind is 'run'")


@dataclass(frozen=True, slots=True)
class Call:
    """A logged call, numbered from 1, with the kind of the injected fault, empty for none."""

    number: int
    operation: str
    path: str
    fault: str = ""

    def __str__(self) -> str:
        return f"{self.number} {self.operation} {self.path}" + (f": {self.fault}" if self.fault else "")


class FaultPlan:
    """A plan that counts calls and injects faults into some of them; thread-safe.

    Calls take effect one at a time. A `delay` or a `run` does not block other threads.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.crashed = False
        self.epoch = 0
        self._faults: dict[int, Fault] = {}
        self._calls: list[Call] = []

    @property
    def calls(self) -> list[Call]:
        """The calls since the last `inject`."""
        with self.lock:
            return list(self._calls)

    def inject(self, *faults: Fault) -> None:
        """Replace log and faults, and restart the count at 1."""
        with self.lock:
            self._faults = {fault.at: fault for fault in faults}
            self._calls = []

    def add(self, fault: Fault) -> None:
        """Add a fault without restarting the count."""
        with self.lock:
            self._faults[fault.at] = fault

    def call(
        self,
        operation: str,
        path: str,
        effect: Callable[[], T],
        *,
        torn: Callable[[], object] | None = None,
        crash: Callable[[], object],
        epoch: int | None = None,
    ) -> T:
        """Make one call, or inject a fault that the plan has here.

        Parameters
        ----------
        effect, torn
            Functions with the whole effect of the call, and with a part of it.
        crash
            Function that drops what is not durable.
        epoch
            Epoch in which the caller's file was opened.
        """
        with self.lock:
            self._require_alive(operation, path, epoch)
            number = len(self._calls) + 1
            fault = self._faults.get(number)
            call = Call(number, operation, path)
            self._calls.append(call if fault is None else replace(call, fault=fault.kind))
            if fault is None:
                return effect()
            if fault.kind in ("kill", "lose_unsynced"):
                self.crashed = True
                if fault.kind == "lose_unsynced":
                    crash()
                self._require_alive(operation, path, epoch)
        if fault.kind == "delay":
            time.sleep(fault.seconds)
        if fault.function is not None:
            fault.function()
        with self.lock:
            self._require_alive(operation, path, epoch)
            if fault.kind == "tear" and torn is not None:
                torn()
            if fault.kind in ("fail", "tear"):
                raise OSError(f"injected fault: {fault.kind} at call {call}")
            result = effect()
            if fault.kind == "fail_after":
                raise OSError(f"injected fault: the answer to call {call} was lost")
            return result

    def _require_alive(self, operation: str, path: str, epoch: int | None) -> None:
        if self.crashed:
            raise CrashedError(
                f"{operation} of {path} fails: the file system has crashed. Call restart() first"
            )
        if epoch is not None and epoch != self.epoch:
            raise CrashedError(f"{operation} of {path} fails: it was opened before a crash")

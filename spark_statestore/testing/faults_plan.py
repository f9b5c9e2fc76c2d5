"""Which call goes wrong, and how: the part of fault injection that knows nothing of files."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, get_args

__all__ = ["Call", "CrashedError", "Fault", "FaultKind", "FaultPlan"]

T = TypeVar("T")

FaultKind = Literal["fail", "fail_after", "tear", "delay", "run", "kill", "lose_unsynced"]
"""What happens at a call, see `Fault`."""


class CrashedError(BaseException):
    """Raised by every call from a simulated crash on, until the file system is restarted.

    Not an `Exception`: after a real crash no handler runs, so code that forgives errors must not
    get to forgive this one and report success.
    """


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong.

    Attributes
    ----------
    kind
        ``fail``: an `OSError` before anything happens. ``fail_after``: the call takes effect, then
        an `OSError`, as when the answer is lost. ``tear``: a call that writes, or removes several
        files, does a part of it, then an `OSError`; any other call fails. ``delay``: the call waits
        first. ``run``: a function is called first, for a second writer between two calls of the
        first one. ``kill``: the process ends; the machine goes on, with all that was written.
        ``lose_unsynced``: process and machine crash, and what is not durable is gone.
    at
        At which call, from 1.
    seconds
        How long a ``delay`` is.
    function
        What ``run`` calls. It may use the file system: its calls are counted like any other.
    """

    kind: FaultKind
    at: int
    seconds: float = 0.01
    function: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(FaultKind):
            raise ValueError(f"{self.kind!r} is not one of {', '.join(get_args(FaultKind))}")
        if self.at < 1:
            raise ValueError(f"calls are counted from 1, so there is none at {self.at}")
        if (self.kind == "run") != (self.function is not None):
            raise ValueError("a fault has a function exactly if its kind is 'run'")


@dataclass(frozen=True, slots=True)
class Call:
    """One call as the log shows it.

    Attributes
    ----------
    number
        Its number, from 1.
    operation, path
        What it did, and to which file or directory.
    fault
        What went wrong, empty if nothing did.
    """

    number: int
    operation: str
    path: str
    fault: str = ""

    def __str__(self) -> str:
        return f"{self.number} {self.operation} {self.path}" + (f": {self.fault}" if self.fault else "")


class FaultPlan:
    """Counts calls and lets some of them go wrong; safe to use from several threads.

    Calls take effect one at a time. A `delay` or a `run` keeps nobody else waiting.
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
        """Forget the log and the faults of before, and count from 1 again."""
        with self.lock:
            self._faults = {fault.at: fault for fault in faults}
            self._calls = []

    def add(self, fault: Fault) -> None:
        """Add a fault, in addition to the ones that are there, without counting anew."""
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
        """Make one call.

        Parameters
        ----------
        effect
            What the call does.
        torn
            A part of it.
        crash
            Lets go of what is not durable.
        epoch
            The epoch that the caller's open file is of.

        Raises
        ------
        OSError, CrashedError
            If the plan says so.
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
            raise CrashedError(f"crashed, so there is no {operation} of {path}; restart() comes first")
        if epoch is not None and epoch != self.epoch:
            raise CrashedError(f"{path} was opened before a crash, so there is no {operation}")

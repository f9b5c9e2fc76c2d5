"""Backends whose system calls on local files fail, are truncated, or are followed by a crash."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

from spark_statestore.testing.faults_plan import Fault, FaultKind
from tests.support.commands import interpreter
from tests.support.paths import ROOT
from tests.unit.files.local_disk import Directory, LocalDisk, installed

__all__ = ["FaultyBackend", "strike_in_this_process"]

_for_ever = contextlib.ExitStack()

_PLAN, _FIRED, _FILES = "plan", "fired", "files"


class FaultyBackend:
    """Backends that a JVM starts with a special interpreter, and the files that faults affect.

    Attributes
    ----------
    python
        The interpreter, for the option ``python``.
    files
        Directory whose files are affected.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count()
        self.files = directory / _FILES
        self.files.mkdir(parents=True)
        path = f"{ROOT}/tests/spark/faulty_backend:{ROOT}"
        commands = f'export BACKEND_FAULTS={directory} PYTHONPATH="{path}:$PYTHONPATH"'
        self.python = interpreter(directory, commands)

    def strike(self, kind: FaultKind | Literal["kill_after", "kill_driver", "orphan"], at: int) -> None:
        """Inject a fault into a future call, by its number.

        Besides the kinds of `Fault`: ``kill_after`` kills the backend once the call has taken effect, before
        it can answer; ``kill_driver`` kills backend and driver, ``orphan`` the driver alone,
        so that the backend makes the call after the driver's end.
        """
        (self._directory / _FIRED).unlink(missing_ok=True)
        plan = self._directory / "next"
        # A repeated plan counts as another one.
        plan.write_text(f"{kind} {at} {next(self._numbers)}")
        plan.replace(self._directory / _PLAN)

    def stop(self) -> str:
        """Stop injecting faults; return the call that had one, or an empty text if there were fewer calls."""
        (self._directory / _PLAN).unlink()
        with contextlib.suppress(FileNotFoundError):
            return (self._directory / _FIRED).read_text()
        return ""


class _StruckDisk(LocalDisk):
    """Follows the plan in a directory. Survival of a power loss is not simulated."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / _FILES)
        self._directory = directory
        self._last_plan = ""

    def node(self, path: str) -> Directory:
        return Directory()

    def _call(self, operation: str, path: str, effect: Callable[[], Any], *rest: Any, **options: Any) -> Any:
        with self.plan.lock:
            try:
                plan = (self._directory / _PLAN).read_text()
            except FileNotFoundError:
                plan = ""
            if plan != self._last_plan:
                self._last_plan = plan
                kind, at, _ = plan.split() if plan else ("", "0", "")
                self._kind, self._at = kind, int(at)
                # The next backend follows the plan of the one that was killed no more.
                if (self._directory / _FIRED).exists():
                    self._at = 0
                is_fault = self._at and kind in get_args(FaultKind)
                self.inject(*([Fault(kind, self._at)] if is_fault else []))  # type: ignore[arg-type]
            if plan and len(self.calls) + 1 == self._at:
                (self._directory / _FIRED).write_text(f"{operation} {path}")
                if self._kind in ("kill_driver", "orphan"):
                    os.kill(os.getppid(), signal.SIGKILL)
                if self._kind in ("kill", "kill_driver"):
                    os.kill(os.getpid(), signal.SIGKILL)
                if self._kind == "kill_after":
                    try:
                        super()._call(operation, path, effect, *rest, **options)
                    finally:
                        os.kill(os.getpid(), signal.SIGKILL)
            return super()._call(operation, path, effect, *rest, **options)


def strike_in_this_process(directory: str) -> None:
    """Inject faults into the system calls of this process, by the plan in a directory."""
    _for_ever.enter_context(installed(_StruckDisk(Path(directory))))

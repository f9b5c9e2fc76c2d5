"""Backends whose system calls on local files fail, are cut short, or are the last ones of the process."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark_statestore.testing.faults import Fault, FaultKind
from tests.checkpoint.local_disk import Directory, LocalDisk, installed

__all__ = ["FaultyBackend", "strike_in_this_process"]

_ROOT = Path(__file__).resolve().parent.parent.parent
_for_ever = contextlib.ExitStack()

_PLAN, _FIRED, _FILES = "plan", "fired", "files"


class FaultyBackend:
    """Backends that a JVM starts with an interpreter of their own, and the files that are to suffer.

    Attributes
    ----------
    python
        The interpreter, for the option ``python``.
    files
        Below this directory calls go wrong.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count()
        self.files = directory / _FILES
        self.files.mkdir(parents=True)
        self.python = str(directory / "python")
        path = f"{_ROOT}/tests/spark/faulty_backend:{_ROOT}"
        Path(self.python).write_text(
            f'#!/bin/sh\nexport BACKEND_FAULTS={directory} PYTHONPATH="{path}:$PYTHONPATH"\n'
            f'exec {sys.executable} "$@"\n'
        )
        Path(self.python).chmod(0o755)

    def strike(self, kind: FaultKind, at: int) -> None:
        """Let a call from now on go wrong, by its number."""
        (self._directory / _FIRED).unlink(missing_ok=True)
        plan = self._directory / "next"
        # The same plan again is another one.
        plan.write_text(f"{kind} {at} {next(self._numbers)}")
        plan.replace(self._directory / _PLAN)

    def stop(self) -> str:
        """Let no more calls go wrong; which one did, or an empty text if that many were not made."""
        (self._directory / _PLAN).unlink()
        with contextlib.suppress(FileNotFoundError):
            return (self._directory / _FIRED).read_text()
        return ""


class _StruckDisk(LocalDisk):
    """Follows the plan in a directory. What would survive a loss of power is not kept."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / _FILES)
        self._directory = directory
        self._known = ""

    def node(self, path: str) -> Directory:
        return Directory()

    def place(self, path: str) -> tuple[Directory, str]:
        return Directory(), path

    def _call(self, operation: str, path: str, effect: Callable[[], Any], *rest: Any, **options: Any) -> Any:
        with self.plan.lock:
            try:
                told = (self._directory / _PLAN).read_text()
            except FileNotFoundError:
                told = ""
            if told != self._known:
                self._known = told
                kind, at, _ = told.split() if told else ("", "0", "")
                self._kind, self._at = kind, int(at)
                self.inject(*([Fault(kind, self._at)] if kind else []))  # type: ignore[arg-type]
            if told and len(self.calls) + 1 == self._at:
                (self._directory / _FIRED).write_text(f"{operation} {path}")
                if self._kind == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
            return super()._call(operation, path, effect, *rest, **options)


def strike_in_this_process(directory: str) -> None:
    """Let system calls of this process go wrong as the plan in a directory says."""
    _for_ever.enter_context(installed(_StruckDisk(Path(directory))))

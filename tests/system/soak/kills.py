"""Kill an application with many queries again and again, and verify what it has committed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.support.paths import ROOT
from tests.support.trees import problem_of, retained_batches
from tests.system.soak.many_queries import RETAINED


@dataclass
class Kills:
    """Figures of a series of kills.

    `problems` are committed batches that are not intact, and queries that failed or had a wrong result;
    `batches` are those of all queries at the end, with the expected results.
    """

    kills: int = 0
    runs: int = 0
    verified: int = 0
    problems: list[str] = field(default_factory=list)
    batches: int = 0

    def __str__(self) -> str:
        return (
            f"{self.kills} kills, {self.runs} runs of queries, {self.verified} committed batches verified, "
            f"{len(self.problems)} problems, {self.batches} batches exact at the end"
        )


class Application:
    """The application in a process group of its own, with the events that it reports."""

    def __init__(self, directory: Path, queries: int, seed: int) -> None:
        arguments = {"directory": str(directory), "queries": queries, "seed": seed}
        self._log = open(directory / "application.log", "a", encoding="utf-8")  # noqa: SIM115 - closed with it
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.system.soak.many_queries", json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            env=os.environ | {"TMPDIR": str(directory)},
            start_new_session=True,
        )
        self.events: dict[str, list[Any]] = {}
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def wait_for(self, event: str, seconds: float) -> bool:
        """Return whether the application reports an event in time; False once it failed or ended."""
        with self._changed:
            self._changed.wait_for(lambda: {event, "failed", "ended"} & set(self.events), seconds)
            return event in self.events

    def kill(self) -> None:
        """Kill all its processes at once, and wait until they have ended."""
        processes = []
        with contextlib.suppress(psutil.NoSuchProcess):
            processes = psutil.Process(self.process.pid).children(recursive=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
        psutil.wait_procs(processes, 20)
        self._reader.join()
        self._log.close()

    def finish(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                node = json.loads(line)
                self._note(node["event"], node["value"])
        self._note("ended", None)

    def _note(self, event: str, value: Any) -> None:
        with self._changed:
            self.events.setdefault(event, []).append(value)
            self._changed.notify_all()


def kill_repeatedly(directory: Path, kills: int, queries: int, seed: int) -> Kills:
    """Kill an application at random moments, verify all checkpoints each time, and finish it in the end."""
    chance = random.Random(seed)
    result = Kills()
    for number in range(kills):
        application = Application(directory, queries, seed + number)
        try:
            # Half of the kills come early, while stores are loaded and queries start.
            event, longest = ("started", 30) if number % 2 else ("ran", 20)
            # On a slow machine some queries have not done a batch by then.
            application.wait_for(event, 300)
            time.sleep(chance.uniform(0, longest))
            if "ended" in application.events:
                result.problems.append(f"the application ended by itself: {directory}/application.log")
        finally:
            application.kill()
        result.kills += 1
        result.runs += max(application.events.get("runs", [0]))
        result.problems += application.events.get("failed", [])
        verify_all(directory, result)
        print(f"kill {number + 1} after {event!r}: {result}", flush=True)
        for problem in result.problems[-3:]:
            print(f"    {' '.join(problem.split())[:500]}", flush=True)
    application = Application(directory, queries, seed + kills)
    try:
        if application.wait_for("ran", 1200):
            application.finish()
        if not application.wait_for("finished", 1200):
            result.problems.append("the application did not finish")
    finally:
        application.kill()
    result.problems += application.events.get("failed", [])
    result.batches = sum(application.events.get("finished", []))
    verify_all(directory, result)
    return result


def verify_all(directory: Path, result: Kills) -> None:
    for checkpoint in sorted(directory.glob("checkpoints/*")):
        batches = retained_batches(checkpoint, RETAINED)
        for batch in batches:
            result.verified += 1
            if problem := problem_of(checkpoint, batch):
                result.problems.append(f"{checkpoint.name}, batch {batch} of {batches[-1]}: {problem}")

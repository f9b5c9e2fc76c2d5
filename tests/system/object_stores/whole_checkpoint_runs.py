"""Runs of the program `whole_checkpoint`: its input, its processes, its output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT, TEST_JAR
from tests.system.upgrades.cases import CASES, write_input

SECONDS = 240

Outputs = dict[tuple[str, int], list[str]]
"""Rows by query and batch."""


@dataclass(frozen=True)
class Runs:
    """Runs of some queries over the input in `inputs`, one after another or together."""

    inputs: Path
    queries: Sequence[str]
    checkpoint_format: int
    together: bool = False

    def write_input(self, batches: Iterable[int]) -> None:
        for name in {CASES[query].reads for query in self.queries}:
            write_input(self.inputs, name, batches)

    def finish(self, checkpoints: str, output: Path) -> None:
        """Run the queries to the end of their input."""
        program = self._start(checkpoints, output)
        _, errors = program.communicate(timeout=SECONDS)
        assert program.returncode == 0, errors[-4000:]

    def kill(self, checkpoints: str, output: Path, when: Callable[[Outputs], bool]) -> None:
        """Run the queries, and kill the driver once their output meets a condition."""
        program = self._start(checkpoints, output)
        assert program.stdout is not None
        jvm = json.loads(program.stdout.readline())["jvm"]
        deadline = time.monotonic() + SECONDS
        while not when(outputs(output) if output.exists() else {}):
            assert program.poll() is None, program.communicate()[1][-4000:]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(jvm, signal.SIGKILL)
        program.kill()
        program.communicate()

    def _start(self, checkpoints: str, output: Path) -> subprocess.Popen[str]:
        program = "tests.system.object_stores.whole_checkpoint"
        arguments = [checkpoints, str(self.inputs), str(output), str(self.checkpoint_format)]
        return subprocess.Popen(
            [sys.executable, "-m", program, *arguments, str(int(self.together)), *self.queries],
            cwd=ROOT,
            env=os.environ | {"TEST_JAR": str(TEST_JAR), "PYSPARK_PYTHON": sys.executable},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def outputs(file: Path) -> Outputs:
    """Return the rows by query and batch, and check that a repeated batch has the same rows."""
    result: Outputs = {}
    for line in file.read_text().splitlines():
        name, number, rows = json.loads(line)
        assert result.setdefault((name, number), rows) == rows
    return result

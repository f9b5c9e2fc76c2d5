"""Runs commands in a process that has no Spark, as a user's shell does.

``python -m tests.unit.cli.another_process`` takes a JSON list of commands on standard input, each a list of
arguments, and prints a list of their exit codes and outputs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from click.testing import CliRunner

from tests.support.paths import ROOT


def run_elsewhere(commands: Sequence[Sequence[str]], timeout: float = 120) -> list[tuple[int, Any]]:
    """Run commands in another process; return the exit code of each and what it printed, as JSON."""
    process = subprocess.run(
        [sys.executable, "-m", "tests.unit.cli.another_process"],
        input=json.dumps(list(map(list, commands))),
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        cwd=ROOT,
    )
    assert process.returncode == 0, process.stderr
    return [(code, json.loads(output)) for code, output in json.loads(process.stdout)]


def main() -> None:
    """Run the commands that standard input names."""
    from spark_statestore.cli.app import app

    results = []
    for arguments in json.load(sys.stdin):
        result = CliRunner().invoke(app, [*arguments, "--output", "json"], catch_exceptions=False)
        results.append((result.exit_code, result.stdout))
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()

"""Tasks that fail and are run again leave no trace in a query's result."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "retry_tasks.py"

# Three batches of two tasks.
TASKS = 6


@pytest.mark.slow
def test_a_query_is_exact_when_every_task_fails_once(built: Path, tmp_path: Path) -> None:
    program = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert program.returncode == 0, program.stderr[-4000:]
    told = [json.loads(line) for line in program.stdout.splitlines() if line.startswith("{")]
    assert [(said["moment"], said["format"]) for said in told] == [
        ("before", 1),
        ("before", 2),
        ("after", 1),
        ("after", 2),
    ]
    for said in told:
        assert said["output is exact"], said
        assert said["state is exact"], said
        assert said["failures"] == TASKS
    # Only what was committed before its task failed is there twice.
    stored = [(said["replaced"], said["versions"]) for said in told]
    assert stored == [(0, TASKS), (0, TASKS), (2 * TASKS, TASKS), (0, 2 * TASKS)]

"""Failed and retried tasks leave no trace in a query's result."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "retry_tasks.py"

# Three batches of two tasks.
TASKS = 6

# Only state committed before its task failed has two attempts. In the first batch each store writes a file of
# its own, in the others all stores one.
STORED = {
    "task": [(0, TASKS), (0, TASKS), (2 * TASKS, TASKS), (0, 2 * TASKS)],
    "batch": [(0, 2), (0, 2), (4, 2), (0, 4)],
}


@pytest.mark.soak
@pytest.mark.parametrize("commit", ["task", "batch"])
def test_query_is_exact_if_every_task_fails_once(built: Path, tmp_path: Path, commit: str) -> None:
    program = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path), commit],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert program.returncode == 0, program.stderr[-4000:]
    reports = [json.loads(line) for line in program.stdout.splitlines() if line.startswith("{")]
    assert [(report["moment"], report["format"]) for report in reports] == [
        ("before", 1),
        ("before", 2),
        ("after", 1),
        ("after", 2),
    ]
    for report in reports:
        assert report["output is exact"], report
        assert report["state is exact"], report
        assert report["failures"] == TASKS
    stored = [(report["replaced"], report["versions"]) for report in reports]
    assert stored == STORED[commit]

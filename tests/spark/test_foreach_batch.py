"""`foreachBatch` may read its batch repeatedly: each operator's rows and state are those of its input."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.spark.counting import ROOT

pytestmark = pytest.mark.slow

QUERIES = {
    "local[4]": ("1", ["join"]),
    "local[8,8]": ("2", ["collect_set", "join", "session_window", "transformWithState"]),
    "local-cluster[2,2,1024]": ("2", ["count", "dropDuplicatesWithinWatermark"]),
}
"""By master, a checkpoint format and operators. The thousand batches have each operator in both formats."""


def run(*arguments: str, timeout: float) -> None:
    """Run `tests.spark.programs.foreach_batch`, whose exit code tells whether all was right."""
    command = [sys.executable, "-m", "tests.spark.programs.foreach_batch", *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=timeout)
    print(result.stdout)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr[-2000:]}"


@pytest.mark.parametrize(
    "master",
    [
        "local[4]",
        pytest.param("local[8,8]", marks=pytest.mark.soak),
        pytest.param("local-cluster[2,2,1024]", marks=pytest.mark.soak),
    ],
)
def test_foreach_batch_that_reads_its_batch_repeatedly_is_exact(built: object, master: str) -> None:
    checkpoint_format, operators = QUERIES[master]
    chosen = ("--formats", checkpoint_format, "--operators", *operators)
    # One batch for each way of reading it.
    run("--master", master, "--batches", str(9 * len(operators)), *chosen, timeout=500)


@pytest.mark.soak
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("master", QUERIES)
def test_foreach_batch_is_exact_over_a_thousand_batches(built: object, master: str) -> None:
    run("--master", master, "--batches", "1000", timeout=14_000)

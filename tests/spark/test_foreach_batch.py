"""`foreachBatch` may read its batch repeatedly: each operator's rows and state are those of its input."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.spark.counting import ROOT

pytestmark = pytest.mark.slow

MASTERS = ["local[4]", "local[8,8]", "local-cluster[2,2,1024]"]


def run(*arguments: str, timeout: float) -> None:
    """Run `tests.spark.programs.foreach_batch`, whose exit code tells whether all was right."""
    command = [sys.executable, "-m", "tests.spark.programs.foreach_batch", *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=timeout)
    print(result.stdout)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr[-2000:]}"


def test_foreach_batch_that_reads_its_batch_repeatedly_is_exact(built: object) -> None:
    # A batch for each way of reading it, on the operator with most stores.
    run("--batches", "9", "--formats", "1", "--operators", "join", "--master", MASTERS[0], timeout=500)


@pytest.mark.soak
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("master", MASTERS)
def test_foreach_batch_is_exact_over_a_thousand_batches(built: object, master: str) -> None:
    run("--master", master, "--batches", "1000", timeout=14_000)

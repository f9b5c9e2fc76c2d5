"""Stateful operators whose tasks fail, are killed, duplicated or lost in progress give the exact result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.counting import Program

pytestmark = [pytest.mark.slow, pytest.mark.soak]

# Operators of a line run concurrently, as most of the time is waiting; none beside the one with Python
# workers, since Spark gives them ten seconds to start. It has several column families, as the joins have.
TOGETHER = [
    ["transformWithState"],
    ["aggregation", "dropDuplicates", "join, state format 2"],
    ["join, state format 4"],
]
OPERATORS = [operator for operators in TOGETHER for operator in operators]

# On a busy machine Spark may close the store of each first attempt before it commits.
TRIALS = 3

# In the first batch each task fails before its store's commit, then after it, and is then killed. In the
# second a speculative copy of it commits, and so does the task itself if it can. In the third it dies with
# its executor.
FAULTS = ["0-after", "0-kill", "0-raise", "1-twice", "2-lose"]
both_partitions = [f"{fault}-{partition}" for fault in FAULTS for partition in (0, 1)]


@pytest.fixture(scope="module")
def lives(built: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the report of each operator in each checkpoint format."""
    import pyspark

    environment = {"SPARK_HOME": str(Path(pyspark.__file__).parent)}
    lives: dict[tuple[str, int], dict[str, Any]] = {}
    for trial in range(TRIALS):
        directory = str(tmp_path_factory.mktemp(f"faults{trial}"))
        arguments = {"directory": directory, "jar": str(built), "operators": TOGETHER}
        with Program("operator_faults", environment, **arguments) as program:
            reports = [program.next("life") for _ in range(2 * len(OPERATORS))]
            program.next("stopped")
            program.end()
        lives = {(life["operator"], life["format"]): life for life in reports}
        if commits_twice(lives):
            break
    return lives


def commits_twice(lives: dict[tuple[str, int], dict[str, Any]]) -> bool:
    """Return whether both attempts of a task have committed."""
    return any(name.endswith("-both") for life in lives.values() for name in life["faults"])


@pytest.mark.parametrize("checkpoint_format", [1, 2])
@pytest.mark.parametrize("operator", OPERATORS)
def test_operator_is_exact_under_task_faults(
    lives: dict[tuple[str, int], dict[str, Any]], operator: str, checkpoint_format: int
) -> None:
    life = lives[operator, checkpoint_format]
    struck = [name for name in life["faults"] if name[-1].isdigit()]
    assert struck == both_partitions
    # The first attempt's provider may have been closed for the second's.
    assert sum(name.endswith(("-both", "-overtaken")) for name in life["faults"]) == 2
    assert life["output is exact"]
    # The batch whose commit log entry the driver did not write.
    assert life["output was the same again"] == [True]


def test_both_attempts_of_a_task_commit(lives: dict[tuple[str, int], dict[str, Any]]) -> None:
    assert commits_twice(lives)


@pytest.mark.parametrize("checkpoint_format", [1, 2])
@pytest.mark.parametrize("operator", OPERATORS)
def test_cleanup_removes_files_of_failed_attempts_only(
    lives: dict[tuple[str, int], dict[str, Any]], operator: str, checkpoint_format: int
) -> None:
    life = lives[operator, checkpoint_format]
    if checkpoint_format == 2:
        # The one of the batch that ran again, and each that committed before: two where both attempts of a
        # task could.
        committed_twice = any(name.endswith("-both") for name in life["faults"])
        assert life["most attempts of a version"] >= (3 if committed_twice else 2)
    else:
        assert life["most attempts of a version"] == 1
    assert life["old attempts are removed"]
    assert life["old streams are removed"]
    assert life["batches that load"] == [0, 1]

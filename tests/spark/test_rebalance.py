"""State moves to executors that join, while queries run on a cluster."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.spark.counting import Program, cluster_environment

pytestmark = pytest.mark.slow


def test_state_moves_to_executors_that_join(built: Path, tmp_path: Path) -> None:
    with Program("rebalance", cluster_environment(tmp_path), checkpoint=str(tmp_path), events=0) as program:
        assert program.next("two executors") == {"0": [4, 4], "1": [4, 4]}

        after = program.next("four executors")
        assert after["shares"] == {"0": [2, 2, 2, 2], "1": [2, 2, 2, 2]}
        # Half of what batches in between had changed, and not the state of five batches.
        assert 0 < sum(after["loaded"]) < 2 * after["written"]

        assert program.next("three executors") == {"0": [2, 3, 3], "1": [2, 3, 3]}

        # The second one has rebalance=false: the places of its state are not looked at.
        for name in ("moving", "still"):
            result = program.next(name)
            assert (result["places"] == 0) == (name == "still")
            assert result["rows"] == result["distinct"] == result["expected"]
        program.next("stopped")
        program.end()


@pytest.mark.soak
def test_state_is_exact_while_executors_come_and_go(built: Path, tmp_path: Path) -> None:
    events, seed = 100, int(os.environ.get("CLUSTER_SEED", time.time()))
    print(f"CLUSTER_SEED={seed}")
    with Program(
        "rebalance", cluster_environment(tmp_path), checkpoint=str(tmp_path), events=events, seed=seed
    ) as program:
        for _ in range(events):
            print(program.next("event"))
        result = program.next("moving")
        assert result["rows"] == result["distinct"] == result["expected"]
        program.next("stopped")
        program.end()

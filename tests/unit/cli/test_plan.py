"""Tests of the command ``plan``."""

from __future__ import annotations

import pytest

from spark_statestore.assess.workload import Workload, cost
from tests.unit.cli.commands import invoke, node, output_of


def test_plan_prints_the_cost_of_the_workload() -> None:
    planned = node("plan", "--rows", "1e9", "--changed", "1e6", "--executors", 20, "--partitions", 800)
    work = Workload(rows=1e9, changed=1e6, executors=20, partitions=800)
    assert planned["workload"]["rows"] == 1e9
    assert planned["cost"]["requests"] == cost(work).requests
    assert planned["executorMemory"]["least"] == pytest.approx(2 * cost(work).least_heap)
    assert planned["notes"] == []
    text = output_of("plan", "--rows", "1e9", "--changed", "1e6", "--executors", 20, "--partitions", 800)
    assert "61,344" in text
    assert "load after a start, seconds" in text


def test_plan_notes_executors_that_are_too_small_or_too_busy() -> None:
    memory, cores = node(
        "plan", "--executor-memory", 1, "--executors", 2, "--seconds", 1, "--partitions", 2000
    )["notes"]
    assert "Have 2.7 GB for each" in memory
    assert "38 % of all cores" in cores
    assert node("plan", "--executor-memory", 2.7, "--executors", 2)["notes"] == []


@pytest.mark.parametrize(
    "arguments", [("--rows", 0), ("--changed", -1), ("--executors", 0), ("--executor-memory", "x")]
)
def test_plan_refuses_impossible_clusters(arguments: tuple[str, object]) -> None:
    assert invoke("plan", *arguments).exit_code == 2

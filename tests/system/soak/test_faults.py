"""Killed applications with many queries lose no committed batch, nor memory with the runs that ended."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.spark.counting import ROOT

pytestmark = [pytest.mark.soak, pytest.mark.timeout(14_400)]


def run(program: str, *arguments: str) -> None:
    """Run a program, whose exit code tells whether all was right."""
    result = subprocess.run(
        [sys.executable, "-m", f"tests.system.soak.{program}", *arguments], cwd=ROOT, check=False
    )
    assert result.returncode == 0


def test_sixty_queries_keep_their_committed_batches_through_fifty_kills(built: object) -> None:
    run("kills", "--kills", "50", "--queries", "60")


def test_stores_that_move_between_executors_keep_retained_and_held_versions(built: object) -> None:
    run("moves", "--moves", "200")


def test_two_hundred_runs_in_one_application_leak_no_memory(built: object) -> None:
    run("runs", "--runs", "200")

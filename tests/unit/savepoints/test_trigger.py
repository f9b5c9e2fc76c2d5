"""Tests of savepoints whose program ends before they are complete."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spark_statestore import list_savepoints
from spark_statestore.query import QueryCheckpoint
from spark_statestore.savepoints.savepoint_holds import list_holds
from tests.unit.savepoints.written_query import content

# Spark is not needed: `Running` is what the package knows of a query.
PROGRAM = """
import logging, sys, threading, time
from spark_statestore.savepoints import trigger
from spark_statestore.query.state_store import FileSystemStateStore
from tests.unit.savepoints.written_query import WrittenQuery

directory, ends = sys.argv[1:]
query = WrittenQuery(directory + "/checkpoint")
query.run()

class Running:
    def __init__(self, query):
        self.savepoints_dir = self.checkpoints_dir = None
        self.is_active = True
    def checkpoint(self):
        return query.checkpoint

trigger.Running = Running
writing, put = threading.Event(), FileSystemStateStore.put_state

def put_slowly(self, state):
    writing.set()
    time.sleep(1)
    return put(self, state)

FileSystemStateStore.put_state = put_slowly
future = trigger.trigger_savepoint(query, directory + "/target", "pointer")
if ends == "while it is written":
    query.run()
    assert writing.wait(30)
"""


@pytest.mark.parametrize("ends", ["before the batch", "while it is written"])
def test_trigger_leaves_no_hold_without_a_savepoint_when_the_program_ends(tmp_path: Path, ends: str) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), ends]
    process = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    savepoints = list_savepoints(str(tmp_path / "target"))
    holds = list_holds(QueryCheckpoint(str(tmp_path / "checkpoint")))
    if ends == "before the batch":
        assert (savepoints, holds) == ([], [])
        assert "the program ends" in process.stderr
    else:
        (savepoint,) = savepoints
        assert [hold.holder() for hold in holds] == [savepoint.path]
        assert content(savepoint.checkpoint())

"""Operator state against plain lists and dicts, in memory and on files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from spark_statestore.files import LocalFileSystem
from spark_statestore.storage.fs_streams import FsCheckpointStreamFactory
from spark_statestore.storage.streams import CheckpointStreamFactory
from tests.support.effort import EFFORT
from tests.support.machines.operators import OperatorStateMachine


class OnFiles(OperatorStateMachine):
    """Every snapshot is a file of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.files = LocalFileSystem()
        self.scratch = tempfile.TemporaryDirectory()

    def stream_factory(self) -> CheckpointStreamFactory:
        return FsCheckpointStreamFactory(self.files, self.scratch.name, self.scratch.name, 0, 0)

    def stored_streams(self) -> Iterable[str]:
        return {self.files.url(status.path) for status in self.files.list_files(self.scratch.name)}

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.scratch.cleanup()


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "examples"), [(OperatorStateMachine, 100), (OnFiles, 60)])
def test_operator_state_machine_agrees_with_lists_and_dicts(
    machine: type[OperatorStateMachine], examples: int
) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples * EFFORT, stateful_step_count=40)
    )

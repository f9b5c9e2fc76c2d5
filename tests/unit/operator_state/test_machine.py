"""Operator state against plain lists and dicts, in memory and on files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from spark_statestore.files import FileSystem, LocalFileSystem, MemoryFileSystem
from spark_statestore.storage.fs_streams import FsCheckpointStreamFactory
from spark_statestore.storage.streams import CheckpointStreamFactory
from tests.support.effort import EFFORT
from tests.support.machines.operators import OperatorStateMachine


class OnFiles(OperatorStateMachine):
    """Every snapshot is a file of its own."""

    files: FileSystem = LocalFileSystem()

    def __init__(self) -> None:
        super().__init__()
        self.scratch = tempfile.TemporaryDirectory()

    @property
    def directory(self) -> str:
        return self.scratch.name

    def stream_factory(self) -> CheckpointStreamFactory:
        return FsCheckpointStreamFactory(self.files, self.directory, self.directory, 0, 0)

    def stored_streams(self) -> Iterable[str]:
        return {self.files.url(status.path) for status in self.files.list_files(self.directory)}

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            for status in list(self.files.list_files(self.directory)):
                self.files.delete(status.path)
            self.scratch.cleanup()


class OnFilesInMemory(OnFiles):
    """The same, on a file system without directories."""

    files = MemoryFileSystem()


@pytest.mark.slow
@pytest.mark.parametrize("machine", [OperatorStateMachine, OnFiles, OnFilesInMemory])
def test_operator_state_machine_agrees_with_lists_and_dicts(machine: type[OperatorStateMachine]) -> None:
    examples = 100 if machine is OperatorStateMachine else 60
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples * EFFORT, stateful_step_count=40)
    )

"""Shared state and retention against a model, with failing deletions and restarts."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from spark_statestore.checkpoint.files import FileSystem, MemoryFileSystem
from spark_statestore.testing.registry_machine import SharedStateRegistryMachine
from tests.effort import EFFORT


class InMemory(SharedStateRegistryMachine):
    def open_files(self, directory: str) -> FileSystem:
        return MemoryFileSystem()


@pytest.mark.slow
@pytest.mark.parametrize("machine", [SharedStateRegistryMachine, InMemory])
def test_what_is_needed_stays_and_all_else_goes(machine: type[SharedStateRegistryMachine]) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=150 * EFFORT, stateful_step_count=30, deadline=None)
    )

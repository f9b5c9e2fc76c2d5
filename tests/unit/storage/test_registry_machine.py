"""Run of the state machine of the shared state registry."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from spark_statestore.files import FileSystem, MemoryFileSystem
from tests.support.effort import EFFORT
from tests.support.machines.registry import SharedStateRegistryMachine


class InMemory(SharedStateRegistryMachine):
    def open_files(self, directory: str) -> FileSystem:
        return MemoryFileSystem()


@pytest.mark.slow
@pytest.mark.parametrize("machine", [SharedStateRegistryMachine, InMemory])
def test_registry_machine(machine: type[SharedStateRegistryMachine]) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=150 * EFFORT, stateful_step_count=30, deadline=None)
    )

"""The state machine of versions, run on storage that a URL names."""

from __future__ import annotations

import itertools

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from spark_statestore.testing.version_machine import VersionStoreMachine
from tests.support.effort import EFFORT


def run_version_machine_at(url: str, *, with_ids: bool) -> None:
    """Run the machine in directories below a URL."""
    numbers = itertools.count()

    class Machine(VersionStoreMachine):
        def make_directory(self) -> str:
            return f"{url}/{next(numbers)}/0/3"

        def remove_directory(self) -> None:
            pass

    Machine.with_ids = with_ids
    run_state_machine_as_test(Machine, settings=settings(max_examples=4 * EFFORT, stateful_step_count=25))

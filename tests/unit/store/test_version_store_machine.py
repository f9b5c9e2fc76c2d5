"""Stores behave like a dict of versions, on several storages and with faults."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import rule, run_state_machine_as_test

from spark_statestore.errors import CheckpointNotFoundError
from spark_statestore.options import StorageOptions
from spark_statestore.storage import CheckpointName
from spark_statestore.testing.crash_machine import CrashingVersionStoreMachine
from spark_statestore.testing.damage_machine import DamagedVersionStoreMachine
from spark_statestore.testing.faults_plan import Fault
from spark_statestore.testing.version_machine import VersionStoreMachine
from tests.support.effort import EFFORT
from tests.unit.files.local_disk import LOSSES, LocalDisk, installed

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("with_ids", [False, True], ids=["v1", "v2"])]

IN_MEMORY = StorageOptions(storage="memory", checkpoints_dir="given")
SYNCED = StorageOptions(file_state_threshold=512, compression=None, fsync=True)


class PowerLossMachine(CrashingVersionStoreMachine):
    """A store in local files that are synced, on a machine that loses power, also while nothing is done."""

    options = SYNCED

    def make_file_system(self) -> LocalDisk:  # type: ignore[override]
        self.resources = contextlib.ExitStack()
        scratch = self.resources.enter_context(tempfile.TemporaryDirectory())
        disk = LocalDisk(Path(scratch))
        disk.loss = LOSSES["nothing"]
        self.resources.enter_context(installed(disk))
        return disk

    def remove_directory(self) -> None:
        super().remove_directory()
        self.resources.close()

    def __init__(self) -> None:
        super().__init__()
        # Content of unacknowledged commits, and the alternatives after a power loss.
        self.unsure: dict[CheckpointName, tuple[Any, list[Any]]] = {}

    def look_at(self, name: CheckpointName, rows: Any, attempt_id: str) -> None:
        before = self.stored.get(name)
        super().look_at(name, rows, attempt_id)
        after = self.stored.get(name)
        if after is not before:
            newest, alternatives = self.unsure.get(name, (None, []))
            self.unsure[name] = (after, [before, *(alternatives if newest is before else [])])

    @rule(at=st.integers(1, 20))
    def end_ahead(self, at: int) -> None:
        """The process ends in the middle of the next operation; the machine does not."""
        self.fault = Fault("kill", at)

    @rule(loss=st.sampled_from(list(LOSSES)))
    def another_loss(self, loss: str) -> None:
        self.fs.loss = LOSSES[loss]

    @rule()
    def lose_power(self) -> None:
        self.fs.crash()
        self.fs.restart()
        self.merged = {}
        self.instances = [self.new_executor()]
        self.see_what_is_left()
        self.unsure = {}

    def perform(self, operation: Callable[[], Any]) -> Any:
        fault = self.fault
        result = super().perform(operation)
        if fault is not None and fault.kind == "lose_unsynced":
            self.see_what_is_left()
        return result

    def see_what_is_left(self) -> None:
        """Of what was found but never acknowledged, the power may have taken any part."""
        for name, (newest, alternatives) in self.unsure.copy().items():
            if self.stored.get(name) is not newest:
                # Another attempt was acknowledged since.
                del self.unsure[name]
                continue
            try:
                attempt_id = self.instances[0].store.load(name).attempt_id
            except CheckpointNotFoundError:
                assert None in alternatives, f"{name} is gone"
                del self.stored[name], self.unsure[name]
            else:
                matches = [
                    content
                    for content in (newest, *alternatives)
                    if content is not None and content[1] == attempt_id
                ]
                if matches:
                    # Otherwise it is of the commit that was just cut short.
                    self.stored[name] = matches[0]
                    self.unsure[name] = (matches[0], alternatives)


MERGES = {"merges": True}
# Executors hand some versions over to the driver, which merges them.
HANDS_OVER = {"merges": True, "hands_over": True}


@pytest.mark.parametrize(
    ("machine", "attributes", "examples"),
    [
        # Without faults histories are longer; with them, all other storage is covered.
        pytest.param(VersionStoreMachine, {}, 15, id="local"),
        pytest.param(DamagedVersionStoreMachine, {}, 15, id="damage"),
        pytest.param(DamagedVersionStoreMachine, MERGES, 10, id="merged-damage"),
        pytest.param(CrashingVersionStoreMachine, {}, 20, id="crashes"),
        pytest.param(CrashingVersionStoreMachine, {"options": IN_MEMORY}, 10, id="memory-storage-crashes"),
        pytest.param(CrashingVersionStoreMachine, MERGES, 15, id="merged-crashes"),
        pytest.param(CrashingVersionStoreMachine, HANDS_OVER, 20, id="cluster-crashes"),
        pytest.param(PowerLossMachine, {}, 8, id="power-losses"),
        pytest.param(PowerLossMachine, MERGES, 8, id="merged-power-losses"),
    ],
)
def test_store_behaves_like_a_dict_of_versions(
    machine: type[VersionStoreMachine], attributes: dict[str, Any], examples: int, with_ids: bool
) -> None:
    if attributes is HANDS_OVER and not with_ids:
        pytest.skip("only commits with ids are handed over")
    run_state_machine_as_test(
        type(machine.__name__, (machine,), {"with_ids": with_ids, **attributes}),
        settings=settings(max_examples=examples * EFFORT, stateful_step_count=40),
    )

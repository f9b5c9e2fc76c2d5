"""The edge cases of Flink's storage model that concern savepoints: points 21 and 24, see test_edge_cases.py."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

from spark_statestore.checkpoint.completed.checkpoint import CompletedCheckpoint
from spark_statestore.checkpoint.completed.properties import CheckpointProperties
from spark_statestore.checkpoint.streams import MemoryCheckpointMetadataOutputStream
from spark_statestore.errors import IllegalStateError, SavepointError, SavepointNotFoundError
from spark_statestore.savepoint import (
    CheckpointIdCounter,
    HeapStateStore,
    ProgramOperator,
    SavepointCoordinator,
    assign_states,
)
from spark_statestore.state.handles import ByteStreamStateHandle
from spark_statestore.state.operator_state import OperatorState

HANDLE = ByteStreamStateHandle("state", b"state")


def state(name: str, *, empty: bool = False, most: int = 128) -> OperatorState:
    return OperatorState(name, 2, most, {} if empty else {1: HANDLE})


def test_21_state_that_no_operator_takes_is_left_behind_only_if_that_is_allowed() -> None:
    states = {"counts": state("counts"), "gone": state("gone")}
    program = [ProgramOperator("counts"), ProgramOperator("new")]
    with pytest.raises(
        IllegalStateError, match=r"s3://b/savepoint-1 has state of 'gone'.*allow_non_restored"
    ):
        assign_states(states, program, "s3://b/savepoint-1")
    assert assign_states(states, program, "here", allow_non_restored_state=True) == {
        "counts": states["counts"]
    }
    assert list(states) == ["counts", "gone"]


def test_21_an_unknown_operator_without_state_is_fine() -> None:
    states = {"counts": state("counts"), "gone": state("gone", empty=True)}
    assert list(assign_states(states, [ProgramOperator("counts")], "here")) == ["counts"]


def test_21_state_is_found_under_a_former_name_too() -> None:
    states = {"old": state("old"), "older": state("older", empty=True)}
    assigned = assign_states(states, [ProgramOperator("new", former_names=("none", "old", "older"))], "here")
    assert assigned == {"new": states["old"]}


def test_21_the_largest_parallelism_must_be_the_same_only_if_the_program_sets_it() -> None:
    states = {"counts": state("counts", most=64)}
    for most in (None, 64):
        assert assign_states(states, [ProgramOperator("counts", most)], "here") == states
    for allow in (False, True):
        with pytest.raises(IllegalStateError, match=r"64 subtasks at most .* sets that to 128"):
            assign_states(states, [ProgramOperator("counts", 128)], "here", allow_non_restored_state=allow)


class Job:
    """A coordinator, and the triggers that it gave."""

    def __init__(self, store: HeapStateStore[CompletedCheckpoint] | None = None) -> None:
        self.triggered: list[tuple[int, int]] = []
        self.starts: bool | Exception = True
        self.pending_at_trigger: list[list[int]] = []
        self.counter = CheckpointIdCounter()
        self.store = HeapStateStore() if store is None else store
        self.coordinator = SavepointCoordinator(self.trigger, self.store, self.counter)

    def trigger(self, number: int, timestamp: int) -> bool:
        self.triggered.append((number, timestamp))
        self.pending_at_trigger.append(self.coordinator.pending)
        if isinstance(self.starts, Exception):
            raise self.starts
        return self.starts


def savepoint(number: int) -> CompletedCheckpoint:
    location = MemoryCheckpointMetadataOutputStream().close_and_finalize_checkpoint()
    return CompletedCheckpoint(number, 1, 2, {}, CheckpointProperties.for_savepoint(), location)


def failure(promise: Future[str], match: str) -> SavepointError:
    with pytest.raises(SavepointError, match=match) as raised:
        promise.result(timeout=5)
    return raised.value


def test_24_a_promise_is_there_before_the_trigger_and_gone_with_the_savepoint() -> None:
    job = Job()
    promise = job.coordinator.trigger_savepoint(1234)
    assert job.triggered == [(1, 1234)]
    assert job.pending_at_trigger == [[1]]
    assert not promise.done()
    assert not promise.cancel()
    job.coordinator.on_fully_acknowledged(savepoint(1))
    assert job.store.get_state(promise.result(timeout=5)).checkpoint_id == 1
    assert job.coordinator.pending == []
    with pytest.raises(IllegalStateError, match="nobody waits for it"):
        job.coordinator.on_fully_acknowledged(savepoint(1))


def test_24_a_savepoint_may_be_complete_before_its_trigger_returns() -> None:
    job = Job()
    coordinator = SavepointCoordinator(
        lambda number, _: coordinator.on_fully_acknowledged(savepoint(number)) is None, job.store, job.counter
    )
    assert coordinator.trigger_savepoint(1).result(timeout=5) == "1"
    assert coordinator.pending == []


@pytest.mark.parametrize("starts", [False, RuntimeError("no task runs")])
def test_24_a_savepoint_that_cannot_be_triggered_uses_its_number_up(starts: bool | Exception) -> None:
    job = Job()
    job.starts = starts
    error = failure(job.coordinator.trigger_savepoint(1), "no savepoint 1: it could not be triggered")
    assert error.__cause__ is (starts if isinstance(starts, Exception) else None)
    assert job.coordinator.pending == []
    job.starts = True
    job.coordinator.trigger_savepoint(1)
    assert job.coordinator.pending == [2]


def test_24_a_savepoint_that_expires_fails_and_a_newer_one_does_not() -> None:
    job = Job()
    old, new = job.coordinator.trigger_savepoint(1), job.coordinator.trigger_savepoint(2)
    job.coordinator.on_cancelled(1)
    job.coordinator.on_cancelled(1)
    failure(old, "no savepoint 1: it expired before it was complete")
    job.coordinator.on_fully_acknowledged(savepoint(2))
    assert new.result(timeout=5) == "1"
    assert job.coordinator.pending == []


def test_24_a_number_that_is_taken_fails() -> None:
    job = Job()
    job.coordinator.trigger_savepoint(1)
    job.counter.set_count(1)
    failure(job.coordinator.trigger_savepoint(2), "another one has that number")
    assert job.triggered == [(1, 1)]
    assert job.coordinator.pending == [1]


def test_24_a_savepoint_that_cannot_be_stored_fails(tmp_path: Path) -> None:
    class Full(HeapStateStore[CompletedCheckpoint]):
        def put_state(self, state: CompletedCheckpoint) -> str:
            raise OSError("no space left")

    job = Job(Full())
    promise = job.coordinator.trigger_savepoint(1)
    job.coordinator.on_fully_acknowledged(savepoint(1))
    assert isinstance(failure(promise, "could not be stored: no space left").__cause__, OSError)
    assert job.coordinator.pending == []


def test_24_the_end_of_the_job_fails_all_that_wait_and_keeps_what_is_complete() -> None:
    job = Job()
    done = job.coordinator.trigger_savepoint(1)
    job.coordinator.on_fully_acknowledged(savepoint(1))
    waiting = [job.coordinator.trigger_savepoint(2) for _ in range(2)]
    job.coordinator.shutdown()
    for promise in waiting:
        failure(promise, "the job has ended")
    failure(job.coordinator.trigger_savepoint(3), "the job has ended")
    assert job.coordinator.pending == []
    assert job.store.get_state(done.result()).checkpoint_id == 1
    with pytest.raises(IllegalStateError, match="the job has ended"):
        job.coordinator.restore_savepoint("1")


def test_24_numbers_go_on_behind_the_savepoint_that_the_job_starts_from() -> None:
    job = Job()
    path = job.store.put_state(savepoint(41))
    assert job.coordinator.restore_savepoint(path).checkpoint_id == 41
    job.coordinator.trigger_savepoint(1)
    assert job.triggered == [(42, 1)]
    with pytest.raises(TypeError, match="got None"):
        job.coordinator.restore_savepoint(None)
    with pytest.raises(SavepointNotFoundError):
        job.coordinator.restore_savepoint("99")


def test_24_every_request_gets_a_number_of_its_own() -> None:
    job = Job()
    threads = [
        threading.Thread(target=lambda: [job.coordinator.trigger_savepoint(1) for _ in range(50)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert job.coordinator.pending == list(range(1, 201))

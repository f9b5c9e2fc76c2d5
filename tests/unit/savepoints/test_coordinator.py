"""Tests of the savepoint coordinator: pending requests, acknowledgement, failure, cancellation."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, wait

import pytest

from spark_statestore.errors import CheckpointNotFoundError, SavepointError
from spark_statestore.query.savepoint import Savepoint
from spark_statestore.savepoints import HeapStateStore, SavepointCoordinator

SAVEPOINT = Savepoint("/target/a", "canonical", "query", 1, 2, "/source", "/target/a/state", "a", "0" * 16)


class Job:
    """A coordinator that always takes the same savepoint, and the numbers that it triggered."""

    def __init__(self) -> None:
        self.triggered: list[int] = []
        self.pending_at_trigger: list[list[int]] = []
        self.store = HeapStateStore()
        self.coordinator = SavepointCoordinator()

    def trigger(self, number: int) -> None:
        self.triggered.append(number)
        self.pending_at_trigger.append(self.coordinator.pending)

    def write(self) -> Savepoint:
        self.store.put_state(SAVEPOINT)
        return SAVEPOINT


def test_coordinator_keeps_a_request_pending_until_its_acknowledgement() -> None:
    job = Job()
    promise = job.coordinator.trigger_savepoint(job.trigger)
    assert job.triggered == [1]
    assert job.pending_at_trigger == [[1]]
    assert job.coordinator.is_pending(1)
    assert not promise.done()
    job.coordinator.acknowledge(1, job.write)
    assert job.store.get_state(promise.result(timeout=5).path) == SAVEPOINT
    assert job.coordinator.pending == []


def test_coordinator_accepts_an_acknowledgement_during_the_trigger() -> None:
    job = Job()
    promise = job.coordinator.trigger_savepoint(lambda n: job.coordinator.acknowledge(n, job.write))
    assert promise.result(timeout=5) == SAVEPOINT
    assert job.coordinator.pending == []


def test_coordinator_writes_a_savepoint_once() -> None:
    job = Job()
    promise = job.coordinator.trigger_savepoint(job.trigger)
    for _ in range(2):
        job.coordinator.acknowledge(1, job.write)
    job.coordinator.fail(1, SavepointError("late"))
    assert promise.result(timeout=5) == SAVEPOINT
    assert job.store.get_all() == [SAVEPOINT]


def test_coordinator_fails_a_request_whose_trigger_raises_and_uses_its_number() -> None:
    job = Job()

    def refuse(number: int) -> None:
        raise RuntimeError("no thread is left")

    with pytest.raises(SavepointError, match=r"the savepoint failed.*no thread is left") as raised:
        job.coordinator.trigger_savepoint(refuse).result(timeout=5)
    assert isinstance(raised.value.__cause__, RuntimeError)
    job.coordinator.trigger_savepoint(job.trigger)
    assert job.coordinator.pending == [2]


@pytest.mark.parametrize("error", [SavepointError("timed out"), CheckpointNotFoundError("no batch 7")])
def test_coordinator_keeps_the_kind_of_a_failure(error: Exception) -> None:
    job = Job()
    old, new = (job.coordinator.trigger_savepoint(job.trigger) for _ in range(2))
    job.coordinator.fail(1, error)
    assert old.exception(timeout=5) is error
    assert job.coordinator.pending == [2]
    assert not new.done()


def test_coordinator_fails_a_savepoint_that_cannot_be_stored() -> None:
    job = Job()

    def write() -> Savepoint:
        raise OSError("no space left")

    promise = job.coordinator.trigger_savepoint(job.trigger)
    job.coordinator.acknowledge(1, write)
    assert isinstance(promise.exception(timeout=5), SavepointError)
    assert "no space left" in str(promise.exception())
    assert job.coordinator.pending == []


def test_coordinator_cancels_a_request_until_it_is_acknowledged() -> None:
    job = Job()
    promise = job.coordinator.trigger_savepoint(job.trigger)
    assert promise.cancel()
    assert wait([promise], timeout=5).done == {promise}
    assert job.coordinator.pending == []
    job.coordinator.acknowledge(1, job.write)
    with pytest.raises(CancelledError):
        promise.result(timeout=5)
    assert job.store.get_all() == []
    acknowledged = job.coordinator.trigger_savepoint(job.trigger)
    was_cancelled = []

    def write() -> Savepoint:
        was_cancelled.append(acknowledged.cancel())
        return SAVEPOINT

    job.coordinator.acknowledge(2, write)
    assert acknowledged.result(timeout=5) == SAVEPOINT
    assert was_cancelled == [False]


def test_coordinator_numbers_requests_of_several_threads() -> None:
    job = Job()
    threads = [
        threading.Thread(target=lambda: [job.coordinator.trigger_savepoint(job.trigger) for _ in range(50)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert job.coordinator.pending == list(range(1, 201))

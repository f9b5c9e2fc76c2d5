"""Tests of the savepoint coordinator: pending requests, acknowledgement, failure, cancellation."""

from __future__ import annotations

from concurrent.futures import CancelledError, ThreadPoolExecutor, wait

import pytest

from spark_statestore.errors import CheckpointNotFoundError, SavepointError
from spark_statestore.query.savepoint import Savepoint
from spark_statestore.savepoints import SavepointCoordinator

SAVEPOINT = Savepoint("/target/a", "canonical", "query", 1, 2, "/source", "/target/a/state", "a", "0" * 16)


class Job:
    """A coordinator, and the numbers of savepoints that it has triggered and written."""

    def __init__(self) -> None:
        self.triggered: list[int] = []
        self.writes = 0
        self.coordinator = SavepointCoordinator()

    def trigger(self, number: int) -> None:
        assert self.coordinator.is_pending(number)
        self.triggered.append(number)

    def write(self) -> Savepoint:
        self.writes += 1
        return SAVEPOINT


def test_coordinator_keeps_a_request_pending_until_its_acknowledgement() -> None:
    job = Job()
    promise = job.coordinator.trigger_savepoint(job.trigger)
    assert (job.triggered, job.coordinator.pending, promise.done()) == ([1], [1], False)
    for _ in range(2):
        job.coordinator.acknowledge(1, job.write)
    job.coordinator.fail(1, SavepointError("late"))
    assert promise.result(timeout=5) == SAVEPOINT
    assert (job.coordinator.pending, job.writes) == ([], 1)


def test_coordinator_accepts_an_acknowledgement_during_the_trigger() -> None:
    job = Job()
    promise = job.coordinator.trigger_savepoint(lambda n: job.coordinator.acknowledge(n, job.write))
    assert promise.result(timeout=5) == SAVEPOINT
    assert job.coordinator.pending == []


@pytest.mark.parametrize("place", ["trigger", "write"])
def test_coordinator_fails_a_request_whose_trigger_or_write_raises(place: str) -> None:
    job = Job()

    def refuse(*_: object) -> Savepoint:
        raise RuntimeError("no thread is left")

    promise = job.coordinator.trigger_savepoint(refuse if place == "trigger" else job.trigger)
    job.coordinator.acknowledge(1, refuse)
    with pytest.raises(SavepointError, match=r"the savepoint failed.*no thread is left") as raised:
        promise.result(timeout=5)
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


def test_coordinator_cancels_a_request_until_it_is_acknowledged() -> None:
    job = Job()
    promise = job.coordinator.trigger_savepoint(job.trigger)
    assert promise.cancel()
    assert wait([promise], timeout=5).done == {promise}
    assert job.coordinator.pending == []
    job.coordinator.acknowledge(1, job.write)
    with pytest.raises(CancelledError):
        promise.result(timeout=5)
    assert job.writes == 0
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
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(job.coordinator.trigger_savepoint, [job.trigger] * 200))
    assert sorted(job.triggered) == list(range(1, 201))
    assert job.coordinator.pending == list(range(1, 201))

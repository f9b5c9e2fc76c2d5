"""Registries of what has to be closed."""

from __future__ import annotations

import threading

import pytest

from spark_statestore.errors import CheckpointIOError
from spark_statestore.state.snapshot import CloseableRegistry


class Resource:
    """Notes when it is closed; equal to every other one, so that only identity tells them apart."""

    def __init__(self, closed: list[Resource] | None = None, failure: str = "") -> None:
        self.closed = closed if closed is not None else []
        self.failure = failure

    def close(self) -> None:
        self.closed.append(self)
        if self.failure:
            raise OSError(self.failure)

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None


def test_closing_closes_what_is_registered_the_newest_first() -> None:
    registry, closed = CloseableRegistry(), []
    resources = [Resource(closed) for _ in range(3)]
    for resource in resources:
        registry.register_closeable(resource)
    assert not registry.is_closed
    registry.close()
    assert registry.is_closed
    assert [id(r) for r in closed] == [id(r) for r in reversed(resources)]
    registry.close()
    assert len(closed) == 3


def test_unregistering_tells_whether_it_was_registered() -> None:
    registry, resource, other = CloseableRegistry(), Resource(), Resource()
    registry.register_closeable(resource)
    assert not registry.unregister_closeable(other)
    assert registry.unregister_closeable(resource)
    assert not registry.unregister_closeable(resource)
    registry.close()
    assert resource.closed == []


def test_after_closing_nothing_is_registered_any_more() -> None:
    registry, resource = CloseableRegistry(), Resource()
    registry.register_closeable(resource)
    registry.close()
    assert not registry.unregister_closeable(resource)


def test_a_closed_registry_closes_what_comes_late() -> None:
    registry, resource = CloseableRegistry(), Resource()
    registry.close()
    with pytest.raises(CheckpointIOError, match="closed at once"):
        registry.register_closeable(resource)
    assert len(resource.closed) == 1
    with pytest.raises(CheckpointIOError, match="closed at once") as raised:
        registry.register_closeable(Resource(failure="stuck"))
    assert "stuck" in raised.value.__notes__[0]


def test_all_are_closed_before_the_first_failure_is_raised() -> None:
    registry, closed = CloseableRegistry(), []
    for failure in ("third", "", "second", "first"):
        registry.register_closeable(Resource(closed, failure))
    with pytest.raises(OSError, match="first") as raised:
        registry.close()
    assert len(closed) == 4
    assert [note.split("'")[1] for note in raised.value.__notes__] == ["second", "third"]


def test_whoever_comes_while_it_is_closed_is_closed_too() -> None:
    registry, closed = CloseableRegistry(), []
    start = threading.Barrier(5)

    def register() -> None:
        start.wait()
        try:
            while True:
                registry.register_closeable(Resource(closed))
                registered.append(1)
        except CheckpointIOError:
            registered.append(1)

    registered: list[int] = []
    threads = [threading.Thread(target=register) for _ in range(4)]
    for thread in threads:
        thread.start()
    start.wait()
    registry.close()
    for thread in threads:
        thread.join()
    assert len(closed) == len(registered)

"""The same work for many things: results in order, progress, and an end at the first error."""

from __future__ import annotations

import threading

import pytest

from spark_statestore.checkpoint.query.workers import for_each


def test_results_are_in_the_order_of_the_items() -> None:
    done = threading.Event()

    def slow_first(number: int) -> int:
        if number == 0:
            assert done.wait(10)
        if number == 19:
            done.set()
        return number * number

    told: list[tuple[int, int]] = []
    found = for_each(slow_first, range(20), lambda done, of: told.append((done, of)))
    assert found == [number * number for number in range(20)]
    assert told == [(number, 20) for number in range(21)]
    assert for_each(slow_first, []) == []


def test_nothing_more_is_begun_after_an_error() -> None:
    begun = []
    held = threading.Event()

    def fail(number: int) -> None:
        begun.append(number)
        if number == 3:
            raise ValueError("three")
        held.wait(0.2)

    with pytest.raises(ValueError, match="three"):
        for_each(fail, range(1000))
    assert len(begun) < 100

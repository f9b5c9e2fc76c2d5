"""Tests of thread pools: order of results, progress, first error."""

from __future__ import annotations

import threading

import pytest

from spark_statestore.query.parallel import parallel_map


def test_parallel_map_returns_results_in_order() -> None:
    last_call = threading.Event()

    def slow_first(number: int) -> int:
        if number == 0:
            assert last_call.wait(10)
        if number == 19:
            last_call.set()
        return number * number

    reported: list[tuple[int, int]] = []
    results = parallel_map(slow_first, range(20), lambda count, total: reported.append((count, total)))
    assert results == [number * number for number in range(20)]
    assert reported == [(number, 20) for number in range(21)]
    assert parallel_map(slow_first, []) == []


def test_parallel_map_starts_no_call_after_an_error() -> None:
    begun = []
    pause = threading.Event()

    def fail(number: int) -> None:
        begun.append(number)
        if number == 3:
            raise ValueError("three")
        pause.wait(0.2)

    with pytest.raises(ValueError, match="three"):
        parallel_map(fail, range(1000))
    assert len(begun) < 100

"""`compare` reports every difference between a run's output and the batch answer."""

from __future__ import annotations

import pytest

from tests.system.cluster.answers import compare

TOTALS = [(key, str(part), str(10 * (part + 1))) for part in range(4) for key in ("a", "b")]
BATCHES = {part: [row for row in TOTALS if row[1] == str(part)] for part in range(4)}


def differences(batches: dict[int, list[tuple[str, ...]]], *, totals: bool = True) -> tuple[int, int]:
    lost, doubled = compare(TOTALS, batches, totals=totals)
    return lost.total(), doubled.total()


@pytest.mark.parametrize("totals", [True, False])
def test_compare_checks_rows_of_every_batch(totals: bool) -> None:
    assert differences(BATCHES, totals=totals) == (0, 0)
    for number, (first, second) in BATCHES.items():
        assert differences(BATCHES | {number: [first]}, totals=totals) == (1, 0)
        assert differences(BATCHES | {number: [first, second, second]}, totals=totals) == (0, 1)
        assert differences(BATCHES | {number: [first, ("b", str(number), "7")]}, totals=totals) == (1, 1)


def test_compare_allows_empty_batches_at_the_end() -> None:
    assert differences(BATCHES | {4: [], 5: []}) == (0, 0)


def test_compare_expects_totals_after_all_parts_of_a_batch() -> None:
    both = {0: BATCHES[0], 1: BATCHES[2], 2: BATCHES[3]}
    assert differences(both) == (0, 0)
    # A key without rows in the second part.
    assert differences(both | {1: [BATCHES[2][0], BATCHES[1][1]]}) == (1, 1)
    without = [row for row in TOTALS if row != BATCHES[2][1]]
    assert compare(without, both | {1: [BATCHES[2][0], BATCHES[1][1]]}, totals=True) == ({}, {})
    assert compare(TOTALS, both, totals=False)[0].total() == 2


def test_compare_reports_a_part_without_a_batch() -> None:
    assert differences({number: BATCHES[number] for number in range(3)}) == (2, 0)


def test_compare_does_not_merge_a_batch_without_output() -> None:
    with pytest.raises(AssertionError, match="missing"):
        differences({0: BATCHES[0], 2: BATCHES[2], 3: BATCHES[3]})
    with pytest.raises(AssertionError, match="without rows"):
        differences(BATCHES | {1: []})
    with pytest.raises(AssertionError, match="another order"):
        differences({0: BATCHES[1], 1: BATCHES[0], 2: BATCHES[2], 3: BATCHES[3]})

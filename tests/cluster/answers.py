"""Compares what a query put out with Spark's batch answer."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence

Row = tuple[str, ...]


def compare(
    answer: Sequence[Row], batches: Mapping[int, Sequence[Row]], *, totals: bool
) -> tuple[Counter[Row], Counter[Row]]:
    """Rows that are missing in what batches put out, and rows that are too many.

    Parameters
    ----------
    answer
        Rows of the batch answer.
    batches
        By batch, the rows that it put out.
    totals
        Whether rows are running totals, by a key and a part of the input.

    Raises
    ------
    AssertionError
        If a batch in between has put out nothing.
    """
    assert sorted(batches) == list(range(len(batches))), f"batches are missing: {sorted(batches)}"
    wanted = Counter(_last_of_batches(answer, batches) if totals else answer)
    found = Counter(row for rows in batches.values() for row in rows)
    return wanted - found, found - wanted


def _last_of_batches(totals: Sequence[Row], batches: Mapping[int, Sequence[Row]]) -> list[Row]:
    """The totals but for those between parts that one batch took at once.

    Each batch takes one part, unless a full disk kept Spark from noting a batch of which its source had noted the
    file: the next one then takes two, and says the totals after both.
    """
    ends = [max((int(row[1]) for row in batches[number]), default=-1) for number in sorted(batches)]
    while ends and ends[-1] < 0:
        # At the end batches only move the watermark.
        ends.pop()
    assert ends == sorted(set(ends)), f"batches without rows, or in another order than the input: {ends}"
    last: dict[tuple[str, int], Row] = {}
    for row in sorted(totals, key=lambda row: int(row[1])):
        part = int(row[1])
        place = bisect_left(ends, part)
        last[row[0], ends[place] if place < len(ends) else part] = row
    return list(last.values())

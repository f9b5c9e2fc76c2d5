"""Comparison of a query's output with Spark's batch answer."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence

Row = tuple[str, ...]


def compare(
    answer: Sequence[Row], batches: Mapping[int, Sequence[Row]], *, totals: bool
) -> tuple[Counter[Row], Counter[Row]]:
    """Return the rows of the answer that are missing from the output of the batches, and the surplus rows.

    With `totals` rows are running totals, by a key and a part of the input.
    """
    assert sorted(batches) == list(range(len(batches))), f"batches are missing: {sorted(batches)}"
    expected = Counter(_last_of_batches(answer, batches) if totals else answer)
    output = Counter(row for rows in batches.values() for row in rows)
    return expected - output, output - expected


def _last_of_batches(totals: Sequence[Row], batches: Mapping[int, Sequence[Row]]) -> list[Row]:
    """Return the totals, without those between parts that one batch processed together.

    Each batch takes one part, unless a full disk prevented Spark from logging a batch whose file its source
    had already logged: the next batch then takes two, and outputs the totals after both.
    """
    ends = [max((int(row[1]) for row in batches[number]), default=-1) for number in sorted(batches)]
    while ends and ends[-1] < 0:
        # The last batches only advance the watermark.
        ends.pop()
    assert ends == sorted(set(ends)), f"batches without rows, or in another order than the input: {ends}"
    last: dict[tuple[str, int], Row] = {}
    for row in sorted(totals, key=lambda row: int(row[1])):
        part = int(row[1])
        place = bisect_left(ends, part)
        last[row[0], ends[place] if place < len(ends) else part] = row
    return list(last.values())

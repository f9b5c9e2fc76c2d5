"""Tests of the detection of gaps in Spark's logs."""

from __future__ import annotations

import pytest

from spark_statestore.query import QueryCheckpoint
from spark_statestore.query.gaps import log_gaps, missing_entries
from spark_statestore.query.verify import verify
from tests.unit.query.stored_query import StoredQuery


@pytest.mark.parametrize(
    ("offsets", "commits", "until", "missing"),
    [
        ([], [], None, {}),
        ([0, 1, 2], [0, 1, 2], None, {}),
        ([0, 1, 2, 3], [0, 1, 2], None, {}),
        # Spark purges one log after the other; a copy has one entry more of what batches read.
        ([4, 5], [3, 4, 5], None, {}),
        ([4, 5], [5], None, {}),
        ([0, 1, 7, 8], [0, 1, 7], None, {"offsets": {2, 3, 4, 5, 6}, "commits": {2, 3, 4, 5, 6}}),
        ([0, 1, 7, 8], [0, 1, 7], 1, {}),
        ([0, 1, 7, 8], [0, 1, 7], 4, {"offsets": {2, 3, 4}, "commits": {2, 3, 4}}),
        ([0, 1, 2, 3], [0, 1, 3], None, {"commits": {2}}),
        ([0, 1, 2, 3], [0, 1], None, {"commits": {2}}),
        ([0, 1], [0, 1, 2], None, {"offsets": {2}}),
    ],
)
def test_missing_entries_are_between_existing_ones(
    offsets: list[int], commits: list[int], until: int | None, missing: dict[str, set[int]]
) -> None:
    missing_by_log = missing_entries(offsets, commits, until)
    assert {log: batches for log, batches in missing_by_log.items() if batches} == missing


def test_verify_reports_gaps_in_both_logs(query: StoredQuery) -> None:
    for number in range(4, 8):
        query.run(ann=number)
    for path in (query.directory / log / str(batch) for log in ("offsets", "commits") for batch in (2, 3, 5)):
        path.unlink()
    problems = verify(query.url).problems
    assert [(problem.what, problem.kind) for problem in problems] == [
        ("the commit log", "missing"),
        ("the offset log", "missing"),
    ]
    assert all("no entry of batches 2 to 3, 5, and" in problem.message for problem in problems)
    # A gap does not affect earlier batches.
    assert verify(query.url, 1).ok
    assert not verify(query.url, 4).ok


def test_verify_reports_an_uncommitted_batch_before_a_later_one(query: StoredQuery) -> None:
    query.begin()
    (query.directory / "commits/3").unlink()
    (problem,) = verify(query.url).problems
    assert (problem.what, "no entry of batch 3," in problem.message) == ("the commit log", True)


def test_log_gaps_ignores_entries_added_between_two_listings(
    query: StoredQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = QueryCheckpoint(query.url)
    logged = QueryCheckpoint.logged
    ahead = iter(range(2, 100, 2))

    def listed(self: QueryCheckpoint, log: str) -> set[int]:
        # Two batches begin between a listing and the next.
        batches = logged(self, log)
        return batches | set(range(max(batches), max(batches) + next(ahead)))

    monkeypatch.setattr(QueryCheckpoint, "logged", listed)
    assert log_gaps(checkpoint) == {}

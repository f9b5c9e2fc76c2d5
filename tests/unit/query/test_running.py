"""Tests of the detection of a running query from its logs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_statestore import QueryRunningError
from spark_statestore.files import FileStatus, LocalFileSystem
from spark_statestore.query import QueryCheckpoint, running
from spark_statestore.query.running import ActivityCheck, young_until
from tests.unit.query.stored_query import StoredQuery

HOUR = 3600.0


def age(query: StoredQuery, seconds: float, interval: float = 1.0) -> None:
    """Make the newest batch so old, and those before it older by an interval each."""
    now = time.time()
    for path in query.directory.rglob("*"):
        os.utime(path, (now - 30 * HOUR, now - 30 * HOUR))
    newest = len(query.states) - 1
    for log in ("sources/0", "offsets", "commits"):
        for batch in range(newest + 1):
            then = now - seconds - interval * (newest - batch)
            os.utime(query.directory / log / str(batch), (then, then))


def check(query: StoredQuery, *, stopped: bool = False) -> None:
    ActivityCheck(QueryCheckpoint(query.url)).require_stopped(stopped=stopped)


@pytest.mark.parametrize(
    ("seconds", "interval", "runs"),
    [
        (-20, 1, True),
        (29, 1, True),
        (31, 1, False),
        (29 * 60, 10 * 60, True),
        (31 * 60, 10 * 60, False),
        (59 * 60, 24 * HOUR, True),
        (61 * 60, 24 * HOUR, False),
    ],
)
def test_activity_check_refuses_an_entry_that_is_young_by_the_cadence(
    query: StoredQuery, monkeypatch: pytest.MonkeyPatch, seconds: float, interval: float, runs: bool
) -> None:
    monkeypatch.setattr(running, "OBSERVED_SECONDS", 0.0)
    age(query, seconds, interval)
    before = query.files()
    if runs:
        with pytest.raises(QueryRunningError, match=r"^pass --stopped .*was written \d+ s ago"):
            check(query)
    else:
        check(query)
    check(query, stopped=True)
    assert query.files() == before


def test_young_until_is_three_usual_intervals_within_bounds() -> None:
    assert young_until([]) == young_until([7.0]) == 30
    # One long pause is not usual, and the newest intervals count.
    assert young_until([0, 20, 40, 60, 1000, 1020, 1040]) == 60
    assert young_until([*range(0, 10000, 1000), *range(10000, 10100, 5)]) == 30
    assert young_until([0, 1e6, 2e6]) == HOUR
    # A copy of files has them all written at once, and in any order.
    assert young_until([100, 99, 98]) == 30


@contextmanager
def running_soon(query: StoredQuery) -> Iterator[None]:
    """Expect that a batch which begins half a second later is noticed."""
    writer = threading.Timer(0.5, query.begin)
    writer.start()
    with pytest.raises(QueryRunningError, match="runs: it has just written offsets/4"):
        yield
    writer.join()


def test_activity_check_refuses_an_entry_that_appears(query: StoredQuery) -> None:
    age(query, HOUR)
    with running_soon(query):
        check(query)


def test_activity_check_of_an_asserted_stop_still_refuses_new_entries(query: StoredQuery) -> None:
    watch = ActivityCheck(QueryCheckpoint(query.url))
    query.begin()
    with pytest.raises(QueryRunningError, match="it has just written offsets/4, sources/0/4"):
        watch.require_stopped(stopped=True)


def test_activity_check_counts_state_of_a_long_batch(
    query: StoredQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "OBSERVED_SECONDS", 0.0)
    query.begin()
    age(query, HOUR)
    check(query)
    query.commit(0, {"ann": 9})
    with pytest.raises(QueryRunningError, match=r"state/0/0/.* was written 0 s ago"):
        check(query)


def test_activity_check_uses_the_clock_of_the_storage(
    query: StoredQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine whose clock is ahead by an hour takes no young entry for an old one."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + HOUR)
    with pytest.raises(QueryRunningError, match="was written 0 s ago"):
        check(query)
    assert not list(query.directory.glob(".clock-*"))


def test_activity_check_without_modification_times_uses_new_entries(
    query: StoredQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = LocalFileSystem.list_files
    monkeypatch.setattr(
        LocalFileSystem,
        "list_files",
        lambda self, path: (FileStatus(status.path, status.size) for status in listed(self, path)),
    )
    monkeypatch.setattr(running, "YOUNG_SECONDS", 1.5)
    begun = time.monotonic()
    check(query)
    assert time.monotonic() - begun >= 1.5
    with running_soon(query):
        check(query)


def test_activity_check_accepts_a_query_without_batches(tmp_path: Path) -> None:
    check(StoredQuery(tmp_path / "checkpoint"))

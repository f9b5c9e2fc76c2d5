"""Tests of `repair`: rollback to the newest intact batch, and no further."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_statestore import read_state
from spark_statestore import savepoint as create_savepoint
from spark_statestore.errors import (
    CheckpointIOError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    QueryRunningError,
)
from spark_statestore.query.repair import repair
from spark_statestore.query.rollback import rollback
from spark_statestore.query.verify import verify
from tests.unit.query.stored_query import StoredQuery

pytestmark = pytest.mark.usefixtures("unsynced")

LARGE = {f"{'w' * (number % 2)}{number}": number for number in range(100)}


@pytest.fixture(params=[1, 2])
def query(tmp_path: Path, request: pytest.FixtureRequest) -> StoredQuery:
    """Four batches, each of which wrote everything anew."""
    stored_query = StoredQuery(tmp_path / "checkpoint", request.param)
    for number in range(4):
        stored_query.run(**dict.fromkeys(LARGE, number))
    return stored_query


def spoil(query: StoredQuery, pattern: str) -> None:
    paths = list(query.directory.glob(pattern))
    assert paths
    for path in paths:
        path.write_bytes(b"broken")


NEWEST = "state/0/1/chk-4*/_metadata"
BEFORE = "state/0/1/chk-3*/_metadata"


def test_repair_changes_nothing_in_an_intact_checkpoint(query: StoredQuery) -> None:
    before = query.files()
    result = repair(query.url, stopped=True)
    assert (result.batch, result.broken, result.moved) == (3, (), ())
    assert query.files() == before
    with pytest.raises(CheckpointNotFoundError):
        repair(str(query.directory / "nothing"), stopped=True)


@pytest.mark.parametrize("broken", ["state/0/1/chk-4*/_metadata", "state/0/0/shared/4-*", "sources/0/3"])
def test_repair_rolls_back_to_the_newest_intact_batch(query: StoredQuery, broken: str) -> None:
    spoil(query, broken)
    before = query.files()
    planned = repair(query.url, dry_run=True)
    assert query.files() == before
    result = repair(query.url, stopped=True)
    assert (result.batch, result.moved) == (2, planned.moved)
    assert [report.batch for report in result.broken] == [3]
    assert {Path(url).name for url in result.moved} >= {"3"}
    report = verify(query.url)
    assert (report.batch, report.ok) == (2, True)
    # The moved files still exist.
    moved = {url.removeprefix(f"file://{query.directory}/") for url in result.moved}
    after = query.files()
    aside = {path.split("/", 2)[2]: data for path, data in after.items() if path.startswith("rolled-back/")}
    assert {path: before[path] for path in moved} == aside
    assert not moved & after.keys()


def test_repair_passes_over_several_broken_batches(query: StoredQuery) -> None:
    spoil(query, NEWEST)
    spoil(query, "state/0/0/shared/3-*")
    result = repair(query.url, stopped=True)
    assert (result.batch, [report.batch for report in result.broken]) == (1, [3, 2])
    assert verify(query.url).ok


def test_repair_removes_only_a_broken_uncommitted_batch(query: StoredQuery) -> None:
    query.begin()
    spoil(query, "offsets/4")
    result = repair(query.url, stopped=True)
    assert (result.batch, [report.batch for report in result.broken]) == (3, [3])
    assert "offsets/4" not in query.files()
    assert verify(query.url).batch == 3


@pytest.mark.parametrize(
    ("broken", "unreadable", "stopped", "error", "message"),
    [
        ("metadata", None, True, CorruptCheckpointError, "no batch"),
        ("state/0/0/shared/1-*", None, True, CorruptCheckpointError, "no batch"),
        (None, NEWEST, True, CheckpointIOError, "its damage is unknown"),
        (NEWEST, BEFORE, True, CheckpointIOError, "batch 2 is not rolled back, .* damage is unknown"),
        (NEWEST, None, False, QueryRunningError, "--stopped"),
    ],
    ids=["metadata", "stream of all batches", "newest is unreadable", "batch before is", "may run"],
)
def test_repair_changes_nothing_if_it_cannot_be_sure(
    query: StoredQuery,
    broken: str | None,
    unreadable: str | None,
    stopped: bool,
    error: type[Exception],
    message: str,
) -> None:
    if broken is not None:
        spoil(query, broken)
    if unreadable is not None:
        (path,) = query.directory.glob(unreadable)
        path.unlink()
        path.mkdir()
    before = query.files()
    with pytest.raises(error, match=message):
        repair(query.url, stopped=stopped)
    assert query.files() == before


def test_repair_rolls_back_to_the_oldest_batch(query: StoredQuery) -> None:
    query.forget(2)
    spoil(query, NEWEST)
    assert repair(query.url, stopped=True).batch == 2
    report = verify(query.url)
    assert (report.batch, report.ok) == (2, True)


def test_repair_rolls_back_a_newest_batch_without_a_previous_offset_entry(query: StoredQuery) -> None:
    (query.directory / "offsets/2").unlink()
    assert repair(query.url, stopped=True).batch == 1
    assert verify(query.url).ok


def entries(query: StoredQuery) -> list[list[int]]:
    return [
        sorted(int(path.name) for path in (query.directory / log).iterdir() if path.name.isdigit())
        for log in ("offsets", "commits")
    ]


def roll_back_as_it_runs(query: StoredQuery, batch: int) -> None:
    """Roll a running query back without the check, and let it continue."""
    rollback(query.url, batch, stopped=True)
    for number in range(4, 7):
        query.run(**dict.fromkeys(LARGE, number))


def test_repair_undoes_a_rollback_of_a_running_query(query: StoredQuery) -> None:
    rolled_back = query.files()
    roll_back_as_it_runs(query, 1)
    assert entries(query) == [[0, 1, 4, 5, 6]] * 2
    assert not verify(query.url).ok
    before = query.files()
    with pytest.raises(QueryRunningError):
        repair(query.url)
    planned = repair(query.url, dry_run=True)
    assert query.files() == before
    result = repair(query.url, stopped=True)
    assert (result.batch, result.moved, result.undone_rollback) == (6, (), planned.undone_rollback)
    assert result.undone_rollback is not None
    assert rolled_back.items() <= query.files().items()
    assert entries(query) == [list(range(7))] * 2
    report = verify(query.url)
    assert (report.batch, report.problems) == (6, ())
    # A second repair finds nothing to do.
    assert repair(query.url).broken == ()


def test_repair_rolls_back_to_the_batch_before_a_gap(query: StoredQuery) -> None:
    roll_back_as_it_runs(query, 1)
    (query.directory / "commits/4").unlink()
    result = repair(query.url, stopped=True)
    assert (result.batch, result.undone_rollback) == (1, None)
    assert verify(query.url).ok


def query_with_bases(tmp_path: Path, checkpoint_format: int) -> StoredQuery:
    """A query whose versions 3 and 4 have uploaded bases, beside the changes since the first version."""
    stored_query = StoredQuery(tmp_path / "covered", checkpoint_format)
    stored_query.run(**LARGE)
    stored_query.run(w1=7)
    stored_query.run(
        {partition: stored_query.snapshot(partition) for partition in range(2)}, ann=1, bob=2, carl=3
    )
    stored_query.run(ann=2, bob=3, carl=4)
    return stored_query


@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_repair_rolls_no_batch_back_that_other_streams_cover(tmp_path: Path, checkpoint_format: int) -> None:
    query = query_with_bases(tmp_path, checkpoint_format)
    (missing,) = query.directory.glob("state/0/0/shared/2-*")
    (flipped,) = query.directory.glob("state/0/1/shared/2-*")
    missing.unlink()
    data = flipped.read_bytes()
    flipped.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    before = query.files()
    report = verify(query.url)
    assert (report.ok, report.stores, len(report.problems)) == (True, 0, 2)
    for problem, kind, path in zip(report.problems, ("missing", "damaged"), (missing, flipped), strict=True):
        assert (problem.kind, problem.covered) == (kind, True)
        assert str(path) in problem.message
        assert "It is covered: " in problem.message
        assert f"{path.parent}/1-" in problem.message
    result = repair(query.url, stopped=True)
    assert (result.batch, result.broken, result.moved, result.covered) == (3, (), (), report.problems)
    assert query.files() == before
    rows = read_state(query.url).to_pylist()
    assert {row["key"]["word"]: row["value"]["count"] for row in rows} == query.state()
    savepoint = create_savepoint(query.url, str(tmp_path / "savepoints"))
    assert verify(savepoint.path).problems == ()
    # To the batch whose own missing base other streams cover.
    assert rollback(query.url, 2, stopped=True)
    assert (verify(query.url).batch, verify(query.url).ok) == (2, True)
    for path in query.directory.glob("state/0/0/shared/1-*"):
        path.unlink()
    assert [problem.covered for problem in verify(query.url).problems] == [False, True]
    with pytest.raises(CorruptCheckpointError, match=missing.name):
        rollback(query.url, 2, stopped=True)

"""Repair: a query goes back to the newest batch of which everything is whole, and no further; else nothing is changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_statestore.checkpoint.query.verify import verify
from spark_statestore.errors import CheckpointIOError, CheckpointNotFoundError, CorruptCheckpointError
from spark_statestore.savepoint.repair import repair
from tests.checkpoint.query.stored import StoredQuery

LARGE = {f"{'w' * (number % 2)}{number}": number for number in range(100)}


@pytest.fixture(params=[1, 2])
def query(tmp_path: Path, request: pytest.FixtureRequest) -> StoredQuery:
    """Four batches, each of which wrote everything anew."""
    made = StoredQuery(tmp_path / "checkpoint", request.param)
    for number in range(4):
        made.run(**dict.fromkeys(LARGE, number))
    return made


def spoil(query: StoredQuery, pattern: str) -> None:
    found = list(query.directory.glob(pattern))
    assert found
    for path in found:
        path.write_bytes(b"broken")


def test_a_whole_checkpoint_is_left_as_it_is(query: StoredQuery) -> None:
    before = query.files()
    done = repair(query.url)
    assert (done.batch, done.broken, done.moved) == (3, (), ())
    assert query.files() == before


@pytest.mark.parametrize(
    "broken",
    [
        "state/0/1/chk-4*/_metadata",
        "state/0/0/shared/4-*",
        "sources/0/3",
    ],
)
def test_the_newest_whole_batch_is_gone_back_to(query: StoredQuery, broken: str) -> None:
    spoil(query, broken)
    before = query.files()
    planned = repair(query.url, dry_run=True)
    assert query.files() == before
    done = repair(query.url)
    assert (done.batch, done.moved) == (2, planned.moved)
    assert [found.batch for found in done.broken] == [3]
    assert {Path(url).name for url in done.moved} >= {"3"}
    found = verify(query.url)
    assert (found.batch, found.ok) == (2, True)
    # What was moved is still there.
    moved = {url.removeprefix(f"file://{query.directory}/") for url in done.moved}
    after = query.files()
    aside = {path.split("/", 2)[2]: data for path, data in after.items() if path.startswith("rolled-back/")}
    assert {path: before[path] for path in moved} == aside
    assert not moved & after.keys()


def test_all_broken_batches_are_passed_over(query: StoredQuery) -> None:
    spoil(query, "state/0/1/chk-4*/_metadata")
    spoil(query, "state/0/0/shared/3-*")
    done = repair(query.url)
    assert (done.batch, [found.batch for found in done.broken]) == (1, [3, 2])
    assert verify(query.url).ok


def test_only_the_batch_that_was_begun_is_taken_back_if_no_other_is_broken(query: StoredQuery) -> None:
    query.begin()
    spoil(query, "offsets/4")
    done = repair(query.url)
    assert (done.batch, [found.batch for found in done.broken]) == (3, [3])
    assert "offsets/4" not in query.files()
    assert verify(query.url).batch == 3


def test_without_a_whole_batch_nothing_is_changed(query: StoredQuery) -> None:
    spoil(query, "metadata")
    before = query.files()
    with pytest.raises(CorruptCheckpointError, match="no batch"):
        repair(query.url)
    assert query.files() == before


def test_storage_that_fails_is_no_reason_to_go_back(query: StoredQuery) -> None:
    for path in query.directory.glob("state/0/1/chk-4*/_metadata"):
        path.unlink()
        path.mkdir()
    before = query.files()
    with pytest.raises(CheckpointIOError, match="not known to be broken"):
        repair(query.url)
    assert query.files() == before


def test_the_oldest_batch_can_be_gone_back_to(query: StoredQuery) -> None:
    query.forget(2)
    spoil(query, "state/0/1/chk-4*/_metadata")
    assert repair(query.url).batch == 2
    found = verify(query.url)
    assert (found.batch, found.ok) == (2, True)


def test_a_newest_batch_without_the_entry_before_it_is_gone_back_behind(query: StoredQuery) -> None:
    (query.directory / "offsets/2").unlink()
    assert not verify(query.url).ok
    assert repair(query.url).batch == 1
    assert verify(query.url).ok


def test_without_a_checkpoint_there_is_nothing_to_repair(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError):
        repair(str(tmp_path / "nothing"))


def test_a_stream_that_batches_share_is_missed_by_each(tmp_path: Path) -> None:
    query = StoredQuery(tmp_path / "checkpoint")
    query.run(**LARGE)
    query.run(ann=1)
    query.run(ann=2)
    spoil(query, "state/0/0/shared/1-*")
    with pytest.raises(CorruptCheckpointError, match="no batch"):
        repair(query.url)

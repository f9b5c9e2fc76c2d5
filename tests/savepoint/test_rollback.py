"""A query set back in place: nothing is destroyed, and a roll-back that is cut short leaves a batch in between."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from spark_statestore import CheckpointNotFoundError, CorruptCheckpointError, rollback
from spark_statestore.checkpoint.files import LocalFileSystem
from spark_statestore.checkpoint.query import QueryCheckpoint
from spark_statestore.checkpoint.query.checkpoint import ROLLED_BACK
from spark_statestore.state.operator import MapStateDescriptor, QueryOperatorState
from tests.savepoint.written import WrittenQuery, content

both_formats = pytest.mark.parametrize("with_ids", [False, True], ids=["v1", "v2"])


def ran(
    directory: Path, batches: int, *, with_ids: bool = False, began: tuple[int, ...] = (0, 3)
) -> WrittenQuery:
    """A query after some batches, with what Spark notes of each run, checksums of Hadoop's, and state of its own."""
    query = WrittenQuery(str(directory), with_ids)
    own = QueryOperatorState(str(directory), "own")
    for batch in range(batches):
        query.run()
        query.write(f"sources/0/.{batch}.crc", b"crc")
        with own.batch(batch) as store:
            store.get_broadcast_state(MapStateDescriptor("last", pa.string(), pa.int64())).put("batch", batch)
    for run in began:
        query.write(f"state/0/_metadata/v2/{run}", b"")
        query.write(f"state/0/_stateSchema/default/{run}_0123", b"")
    return query


def files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def put_aside(directory: Path) -> dict[str, bytes]:
    """What roll-backs put aside, by the path that it had."""
    found = files(directory / ROLLED_BACK) if (directory / ROLLED_BACK).exists() else {}
    return {name.partition("/")[2]: data for name, data in found.items()}


def in_place(directory: Path) -> dict[str, bytes]:
    return {name: data for name, data in files(directory).items() if not name.startswith(ROLLED_BACK)}


@both_formats
def test_what_was_noted_of_later_batches_is_moved_and_all_else_stays(tmp_path: Path, with_ids: bool):
    query = ran(tmp_path, 5, with_ids=with_ids)
    before = files(tmp_path)
    expected = content(query.checkpoint, 2)
    planned = rollback(query.url, 2, dry_run=True)
    assert files(tmp_path) == before

    assert rollback(query.url, 2) == planned
    assert query.checkpoint.newest_batch() == 2
    assert content(query.checkpoint) == expected
    moved = put_aside(tmp_path)
    assert in_place(tmp_path) | moved == before
    assert not in_place(tmp_path).keys() & moved.keys()
    own = {name for name in moved if name.startswith("operator-state/own/chk-")}
    assert {name.split("/")[2].split("_")[0] for name in own} == {"chk-3", "chk-4"}
    assert moved.keys() - own == {
        *(f"{log}/{batch}" for log in ("commits", "offsets", "sources/0") for batch in (3, 4)),
        *(f"sources/0/.{batch}.crc" for batch in (3, 4)),
        "state/0/_metadata/v2/3",
        "state/0/_stateSchema/default/3_0123",
    }
    assert [url.rpartition("/")[2] for url in planned if "/commits/" in url] == ["4", "3"]


@both_formats
def test_a_query_goes_on_behind_the_batch(tmp_path: Path, with_ids: bool):
    query = ran(tmp_path, 4, with_ids=with_ids)
    rollback(query.url, 1)
    query.batch = 1
    query.rows = content(query.checkpoint)
    query.restart()
    assert query.run(put={b"new": b"row"}) == 2
    assert content(query.checkpoint) == query.rows
    assert all(rows == {b"batch": b"1", b"new": b"row"} for rows in query.rows.values())


@both_formats
def test_a_batch_that_was_begun_behind_the_newest_one_is_forgotten(tmp_path: Path, with_ids: bool):
    query = ran(tmp_path, 3, with_ids=with_ids, began=(0,))
    query.begin()
    moved = rollback(query.url, 2)
    assert [url.removeprefix(f"{query.checkpoint.url}/") for url in moved] == ["offsets/3", "sources/0/3"]
    assert rollback(query.url, 2) == []


@both_formats
def test_one_that_is_cut_short_anywhere_leaves_a_batch_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_ids: bool
):
    real = {name: getattr(LocalFileSystem, name) for name in ("create", "delete")}
    left = 0

    def die_in_time(name: str) -> Callable[..., None]:
        def call(*arguments: object) -> None:
            nonlocal left
            if left == 0:
                raise KeyboardInterrupt
            left -= 1
            real[name](*arguments)

        return call

    done = False
    steps = 0
    while not done:
        directory = tmp_path / str(steps)
        query = ran(directory, 4, with_ids=with_ids)
        contents = {batch: content(query.checkpoint, batch) for batch in range(4)}
        before = files(directory)
        left = steps
        with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
            for name in real:
                patched.setattr(LocalFileSystem, name, die_in_time(name))
            rollback(query.url, 1)
            done = True
        checkpoint = QueryCheckpoint(query.url)
        newest = checkpoint.newest_batch()
        begun = max(int(path.name) for path in (directory / "offsets").iterdir())
        assert begun in (newest, newest + 1)
        assert content(checkpoint) == contents[newest]
        # What a run notes when it begins is not older than that.
        assert (directory / "state/0/_metadata/v2/3").exists() <= (begun >= 3)
        assert QueryOperatorState(query.url, "own").batches()[-1] <= begun
        rollback(query.url, 1)
        assert in_place(directory) | put_aside(directory) == before
        assert checkpoint.batches() == [0, 1]
        assert content(checkpoint) == contents[1]
        steps += 1
    assert steps > 20


def test_a_batch_whose_state_is_gone_is_refused(tmp_path: Path):
    query = ran(tmp_path, 4)
    next((tmp_path / "state/0/1/chk-2").iterdir()).unlink()
    before = files(tmp_path)
    with pytest.raises(CheckpointNotFoundError, match="operator 0, partition 1, store default, version 2"):
        rollback(query.url, 1)
    with pytest.raises(CheckpointNotFoundError, match="it has the batches 0 to 3"):
        rollback(query.url, 7)
    assert files(tmp_path) == before


def test_a_batch_that_lacks_a_stream_is_refused(tmp_path: Path):
    query = WrittenQuery(str(tmp_path))
    query.run(put={b"large": bytes(700)})
    query.run()
    next((tmp_path / "state/0/0/shared").iterdir()).unlink()
    with pytest.raises(CorruptCheckpointError, match="needs the state stream"):
        rollback(query.url, 0)
    assert query.checkpoint.batches() == [0, 1]


def test_entries_of_a_file_source_that_were_compacted_since_are_written_anew(tmp_path: Path):
    query = WrittenQuery(str(tmp_path))
    for _ in range(6):
        query.run()
    log = tmp_path / "sources" / "0"
    entries = [(log / str(number)).read_bytes().split(b"\n")[1] for number in range(5)]
    # Spark removes them one after the other, and may have been stopped.
    for number in (0, 2, 3):
        (log / str(number)).unlink()
    (log / "4").rename(log / "4.compact")
    (log / "4.compact").write_bytes(b"\n".join([b"v1", *entries]))
    rollback(query.url, 2)
    assert {path.name for path in log.iterdir()} == {"2.compact"}
    assert (log / "2.compact").read_bytes() == b"\n".join([b"v1", *entries[:3]])
    assert {"sources/0/1", "sources/0/4.compact", "sources/0/5"} <= put_aside(tmp_path).keys()


def test_operator_state_that_is_not_kept_any_more_is_missed(tmp_path: Path):
    query = WrittenQuery(str(tmp_path))
    own = QueryOperatorState(query.url, "own", num_retained=1)
    for batch in range(3):
        query.run()
        with own.batch(batch):
            pass
    with pytest.raises(
        CheckpointNotFoundError, match="not kept for batch 1 any more, its oldest one is of batch 2"
    ):
        rollback(query.url, 1)
    assert query.checkpoint.newest_batch() == 2


def test_operator_state_that_began_later_is_moved(tmp_path: Path):
    query = WrittenQuery(str(tmp_path))
    for _ in range(2):
        query.run()
    with QueryOperatorState(query.url, "own").batch(1):
        pass
    moved = rollback(query.url, 0)
    assert any("/operator-state/own/chk-1" in url for url in moved)
    assert QueryOperatorState(query.url, "own").batches() == []


def test_spark_finds_an_entry_before_the_oldest_batch(tmp_path: Path):
    query = WrittenQuery(str(tmp_path), kept=1)
    for _ in range(4):
        query.run()
    assert query.checkpoint.batches() == [2, 3]
    rollback(query.url, 2)
    assert query.checkpoint.batches() == [2]
    assert query.checkpoint.offsets(1) == query.checkpoint.offsets(2)


def test_damaged_logs_of_later_batches_are_moved_too(tmp_path: Path):
    query = ran(tmp_path, 3)
    for log in ("commits", "offsets", "sources/0"):
        (tmp_path / log / "2").write_bytes(b"damaged")
    rollback(query.url, 1)
    assert {name for name in put_aside(tmp_path) if name.endswith("/2")} == {
        "commits/2",
        "offsets/2",
        "sources/0/2",
    }
    assert query.checkpoint.batches() == [0, 1]

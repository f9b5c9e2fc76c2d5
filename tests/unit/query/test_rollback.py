"""Tests of `rollback`: files are moved, not deleted, and an interruption leaves a batch in between."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from spark_statestore import CheckpointNotFoundError, CorruptCheckpointError, QueryRunningError, rollback
from spark_statestore.files import LocalFileSystem
from spark_statestore.operator_state import MapStateDescriptor, QueryOperatorState
from spark_statestore.query import QueryCheckpoint, lease
from spark_statestore.query.query_checkpoint import ROLLED_BACK
from spark_statestore.query.rollback import undo_rollback
from tests.support.trees import files_below
from tests.unit.savepoints.written_query import WrittenQuery, content

pytestmark = pytest.mark.usefixtures("unsynced")

both_formats = pytest.mark.parametrize("with_ids", [False, True], ids=["v1", "v2"])


def ran(
    directory: Path, batches: int, *, with_ids: bool = False, began: tuple[int, ...] = (0, 3)
) -> WrittenQuery:
    """Create a query with some batches, Spark's log of runs, Hadoop's checksum files, and operator state."""
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


def put_aside(directory: Path) -> dict[str, bytes]:
    """Return the files that rollbacks moved, by their original path."""
    return {name.partition("/")[2]: data for name, data in files_below(directory / ROLLED_BACK).items()}


def in_place(directory: Path) -> dict[str, bytes]:
    """Return the files but for the moved ones, and the lease of a killed process."""
    aside = (ROLLED_BACK, "offsets/.lease-")
    return {name: data for name, data in files_below(directory).items() if not name.startswith(aside)}


@both_formats
def test_rollback_moves_only_entries_of_later_batches(tmp_path: Path, with_ids: bool):
    query = ran(tmp_path, 5, with_ids=with_ids)
    before = files_below(tmp_path)
    expected = content(query.checkpoint, 2)
    planned = rollback(query.url, 2, dry_run=True)
    assert files_below(tmp_path) == before

    assert rollback(query.url, 2, stopped=True) == planned
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
def test_rollback_to_the_newest_batch_removes_the_uncommitted_one(tmp_path: Path, with_ids: bool):
    query = ran(tmp_path, 3, with_ids=with_ids, began=(0,))
    query.begin()
    moved = rollback(query.url, 2, stopped=True)
    assert [url.removeprefix(f"{query.checkpoint.url}/") for url in moved] == ["offsets/3", "sources/0/3"]
    assert rollback(query.url, 2, stopped=True) == []


def interrupt(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], step: int, act: Callable[[], object], url: str
) -> bool:
    """Roll back to batch 1, and act before one of the calls of some names; return whether it was reached."""
    steps_to_go = step

    def patched(real: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: object) -> None:
            nonlocal steps_to_go
            steps_to_go -= 1
            if steps_to_go == -1:
                act()
            real(*arguments)

        return call

    with monkeypatch.context() as context:
        for name in names:
            context.setattr(LocalFileSystem, name, patched(getattr(LocalFileSystem, name)))
        rollback(url, 1, stopped=True)
    return steps_to_go < 0


def die() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("with_ids", [pytest.param(False, marks=pytest.mark.slow), True], ids=["v1", "v2"])
def test_interrupted_rollback_leaves_the_query_at_a_batch_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_ids: bool
):
    monkeypatch.setattr(lease, "LEASE_SECONDS", 0.05)
    is_complete = False
    steps = 0
    while not is_complete:
        directory = tmp_path / str(steps)
        query = ran(directory, 4, with_ids=with_ids)
        contents = {batch: content(query.checkpoint, batch) for batch in range(4)}
        before = files_below(directory)
        with suppress(KeyboardInterrupt):
            is_complete = not interrupt(monkeypatch, ("create", "delete"), steps, die, query.url)
        checkpoint = QueryCheckpoint(query.url)
        newest = checkpoint.newest_batch()
        begun = max(int(path.name) for path in (directory / "offsets").glob("[0-9]*"))
        assert begun in (newest, newest + 1)
        assert content(checkpoint) == contents[newest]
        # The entry of a run is not older than its start.
        assert (directory / "state/0/_metadata/v2/3").exists() <= (begun >= 3)
        assert QueryOperatorState(query.url, "own").batches()[-1] <= begun
        rollback(query.url, 1, stopped=True)
        assert in_place(directory) | put_aside(directory) == before
        assert checkpoint.batches() == [0, 1]
        assert content(checkpoint) == contents[1]
        steps += 1
    assert steps > 20


def test_rollback_refuses_a_batch_without_state(tmp_path: Path):
    query = WrittenQuery(str(tmp_path))
    for _ in range(4):
        query.run(put={b"large": bytes(700)})
    (stream,) = (tmp_path / "state/0/0/shared").glob("3-*")
    stream.unlink()
    (metadata,) = (tmp_path / "state/0/1/chk-2").iterdir()
    metadata.unlink()
    before = files_below(tmp_path)
    with pytest.raises(CorruptCheckpointError, match="needs the state stream"):
        rollback(query.url, 2, stopped=True)
    with pytest.raises(CheckpointNotFoundError, match="operator 0, partition 1, store default, version 2"):
        rollback(query.url, 1, stopped=True)
    with pytest.raises(CheckpointNotFoundError, match="it has the batches 0 to 3"):
        rollback(query.url, 7, stopped=True)
    assert files_below(tmp_path) == before


def compacted_at_4(directory: Path) -> tuple[WrittenQuery, list[bytes]]:
    """A query of six batches and the entries of its source's log, of which the first five were compacted."""
    query = WrittenQuery(str(directory))
    for _ in range(6):
        query.run()
    log = directory / "sources" / "0"
    entries = [(log / str(number)).read_bytes().split(b"\n")[1] for number in range(5)]
    # Spark removes them one after the other, and may have been stopped.
    for number in (0, 2, 3):
        (log / str(number)).unlink()
    (log / "4").rename(log / "4.compact")
    (log / "4.compact").write_bytes(b"\n".join([b"v1", *entries]))
    return query, entries


def test_rollback_rewrites_compacted_entries_of_a_file_source(tmp_path: Path):
    query, entries = compacted_at_4(tmp_path)
    log = tmp_path / "sources" / "0"
    rollback(query.url, 2, stopped=True)
    assert {path.name for path in log.iterdir()} == {"2.compact"}
    assert (log / "2.compact").read_bytes() == b"\n".join([b"v1", *entries[:3]])
    assert {"sources/0/1", "sources/0/4.compact", "sources/0/5"} <= put_aside(tmp_path).keys()


def test_rollback_removes_rewritten_entries_if_the_query_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    query, _ = compacted_at_4(tmp_path)
    before = files_below(tmp_path)
    create = LocalFileSystem.create

    def run_and_create(self: LocalFileSystem, path: str, data: bytes) -> None:
        create(self, path, data)
        if path.endswith("/2.compact"):
            query.run()

    monkeypatch.setattr(LocalFileSystem, "create", run_and_create)
    with pytest.raises(QueryRunningError, match="The moved files were moved back"):
        rollback(query.url, 2, stopped=True)
    after = in_place(tmp_path)
    assert before.items() <= after.items()
    assert "sources/0/2.compact" not in after
    assert query.checkpoint.newest_batch() == 6


@pytest.mark.parametrize("names", ['["metadata"]', "[1]", "{", "null"])
def test_undo_rollback_deletes_only_files_of_sources(tmp_path: Path, names: str):
    query = ran(tmp_path, 2)
    directory = tmp_path / ROLLED_BACK / "time"
    directory.mkdir(parents=True)
    (directory / "_created").write_text(names)
    before = files_below(tmp_path)
    with pytest.raises(CorruptCheckpointError, match="is not a list of the files that a rollback created"):
        undo_rollback(query.checkpoint, "time")
    assert files_below(tmp_path) == before


def test_rollback_needs_the_operator_state_of_its_batch_unless_that_began_later(tmp_path: Path):
    query = WrittenQuery(str(tmp_path))
    own = QueryOperatorState(query.url, "own", num_retained=1)
    for batch in range(4):
        query.run()
        with own.batch(batch):
            pass
    with QueryOperatorState(query.url, "later").batch(3):
        pass
    with pytest.raises(
        CheckpointNotFoundError, match="no longer retained for batch 1; the oldest one is of batch 2"
    ):
        rollback(query.url, 1, stopped=True)
    assert query.checkpoint.newest_batch() == 3
    moved = rollback(query.url, 2, stopped=True)
    assert any("/operator-state/later/chk-3" in url for url in moved)
    assert QueryOperatorState(query.url, "later").batches() == []


def test_rollback_writes_an_offset_entry_before_the_oldest_batch(tmp_path: Path):
    query = WrittenQuery(str(tmp_path), retained_batches=1)
    for _ in range(4):
        query.run()
    assert query.checkpoint.batches() == [2, 3]
    rollback(query.url, 2, stopped=True)
    assert query.checkpoint.batches() == [2]
    assert query.checkpoint.offsets(1) == query.checkpoint.offsets(2)


def test_rollback_moves_damaged_logs_of_later_batches(tmp_path: Path):
    query = ran(tmp_path, 3)
    for log in ("commits", "offsets", "sources/0"):
        (tmp_path / log / "2").write_bytes(b"damaged")
    rollback(query.url, 1, stopped=True)
    moved = {name for name in put_aside(tmp_path) if name.endswith("/2")}
    assert moved == {"commits/2", "offsets/2", "sources/0/2"}
    assert query.checkpoint.batches() == [0, 1]


def test_rollback_moves_nothing_if_the_query_runs_before_the_first_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    query = ran(tmp_path, 4)
    before = files_below(tmp_path)
    with pytest.raises(QueryRunningError, match=r"^pass --stopped"):
        rollback(query.url, 1)
    assert files_below(tmp_path) == before
    create = LocalFileSystem.create

    def run_and_create(self: LocalFileSystem, path: str, data: bytes) -> None:
        create(self, path, data)
        if path.endswith("commits/3"):
            monkeypatch.undo()
            query.run()

    monkeypatch.setattr(LocalFileSystem, "create", run_and_create)
    with pytest.raises(QueryRunningError, match="nothing was moved"):
        rollback(query.url, 1, stopped=True)


@pytest.mark.parametrize(
    ("call", "with_ids"),
    [
        pytest.param("create", False, id="create-v1", marks=pytest.mark.slow),
        pytest.param("delete", False, id="delete-v1", marks=pytest.mark.slow),
        pytest.param("create", True, id="create-v2", marks=pytest.mark.slow),
        pytest.param("delete", True, id="delete-v2"),
    ],
)
def test_rollback_moves_files_back_if_the_query_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_ids: bool, call: str
):
    """At each file that is written or removed in turn, the query begins or ends a batch."""
    for step in itertools.count():
        directory = tmp_path / str(step)
        query = ran(directory, 4, with_ids=with_ids)
        before = files_below(directory)
        try:
            was_interrupted = interrupt(monkeypatch, (call,), step, query.run, query.url)
            break
        except QueryRunningError as error:
            message = str(error)
        assert "commits/4" in message
        after = in_place(directory)
        assert {name: after[name] for name in before} == before
        assert query.checkpoint.batches() == [0, 1, 2, 3, 4]
        assert content(query.checkpoint) == query.rows
    # After the last check the lease is deleted.
    assert was_interrupted == (call == "delete")
    assert step > 10


def test_rollback_leaves_entries_of_a_query_started_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    query = ran(tmp_path, 4)
    real = LocalFileSystem.sync_directory

    def start(self: LocalFileSystem, path: str) -> None:
        real(self, path)
        if path.endswith("offsets") and not (tmp_path / "offsets/2").exists():
            (tmp_path / "offsets/2").write_bytes(b"another course")

    monkeypatch.setattr(LocalFileSystem, "sync_directory", start)
    with pytest.raises(QueryRunningError, match=r"has rewritten offsets/2.* are in file://.*rolled-back/"):
        rollback(query.url, 1, stopped=True)
    assert (tmp_path / "offsets/2").read_bytes() == b"another course"
    assert query.checkpoint.batches() == [0, 1]

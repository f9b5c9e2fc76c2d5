"""New checkpoints made of savepoints and of checkpoints: whole or not there, and sharing nothing with what they are of."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from spark_statestore import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    IllegalStateError,
    OptionError,
    SavepointNotFoundError,
    clone,
    load_savepoint,
    restore,
    rollback,
    savepoint,
)
from spark_statestore.checkpoint.files import LocalFileSystem
from spark_statestore.checkpoint.metadata import StoreId
from spark_statestore.checkpoint.query import QueryCheckpoint
from spark_statestore.savepoint.savepoint import Kind
from spark_statestore.state.operator import MapStateDescriptor, QueryOperatorState
from tests.savepoint.written import QUERY_ID, WrittenQuery, content

both_formats = pytest.mark.parametrize("with_ids", [False, True], ids=["v1", "v2"])
both_kinds = pytest.mark.parametrize("kind", ["canonical", "pointer"])


@pytest.fixture
def query(tmp_path: Path) -> WrittenQuery:
    """A query after two batches, of which the first one is to be copied."""
    query = WrittenQuery(str(tmp_path / "checkpoint"))
    query.run(put={b"large": bytes(700), b"small": b"1"})
    query.run(put={b"small": b"2"})
    return query


def files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


@both_formats
@both_kinds
def test_a_query_goes_on_from_a_savepoint(tmp_path: Path, kind: Kind, with_ids: bool):
    query = WrittenQuery(str(tmp_path / "checkpoint"), with_ids)
    for _ in range(2):
        query.run()
    taken = savepoint(query.url, str(tmp_path), kind)
    rows = dict(query.rows)
    query.run()
    made = WrittenQuery(str(tmp_path / "unused"), with_ids)
    made.checkpoint = QueryCheckpoint(str(tmp_path / "new"))
    assert restore(taken, made.checkpoint.url) == 1
    # From here on it needs nothing of the other one.
    shutil.rmtree(query.url)
    shutil.rmtree(taken.path.removeprefix("file://"))
    assert content(made.checkpoint) == rows
    assert made.checkpoint.batches() == [1]
    assert made.checkpoint.query_id != QUERY_ID
    assert made.checkpoint.offsets(1).sources == ('{"logOffset": 1}',)
    assert sorted(files(tmp_path / "new" / "sources" / "0")) == ["0", "1"]
    assert sorted(files(tmp_path / "new" / "offsets")) == ["0", "1"]
    made.batch, made.rows = 1, rows
    made.restart()
    made.run(put={b"new": b"row"})
    assert content(made.checkpoint) == {store: {**old, b"new": b"row"} for store, old in rows.items()}


@both_kinds
def test_state_may_lie_elsewhere_before_and_after(tmp_path: Path, kind: Kind):
    query = WrittenQuery(str(tmp_path / "checkpoint"), checkpoints_dir=str(tmp_path / "state"))
    query.run()
    taken = savepoint(query.url, str(tmp_path), kind, checkpoints_dir=str(tmp_path / "state"))
    restore(taken, str(tmp_path / "new"), checkpoints_dir=str(tmp_path / "other"), keep_query_id=True)
    made = QueryCheckpoint(str(tmp_path / "new"), checkpoints_dir=str(tmp_path / "other"))
    assert made.query_id == QUERY_ID
    assert content(made) == query.rows
    assert not list((tmp_path / "new" / "state").rglob("chk-*"))
    # Spark counts partitions by these.
    assert {path.name for path in (tmp_path / "new" / "state" / "0").iterdir()} == {"_metadata", "0", "1"}
    with pytest.raises(CheckpointExistsError, match="is not empty"):
        restore(taken, str(tmp_path / "newer"), checkpoints_dir=str(tmp_path / "state"), keep_query_id=True)
    assert content(query.checkpoint) == query.rows
    assert not (tmp_path / "newer").exists()


@both_kinds
def test_a_claimed_savepoint_goes_once_the_copy_is_whole(tmp_path: Path, query: WrittenQuery, kind: Kind):
    taken = savepoint(query.url, str(tmp_path / "savepoints"), kind)
    restore(taken, str(tmp_path / "first"))
    assert load_savepoint(taken.path) == taken
    restore(taken.path, str(tmp_path / "second"), claim_mode="claim")
    with pytest.raises(SavepointNotFoundError):
        load_savepoint(taken.path)
    with pytest.raises(SavepointNotFoundError):
        restore(taken, str(tmp_path / "third"))
    for name in ("first", "second"):
        assert content(QueryCheckpoint(str(tmp_path / name))) == query.rows


def test_a_savepoint_that_others_need_is_not_claimed(tmp_path: Path, query: WrittenQuery):
    taken = savepoint(query.url, str(tmp_path))
    pointer = savepoint(taken.path, str(tmp_path), "pointer")
    with pytest.raises(IllegalStateError, match=pointer.name):
        restore(taken, str(tmp_path / "new"), claim_mode="claim")
    assert not (tmp_path / "new").exists()
    assert restore(pointer, str(tmp_path / "new")) == 1


def test_an_older_batch_is_cloned(tmp_path: Path, query: WrittenQuery):
    query.run(put={b"small": b"3"})
    older = content(query.checkpoint, 1)
    # As Spark purges its logs.
    (tmp_path / "checkpoint" / "offsets" / "0").unlink()
    assert clone(query.url, str(tmp_path / "new"), batch=1) == 1
    made = QueryCheckpoint(str(tmp_path / "new"))
    assert content(made) == older
    # Spark wants an entry for the batch before as well.
    assert made.offsets(0) == made.offsets(1) == query.checkpoint.offsets(1)
    with pytest.raises(CheckpointNotFoundError, match="it has the batches 1 to 2"):
        clone(query.url, str(tmp_path / "newer"), batch=0)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("metadata", "Name a location"),
        ("state/0/0/x", "Name a location"),
        ("_in-progress", "was ended while it did"),
    ],
)
def test_nothing_is_written_over(tmp_path: Path, query: WrittenQuery, name: str, advice: str):
    present = tmp_path / "new" / name
    present.parent.mkdir(parents=True)
    present.write_bytes(b"here")
    with pytest.raises(CheckpointExistsError, match=f"it has {name}, .*{advice}"):
        clone(query.url, str(tmp_path / "new"))
    assert files(tmp_path / "new") == {name: b"here"}


def test_a_place_inside_of_the_checkpoint_is_refused(query: WrittenQuery):
    with pytest.raises(CheckpointExistsError, match="would lie inside"):
        clone(query.url, f"{query.url}/new")


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path, query: WrittenQuery):
    damaged = next((tmp_path / "checkpoint" / "state" / "1" / "0" / "right" / "shared").iterdir())
    data = damaged.read_bytes()
    damaged.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    before = files(tmp_path / "checkpoint")
    with pytest.raises(CorruptCheckpointError, match="does not match its checksum"):
        clone(query.url, str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    # That there was a pin for a while has clean-ups look for pins from then on.
    assert files(tmp_path / "checkpoint").keys() - before.keys() == {"state/_pins/pinned"}
    assert before.items() <= files(tmp_path / "checkpoint").items()


def test_a_copy_that_fails_removes_nothing_of_others(
    tmp_path: Path, query: WrittenQuery, monkeypatch: pytest.MonkeyPatch
):
    create: Callable[..., None] = LocalFileSystem.create

    def fail(self: LocalFileSystem, path: str, data: bytes) -> None:
        create(self, path, data)
        if path.endswith("/new/metadata"):
            # Somebody else takes the place for his own meanwhile.
            create(self, str(tmp_path / "new" / "theirs"), b"theirs")
            raise KeyboardInterrupt

    monkeypatch.setattr(LocalFileSystem, "create", fail)
    with pytest.raises(KeyboardInterrupt):
        clone(query.url, str(tmp_path / "new"))
    assert files(tmp_path / "new") == {"theirs": b"theirs"}


def test_until_the_last_file_is_written_it_is_no_checkpoint(
    tmp_path: Path, query: WrittenQuery, monkeypatch: pytest.MonkeyPatch
):
    create: Callable[..., None] = LocalFileSystem.create
    found = []

    def watched(self: LocalFileSystem, path: str, data: bytes) -> None:
        if path.startswith(str(tmp_path / "new")):
            with pytest.raises(CheckpointNotFoundError, match="is no checkpoint location"):
                _ = QueryCheckpoint(str(tmp_path / "new")).query_id
            # Another one is not written beside it.
            if found:
                with pytest.raises(CheckpointExistsError, match="is not empty"):
                    clone(query.url, str(tmp_path / "new"))
            found.append(path.removeprefix(f"{tmp_path}/new/"))
        create(self, path, data)

    monkeypatch.setattr(LocalFileSystem, "create", watched)
    clone(query.url, str(tmp_path / "new"))
    assert found[0] == "_in-progress"
    assert found[-4:] == ["offsets/0", "offsets/1", "commits/1", "metadata"]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "commits",
        "metadata",
        "offsets",
        "sources",
        "state",
    ]


def test_state_of_the_querys_own_code_comes_along(tmp_path: Path, query: WrittenQuery):
    last = MapStateDescriptor("last", pa.string(), pa.int64())
    own = QueryOperatorState(query.url, "own")
    for batch in range(2):
        with own.batch(batch) as store:
            store.get_broadcast_state(last).put("batch", batch)
    with QueryOperatorState(query.url, "later").batch(1):
        pass
    clone(query.url, str(tmp_path / "new"), batch=0)
    copied = QueryOperatorState(str(tmp_path / "new"), "own")
    assert copied.batches() == [0]
    assert copied.read().get_broadcast_state(last).get("batch") == 0
    assert QueryOperatorState(str(tmp_path / "new"), "later").batches() == []


def test_schema_files_are_named_at_the_new_place(tmp_path: Path, query: WrittenQuery):
    path = "state/0/_metadata/metadata"
    description = query.checkpoint.files.read(query.checkpoint.path(path))
    query.checkpoint.files.delete(query.checkpoint.path(path))
    node = json.loads(description.partition(b"\n")[2])
    node["stateStoreInfo"][0]["stateSchemaFilePaths"] = [
        f"s3a://bucket/before it was moved/state/0/_stateSchema/default/{name}" for name in ("0_a", "1_b")
    ]
    for run in (0, 1):
        query.write(f"state/0/_metadata/v2/{run}", b"v2\n" + json.dumps(node).encode())
    for name in ("0_a", "1_b", "9_c"):
        query.write(f"state/0/_stateSchema/default/{name}", name.encode())
    clone(query.url, f"file://{tmp_path}/new")
    made = QueryCheckpoint(str(tmp_path / "new"))
    assert [path.rpartition("/new/")[2] for path, _ in made.operator_files()] == [
        "state/0/_metadata/v2/1",
        "state/1/_metadata/metadata",
    ]
    # Without a scheme, which Spark may call otherwise.
    assert made.operator(0).schema_files == tuple(
        f"{tmp_path}/new/state/0/_stateSchema/default/{name}" for name in ("0_a", "1_b")
    )
    assert [Path(name).read_text() for name in made.operator(0).schema_files] == ["0_a", "1_b"]


def test_a_query_without_state_is_cloned(tmp_path: Path):
    query = WrittenQuery(str(tmp_path / "checkpoint"), operators={})
    query.run()
    assert clone(query.url, str(tmp_path / "new")) == 0
    assert QueryCheckpoint(str(tmp_path / "new")).stores() == []


def test_numbers_of_values_that_are_not_what_was_noted_are_noticed(tmp_path: Path, query: WrittenQuery):
    # Two keys where three are noted.
    query.rows[StoreId(0, 1)] = {**query.rows[StoreId(0, 1)], b"never written": b""}
    query.run(put={b"small": b"3"})
    with pytest.raises(
        CorruptCheckpointError, match="has 2 values in the state 'default', and its metadata says 3"
    ):
        clone(query.url, str(tmp_path / "new"))


@pytest.mark.parametrize("mode", ["legacy", "", None])
def test_an_unknown_claim_mode_is_refused(tmp_path: Path, query: WrittenQuery, mode: str):
    with pytest.raises(OptionError, match="it must be one of no_claim, claim"):
        restore(savepoint(query.url, str(tmp_path)), str(tmp_path / "new"), claim_mode=mode)  # type: ignore[arg-type]


def test_there_is_at_least_one_partition(tmp_path: Path, query: WrittenQuery):
    with pytest.raises(ValueError, match="at least one partition, not 0"):
        clone(query.url, str(tmp_path / "new"), partitions=0)


@pytest.mark.parametrize("change", [clone, lambda url, _: rollback(url, 1)], ids=["clone", "rollback"])
def test_an_operator_that_nothing_describes_is_missed(
    tmp_path: Path, query: WrittenQuery, change: Callable[[str, str], object]
):
    (tmp_path / "checkpoint" / "state" / "1" / "_metadata" / "metadata").unlink()
    with pytest.raises(CorruptCheckpointError, match=r"the stateful operator 1 of .* has a directory"):
        change(query.url, str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    assert query.checkpoint.batches() == [0, 1]

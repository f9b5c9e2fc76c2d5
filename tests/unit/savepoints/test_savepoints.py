"""Tests of savepoints: content, listing, disposal and failures."""

from __future__ import annotations

import dataclasses
import logging
import shutil
from pathlib import Path

import pytest

from spark_statestore import Savepoint, dispose_savepoint, list_savepoints, load_savepoint, savepoint
from spark_statestore.errors import (
    CheckpointIOError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    OptionError,
    QueryRunningError,
    SavepointError,
)
from spark_statestore.files import open_file_system
from spark_statestore.formats.metadata import MetadataKind, encode_object
from spark_statestore.query import QueryCheckpoint
from spark_statestore.query.rollback import rollback
from spark_statestore.query.savepoint import KINDS, Kind, decode_savepoint, encode_savepoint
from spark_statestore.query.savepoint_lookup import open_checkpoint
from spark_statestore.savepoints import create
from spark_statestore.savepoints.restore import restore
from spark_statestore.savepoints.savepoint_holds import list_holds
from spark_statestore.savepoints.savepoint_store import SavepointStore
from spark_statestore.store.holds import announce_holds
from spark_statestore.store.metadata import StoreId
from spark_statestore.testing.faults import FaultInjectingFileSystem
from spark_statestore.testing.faults_plan import Fault
from tests.support.trees import files_below
from tests.unit.savepoints.written_query import (
    LARGE,
    QUERY_ID,
    SMALL,
    STORES,
    WrittenQuery,
    content,
    go_on,
    grown,
)

each_kind = pytest.mark.parametrize("kind", KINDS)
both_formats = pytest.mark.parametrize("with_ids", [False, True], ids=["v1", "v2"])


@each_kind
@both_formats
@pytest.mark.parametrize("elsewhere", [False, True], ids=["", "checkpointsDir"])
def test_savepoint_has_the_state_of_its_batch(
    tmp_path: Path, kind: Kind, with_ids: bool, elsewhere: bool
) -> None:
    directory = str(tmp_path / "elsewhere") if elsewhere else None
    query = grown(str(tmp_path / "checkpoint"), with_ids, directory)
    wanted = dict(query.rows)
    made = savepoint(query.url, str(tmp_path / "target"), kind, checkpoints_dir=directory)
    go_on(query)
    assert (made.kind, made.batch, made.query_id, made.partitions) == (kind, 2, QUERY_ID, 2)
    assert (made.source, made.checkpoints_dir) == (query.checkpoint.url, directory)
    assert made.path.startswith(f"file://{tmp_path}/target/savepoint-f013e4-")
    for found in (load_savepoint(made.path), load_savepoint(f"{made.path}/_metadata")):
        assert found == made
    checkpoint = open_checkpoint(made.path)
    assert (checkpoint.batches(), content(checkpoint)) == ([2], wanted)
    assert checkpoint.offsets(2) == query.checkpoint.offsets(2)
    assert [hold.holder() for hold in list_holds(query.checkpoint)] == [made.path] * (kind == "pointer")


@each_kind
@both_formats
def test_savepoint_keeps_its_state_after_a_rollback_and_rerun(
    tmp_path: Path, kind: Kind, with_ids: bool
) -> None:
    query = grown(str(tmp_path / "checkpoint"), with_ids)
    wanted = dict(query.rows)
    made = savepoint(query.url, str(tmp_path / "target"), kind)
    rollback(query.url, 1, stopped=True)
    query.set_back(1)
    query.run(put={b"another": b"row"})
    go_on(query)
    assert content(query.checkpoint) != wanted
    assert content(load_savepoint(made.path).checkpoint()) == wanted


@both_formats
def test_canonical_savepoint_can_be_moved(tmp_path: Path, with_ids: bool) -> None:
    query = grown(str(tmp_path / "checkpoint"), with_ids)
    made = savepoint(query.url, str(tmp_path / "target"), batch=1)
    shutil.move(made.path.removeprefix("file://"), tmp_path / "moved")
    shutil.rmtree(tmp_path / "checkpoint")
    found = load_savepoint(str(tmp_path / "moved"))
    assert (found.path, found.name) == (f"file://{tmp_path}/moved", made.name)
    assert content(found.checkpoint()) == {store: {b"large": LARGE, b"batch": b"1"} for store in STORES}
    assert len(dispose_savepoint(str(tmp_path / "moved"))) > 5
    assert files_below(tmp_path) == {}


def test_list_savepoints_returns_the_oldest_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    query = grown(str(tmp_path / "checkpoint"))
    made = [savepoint(query.url, str(tmp_path), kind, batch=batch) for batch, kind in enumerate(KINDS)]
    assert list_savepoints(str(tmp_path)) == sorted(made, key=lambda one: (one.created_ms, one.path))
    begun = tmp_path / "savepoint-f013e4-000000000000"
    begun.mkdir()
    shutil.copy(query.checkpoint.path("metadata"), begun)
    damaged = tmp_path / "savepoint-f013e4-000000000001" / "_metadata"
    damaged.parent.mkdir()
    damaged.write_bytes(b"\x89SSTM")
    other = tmp_path / "mine" / "_metadata"
    other.parent.mkdir()
    other.write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        assert {one.path for one in list_savepoints(str(tmp_path))} == {one.path for one in made}
    assert caplog.text.count("is skipped") == 1
    assert list_savepoints(str(tmp_path / "nowhere")) == []
    with pytest.raises(CorruptCheckpointError, match="savepoint-f013e4-000000000001/_metadata"):
        load_savepoint(str(damaged))


def test_savepoint_refuses_invalid_arguments_before_any_change(tmp_path: Path) -> None:
    query = grown(str(tmp_path / "checkpoint"))
    before = files_below(tmp_path)
    target = str(tmp_path / "target")
    with pytest.raises(
        OptionError, match=r"the kind of savepoint is 'native', but it must be one of canonical, pointer"
    ):
        savepoint(query.url, target, "native")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="savepointsDir"):
        savepoint(query.url)
    with pytest.raises(OptionError, match=r"checkpointsDir' is 'bucket/x', but it must be an absolute path"):
        savepoint(query.url, target, checkpoints_dir="bucket/x")
    with pytest.raises(CheckpointNotFoundError, match="has no batch 7: it has the batches 0 to 2"):
        savepoint(query.url, target, batch=7)
    with pytest.raises(CheckpointNotFoundError, match="is not a checkpoint location"):
        savepoint(str(tmp_path / "nowhere"), target)
    assert files_below(tmp_path) == before


@each_kind
def test_savepoint_refuses_an_incomplete_version(tmp_path: Path, kind: Kind) -> None:
    query = grown(str(tmp_path / "checkpoint"))
    (victim,) = (tmp_path / "checkpoint/state/0/1/shared").iterdir()
    victim.unlink()
    announce_holds(*open_file_system(f"{query.url}/state/_holds"))
    before = files_below(tmp_path)
    with pytest.raises(SavepointError, match=rf"no {kind} savepoint of batch 2 .*0/1/shared/1-.* is missing"):
        savepoint(query.url, str(tmp_path / "target"), kind)
    assert files_below(tmp_path) == before


def test_savepoint_whose_hold_is_removed_fails() -> None:
    fs = FaultInjectingFileSystem()
    query = grown(fs.url("checkpoint"))

    def remove() -> None:
        for hold in list_holds(query.checkpoint):
            hold.remove()

    # The first one makes the directory of holds.
    savepoint(query.url, fs.url("first"), "pointer")
    fs.inject()
    made = savepoint(query.url, fs.url("trial"), "pointer")
    (publish,) = (
        call.number
        for call in fs.calls
        if call.operation == "open" and call.path.endswith(f"{made.name}/_metadata")
    )
    fs.inject(Fault("run", publish, function=remove))
    with pytest.raises(SavepointError, match=r"its hold .* was removed"):
        savepoint(query.url, fs.url("target"), "pointer")
    assert list_savepoints(fs.url("target")) == []


def test_savepoint_that_may_exist_keeps_its_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = grown(str(tmp_path / "checkpoint"), operators=SMALL)
    put_state = SavepointStore.put_state

    def put_without_answer(self: SavepointStore, made: Savepoint) -> str:
        put_state(self, made)
        raise CheckpointIOError("no answer")

    def discard_nothing(*_: object) -> None:
        raise CheckpointIOError("unreachable")

    monkeypatch.setattr(SavepointStore, "put_state", put_without_answer)
    monkeypatch.setattr(create, "discard_file", discard_nothing)
    with pytest.raises(SavepointError, match="no answer"):
        savepoint(query.url, str(tmp_path / "target"), "pointer")
    (made,) = list_savepoints(str(tmp_path / "target"))
    assert [hold.holder() for hold in list_holds(query.checkpoint)] == [made.path]


def test_canonical_savepoint_needs_no_hold(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    query = grown(str(tmp_path / "checkpoint"))
    # Nothing can be written there.
    (tmp_path / "checkpoint/state/_holds").write_bytes(b"")
    made = savepoint(query.url, str(tmp_path / "target"))
    assert content(made.checkpoint()) == query.rows
    assert "without a hold" in caplog.text
    with pytest.raises(SavepointError, match="_holds"):
        savepoint(query.url, str(tmp_path / "target"), "pointer")


@each_kind
def test_savepoint_of_a_query_without_state_works(tmp_path: Path, kind: Kind) -> None:
    query = WrittenQuery(str(tmp_path / "checkpoint"), operators={})
    query.run()
    made = savepoint(query.url, str(tmp_path / "target"), kind)
    assert (made.checkpoint().batches(), content(made.checkpoint())) == ([0], {})
    assert restore(made, str(tmp_path / "new")) == 0
    assert content(QueryCheckpoint(str(tmp_path / "new"))) == {}
    assert not (tmp_path / "checkpoint/state").exists()
    dispose_savepoint(made.path)


POINTER = Savepoint(
    path="s3://b/s/savepoint-f013e4-0123456789ab",
    kind="pointer",
    query_id=QUERY_ID,
    batch=7,
    created_ms=1,
    source="file:///c",
    state_url="file:///c/state",
    name="savepoint-f013e4-0123456789ab",
    attempt_id="0123456789abcdef",
    checkpoints_dir="file:///d",
    partitions=None,
    attempts={StoreId(0, 1, "left"): "0" * 16},
)


def test_savepoint_metadata_round_trips() -> None:
    canonical = dataclasses.replace(
        POINTER, kind="canonical", partitions=200, attempts={}, state_url=f"{POINTER.path}/state"
    )
    for one in (POINTER, canonical):
        assert decode_savepoint(encode_savepoint(one), one.path, "here") == one
    assert "pointer savepoint s3://b/s/savepoint-f013e4-0123456789ab of batch 7" in str(POINTER)


@pytest.mark.parametrize(
    ("kind", "properties", "what"),
    [
        (MetadataKind.OPERATORS, {}, "describes OPERATORS, not a savepoint of a query"),
        (MetadataKind.SAVEPOINT, {"kind": "native"}, "it is of the kind 'native'"),
        (MetadataKind.SAVEPOINT, {}, "kind"),
        (MetadataKind.SAVEPOINT, {"kind": "pointer", "queryId": "q"}, "batch"),
    ],
)
def test_load_savepoint_refuses_other_metadata(
    kind: MetadataKind, properties: dict[str, str], what: str
) -> None:
    with pytest.raises(CorruptCheckpointError, match=f"here.*{what}"):
        decode_savepoint(bytes(encode_object(kind, "0" * 16, properties, [])), "there", "here")


@both_formats
def test_savepoint_with_a_started_query_is_neither_disposed_of_nor_claimed(
    tmp_path: Path, with_ids: bool
) -> None:
    query = grown(str(tmp_path / "checkpoint"), with_ids)
    made = savepoint(query.url, str(tmp_path / "target"))
    # Batch 3 is begun by a query that has the savepoint as its checkpointLocation.
    directory = Path(made.path.removeprefix("file://"))
    later = directory / "offsets" / str(made.batch + 1)
    later.write_bytes((directory / "offsets" / str(made.batch)).read_bytes())
    before = sorted(directory.rglob("*"))
    for take in (
        lambda: dispose_savepoint(made.path),
        lambda: restore(made, str(tmp_path / "new"), claim_mode="claim"),
    ):
        with pytest.raises(QueryRunningError, match="a query was started with"):
            take()
        assert sorted(directory.rglob("*")) == before
    assert not (tmp_path / "new").exists()
    # A copy takes nothing from it.
    restore(made, str(tmp_path / "new"))

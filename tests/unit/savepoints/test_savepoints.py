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
    rows = dict(query.rows)
    new_savepoint = savepoint(query.url, str(tmp_path / "target"), kind, checkpoints_dir=directory)
    go_on(query)
    assert (new_savepoint.kind, new_savepoint.batch, new_savepoint.query_id, new_savepoint.partitions) == (
        kind,
        2,
        QUERY_ID,
        2,
    )
    assert (new_savepoint.source, new_savepoint.checkpoints_dir) == (query.checkpoint.url, directory)
    assert new_savepoint.path.startswith(f"file://{tmp_path}/target/savepoint-f013e4-")
    for loaded in (load_savepoint(new_savepoint.path), load_savepoint(f"{new_savepoint.path}/_metadata")):
        assert loaded == new_savepoint
    checkpoint = open_checkpoint(new_savepoint.path)
    assert (checkpoint.batches(), content(checkpoint)) == ([2], rows)
    assert checkpoint.offsets(2) == query.checkpoint.offsets(2)
    assert [hold.holder() for hold in list_holds(query.checkpoint)] == [new_savepoint.path] * (
        kind == "pointer"
    )


@both_formats
def test_canonical_savepoint_can_be_moved(tmp_path: Path, with_ids: bool) -> None:
    query = grown(str(tmp_path / "checkpoint"), with_ids)
    canonical = savepoint(query.url, str(tmp_path / "target"), batch=1)
    shutil.move(canonical.path.removeprefix("file://"), tmp_path / "moved")
    shutil.rmtree(tmp_path / "checkpoint")
    loaded = load_savepoint(str(tmp_path / "moved"))
    assert (loaded.path, loaded.name) == (f"file://{tmp_path}/moved", canonical.name)
    assert content(loaded.checkpoint()) == {store: {b"large": LARGE, b"batch": b"1"} for store in STORES}
    assert len(dispose_savepoint(str(tmp_path / "moved"))) > 5
    assert files_below(tmp_path) == {}


def test_list_savepoints_returns_the_oldest_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    query = grown(str(tmp_path / "checkpoint"))
    savepoints = [savepoint(query.url, str(tmp_path), kind, batch=batch) for batch, kind in enumerate(KINDS)]
    assert list_savepoints(str(tmp_path)) == sorted(
        savepoints, key=lambda entry: (entry.created_ms, entry.path)
    )
    begun = tmp_path / "savepoint-f013e4-000000000000"
    begun.mkdir()
    shutil.copy(query.checkpoint.path("metadata"), begun)
    damaged = tmp_path / "savepoint-f013e4-000000000001" / "_metadata"
    damaged.parent.mkdir()
    damaged.write_bytes(b"\x89SSTM")
    empty_file = tmp_path / "mine" / "_metadata"
    empty_file.parent.mkdir()
    empty_file.write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        assert {entry.path for entry in list_savepoints(str(tmp_path))} == {
            entry.path for entry in savepoints
        }
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
    pointer = savepoint(query.url, fs.url("trial"), "pointer")
    (publish,) = (
        call.number
        for call in fs.calls
        if call.operation == "open" and call.path.endswith(f"{pointer.name}/_metadata")
    )
    fs.inject(Fault("run", publish, function=remove))
    with pytest.raises(SavepointError, match=r"its hold .* was removed"):
        savepoint(query.url, fs.url("target"), "pointer")
    assert list_savepoints(fs.url("target")) == []


def test_savepoint_that_may_exist_keeps_its_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = grown(str(tmp_path / "checkpoint"), operators=SMALL)
    put_state = SavepointStore.put_state

    def put_without_answer(self: SavepointStore, pointer: Savepoint) -> str:
        put_state(self, pointer)
        raise CheckpointIOError("no answer")

    def discard_nothing(*_: object) -> None:
        raise CheckpointIOError("unreachable")

    monkeypatch.setattr(SavepointStore, "put_state", put_without_answer)
    monkeypatch.setattr(create, "discard_file", discard_nothing)
    with pytest.raises(SavepointError, match="no answer"):
        savepoint(query.url, str(tmp_path / "target"), "pointer")
    (pointer,) = list_savepoints(str(tmp_path / "target"))
    assert [hold.holder() for hold in list_holds(query.checkpoint)] == [pointer.path]


def test_canonical_savepoint_needs_no_hold(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    query = grown(str(tmp_path / "checkpoint"))
    # Nothing can be written there.
    (tmp_path / "checkpoint/state/_holds").write_bytes(b"")
    canonical = savepoint(query.url, str(tmp_path / "target"))
    assert content(canonical.checkpoint()) == query.rows
    assert "without a hold" in caplog.text
    with pytest.raises(SavepointError, match="_holds"):
        savepoint(query.url, str(tmp_path / "target"), "pointer")


@each_kind
def test_savepoint_of_a_query_without_state_works(tmp_path: Path, kind: Kind) -> None:
    query = WrittenQuery(str(tmp_path / "checkpoint"), operators={})
    query.run()
    new_savepoint = savepoint(query.url, str(tmp_path / "target"), kind)
    assert (new_savepoint.checkpoint().batches(), content(new_savepoint.checkpoint())) == ([0], {})
    assert restore(new_savepoint, str(tmp_path / "new")) == 0
    assert content(QueryCheckpoint(str(tmp_path / "new"))) == {}
    assert not (tmp_path / "checkpoint/state").exists()
    dispose_savepoint(new_savepoint.path)


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
    for metadata in (POINTER, canonical):
        assert decode_savepoint(encode_savepoint(metadata), metadata.path, "here") == metadata
    assert "pointer savepoint s3://b/s/savepoint-f013e4-0123456789ab of batch 7" in str(POINTER)


@pytest.mark.parametrize(
    ("kind", "properties", "problem"),
    [
        (MetadataKind.OPERATORS, {}, "describes OPERATORS, not a savepoint of a query"),
        (MetadataKind.SAVEPOINT, {"kind": "native"}, "it is of the kind 'native'"),
        (MetadataKind.SAVEPOINT, {}, "kind"),
        (MetadataKind.SAVEPOINT, {"kind": "pointer", "queryId": "q"}, "batch"),
    ],
)
def test_load_savepoint_refuses_other_metadata(
    kind: MetadataKind, properties: dict[str, str], problem: str
) -> None:
    with pytest.raises(CorruptCheckpointError, match=f"here.*{problem}"):
        decode_savepoint(bytes(encode_object(kind, "0" * 16, properties, [])), "there", "here")


@both_formats
def test_savepoint_with_a_started_query_is_neither_disposed_of_nor_claimed(
    tmp_path: Path, with_ids: bool
) -> None:
    query = grown(str(tmp_path / "checkpoint"), with_ids)
    new_savepoint = savepoint(query.url, str(tmp_path / "target"))
    # Batch 3 is begun by a query that has the savepoint as its checkpointLocation.
    directory = Path(new_savepoint.path.removeprefix("file://"))
    later = directory / "offsets" / str(new_savepoint.batch + 1)
    later.write_bytes((directory / "offsets" / str(new_savepoint.batch)).read_bytes())
    before = sorted(directory.rglob("*"))
    for take in (
        lambda: dispose_savepoint(new_savepoint.path),
        lambda: restore(new_savepoint, str(tmp_path / "new"), claim_mode="claim"),
    ):
        with pytest.raises(QueryRunningError, match="a query was started with"):
            take()
        assert sorted(directory.rglob("*")) == before
    assert not (tmp_path / "new").exists()
    # A copy takes nothing from it.
    restore(new_savepoint, str(tmp_path / "new"))

"""Savepoints of checkpoints: what they hold, how they are found, and how they go."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from spark_statestore import Savepoint, dispose_savepoint, list_savepoints, load_savepoint, savepoint
from spark_statestore.checkpoint.files import open_file_system
from spark_statestore.checkpoint.metadata import MetadataKind, StoreId
from spark_statestore.checkpoint.metadata.format import encode_object
from spark_statestore.checkpoint.pins import say_that_pins_come
from spark_statestore.errors import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    IllegalStateError,
    OptionError,
    SavepointError,
    SavepointNotFoundError,
    StateStoreError,
)
from spark_statestore.savepoint.pins import list_pins, pinned_while
from spark_statestore.savepoint.rollback import rollback
from spark_statestore.savepoint.savepoint import (
    KINDS,
    Kind,
    decode_savepoint,
    encode_savepoint,
    open_checkpoint,
)
from spark_statestore.testing.faults import CrashedError, Fault, FaultInjectingFileSystem, FaultKind
from tests.savepoint.written import LARGE, OPERATORS, QUERY_ID, STORES, Operators, WrittenQuery, content
from tests.trees import files_below

each_kind = pytest.mark.parametrize("kind", KINDS)
both_formats = pytest.mark.parametrize("with_ids", [False, True], ids=["v1", "v2"])


# For what is tried at every call to storage.
SMALL = {0: ("dedupe", 2, ("default",))}


def grown(
    url: str, with_ids: bool = False, checkpoints_dir: str | None = None, operators: Operators = OPERATORS
) -> WrittenQuery:
    """A query with some batches, whose state lies in files and inside of metadata."""
    query = WrittenQuery(url, with_ids, checkpoints_dir, operators=operators)
    query.run(put={b"large": LARGE})
    query.run()
    query.run(STORES[0])
    return query


def go_on(query: WrittenQuery) -> None:
    """Run batches that leave nothing of what there was to clean-ups."""
    for _ in range(3):
        query.run(whole=True)
        query.clean_up(1)


@each_kind
@both_formats
@pytest.mark.parametrize("elsewhere", [False, True], ids=["", "checkpointsDir"])
def test_a_savepoint_has_the_state_of_its_batch(
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
    assert [pin.holder() for pin in list_pins(query.checkpoint)] == [made.path] * (kind == "pointer")


@each_kind
@both_formats
def test_it_keeps_its_state_when_the_query_is_set_back_and_runs_the_batch_again(
    tmp_path: Path, kind: Kind, with_ids: bool
) -> None:
    query = grown(str(tmp_path / "checkpoint"), with_ids)
    wanted = dict(query.rows)
    made = savepoint(query.url, str(tmp_path / "target"), kind)
    rollback(query.url, 1)
    query.batch, query.rows = 1, content(query.checkpoint, 1)
    query.restart()
    query.run(put={b"another": b"row"})
    go_on(query)
    assert content(query.checkpoint) != wanted
    assert content(load_savepoint(made.path).checkpoint()) == wanted


@both_formats
def test_a_canonical_savepoint_can_be_moved_and_needs_nothing_else(tmp_path: Path, with_ids: bool) -> None:
    query = grown(str(tmp_path / "checkpoint"), with_ids)
    made = savepoint(query.url, str(tmp_path / "target"), batch=1)
    shutil.move(made.path.removeprefix("file://"), tmp_path / "moved")
    shutil.rmtree(tmp_path / "checkpoint")
    found = load_savepoint(str(tmp_path / "moved"))
    assert (found.path, found.name) == (f"file://{tmp_path}/moved", made.name)
    assert content(found.checkpoint()) == {store: {b"large": LARGE, b"batch": b"1"} for store in STORES}
    assert len(dispose_savepoint(str(tmp_path / "moved"))) > 5
    assert files_below(tmp_path) == {}


@each_kind
def test_it_is_disposed_of_metadata_first(tmp_path: Path, kind: Kind) -> None:
    query = grown(str(tmp_path / "checkpoint"))
    # What stays of the first pin was there before.
    say_that_pins_come(*open_file_system(f"{query.url}/state/_pins"))
    source = files_below(tmp_path)
    made = savepoint(query.url, str(tmp_path / "target"), kind)
    before = files_below(tmp_path)
    said = dispose_savepoint(made.path, dry_run=True)
    assert files_below(tmp_path) == before
    assert dispose_savepoint(made.path) == said
    assert said[0] == f"{made.path}/_metadata"
    assert {url.removeprefix(f"file://{tmp_path}/") for url in said} == before.keys() - source.keys()
    assert files_below(tmp_path) == source
    assert list((tmp_path / "target").iterdir()) == []
    for again in (load_savepoint, dispose_savepoint):
        with pytest.raises(SavepointNotFoundError, match="no file '_metadata'"):
            again(made.path)


def test_the_state_of_a_pointer_goes_when_nobody_needs_it(tmp_path: Path) -> None:
    query = grown(str(tmp_path / "checkpoint"))
    made = [savepoint(query.url, str(tmp_path / "target"), "pointer", batch=1) for _ in range(2)]
    go_on(query)
    wanted = content(made[0].checkpoint())
    # Also of a savepoint another one can be taken, even if its batch could not be pinned any more.
    made += [
        savepoint(source, str(tmp_path / "target"), "pointer", batch=1)
        for source in (made[0].path, query.url)
    ]
    for gone, left in pairwise(made):
        dispose_savepoint(gone.path)
        go_on(query)
        assert content(left.checkpoint()) == wanted
    dispose_savepoint(made[-1].path)
    query.kept = 1
    go_on(query)
    with pytest.raises(CheckpointNotFoundError, match="has no batch 1"):
        savepoint(query.url, str(tmp_path / "target"), "pointer", batch=1)
    with pytest.raises(CheckpointNotFoundError):
        content(made[-1].checkpoint())


def test_a_savepoint_that_others_need_is_not_disposed_of(tmp_path: Path) -> None:
    query = grown(str(tmp_path / "checkpoint"))
    canonical = savepoint(query.url, str(tmp_path / "target"))
    pointer = savepoint(canonical.path, str(tmp_path / "target"), "pointer")
    wanted = content(canonical.checkpoint())
    with pytest.raises(IllegalStateError, match=f"is needed by {pointer.path}"):
        dispose_savepoint(canonical.path)
    with pytest.raises(IllegalStateError, match=f"is needed by {pointer.path}"):
        dispose_savepoint(canonical.path, dry_run=True)
    assert (load_savepoint(canonical.path), content(pointer.checkpoint())) == (canonical, wanted)
    dispose_savepoint(pointer.path)
    in_use = pinned_while(canonical.checkpoint(), canonical.batch, "file:///new")
    with in_use, pytest.raises(IllegalStateError, match="is needed by file:///new"):
        dispose_savepoint(canonical.path)
    dispose_savepoint(canonical.path)


def test_what_comes_while_a_savepoint_is_disposed_of_is_refused_or_refuses() -> None:
    def disposed(at: int | None) -> tuple[str, int]:
        fs = FaultInjectingFileSystem()
        query = grown(fs.url("checkpoint"))
        canonical = savepoint(query.url, fs.url("target"))
        taken: list[Savepoint | StateStoreError] = []

        def take() -> None:
            try:
                taken.append(savepoint(canonical.path, fs.url("others"), "pointer"))
            except StateStoreError as error:
                taken.append(error)

        fs.inject(*([] if at is None else [Fault("run", at, function=take)]))
        try:
            dispose_savepoint(canonical.path)
            refused = False
        except IllegalStateError:
            refused = True
        calls = len(fs.calls)
        fs_calls = fs.calls
        fs.inject()
        pointers = list_savepoints(fs.url("others"))
        if refused != bool(pointers):
            print("AT", at, [str(c) for c in fs_calls], taken)
        assert refused == bool(pointers)
        for pointer in pointers:
            assert content(pointer.checkpoint()) == content(load_savepoint(canonical.path).checkpoint())
            dispose_savepoint(pointer.path)
            dispose_savepoint(canonical.path)
        assert not [path for path in fs.wrapped.find("") if "target/" in path]
        return ("refused" if refused else "disposed"), calls

    _, calls = disposed(None)
    assert {disposed(at)[0] for at in range(1, calls + 1)} == {"refused", "disposed"}


def test_what_is_left_of_a_savepoint_is_no_checkpoint(tmp_path: Path) -> None:
    made = savepoint(grown(str(tmp_path / "checkpoint")).url, str(tmp_path / "target"))
    directory = Path(made.path.removeprefix("file://"))
    (directory / "_metadata").rename(directory / "_disposing")
    shutil.rmtree(directory / "state")
    with pytest.raises(SavepointError, match="is being disposed of"):
        open_checkpoint(made.path)
    dispose_savepoint(made.path)
    assert not directory.exists()


@each_kind
def test_a_savepoint_that_is_disposed_of_while_it_is_read_is_read_as_a_whole_or_not(kind: Kind) -> None:
    def taken(at: int | None) -> tuple[str, int]:
        fs = FaultInjectingFileSystem()
        query = grown(fs.url("checkpoint"), operators=SMALL)
        canonical = savepoint(query.url, fs.url("target"))
        wanted = content(canonical.checkpoint())

        def dispose() -> None:
            with contextlib.suppress(IllegalStateError):
                dispose_savepoint(canonical.path)

        fs.inject(*([] if at is None else [Fault("run", at, function=dispose)]))
        with contextlib.suppress(StateStoreError):
            savepoint(canonical.path, fs.url("others"), kind)
        calls = len(fs.calls)
        fs.inject()
        found = list_savepoints(fs.url("others"))
        for one in found:
            assert content(one.checkpoint()) == wanted
        return ("taken" if found else "refused"), calls

    _, calls = taken(None)
    assert {taken(at)[0] for at in range(1, calls + 1)} == {"taken", "refused"}


def test_what_is_not_of_a_savepoint_is_left_where_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    query = grown(str(tmp_path / "checkpoint"))
    made = savepoint(query.url, str(tmp_path / "target"))
    notes = Path(made.path.removeprefix("file://")) / "notes" / "why.txt"
    notes.parent.mkdir()
    notes.write_text("before the upgrade")
    dispose_savepoint(made.path)
    assert files_below(tmp_path / "target") == {f"{made.name}/notes/why.txt": b"before the upgrade"}
    assert "not of the savepoint" in caplog.text


def test_they_are_listed_oldest_first_without_what_is_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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
    assert caplog.text.count("is left out") == 1
    assert list_savepoints(str(tmp_path / "nowhere")) == []
    with pytest.raises(CorruptCheckpointError, match="savepoint-f013e4-000000000001/_metadata"):
        load_savepoint(str(damaged))


def test_what_cannot_be_asked_for_is_said_before_anything_is_done(tmp_path: Path) -> None:
    query = grown(str(tmp_path / "checkpoint"))
    before = files_below(tmp_path)
    target = str(tmp_path / "target")
    with pytest.raises(OptionError, match=r"no kind of savepoint 'native': it is one of canonical, pointer"):
        savepoint(query.url, target, "native")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="savepointsDir"):
        savepoint(query.url)
    with pytest.raises(CheckpointNotFoundError, match="has no batch 7: it has the batches 0 to 2"):
        savepoint(query.url, target, batch=7)
    with pytest.raises(CheckpointNotFoundError, match="is no checkpoint location"):
        savepoint(str(tmp_path / "nowhere"), target)
    assert files_below(tmp_path) == before


@each_kind
def test_what_is_not_whole_becomes_no_savepoint(tmp_path: Path, kind: Kind) -> None:
    query = grown(str(tmp_path / "checkpoint"))
    (victim,) = (tmp_path / "checkpoint/state/0/1/shared").iterdir()
    victim.unlink()
    say_that_pins_come(*open_file_system(f"{query.url}/state/_pins"))
    before = files_below(tmp_path)
    with pytest.raises(SavepointError, match=rf"no {kind} savepoint of batch 2 .*0/1/shared/1-.* is missing"):
        savepoint(query.url, str(tmp_path / "target"), kind)
    assert files_below(tmp_path) == before


@each_kind
@pytest.mark.parametrize("fault", ["fail", "fail_after", "lose_unsynced"])
def test_a_savepoint_that_is_cut_short_is_whole_or_none(kind: Kind, fault: FaultKind) -> None:
    fs = FaultInjectingFileSystem()
    query = grown(fs.url("checkpoint"), with_ids=True, operators=SMALL)
    wanted = dict(query.rows)
    target = fs.url("target")
    fs.inject()
    dispose_savepoint(savepoint(query.url, target, kind).path)
    calls = len(fs.calls)
    outcomes = set()
    for at in range(1, calls + 1):
        fs.inject(Fault(fault, at))
        made = None
        try:
            made = savepoint(query.url, target, kind)
            dispose_savepoint(made.path)
            outcomes.add("all done")
        except StateStoreError:
            outcomes.add("said")
        except CrashedError:
            outcomes.add("crashed")
            fs.restart()
        fs.inject()
        for found in list_savepoints(target):
            assert content(found.checkpoint()) == wanted
            dispose_savepoint(found.path)
            outcomes.add("found")
        if fault == "fail" and made is None:
            assert list_pins(query.checkpoint) == []
        if made is not None:
            # Disposing of it was cut short, and can be asked for again.
            with contextlib.suppress(SavepointNotFoundError):
                dispose_savepoint(made.path)
            assert not [path for path in fs.wrapped.find("") if made.name in path]
        for pin in list_pins(query.checkpoint):
            pin.remove()
    assert outcomes >= {"found", "crashed" if fault == "lose_unsynced" else "said"}
    assert content(query.checkpoint) == wanted


def test_a_savepoint_without_its_pin_is_given_up() -> None:
    fs = FaultInjectingFileSystem()
    query = grown(fs.url("checkpoint"))

    def remove() -> None:
        for pin in list_pins(query.checkpoint):
            pin.remove()

    fs.inject()
    made = savepoint(query.url, fs.url("trial"), "pointer")
    (publish,) = (
        call.number
        for call in fs.calls
        if call.operation == "open" and call.path.endswith(f"{made.name}/_metadata")
    )
    fs.inject(Fault("run", publish, function=remove))
    with pytest.raises(SavepointError, match="somebody removed its pin"):
        savepoint(query.url, fs.url("target"), "pointer")
    assert list_savepoints(fs.url("target")) == []


def test_state_that_cannot_be_pinned_can_be_copied(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    query = grown(str(tmp_path / "checkpoint"))
    # Nothing can be written there.
    (tmp_path / "checkpoint/state/_pins").write_bytes(b"")
    made = savepoint(query.url, str(tmp_path / "target"))
    assert content(made.checkpoint()) == query.rows
    assert "without a pin" in caplog.text
    with pytest.raises(SavepointError, match="_pins"):
        savepoint(query.url, str(tmp_path / "target"), "pointer")


@each_kind
def test_a_query_without_state_has_savepoints_too(tmp_path: Path, kind: Kind) -> None:
    query = WrittenQuery(str(tmp_path / "checkpoint"), operators={})
    query.run()
    made = savepoint(query.url, str(tmp_path / "target"), kind)
    assert (made.checkpoint().batches(), content(made.checkpoint())) == ([0], {})
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
    attempt="0123456789abcdef",
    checkpoints_dir="file:///d",
    partitions=None,
    attempts={StoreId(0, 1, "left"): "0" * 16},
)


def test_its_metadata_says_all_of_it() -> None:
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
def test_what_is_no_savepoint_is_not_read_as_one(
    kind: MetadataKind, properties: dict[str, str], what: str
) -> None:
    with pytest.raises(CorruptCheckpointError, match=f"here.*{what}"):
        decode_savepoint(bytes(encode_object(kind, "0" * 16, properties, [])), "there", "here")


def test_the_package_of_the_name_is_the_function() -> None:
    import spark_statestore.savepoint.pins

    assert callable(spark_statestore.savepoint)
    assert spark_statestore.savepoint.pins.list_pins is list_pins  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="no attribute 'savepoints'"):
        _ = spark_statestore.savepoints  # type: ignore[attr-defined]

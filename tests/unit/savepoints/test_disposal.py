"""Tests of the disposal of savepoints: order, other users of the state, failures and concurrency."""

from __future__ import annotations

import contextlib
import functools
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from spark_statestore import Savepoint, clone, dispose_savepoint, list_savepoints, load_savepoint, savepoint
from spark_statestore.errors import (
    CheckpointIOError,
    CheckpointNotFoundError,
    IllegalStateError,
    QueryRunningError,
    SavepointError,
    SavepointNotFoundError,
    StateStoreError,
)
from spark_statestore.files import open_file_system
from spark_statestore.query.savepoint import KINDS, Kind
from spark_statestore.query.savepoint_lookup import open_checkpoint
from spark_statestore.savepoints import savepoint_holds
from spark_statestore.savepoints.new_location import is_reserved
from spark_statestore.savepoints.savepoint_holds import held_while, list_holds
from spark_statestore.store.holds import announce_holds
from spark_statestore.testing.faults import FaultInjectingFileSystem
from spark_statestore.testing.faults_plan import Fault
from tests.support.trees import files_below
from tests.unit.savepoints.written_query import LARGE, SINGLE, SMALL, WrittenQuery, content, go_on, grown

each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
def test_disposal_removes_metadata_first(tmp_path: Path, kind: Kind) -> None:
    query = grown(str(tmp_path / "checkpoint"))
    # Files that the first hold leaves are there before.
    announce_holds(*open_file_system(f"{query.url}/state/_holds"))
    source = files_below(tmp_path)
    new_savepoint = savepoint(query.url, str(tmp_path / "target"), kind)
    before = files_below(tmp_path)
    planned = dispose_savepoint(new_savepoint.path, dry_run=True)
    assert files_below(tmp_path) == before
    assert dispose_savepoint(new_savepoint.path) == planned
    assert planned[0] == f"{new_savepoint.path}/_metadata"
    assert {url.removeprefix(f"file://{tmp_path}/") for url in planned} == before.keys() - source.keys()
    assert files_below(tmp_path) == source
    assert list((tmp_path / "target").iterdir()) == []
    for again in (load_savepoint, dispose_savepoint):
        with pytest.raises(SavepointNotFoundError, match="its file '_metadata' does not exist"):
            again(new_savepoint.path)


def test_disposal_of_the_last_pointer_releases_its_state(tmp_path: Path) -> None:
    query = grown(str(tmp_path / "checkpoint"))
    pointers = [savepoint(query.url, str(tmp_path / "target"), "pointer", batch=1) for _ in range(2)]
    go_on(query)
    rows = content(pointers[0].checkpoint())
    # Also of a savepoint another one can be taken, even if its batch could not be held any more.
    pointers += [
        savepoint(source, str(tmp_path / "target"), "pointer", batch=1)
        for source in (pointers[0].path, query.url)
    ]
    for gone, next_pointer in pairwise(pointers):
        dispose_savepoint(gone.path)
        go_on(query)
        assert content(next_pointer.checkpoint()) == rows
    dispose_savepoint(pointers[-1].path)
    query.retained_batches = 1
    go_on(query)
    with pytest.raises(CheckpointNotFoundError, match="has no batch 1"):
        savepoint(query.url, str(tmp_path / "target"), "pointer", batch=1)
    with pytest.raises(CheckpointNotFoundError):
        content(pointers[-1].checkpoint())


def test_disposal_refuses_a_savepoint_that_others_need(tmp_path: Path) -> None:
    query = grown(str(tmp_path / "checkpoint"))
    canonical = savepoint(query.url, str(tmp_path / "target"))
    pointer = savepoint(canonical.path, str(tmp_path / "target"), "pointer")
    rows = content(canonical.checkpoint())
    for dry_run in (True, False):
        with pytest.raises(IllegalStateError, match=f"is needed by {pointer.path}"):
            dispose_savepoint(canonical.path, dry_run=dry_run)
    assert (load_savepoint(canonical.path), content(pointer.checkpoint())) == (canonical, rows)
    dispose_savepoint(pointer.path)
    in_use = held_while(canonical.checkpoint(), canonical.batch, "file:///new")
    with in_use, pytest.raises(IllegalStateError, match="is needed by file:///new"):
        dispose_savepoint(canonical.path)
    dispose_savepoint(canonical.path)


@pytest.mark.parametrize("step", ["temporary_hold_name", "is_or_was_savepoint", "announce_holds"])
def test_copy_of_a_savepoint_that_was_disposed_of_leaves_nothing_in_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    canonical = savepoint(grown(str(tmp_path / "checkpoint")).url, str(tmp_path / "target"))
    do = getattr(savepoint_holds, step)

    def do_and_dispose(*arguments: Any) -> Any:
        result = do(*arguments)
        dispose_savepoint(canonical.path)
        return result

    monkeypatch.setattr(savepoint_holds, step, do_and_dispose)
    with pytest.raises((SavepointError, CheckpointNotFoundError), match=r"is being disposed of|was removed"):
        clone(canonical.path, str(tmp_path / "new"))
    assert list((tmp_path / "target").iterdir()) == []
    assert not files_below(tmp_path / "new")


def test_copy_of_a_pointer_that_was_disposed_of_leaves_the_holds_of_the_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = grown(str(tmp_path / "checkpoint"))
    pointer = savepoint(query.url, str(tmp_path / "target"), "pointer")

    def announce_and_dispose(*arguments: Any) -> None:
        announce_holds(*arguments)
        dispose_savepoint(pointer.path)

    monkeypatch.setattr(savepoint_holds, "announce_holds", announce_and_dispose)
    with pytest.raises(SavepointError, match="is being disposed of"):
        clone(pointer.path, str(tmp_path / "new"))
    assert list((tmp_path / "target").iterdir()) == []
    assert (tmp_path / "checkpoint/state/_holds/held").exists()


slowly = functools.partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("first", "kind"), [("disposal", "pointer"), slowly("copy", "pointer"), slowly("copy", "canonical")]
)
def test_disposal_and_a_concurrent_copy_exclude_each_other(first: str, kind: Kind) -> None:
    def meet(at: int | None) -> tuple[bool, int]:
        """Run the other operation during a call of the first one; return whether there is a copy then."""
        fs = FaultInjectingFileSystem()
        query = WrittenQuery(fs.url("checkpoint"), operators=SINGLE)
        query.run(put={b"large": LARGE})
        canonical = savepoint(query.url, fs.url("target"))
        rows = content(canonical.checkpoint())
        refused = False

        def dispose() -> None:
            nonlocal refused
            try:
                dispose_savepoint(canonical.path)
            except IllegalStateError:
                refused = True

        def take() -> None:
            with contextlib.suppress(StateStoreError):
                savepoint(canonical.path, fs.url("others"), kind)

        operation, interruption = (dispose, take) if first == "disposal" else (take, dispose)
        fs.inject(*([] if at is None else [Fault("run", at, function=interruption)]))
        operation()
        calls = len(fs.calls)
        fs.inject()
        copies = list_savepoints(fs.url("others"))
        for copy in copies:
            assert content(copy.checkpoint()) == rows
            dispose_savepoint(copy.path)
        if refused:
            assert content(load_savepoint(canonical.path).checkpoint()) == rows
        if first == "disposal":
            assert refused == bool(copies)
            with contextlib.suppress(SavepointNotFoundError):
                dispose_savepoint(canonical.path)
        if not list_savepoints(fs.url("target")):
            assert not [path for path in fs.wrapped.find("") if "target/" in path]
        return bool(copies), calls

    _, calls = meet(None)
    assert {meet(at)[0] for at in range(1, calls + 1)} == {True, False}


@each_kind
def test_disposal_continues_after_a_failed_removal(kind: Kind) -> None:
    fs = FaultInjectingFileSystem()
    query = grown(fs.url("checkpoint"), operators=SMALL)

    def take() -> Savepoint:
        fs.inject()
        new_savepoint = savepoint(query.url, fs.url("target"), kind)
        fs.inject()
        return new_savepoint

    dispose_savepoint(take().path)
    removals = [
        call.number for call in fs.calls if call.operation == "rm_file" and "_metadata" not in call.path
    ]
    assert len(removals) > 1
    # The last one ends the disposal.
    for at in removals[:-1]:
        new_savepoint = take()
        fs.inject(Fault("fail", at))
        with pytest.raises(CheckpointIOError, match="files of it remain"):
            dispose_savepoint(new_savepoint.path)
        remaining = [
            path for path in fs.find(new_savepoint.path) if not path.endswith(("_disposing", "/metadata"))
        ]
        assert len(remaining) + len(list_holds(open_checkpoint(query.url))) <= 1
        fs.inject()
        assert is_reserved(*open_file_system(new_savepoint.path)), "Spark starts no query there"
        dispose_savepoint(new_savepoint.path)
        assert fs.find(new_savepoint.path) == []


def test_disposal_leaves_files_of_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    query = grown(str(tmp_path / "checkpoint"))
    new_savepoint = savepoint(query.url, str(tmp_path / "target"))
    notes = Path(new_savepoint.path.removeprefix("file://")) / "notes" / "why.txt"
    notes.parent.mkdir()
    notes.write_text("before the upgrade")
    dispose_savepoint(new_savepoint.path)
    assert files_below(tmp_path / "target") == {f"{new_savepoint.name}/notes/why.txt": b"before the upgrade"}
    assert "as it has other files" in caplog.text


def test_disposal_of_a_copied_pointer_leaves_the_hold_of_the_original(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    query = grown(str(tmp_path / "checkpoint"))
    pointer = savepoint(query.url, str(tmp_path / "target"), "pointer")
    rows = content(pointer.checkpoint())
    copy = tmp_path / "backup" / pointer.name
    shutil.copytree(Path(pointer.path.removeprefix("file://")), copy)
    (hold,) = list_holds(query.checkpoint)
    assert hold.url not in dispose_savepoint(str(copy))
    assert not copy.exists()
    assert f"{hold.url} of {pointer.path}" in caplog.text
    go_on(query)
    assert content(load_savepoint(pointer.path).checkpoint()) == rows
    assert hold.url in dispose_savepoint(pointer.path)
    assert list_holds(query.checkpoint) == []


def test_disposal_recognizes_the_holder_through_a_link(tmp_path: Path) -> None:
    query = grown(str(tmp_path / "checkpoint"))
    pointer = savepoint(query.url, str(tmp_path / "target"), "pointer")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    dispose_savepoint(str(tmp_path / "link" / pointer.name))
    assert list_holds(query.checkpoint) == []


def test_disposal_removes_nothing_if_the_hold_cannot_be_read() -> None:
    fs = FaultInjectingFileSystem()
    query = grown(fs.url("checkpoint"), operators=SINGLE)
    pointer = savepoint(query.url, fs.url("target"), "pointer")
    before = fs.find("")
    fs.inject()
    dispose_savepoint(pointer.path, dry_run=True)
    (call_number,) = [
        call.number for call in fs.calls if call.operation == "cat_file" and "state/_holds/3-" in call.path
    ]
    fs.inject(Fault("fail", call_number))
    with pytest.raises(CheckpointIOError, match=r"could not read .*_holds/3-"):
        dispose_savepoint(pointer.path)
    assert fs.find("") == before


def test_disposal_removes_no_query_that_is_started_in_the_directory() -> None:
    def dispose(at: int | None) -> tuple[bool, int]:
        """Start a query in the savepoint's directory during a call, if Spark could, and dispose of it."""
        fs = FaultInjectingFileSystem()
        query = grown(fs.url("checkpoint"), operators=SINGLE)
        new_savepoint = savepoint(query.url, fs.url("target"))
        files, directory = open_file_system(new_savepoint.path)
        query_files = {
            f"{directory}/{name}" for name in ("metadata", "offsets/0", "state/0/0/chk-1/_metadata")
        }

        def start() -> None:
            # While the savepoint is whole, Spark would continue its query.
            if not files.exists(f"{directory}/metadata"):
                for path in query_files:
                    files.create(path, b"theirs")

        fs.inject(*([] if at is None else [Fault("run", at, function=start)]))
        dispose_savepoint(new_savepoint.path)
        calls = len(fs.calls)
        fs.inject()
        remaining = {status.path for status in files.list_files(directory)}
        assert remaining in (set(), query_files)
        return bool(remaining), calls

    _, calls = dispose(None)
    assert {dispose(at)[0] for at in range(1, calls + 1)} == {True, False}


def test_interrupted_disposal_leaves_no_checkpoint_and_is_repeated(tmp_path: Path) -> None:
    new_savepoint = savepoint(grown(str(tmp_path / "checkpoint")).url, str(tmp_path / "target"))
    directory = Path(new_savepoint.path.removeprefix("file://"))
    (directory / "_metadata").rename(directory / "_disposing")
    shutil.rmtree(directory / "state")
    with pytest.raises(SavepointError, match="is being disposed of"):
        open_checkpoint(new_savepoint.path)
    own = (directory / "metadata").read_bytes()
    (directory / "metadata").write_text('{"id":"another"}')
    before = files_below(tmp_path)
    with pytest.raises(QueryRunningError, match="the query another was started"):
        dispose_savepoint(new_savepoint.path)
    assert files_below(tmp_path) == before
    (directory / "metadata").write_bytes(own)
    dispose_savepoint(new_savepoint.path)
    assert not directory.exists()

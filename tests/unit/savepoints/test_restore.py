"""Tests of `restore` and `clone`: a complete checkpoint or none, without shared files."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_statestore import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    IllegalStateError,
    OptionError,
    SavepointError,
    SavepointNotFoundError,
    clone,
    load_savepoint,
    rescale,
    restore,
    savepoint,
    verify,
    write_state,
)
from spark_statestore.files import LocalFileSystem, open_file_system
from spark_statestore.query import QueryCheckpoint
from spark_statestore.query.savepoint import Kind
from spark_statestore.savepoints import copy, create
from spark_statestore.savepoints.savepoint_holds import list_holds
from spark_statestore.store.metadata import StoreId
from spark_statestore.testing.faults import FaultInjectingFileSystem
from spark_statestore.testing.faults_plan import Fault
from spark_statestore.writing import write
from tests.support.trees import files_below
from tests.unit.query.stored_query import StoredQuery
from tests.unit.savepoints.written_query import QUERY_ID, SINGLE, WrittenQuery, content
from tests.unit.writing.test_write import WORDS, counts, table

both_formats = pytest.mark.parametrize("with_ids", [False, True], ids=["v1", "v2"])
both_kinds = pytest.mark.parametrize("kind", ["canonical", "pointer"])


@pytest.fixture
def query(tmp_path: Path) -> WrittenQuery:
    """A query after two batches, of which the first one is to be copied."""
    query = WrittenQuery(str(tmp_path / "checkpoint"))
    query.run(put={b"large": bytes(700), b"small": b"1"})
    query.run(put={b"small": b"2"})
    return query


@both_formats
@both_kinds
def test_restored_query_resumes_after_the_savepoint(tmp_path: Path, kind: Kind, with_ids: bool):
    query = WrittenQuery(str(tmp_path / "checkpoint"), with_ids)
    for _ in range(2):
        query.run()
    new_savepoint = savepoint(query.url, str(tmp_path), kind)
    rows = dict(query.rows)
    query.run()
    new_query = WrittenQuery(str(tmp_path / "unused"), with_ids)
    new_query.checkpoint = QueryCheckpoint(str(tmp_path / "new"))
    assert restore(new_savepoint, new_query.checkpoint.url) == 1
    # The copy needs no file of the others.
    shutil.rmtree(query.url)
    shutil.rmtree(new_savepoint.path.removeprefix("file://"))
    assert content(new_query.checkpoint) == rows
    assert new_query.checkpoint.batches() == [1]
    assert new_query.checkpoint.query_id != QUERY_ID
    assert new_query.checkpoint.offsets(1).sources == ('{"logOffset": 1}',)
    assert sorted(files_below(tmp_path / "new" / "sources" / "0")) == ["0", "1"]
    assert sorted(files_below(tmp_path / "new" / "offsets")) == ["0", "1"]
    new_query.batch, new_query.rows = 1, rows
    new_query.restart()
    new_query.run(put={b"new": b"row"})
    assert content(new_query.checkpoint) == {store: {**old, b"new": b"row"} for store, old in rows.items()}


@both_kinds
def test_restore_moves_state_between_directories(tmp_path: Path, kind: Kind):
    query = WrittenQuery(str(tmp_path / "checkpoint"), checkpoints_dir=str(tmp_path / "state"))
    query.run()
    new_savepoint = savepoint(query.url, str(tmp_path), kind, checkpoints_dir=str(tmp_path / "state"))
    restore(new_savepoint, str(tmp_path / "new"), checkpoints_dir=str(tmp_path / "other"), keep_query_id=True)
    new_checkpoint = QueryCheckpoint(str(tmp_path / "new"), checkpoints_dir=str(tmp_path / "other"))
    assert new_checkpoint.query_id == QUERY_ID
    assert content(new_checkpoint) == query.rows
    assert not list((tmp_path / "new" / "state").rglob("chk-*"))
    # Spark counts partitions by these.
    assert {path.name for path in (tmp_path / "new" / "state" / "0").iterdir()} == {"_metadata", "0", "1"}
    with pytest.raises(CheckpointExistsError, match="is not empty"):
        restore(
            new_savepoint,
            str(tmp_path / "newer"),
            checkpoints_dir=str(tmp_path / "state"),
            keep_query_id=True,
        )
    assert content(query.checkpoint) == query.rows
    assert not (tmp_path / "newer").exists()


@both_kinds
def test_claim_disposes_of_the_savepoint_after_the_copy(tmp_path: Path, query: WrittenQuery, kind: Kind):
    new_savepoint = savepoint(query.url, str(tmp_path / "savepoints"), kind)
    restore(new_savepoint, str(tmp_path / "first"))
    assert load_savepoint(new_savepoint.path) == new_savepoint
    restore(new_savepoint.path, str(tmp_path / "second"), claim_mode="claim")
    with pytest.raises(SavepointNotFoundError):
        load_savepoint(new_savepoint.path)
    with pytest.raises(SavepointNotFoundError):
        restore(new_savepoint, str(tmp_path / "third"))
    for name in ("first", "second"):
        assert content(QueryCheckpoint(str(tmp_path / name))) == query.rows


def test_claim_refuses_a_savepoint_that_others_need(tmp_path: Path, query: WrittenQuery):
    canonical = savepoint(query.url, str(tmp_path))
    pointer = savepoint(canonical.path, str(tmp_path), "pointer")
    with pytest.raises(IllegalStateError, match=pointer.name):
        restore(canonical, str(tmp_path / "new"), claim_mode="claim")
    assert not (tmp_path / "new").exists()
    assert restore(pointer, str(tmp_path / "new")) == 1


def test_clone_copies_an_older_batch(tmp_path: Path, query: WrittenQuery):
    query.run(put={b"small": b"3"})
    older = content(query.checkpoint, 1)
    # As Spark purges its logs.
    (tmp_path / "checkpoint" / "offsets" / "0").unlink()
    assert clone(query.url, str(tmp_path / "new"), batch=1) == 1
    copy = QueryCheckpoint(str(tmp_path / "new"))
    assert content(copy) == older
    # Spark wants an entry for the batch before as well.
    assert copy.offsets(0) == copy.offsets(1) == query.checkpoint.offsets(1)
    with pytest.raises(CheckpointNotFoundError, match="it has the batches 1 to 2"):
        clone(query.url, str(tmp_path / "newer"), batch=0)


def test_copies_report_each_store(tmp_path: Path, query: WrittenQuery):
    reports: list[tuple[int, int]] = []

    def report(count: int, total: int) -> None:
        reports.append((count, total))

    every = [(count, len(query.stores)) for count in range(len(query.stores) + 1)]
    new_savepoint = savepoint(query.url, str(tmp_path), progress=report)
    clone(query.url, str(tmp_path / "clone"), progress=report)
    restore(new_savepoint, str(tmp_path / "restored"), progress=report)
    assert reports == every * 3


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("state/0/0/x", "Use an empty location"),
        ("_in-progress", "was killed while it did"),
    ],
)
def test_restore_refuses_a_location_that_is_not_empty(
    tmp_path: Path, query: WrittenQuery, name: str, advice: str
):
    present = tmp_path / "new" / name
    present.parent.mkdir(parents=True)
    present.write_bytes(b"here")
    with pytest.raises(CheckpointExistsError, match=f"it has {name}, .*{advice}"):
        clone(query.url, str(tmp_path / "new"))
    assert files_below(tmp_path / "new") == {name: b"here"}


def test_restore_refuses_invalid_arguments(tmp_path: Path, query: WrittenQuery):
    new_savepoint = savepoint(query.url, str(tmp_path / "savepoints"))
    new = str(tmp_path / "new")
    with pytest.raises(OptionError, match="it must be one of no_claim, claim"):
        restore(new_savepoint, new, claim_mode="legacy")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is 0, but it must be at least 1"):
        restore(new_savepoint, new, partitions=0)
    with pytest.raises(CheckpointExistsError, match="is inside its source"):
        restore(new_savepoint, f"{new_savepoint.path}/new")
    assert not (tmp_path / "new").exists()


def test_failed_copy_removes_no_files_of_others(
    tmp_path: Path, query: WrittenQuery, monkeypatch: pytest.MonkeyPatch
):
    create: Callable[..., None] = LocalFileSystem.create

    def fail(self: LocalFileSystem, path: str, data: bytes) -> None:
        create(self, path, data)
        if path.endswith("/new/metadata"):
            # Another process uses the location during the copy.
            create(self, str(tmp_path / "new" / "theirs"), b"theirs")
            raise KeyboardInterrupt

    monkeypatch.setattr(LocalFileSystem, "create", fail)
    with pytest.raises(KeyboardInterrupt):
        clone(query.url, str(tmp_path / "new"))
    assert files_below(tmp_path / "new") == {"theirs": b"theirs"}


def test_failed_copy_removes_no_query_that_was_started_at_its_target() -> None:
    query_files = ["metadata", "offsets/0", "commits/0", "state/0/0/chk-1/_metadata"]

    def fail(at: int | None) -> tuple[bool, int]:
        """Start a query at the target during a call of a failing copy; return if it could be started."""
        fs = FaultInjectingFileSystem()
        query = WrittenQuery(fs.url("checkpoint"), operators=SINGLE)
        query.run(put={b"large": bytes(700)})
        damaged = max(path for path in fs.wrapped.find("") if "/shared/" in path)
        fs.wrapped.pipe_file(damaged, bytes(800))
        target, root = open_file_system(fs.url("new"))
        started = []

        def start() -> None:
            # As Spark does: its file `metadata` is created exclusively, or read.
            with contextlib.suppress(FileExistsError):
                for name in query_files:
                    target.create(f"{root}/{name}", b"theirs")
                started.append(True)

        fs.inject(*([] if at is None else [Fault("run", at, function=start)]))
        with pytest.raises((CorruptCheckpointError, CheckpointExistsError)):
            clone(query.url, fs.url("new"))
        calls = len(fs.calls)
        fs.inject()
        remaining = {path.rpartition("new/")[2] for path in fs.wrapped.find("") if "new/" in path}
        assert remaining == (set(query_files) if started else set())
        return bool(started), calls

    _, calls = fail(None)
    assert {fail(at)[0] for at in range(1, calls + 1)} == {True, False}


def test_copy_is_no_checkpoint_before_its_last_file(
    tmp_path: Path, query: WrittenQuery, monkeypatch: pytest.MonkeyPatch
):
    names: list[str] = []

    def watched(write: Callable[..., None], self: LocalFileSystem, path: str, data: bytes) -> None:
        if path.startswith(str(tmp_path / "new")):
            with pytest.raises(CheckpointNotFoundError, match="is not a checkpoint location"):
                _ = QueryCheckpoint(str(tmp_path / "new")).query_id
            # Another one is not written beside it.
            if names:
                with pytest.raises(CheckpointExistsError, match="is not empty"):
                    clone(query.url, str(tmp_path / "new"))
            names.append(path.removeprefix(f"{tmp_path}/new/"))
        write(self, path, data)

    for name in ("create", "replace"):
        write = getattr(LocalFileSystem, name)
        monkeypatch.setattr(LocalFileSystem, name, lambda *call, write=write: watched(write, *call))
    clone(query.url, str(tmp_path / "new"))
    assert names[:2] == ["_in-progress", "metadata"]
    assert names[-4:] == ["offsets/0", "offsets/1", "commits/1", "metadata"]
    assert not (tmp_path / "new" / "_in-progress").exists()


def test_restore_rewrites_urls_of_schema_files(tmp_path: Path, query: WrittenQuery):
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
    copy = QueryCheckpoint(str(tmp_path / "new"))
    assert [path.rpartition("/new/")[2] for path, _ in copy.operator_files()] == [
        "state/0/_metadata/v2/1",
        "state/1/_metadata/metadata",
    ]
    # Without a scheme, which Spark may call otherwise.
    assert copy.operator(0).schema_files == tuple(
        f"{tmp_path}/new/state/0/_stateSchema/default/{name}" for name in ("0_a", "1_b")
    )
    assert [Path(name).read_text() for name in copy.operator(0).schema_files] == ["0_a", "1_b"]


def test_clone_refuses_a_wrong_number_of_values(tmp_path: Path, query: WrittenQuery):
    # Two keys, three in the metadata.
    query.rows[StoreId(0, 1)] = {**query.rows[StoreId(0, 1)], b"never written": b""}
    query.run(put={b"small": b"3"})
    with pytest.raises(
        CorruptCheckpointError, match="has 2 values in the state 'default', but 3 in its metadata"
    ):
        clone(query.url, str(tmp_path / "new"))


class Change:
    """A change in place of a query's newest batch, once, around a function that is replaced."""

    def __init__(self, query: StoredQuery, partitions: int | None) -> None:
        self._query = query
        self._partitions = partitions
        self._is_made = False

    def make(self) -> None:
        if self._is_made:
            return
        self._is_made = True
        if self._partitions is None:
            write_state(self._query.url, None, table({"word 1": 7}), in_place=True, stopped=True)
        else:
            rescale(self._query.url, None, self._partitions, in_place=True, stopped=True, checkpoint_format=2)

    def before(self, do: Callable[..., Any]) -> Callable[..., Any]:
        def change_and_do(*arguments: Any, **options: Any) -> Any:
            self.make()
            return do(*arguments, **options)

        return change_and_do

    def after(self, do: Callable[..., Any]) -> Callable[..., Any]:
        def do_and_change(*arguments: Any, **options: Any) -> Any:
            result = do(*arguments, **options)
            self.make()
            return result

        return do_and_change


@pytest.fixture(params=[1, 2])
def words(request: pytest.FixtureRequest, tmp_path: Path) -> StoredQuery:
    query = StoredQuery(tmp_path / "query", request.param)
    query.run(**WORDS)
    query.run(**{"word 1": 100})
    return query


to_other_partitions = pytest.mark.parametrize("partitions", [1, 3])


@pytest.mark.parametrize("partitions", [1, 3, None])
def test_pointer_to_state_that_is_replaced_is_whole_or_leaves_nothing(
    words: StoredQuery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int | None
) -> None:
    monkeypatch.setattr(create, "hold", Change(words, partitions).after(create.hold))
    target = tmp_path / "savepoints"
    if words.format == 1 and partitions is None:
        # The attempt that is held is there, under a name of its own.
        restore(savepoint(words.url, str(target), "pointer"), str(tmp_path / "new"))
        assert counts(tmp_path / "new") == words.state()
        return
    with pytest.raises(SavepointError, match=r"replaced after it was held: .* Let it end, then try again"):
        savepoint(words.url, str(target), "pointer")
    assert not files_below(target)
    assert not list_holds(QueryCheckpoint(words.url))
    monkeypatch.undo()
    restore(savepoint(words.url, str(target), "pointer"), str(tmp_path / "new"))
    assert counts(tmp_path / "new") == words.state() | ({} if partitions else {"word 1": 7})


@to_other_partitions
@both_kinds
@pytest.mark.parametrize(
    ("place", "name", "is_before"),
    [
        (copy, "entry_before", True),
        (copy.CheckpointCopy, "write", True),
        (copy.CheckpointCopy, "_write_stores", True),
        (copy, "read_store", False),
        (copy.CheckpointCopy, "write_logs", True),
    ],
    ids=["entries", "operators", "stores", "rows", "logs"],
)
def test_copy_of_a_query_that_is_rescaled_is_whole_or_leaves_nothing(
    words: StoredQuery,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    partitions: int,
    kind: Kind,
    place: Any,
    name: str,
    is_before: bool,
) -> None:
    change = Change(words, partitions)
    replacement = change.before if is_before else change.after
    monkeypatch.setattr(place, name, replacement(getattr(place, name)))
    target = tmp_path / "new"
    with contextlib.suppress(IllegalStateError, SavepointError):
        if kind == "pointer":
            new = savepoint(words.url, str(target), kind)
            url, checkpoint = new.path, new.checkpoint()
        else:
            clone(words.url, str(target))
            url, checkpoint = str(target), QueryCheckpoint(str(target))
        assert counts(url) == words.state()
        assert checkpoint.offsets(1).shuffle_partitions == len(checkpoint.stores())
        assert not verify(url).problems
        return
    assert not files_below(target)


@to_other_partitions
def test_copy_with_changes_for_other_partitions_is_refused(
    words: StoredQuery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    change = Change(words, partitions)
    monkeypatch.setattr(write, "_changes_of_state", change.after(write._changes_of_state))
    with pytest.raises(IllegalStateError, match=r"commits/1 of file://.* has changed during the copy"):
        write_state(words.url, str(tmp_path / "new"), table({"word 1": 8, "other": 1}))
    assert not files_below(tmp_path / "new")


def test_copy_in_format_1_during_a_write_in_place_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = StoredQuery(tmp_path / "query", 1)
    query.run(**WORDS)
    query.run(**{"word 1": 100})
    monkeypatch.setattr(copy, "read_store", Change(query, None).before(copy.read_store))
    with pytest.raises(IllegalStateError, match=r"state/_merged/2-2-0-written-1 of .* has changed"):
        clone(query.url, str(tmp_path / "new"))
    assert not files_below(tmp_path / "new")


def test_copy_to_other_partitions_during_a_write_in_place_is_refused(
    words: StoredQuery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy, "rescaled", Change(words, None).before(copy.rescaled))
    with pytest.raises(IllegalStateError, match="has changed during the copy"):
        clone(words.url, str(tmp_path / "new"), partitions=3)
    assert not files_below(tmp_path / "new")

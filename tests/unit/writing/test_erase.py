"""Erasure of keys from savepoints, with their query's checkpoint."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from spark_statestore import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    IllegalStateError,
    OptionError,
    QueryRunningError,
    SavepointNotFoundError,
    erase,
    load_savepoint,
    restore,
    savepoint,
    verify,
    verify_absent,
)
from spark_statestore.errors import StateStoreError
from spark_statestore.options import StorageOptions
from spark_statestore.query import QueryCheckpoint
from spark_statestore.savepoints.savepoint_holds import held_in_place, held_while
from spark_statestore.testing.faults import FaultInjectingFileSystem
from spark_statestore.testing.faults_plan import Fault
from tests.support.trees import files_below
from tests.unit.cli.commands import node, output_of
from tests.unit.query.stored_query import StoredQuery, schema
from tests.unit.rows.encoder import encode_row
from tests.unit.savepoints.written_query import LARGE, WrittenQuery
from tests.unit.writing.test_write import counts

USER = "a user of the query"
CONDITION = f"key.word = '{USER}'"
VALUE = 0x7A5B3C9D1E2F4A6B
WORDS = {hashlib.sha256(b"%d" % number).hexdigest(): number for number in range(100)}


def has_the_user(directory: Path) -> tuple[bool, bool]:
    """Return whether files have the bytes of the key and of its value."""
    contents = files_below(directory).values()
    return tuple(
        any(part in data for data in contents) for part in (USER.encode(), VALUE.to_bytes(8, "little"))
    )


@pytest.fixture(params=[StorageOptions().file_state_threshold, 512], ids=["inline", "streams"])
def threshold(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Let savepoints have their state within metadata, or in streams; uncompressed, to find bytes."""
    options = partial(StorageOptions, file_state_threshold=request.param, compression=None)
    monkeypatch.setattr("spark_statestore.query.query_checkpoint.StorageOptions", options)
    return int(request.param)


@pytest.fixture
def query(tmp_path: Path) -> StoredQuery:
    """Return a query of two batches, of which the second one has added the key."""
    query = StoredQuery(tmp_path / "query", 2, partitions=2)
    query.run(**WORDS)
    query.run(**{USER: VALUE})
    return query


@pytest.fixture
def saved(query: StoredQuery, tmp_path: Path) -> Path:
    """Return a savepoint of the query's last batch."""
    return new_savepoint(query, tmp_path)


def new_savepoint(query: StoredQuery, tmp_path: Path, **arguments: Any) -> Path:
    path = savepoint(query.url, str(tmp_path / "savepoints"), **arguments).path
    return Path(path.removeprefix("file://"))


def test_key_is_erased_from_savepoints(
    threshold: int, query: StoredQuery, saved: Path, tmp_path: Path
) -> None:
    before_the_key = new_savepoint(query, tmp_path, batch=0)
    unchanged = files_below(before_the_key)
    query.run(other=1)
    later = new_savepoint(query, tmp_path)
    described = load_savepoint(str(saved))
    assert (threshold == 512) == any("/shared/" in path for path in files_below(saved))
    assert has_the_user(saved) == (True, True)
    assert not verify_absent(str(saved), CONDITION).ok
    erasure = erase(
        query.url, CONDITION, stopped=True, savepoints=list(map(str, (saved, before_the_key, later)))
    )
    assert erasure.absence.ok
    assert (erasure.batches, erasure.stores, erasure.rows) == ((1, 2), 4, 1)
    assert erasure.savepoints == tuple(f"file://{path}" for path in (saved, later))
    for path, words in (
        (saved, WORDS),
        (later, WORDS | {"other": 1}),
        (query.directory, WORDS | {"other": 1}),
    ):
        assert has_the_user(path) == (False, False)
        assert verify_absent(str(path), CONDITION).ok
        assert not verify(str(path)).problems
        assert counts(path) == words
    assert load_savepoint(str(saved)) == described
    assert files_below(before_the_key) == unchanged
    assert restore(str(saved), str(tmp_path / "restored")) == 1
    assert counts(tmp_path / "restored") == WORDS
    assert not verify(str(tmp_path / "restored")).problems
    # A store without the key has the version that it had.
    (stores,) = QueryCheckpoint(str(saved)).commit(1).state_ids.values()
    assert len(list(saved.glob("state/0/*/chk-*"))) == len(stores)
    again = erase(query.url, CONDITION, stopped=True, savepoints=[str(saved), str(saved)])
    assert (again.batches, again.stores, again.savepoints, again.files) == ((), 0, (), 0)


def pointer(query: StoredQuery, saved: Path, tmp_path: Path) -> Path:
    return new_savepoint(query, tmp_path, kind="pointer")


def format_v1(query: StoredQuery, saved: Path, tmp_path: Path) -> Path:
    commit = saved / "commits/1"
    version, entry = commit.read_text().split("\n")
    commit.write_text(
        f"v1\n{json.dumps({'nextBatchWatermarkMs': json.loads(entry)['nextBatchWatermarkMs']})}"
    )
    assert version == "v2"
    return saved


def none(query: StoredQuery, saved: Path, tmp_path: Path) -> Path:
    return tmp_path


def of_another_query(query: StoredQuery, saved: Path, tmp_path: Path) -> Path:
    second = StoredQuery(tmp_path / "other", 2)
    second.run(**{USER: 1})
    return new_savepoint(second, tmp_path)


def with_a_query(query: StoredQuery, saved: Path, tmp_path: Path) -> Path:
    shutil.copy(saved / "offsets/1", saved / "offsets/2")
    return saved


def needed_by_a_pointer(query: StoredQuery, saved: Path, tmp_path: Path) -> Path:
    savepoint(str(saved), str(tmp_path / "pointers"), "pointer")
    return saved


def damaged(query: StoredQuery, saved: Path, tmp_path: Path) -> Path:
    for path in saved.glob("state/0/*/chk-*/_metadata"):
        path.write_bytes(path.read_bytes()[:-1])
    return saved


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (pointer, OptionError, "take a canonical savepoint of it before, and pass that"),
        (format_v1, OptionError, "take a savepoint of the copy, and dispose of this one"),
        (none, SavepointNotFoundError, "no savepoint exists under the path"),
        (of_another_query, OptionError, "Pass savepoints of one query"),
        (with_a_query, QueryRunningError, "it has batch 2, and the savepoint is of batch 1"),
        (needed_by_a_pointer, IllegalStateError, "is needed by .*, with the key. Dispose of those first"),
        (damaged, StateStoreError, "damaged|truncated|checksum"),
    ],
)
def test_savepoint_is_refused_before_anything_is_changed(
    query: StoredQuery, saved: Path, tmp_path: Path, make: Any, error: type[Exception], message: str
) -> None:
    whole = new_savepoint(query, tmp_path)
    refused = make(query, saved, tmp_path)
    before = files_below(tmp_path)
    with pytest.raises(error, match=message):
        erase(query.url, CONDITION, stopped=True, savepoints=[str(whole), str(refused)])
    assert files_below(tmp_path) == before


def test_other_columns_or_operators_change_no_savepoint(
    query: StoredQuery, saved: Path, tmp_path: Path
) -> None:
    before = files_below(tmp_path)
    with pytest.raises(OptionError, match="cannot be evaluated"):
        erase(query.url, "value.count = 1", stopped=True, savepoints=[str(saved)])
    with pytest.raises(CheckpointNotFoundError, match="has no stateful operator 1"):
        erase(query.url, CONDITION, stopped=True, savepoints=[str(saved)], operator=1)
    assert files_below(tmp_path) == before


def test_savepoint_that_is_copied_meanwhile_keeps_its_files(query: StoredQuery, saved: Path) -> None:
    hold: Any = None

    def progress(completed: int, total: int) -> None:
        nonlocal hold
        if completed == total - 1:
            hold = held_while(QueryCheckpoint(str(saved)), 1, "file:///copy")
            hold.__enter__()

    erasure = erase(query.url, CONDITION, stopped=True, savepoints=[str(saved)], progress=progress)
    assert not erasure.absence.ok
    assert all(url.startswith(f"file://{saved}/state/") for url in erasure.absence.unknown)
    hold.__exit__(None, None, None)
    erasure = erase(query.url, CONDITION, stopped=True, savepoints=[str(saved)])
    assert (erasure.absence.ok, erasure.savepoints) == (True, ())
    assert counts(saved) == WORDS


@pytest.mark.parametrize("is_of_savepoint", [False, True], ids=["checkpoint", "savepoint"])
def test_erasure_that_was_killed_is_repeated(query: StoredQuery, saved: Path, is_of_savepoint: bool) -> None:
    place = QueryCheckpoint(str(saved) if is_of_savepoint else query.url)
    hold = held_in_place(place, 1)
    # As a killed process leaves it.
    hold.__enter__()
    erasure = erase(query.url, CONDITION, stopped=True, savepoints=[str(saved)])
    assert erasure.absence.ok
    assert counts(saved) == WORDS
    hold.__exit__(None, None, None)


def test_command_erases_from_savepoints(query: StoredQuery, saved: Path, tmp_path: Path) -> None:
    later = new_savepoint(query, tmp_path)
    # No cleanup knows the file, which may have the key.
    stray = later / "state/0/0/stray"
    shutil.copy(next(later.glob("state/0/0/chk-*/_metadata")), stray)
    # As of a rollback: what it needs is not deleted.
    entry = query.directory / "rolled-back/1/commits/1"
    entry.parent.mkdir(parents=True)
    shutil.copy(query.directory / "commits/1", entry)
    places = [argument for path in (saved, later) for argument in ("--savepoint", path)]
    command = ("state", "erase", query.url, "--where", CONDITION, "--stopped", *places)
    text = output_of(*command, code=1)
    assert "3 stores were written anew, of the batches: 1, and of 2 savepoints\n" in text
    assert f"written anew: the savepoint file://{saved}\n" in text
    assert f"not read, as no retained batch needs it: file://{stray}\n" in text
    report = node(*command, code=1)
    assert (report["ok"], report["stores"], report["rows"], report["savepoints"]) == (False, 0, 0, [])
    unknown = set(report["absence"]["unknown"]) - {f"file://{stray}"}
    assert len(unknown) == len(report["absence"]["unknown"]) - 1
    assert unknown
    assert all(url.startswith(f"file://{query.directory}/state/") for url in unknown)
    stray.unlink()
    entry.unlink()
    assert "0 stores were written anew, of the batches: none" in output_of(*command)
    assert node(*command)["ok"]


def test_storage_that_fails_is_an_error_with_a_remedy() -> None:
    fs = FaultInjectingFileSystem()
    fs.restart()
    query = WrittenQuery(
        fs.url("erased"),
        True,
        key=lambda _, name: encode_row(["string"], [name.decode()]),
        key_schema=schema(k="string"),
    )
    query.run(put={b"large": LARGE})
    fs.inject()
    condition = pc.field("key", "k") == "large"
    assert not verify_absent(query.url, condition).ok
    messages = []
    for call in range(1, len(fs.calls) + 1):
        fs.inject(Fault("fail", call))
        try:
            verify_absent(query.url, condition)
        except StateStoreError as error:
            messages.append(str(error))
    assert any("/shared/" in message for message in messages)
    assert all(re.search("Check|try again|restore", message) for message in messages), messages
    fs.inject()
    files, state = query.checkpoint.open_state()
    streams = [status.path for status in files.list_files(f"{state}/0") if "/shared/" in status.path]
    files.delete(streams[0])
    with pytest.raises(CorruptCheckpointError, match="which is missing"):
        verify_absent(query.url, condition)

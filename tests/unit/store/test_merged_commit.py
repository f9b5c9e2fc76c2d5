"""Commits in files of their own beside unpublished merged ones lose no attempt.

The last attempt counts.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from spark_statestore.errors import CheckpointExistsError, CheckpointIOError
from spark_statestore.files import LocalFileSystem
from spark_statestore.files.base import Buffer
from spark_statestore.files.request_context import RequestContext, enter
from spark_statestore.options import StorageOptions
from spark_statestore.storage import CheckpointName
from spark_statestore.storage.merged_files import MergedFiles
from spark_statestore.store.commit import begin_checkpoint
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.metadata import StoreId
from tests.unit.store.stores import load, message, named

FIRST, SECOND = "1" * 16, "2" * 16

both = pytest.mark.parametrize("ids", [False, True], ids=["v1", "v2"])


class Store:
    """Version 2 of a store as one process commits it; `newest` is the attempt that a new process finds."""

    def __init__(self, root: Path, ids: bool) -> None:
        self.root = root
        self.ids = ids
        self.files = LocalFileSystem()
        self.merged = MergedFiles(self.files, f"{root}/state")
        self.store = self.open(self.merged)

    def open(self, merged: MergedFiles) -> StoreDirectory:
        return StoreDirectory(
            StoreId(0, 0), f"{self.root}/state/0/0", StorageOptions(), merged_of=lambda *_: merged
        )

    def commit(self, attempt: str, *, version: int = 2, merge: bool = False, hand_over: bool = False) -> bool:
        """Commit an attempt; return whether another request publishes it."""
        name = CheckpointName(version, attempt if self.ids else None)
        pending = begin_checkpoint(
            self.store, name, attempt, named(), merge=merge or hand_over, hand_over=hand_over
        )
        pending.write(0, message({b"attempt": attempt.encode()}))
        return pending.publish(None, None, None).merged

    def publish(self, *attempts: str) -> list[str]:
        return self.store.publish_merged(attempts)[0]

    def newest(self, attempt: str) -> bytes:
        store = self.open(MergedFiles(self.files, f"{self.root}/state"))
        return load(store, CheckpointName(2, attempt if self.ids else None))["default"][b"attempt"]


@pytest.mark.parametrize(
    ("ids", "hand_over"), [(False, False), (True, False), (True, True)], ids=["v1", "v2", "v2-handed-over"]
)
def test_commit_of_an_attempt_that_is_not_published_is_durable(
    tmp_path: Path, ids: bool, hand_over: bool
) -> None:
    process = Store(tmp_path, ids)
    assert process.commit(FIRST, merge=True, hand_over=hand_over)
    assert not process.commit(FIRST)
    assert process.newest(FIRST) == FIRST.encode()
    name = CheckpointName(2, FIRST if ids else None)
    assert load(process.store, name)["default"] == {b"attempt": FIRST.encode()}
    assert hand_over or process.publish(FIRST) == []


@both
@pytest.mark.parametrize("fails", [True, False], ids=["fails", "succeeds"])
def test_commit_of_an_attempt_in_publication_awaits_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: bool, fails: bool
) -> None:
    process = Store(tmp_path, ids)
    process.commit(FIRST, merge=True)
    create = process.files.create_of_parts
    begun, goes_on = threading.Event(), threading.Event()

    def hang(path: str, parts: Sequence[Buffer]) -> None:
        begun.set()
        assert goes_on.wait(30)
        if fails:
            raise OSError("the storage is gone")
        create(path, parts)

    def publish() -> None:
        if fails:
            with pytest.raises(CheckpointIOError, match="the storage is gone"):
                process.publish(FIRST)
        else:
            process.publish(FIRST)

    monkeypatch.setattr(process.files, "create_of_parts", hang)
    committed: list[bool] = []
    publishing = threading.Thread(target=publish)
    publishing.start()
    assert begun.wait(30)
    # Forgetting what is published must not hide what is being published.
    process.merged.forget()
    committing = threading.Thread(target=lambda: committed.append(process.commit(FIRST)))
    committing.start()
    committing.join(0.2)
    assert committed == []
    goes_on.set()
    publishing.join()
    committing.join()
    assert committed == [False]
    assert process.newest(FIRST) == FIRST.encode()


def test_later_attempt_in_a_file_of_its_own_supersedes_a_pending_one(tmp_path: Path) -> None:
    """In checkpoint format v1 the last attempt of a store counts, whichever is published last."""
    process = Store(tmp_path, ids=False)
    process.commit(FIRST, merge=True)
    process.commit(SECOND)
    assert process.publish(FIRST) == []
    assert process.newest(SECOND) == SECOND.encode()
    assert load(process.store, CheckpointName(2))["default"] == {b"attempt": SECOND.encode()}


@pytest.mark.parametrize(
    ("ids", "hand_over"), [(False, False), (True, False), (True, True)], ids=["v1", "v2", "v2-handed-over"]
)
def test_commit_that_was_cancelled_is_not_merged(tmp_path: Path, ids: bool, hand_over: bool) -> None:
    """A late attempt does not supersede its retry, which the JVM has in memory."""
    process = Store(tmp_path, ids)
    process.commit(SECOND, merge=True)
    before = enter(RequestContext(60.0, is_connected=lambda: False))
    try:
        with pytest.raises(ConnectionAbortedError, match="nothing is published"):
            process.commit(FIRST, merge=True, hand_over=hand_over)
    finally:
        enter(before)
    assert process.publish(SECOND) == []
    assert process.newest(SECOND) == SECOND.encode()
    assert process.merged.find(process.store.metadata_path(CheckpointName(2, FIRST))) is None
    view = process.open(MergedFiles(process.files, f"{tmp_path}/state"))
    assert [path for path in view.files.list_files(view.directory) if FIRST in path.path] == []


@pytest.mark.parametrize("merge", [True, False], ids=["merged", "own-file"])
def test_late_attempt_does_not_supersede_a_committed_one_beside_the_next_version(
    tmp_path: Path, merge: bool
) -> None:
    """In checkpoint format v1 each version of a publication may be one that Spark has committed."""
    process = Store(tmp_path, ids=False)
    (tmp_path / "commits").mkdir()
    process.store = StoreDirectory(
        StoreId(0, 0),
        f"{tmp_path}/state/0/0",
        StorageOptions(),
        commits=f"{tmp_path}/commits",
        merged_of=lambda *_: process.merged,
    )
    process.commit(FIRST, merge=merge)
    process.commit(FIRST, version=3, merge=True)
    process.publish(FIRST)
    for batch in (1, 2):
        (tmp_path / f"commits/{batch}").write_bytes(b"v1\n{}")
    process.commit(SECOND, version=4, merge=True)
    process.commit(SECOND, merge=True)
    with pytest.raises(CheckpointExistsError, match=r"Spark's commit log .* contains batch 1"):
        process.publish(SECOND)
    assert process.newest(FIRST) == FIRST.encode()
    # The batch runs again.
    process.commit(SECOND, version=4, merge=True)
    assert process.publish(SECOND) == []
    assert process.newest(FIRST) == FIRST.encode()

"""The backend's stores and merged files: shared by the stores of a run, and dropped without a loss."""

from __future__ import annotations

import gc
import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PurePosixPath
from types import FunctionType, ModuleType
from typing import Any

import pytest

from spark_statestore.backend import open_stores
from spark_statestore.backend.handlers import Requests
from spark_statestore.backend.open_stores import OpenStores
from spark_statestore.files.remote import FsspecFileSystem
from spark_statestore.storage.merged_files import MergedFiles
from spark_statestore.store.directory import StoreDirectory
from tests.spark.counting import wait_until
from tests.unit.backend.backends import Answer, Client, cleanup, commit, data, serving
from tests.unit.store.stores import attempt_id

both = pytest.mark.parametrize("ids", [False, True], ids=["v1", "v2"])


def count_objects(requests: Requests, kind: type) -> int:
    """Return the number of objects that the handlers refer to, directly or not."""
    visited: dict[int, object] = {id(requests): requests}
    queue: list[object] = [requests]
    while queue:
        for referent in gc.get_referents(queue.pop()):
            if id(referent) not in visited and not isinstance(referent, type | ModuleType | FunctionType):
                visited[id(referent)] = referent
                queue.append(referent)
    return sum(type(referent) is kind for referent in visited.values())


@dataclass
class Run:
    """A run of a query with two partitions, whose tasks hand their commits over."""

    client: Client
    root: PurePath
    name: str
    ids: bool
    scheme: str = "file:"
    attempts: dict[int, str] = field(default_factory=dict)

    def store(self, partition: int, instance: str = "") -> dict[str, Any]:
        return {
            "instance": f"{self.root} {self.name} {partition} {instance}",
            "root": f"{self.scheme}{self.root}/state/0/{partition}",
            "operator": 0,
            "partition": partition,
            "name": "default",
            "commits": f"{self.scheme}{self.root}/commits",
            "run": self.name,
            "options": {},
        }

    def commit(self, partition: int, version: int, *, instance: str = "", **changes: Any) -> Answer:
        """Commit a version with the whole state."""
        attempt = changes.pop("attempt", None) or attempt_id()
        request = commit(
            self.root, version, attempt, store=self.store(partition, instance), idInPath=self.ids
        )
        if version > 1:
            request["parentAttemptId"] = self.attempts[partition]
        return self.client.ask(request | changes, data({b"version": b"%d" % version}))

    def batch(self, partition: int, version: int, *, instance: str = "") -> str:
        """Commit a version with those of its batch; return the attempt."""
        answer = self.commit(partition, version, instance=instance, merge=True)
        assert answer.error is None
        assert answer.control["merged"] is (version > 1)
        return str(answer.control["attemptId"])

    def begin(self) -> None:
        """Commit version 1 of each store."""
        for partition in range(2):
            answer = self.commit(partition, 1)
            assert answer.error is None
            self.attempts[partition] = answer.control["attemptId"]

    def publish(self, version: int, attempts: list[str], partition: int = 0, instance: str = "") -> list[str]:
        """Publish the commits of a batch; return the attempts that are missing."""
        store = self.store(partition, instance)
        answer = self.client.ask({"op": "publish", "store": store, "version": version, "attempts": attempts})
        assert answer.error is None
        return list(answer.control["missing"])

    def enter(self, version: int) -> None:
        """Add the batch that made a version to the commit log."""
        ids = {"0": [[self.attempts[partition]] for partition in range(2)]} if self.ids else {}
        entry = json.dumps({"nextBatchWatermarkMs": 0} | ({"stateUniqueIds": ids} if ids else {}))
        Path(self.root, "commits", str(version - 1)).write_text(f"v2\n{entry}")

    def clean_up(self, partition: int, version: int, retain_from: int) -> None:
        request = cleanup(self.root, version, self.attempts[partition], retain_from)
        answer = self.client.ask(request | {"store": self.store(partition), "idInPath": self.ids})
        assert answer.error is None, answer.error

    def newest(self, partition: int, version: int, attempt: str) -> str:
        """Return the attempt of a version as a new process finds it."""
        with serving(Requests()) as client:
            request = {"op": "load", "store": self.store(partition, "other"), "version": version}
            loaded = client.ask(request | ({"id": attempt} if self.ids else {}))
            assert loaded.error is None, loaded.error
            return str(loaded.control["attemptId"])


@pytest.fixture
def requests() -> Requests:
    return Requests()


@pytest.fixture
def client(requests: Requests) -> Iterator[Client]:
    with serving(requests) as serves:
        yield serves


@pytest.fixture
def caches_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the handlers cache one store."""
    monkeypatch.setattr(open_stores, "_CACHED_STORES", 1)


def close(client: Client, *stores: dict[str, Any], runs: Sequence[str] = ()) -> None:
    instances = [store["instance"] for store in stores]
    assert client.ask({"op": "close", "instances": instances, "runs": list(runs)}).error is None


@both
@pytest.mark.usefixtures("caches_one")
def test_commits_of_runs_in_turns_are_published_by_batch(client: Client, tmp_path: Path, ids: bool) -> None:
    runs = [Run(client, tmp_path / name, name, ids) for name in ("a", "b")]
    for run in runs:
        run.begin()
    attempts = [[run.batch(0, 2) for run in runs], [run.batch(1, 2, instance="later") for run in runs]]
    for run, handed_over in zip(runs, zip(*attempts, strict=True), strict=True):
        assert run.publish(2, list(handed_over), 1, "later") == []
        for partition, attempt in enumerate(handed_over):
            assert run.newest(partition, 2, attempt) == attempt


@both
def test_commits_of_closed_stores_are_published_by_batch(client: Client, tmp_path: Path, ids: bool) -> None:
    run = Run(client, tmp_path, "a", ids)
    run.begin()
    attempts = [run.batch(partition, 2) for partition in range(2)]
    close(client, run.store(0), run.store(1))
    gc.collect()
    assert run.publish(2, attempts, 1) == []
    assert [run.newest(partition, 2, attempts[partition]) for partition in range(2)] == attempts


def test_store_that_a_request_uses_is_not_opened_twice(tmp_path: Path, caches_one: None) -> None:
    run = Run(None, tmp_path, "a", ids=True)
    stores = OpenStores()
    used = stores.get(run.store(0))
    stores.get(run.store(1))
    assert stores.get(run.store(0)) is used
    stores.close([run.store(0)["instance"]], [])
    assert stores.get(run.store(0)) is used


@both
@pytest.mark.parametrize("cached", [1, 100])
def test_cleanup_of_evicted_stores_leaves_the_retained_versions(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: bool, cached: int
) -> None:
    monkeypatch.setattr(open_stores, "_CACHED_STORES", cached)
    run = Run(client, tmp_path, "a", ids)
    run.begin()
    (tmp_path / "commits").mkdir()
    for version in range(2, 7):
        attempts = {partition: run.batch(partition, version) for partition in range(2)}
        assert run.publish(version, list(attempts.values())) == []
        run.attempts = attempts
        run.enter(version)
        for partition in range(2):
            run.clean_up(partition, version, version - 1)
    for partition in range(2):
        assert run.newest(partition, 6, run.attempts[partition]) == run.attempts[partition]
    assert sorted(path.name for path in tmp_path.glob("state/0/*/chk-*")) == []
    run.publish(6, [])
    merged = tmp_path / "state" / "_merged"
    assert wait_until(lambda: sorted(path.name for path in merged.iterdir()) == ["5-5-0", "6-6-0"], 10)


def test_closed_stores_and_ended_runs_are_dropped(requests: Requests, client: Client, tmp_path: Path) -> None:
    runs = [Run(client, tmp_path / name, name, ids=True) for name in ("a", "b", "c")]
    for run in runs:
        run.begin()
        run.batch(0, 2)
    assert (count_objects(requests, StoreDirectory), count_objects(requests, MergedFiles)) == (6, 3)
    # Unpublished metadata is kept until the run ends.
    close(client, runs[0].store(0), runs[0].store(1))
    assert (count_objects(requests, StoreDirectory), count_objects(requests, MergedFiles)) == (4, 3)
    close(client, runs=["a", "b"])
    assert (count_objects(requests, StoreDirectory), count_objects(requests, MergedFiles)) == (2, 1)
    # A late task of a run that has ended: nothing publishes what it adds.
    late = runs[1].batch(0, 2)
    assert (count_objects(requests, StoreDirectory), count_objects(requests, MergedFiles)) == (3, 2)
    assert runs[1].publish(2, [late]) == []
    runs[1].batch(0, 3)
    close(client, runs[1].store(0), {"instance": "unknown"}, runs=["unknown"])
    assert (count_objects(requests, StoreDirectory), count_objects(requests, MergedFiles)) == (2, 1)


def test_physical_files_in_memory_are_released_with_the_last_store(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(client, PurePosixPath(f"/{uuid.uuid4()}"), "a", ids=True, scheme="memory:/")
    run.begin()
    attempts = [run.batch(partition, 2) for partition in range(2)]
    assert run.publish(2, attempts) == []
    reads: list[str] = []
    files_read = FsspecFileSystem.read

    def counted(files: FsspecFileSystem, path: str, start: int = 0, size: int | None = None) -> bytes:
        if path.endswith("_merged/2-2-0") and size is None:
            reads.append(path)
        return files_read(files, path, start, size)

    monkeypatch.setattr(FsspecFileSystem, "read", counted)
    for instances in ([], [0], [0, 1], []):
        close(client, *(run.store(partition) for partition in instances))
        for partition in range(2):
            request = {"op": "load", "store": run.store(partition), "version": 2, "id": attempts[partition]}
            assert client.ask(request).error is None
    assert len(reads) == 2

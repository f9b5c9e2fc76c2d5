"""Stores that move between executors, each with its own listing, lose no retained or held version."""

from __future__ import annotations

import random
import time
from collections.abc import Collection
from pathlib import Path
from unittest.mock import patch

import pytest

from spark_statestore.formats.merged_files import PhysicalName
from spark_statestore.query.verify import verify
from spark_statestore.storage import CheckpointName
from spark_statestore.storage.merged_index import MergedIndex, PhysicalFile
from spark_statestore.storage.physical_files import PhysicalFiles
from spark_statestore.store import commit
from spark_statestore.store.cleanup import discard_versions
from spark_statestore.store.holds import announce_holds, holds_directory_of
from tests.unit.query.stored_query import Attempt, StoredQuery

PARTITIONS = 3
EXECUTORS = 3
RETAINED = 3
WORDS = [f"word{number}" for number in range(60)]


class Cluster:
    """A query on a cluster: its driver publishes, and its stores move between executors at random.

    Its driver rewrites files at random. Between the creation of a copy and the deletion of the files that it
    replaces, executors list the directory and clean up.
    """

    def __init__(self, directory: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.driver = StoredQuery(directory, partitions=PARTITIONS, merges=True)
        self.executors = [self.driver.restart(0) for _ in range(EXECUTORS)]
        for executor in self.executors:
            executor.states, executor.counted = self.driver.states, self.driver.counted
            for merged in executor.merged.values():
                merged.reports_discards = True
        self.places: list[StoredQuery | None] = [None] * PARTITIONS
        self.versions_by_hold: dict[str, int] = {}
        """The held versions by the path of the hold."""
        self.moves = self.copies = 0

    def name(self, partition: int) -> CheckpointName:
        """The newest version of a partition's store."""
        return CheckpointName(len(self.driver.states), self.driver.counted[-1][partition].id)

    def executor(self, partition: int) -> StoredQuery:
        """The executor of a partition's next task, which loads the store if that moves."""
        place = self.places[partition]
        if place is None or self.random.random() < 0.3:
            chosen = self.random.choice(self.executors)
            if chosen is not place:
                place = self.places[partition] = chosen
                self.moves += 1
                if self.driver.states:
                    place.stores[partition] = place.open(partition)
                    place.stores[partition].load(self.name(partition))
        return place

    def commit(self, partition: int, counts: dict[str, int]) -> Attempt:
        """Run a partition's task, which may hand over no metadata and may take up a snapshot."""
        executor = self.executor(partition)
        is_first = not self.driver.states
        base = executor.snapshot(partition) if not is_first and self.random.random() < 0.2 else None
        largest = 0 if self.random.random() < 0.3 else 1 << 20
        with patch.object(commit, "LARGEST_HANDED_OVER", largest):
            return executor.commit(partition, counts, base, hand_over=not is_first)

    def batch(self) -> None:
        """Run a batch, and maintenance of some stores."""
        words = self.random.sample(WORDS, self.random.choice([3, 20])) if self.driver.states else WORDS
        counts = {word: self.random.randrange(1_000_000) for word in words}
        self.driver.begin()
        attempts = [self.commit(partition, counts) for partition in range(PARTITIONS)]
        version = len(self.driver.states) + 1
        handed_over = [
            (
                f"0/{partition}/{CheckpointName(version, attempt.id).directory}/_metadata",
                attempt.committed.metadata,
            )
            for partition, attempt in enumerate(attempts)
            if attempt.committed.metadata is not None
        ]
        discarded = [
            path
            for executor in self.executors
            for merged in executor.merged.values()
            for path in merged.take_discarded()
        ]
        self.driver.stores[0].publish_merged([], handed_over, discarded)
        self.driver.finish(attempts, counts)
        self.driver.stores[0].sweep_merged()
        self.change_holds()
        self.clean_up()

    def clean_up(self) -> None:
        """Run the cleanups of some stores."""
        for partition, executor in enumerate(self.places):
            if executor is not None and self.random.random() < 0.5:
                name = self.name(partition)
                retain_from = max(1, name.version - RETAINED + 1)
                discard_versions(executor.stores[partition], name, name.id or "", retain_from, 0)

    def sparse(self, index: MergedIndex, version: int) -> list[PhysicalFile]:
        """Choose the files to rewrite, in the place of `MergedIndex.sparse`."""
        if self.random.random() < 0.7:
            return []
        old = [file for name, file in index.physical.items() if name.newest < version and file.live]
        chosen = [file for file in old if self.random.random() < 0.7]
        self.copies += len(chosen) > 1
        return chosen

    def before_deletion(self) -> None:
        """Let executors list, and clean up, before the driver deletes files."""
        for executor in self.executors:
            if self.random.random() < 0.5:
                for merged in executor.merged.values():
                    merged.look_for_others(time.monotonic())
        self.clean_up()

    def change_holds(self) -> None:
        """Hold a retained version, as a pointer savepoint does, or remove a hold."""
        store, newest = self.driver.stores[0], len(self.driver.states)
        directory = holds_directory_of(store.directory, store.store)
        assert directory is not None
        if newest > RETAINED and self.random.random() < 0.1:
            version = newest - self.random.randrange(RETAINED)
            path = f"{directory}/{version}-savepoint{newest}"
            announce_holds(store.files, directory)
            store.files.create(path, b"")
            self.versions_by_hold[path] = version
        if self.versions_by_hold and self.random.random() < 0.07:
            path = self.random.choice(list(self.versions_by_hold))
            store.files.delete(path)
            del self.versions_by_hold[path]

    def check(self) -> None:
        """Check that all retained and held versions are whole."""
        newest = len(self.driver.states)
        for version in {*range(max(1, newest - RETAINED + 1), newest + 1), *self.versions_by_hold.values()}:
            report = verify(self.driver.url, version - 1)
            assert report.problems == (), f"version {version}, at version {newest}"


@pytest.mark.parametrize(
    ("seed", "batches"),
    [(2, 60), *(pytest.param(seed, 400, marks=pytest.mark.soak) for seed in range(100, 130))],
)
def test_stores_that_move_keep_retained_and_held_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, batches: int
) -> None:
    cluster = Cluster(tmp_path / "checkpoint", seed)
    delete = PhysicalFiles.delete

    def delete_later(physical_files: PhysicalFiles, names: Collection[PhysicalName]) -> None:
        cluster.before_deletion()
        delete(physical_files, names)

    monkeypatch.setattr(PhysicalFiles, "delete", delete_later)
    monkeypatch.setattr(MergedIndex, "sparse", lambda index, version: cluster.sparse(index, version))
    for number in range(1, batches + 1):
        cluster.batch()
        if number % 5 == 0:
            cluster.check()
    assert cluster.moves > batches // 2
    assert cluster.copies > batches // 20

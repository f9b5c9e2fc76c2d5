"""Merged files against a dict of paths, through generated batches, discards and restarts."""

from __future__ import annotations

import tempfile

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from spark_statestore.files import LocalFileSystem
from spark_statestore.storage import merged_index
from spark_statestore.storage.merged_files import MergedFiles
from spark_statestore.storage.merged_lookup import MergedUsage
from tests.support.effort import EFFORT
from tests.unit.storage.merged import allow, attempt, metadata

# Most bytes of header, index and footer of a physical file with six logical files.
_INDEX_BYTES = 1_000


class MergedFilesMachine(RuleBasedStateMachine):
    """Runs that add, publish, discard and restart, against a dict of paths; total size is bounded."""

    def __init__(self) -> None:
        super().__init__()
        self.scratch = tempfile.TemporaryDirectory()
        self.files = LocalFileSystem()
        self.state = f"{self.scratch.name}/state"
        self.version = 1
        self.number = 0
        self.expected: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        self.restart()

    @rule()
    def restart(self) -> None:
        self.merged = MergedFiles(self.files, self.state)
        # A run rewrites nothing before its first batch.
        self.newest = 0
        # Each store discards again the versions that it had discarded in the run before.
        for status in self.merged.list_files(self.state):
            if status.path not in self.expected:
                self.merged.discard(status.path)

    def path(self, store: int, version: int, number: int) -> str:
        return f"{self.state}/0/{store}/chk-{version}_{attempt(number)}/_metadata"

    @rule(stores=st.sets(st.integers(0, 5), min_size=1), sizes=st.sampled_from([0, 100, 5_000]))
    def batch(self, stores: set[int], sizes: int) -> None:
        added = {}
        for store in stores:
            self.number += 1
            where = self.path(store, self.version, self.number)
            self.merged.add(where, attempt(self.number), metadata(self.number, sizes), allow)
            added[where] = self.number, sizes
        assert self.merged.publish([attempt(number) for number, _ in added.values()], allow)[0] == []
        self.sizes |= {where: size for where, (_, size) in added.items()}
        self.expected |= {where: number for where, (number, _) in added.items()}
        self.newest = self.version
        self.version += 1
        self.merged.sweep()

    @rule(store=st.integers(0, 5))
    def lost_batch(self, store: int) -> None:
        """Add metadata, and end before it is published."""
        self.number += 1
        self.merged.add(
            self.path(store, self.version, self.number), attempt(self.number), metadata(self.number), allow
        )
        self.restart()

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        # Many at once leave sparse files.
        for where in sorted(data.draw(st.sets(st.sampled_from(sorted(self.expected)), min_size=1))):
            assert self.merged.discard(where)
            del self.expected[where]

    @invariant()
    def finds_what_was_not_discarded(self) -> None:
        fresh = MergedFiles(self.files, self.state)
        for where, number in self.expected.items():
            for merged in (self.merged, fresh):
                file = merged.find(where)
                assert file is not None, where
                assert merged.read(file) == bytes(metadata(number, self.sizes[where]))

    @invariant()
    def counts_what_is_there(self) -> None:
        statuses = self.files.list_files(f"{self.state}/_merged")
        sizes = [status.size for status in statuses]
        live = [metadata(number, self.sizes[where]).size for where, number in self.expected.items()]
        assert self.merged.usage() == MergedUsage(len(sizes), sum(sizes), len(live), sum(live))

    @invariant()
    def takes_at_most_about_twice_what_was_not_discarded(self) -> None:
        # Discards since the last batch are not swept, and its own file is not rewritten.
        self.merged.sweep()
        live = sum(metadata(number, self.sizes[where]).size for where, number in self.expected.items())
        size_by_name = {
            status.path.rpartition("/")[2]: status.size
            for status in self.files.list_files(f"{self.state}/_merged")
        }
        old = [size for name, size in size_by_name.items() if int(name.split("-")[1]) < self.newest]
        assert sum(old) <= 2 * live + _INDEX_BYTES * len(size_by_name)

    def teardown(self) -> None:
        self.scratch.cleanup()


def test_merged_files_behave_like_a_dict_of_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merged_index, "_LITTLE", 0)
    run_state_machine_as_test(
        MergedFilesMachine, settings=settings(max_examples=60 * EFFORT, stateful_step_count=30)
    )

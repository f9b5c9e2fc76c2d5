"""State machine rules for the versions of a store; subclasses define its content."""

from __future__ import annotations

import shutil
import tempfile
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

import spark_statestore
from tests.spark.families_model import FamilyModel, copy_of, families_of
from tests.spark.harness import IMMEDIATE_CLEANUP, Family, Provider, Store
from tests.support.effort import EFFORT

RETAINED = 4


class VersionsMachine(RuleBasedStateMachine):
    """Opens, commits, aborts, loses and reloads one store; a model has each version's expected content."""

    spark: Any = None
    default = Family()
    checkpoint_format = 1
    provider_class = spark_statestore.PROVIDER_CLASS
    keeps_copies = False
    settings: dict[str, str] = {}  # noqa: RUF012 - for subclasses to set

    def __init__(self) -> None:
        super().__init__()
        self.location = tempfile.mkdtemp(prefix="statestore-machine-")
        self.providers: list[Provider] = []
        # The content of every version that may be requested, and its id in format v2.
        self.committed: dict[int, dict[str, FamilyModel]] = {0: families_of(self.default)}
        self.ids: dict[int, str | None] = {0: None}
        self.highest = 0
        self.store: Store | None = None
        self.version = 0
        self.content: dict[str, FamilyModel] = {}

    # For the subclass

    def number_of_keys(self) -> int | None:
        """Return the expected number of keys in the metrics, None if it is unknown."""
        raise NotImplementedError

    def check_all(self, store: Store, content: dict[str, FamilyModel], *, writing: bool) -> None:
        """Compare the whole content of a store; if it was just opened, declare its column families first."""
        raise NotImplementedError

    # Opening

    @property
    def is_statestore(self) -> bool:
        return self.provider_class == spark_statestore.PROVIDER_CLASS

    @property
    def provider(self) -> Provider:
        return self.providers[-1]

    def new_provider(self, copies: bool = False) -> Provider:
        copied = {"backend__localRecovery": f"{self.location}/copies"} if copies or self.keeps_copies else {}
        provider = Provider(
            self.spark,
            f"file:{self.location}",
            provider=self.provider_class,
            checkpointFormatVersion=str(self.checkpoint_format),
            minDeltasForSnapshot="2",
            backend__fileStateThreshold="1k",
            families=True,
            default=self.default,
            **{"spark.sql.streaming.minBatchesToRetain": str(RETAINED)},
            **IMMEDIATE_CLEANUP,
            **copied,
            **self.settings,
        )
        self.providers.append(provider)
        return provider

    @initialize()
    def start(self) -> None:
        self.new_provider()

    def begin(self, store: Store, version: int) -> None:
        self.store = store
        self.version = version
        self.content = copy_of(self.committed[version])
        self.check_all(store, self.content, writing=True)

    def pick(self, data: st.DataObject) -> int:
        newest = max(self.committed)
        if not self.is_statestore and self.checkpoint_format == 1:
            # RocksDB may write a snapshot of an abandoned version for its successor.
            return newest
        lowest = max(0, self.highest - RETAINED)
        older = [v for v in sorted(self.committed) if v >= lowest]
        return data.draw(st.sampled_from([newest, newest, newest, *older]))

    def open_newest(self) -> None:
        version = max(self.committed)
        self.begin(self.provider.open(version, self.ids[version]), version)

    @precondition(lambda self: self.store is None)
    @rule(data=st.data(), how=st.sampled_from(["write", "write", "upgrade", "force"]))
    def open(self, data: st.DataObject, how: str) -> None:
        version = self.pick(data)
        checkpoint_id = self.ids[version]
        if how == "write":
            self.begin(self.provider.open(version, checkpoint_id), version)
        elif how == "force":
            self.begin(self.provider.open_forced(version, checkpoint_id), version)
        else:
            read_store = self.provider.open_read(version, checkpoint_id)
            self.check_all(read_store, self.committed[version], writing=False)
            self.begin(self.provider.upgrade(read_store, version, checkpoint_id), version)
            # RocksDB converts one into the other, so that both would end.
            if self.is_statestore:
                read_store.release()

    @precondition(lambda self: self.store is None)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        self.read_version(self.provider, self.pick(data))

    def read_version(self, provider: Provider, version: int) -> None:
        read_store = provider.open_read(version, self.ids[version])
        self.check_all(read_store, self.committed[version], writing=False)
        read_store.release()

    # Ending

    @precondition(lambda self: self.store is not None)
    @rule()
    def commit(self) -> None:
        store = self.store
        assert store.commit() == self.version + 1
        self.store = None
        assert store.has_committed
        assert self.number_of_keys() in (store.metrics["numKeys"], None)
        assert store.metrics["memoryUsedBytes"] > 0
        checkpoint_id = store.checkpoint_id
        assert (checkpoint_id is None) == (self.checkpoint_format == 1)
        assert store.base_checkpoint_id == self.ids[self.version]
        if self.is_statestore and self.checkpoint_format == 1 and self.version < self.highest:
            # Without ids an instance goes on from its own attempt in memory: tests/model/INVARIANTS.md.
            for provider in self.providers[:-1]:
                provider.close()
            del self.providers[:-1]
        self.committed = {v: content for v, content in self.committed.items() if v <= self.version}
        self.committed[self.version + 1] = self.content
        self.ids[self.version + 1] = checkpoint_id
        self.highest = max(self.highest, self.version + 1)

    @precondition(lambda self: self.store is not None)
    @rule()
    def abort(self) -> None:
        self.store.abort()
        self.store.abort()
        assert not self.store.has_committed
        self.store = None

    # Events that may happen at any moment

    @precondition(lambda self: len(self.committed) > 1)
    @rule(copies=st.booleans())
    def move_to_another_instance(self, copies: bool) -> None:
        if self.is_statestore:
            # The task that held the store, if any, has disappeared.
            self.store = None
        elif self.store is not None:
            self.abort()
        if len(self.providers) > (2 if self.is_statestore else 0):
            self.providers.pop(0).close()
        self.new_provider(copies and self.is_statestore)

    @precondition(lambda self: self.is_statestore and len(self.providers) > 1)
    @rule()
    def return_to_an_earlier_instance(self) -> None:
        # It may have an earlier version in memory and, with ids, an attempt that does not count.
        self.store = None
        self.providers.append(self.providers.pop(0))

    @precondition(lambda self: len(self.committed) > 1)
    @rule(data=st.data())
    def maintain(self, data: st.DataObject) -> None:
        provider = data.draw(st.sampled_from(self.providers))
        if data.draw(st.booleans()):
            provider.snapshot()
        else:
            provider.cleanup()

    def teardown(self) -> None:
        try:
            if self.providers:
                fresh = self.new_provider()
                for version in sorted(self.committed):
                    if version >= max(0, self.highest - RETAINED):
                        self.read_version(fresh, version)
        finally:
            for provider in self.providers:
                if not self.is_statestore:
                    provider.end_stores()
                provider.close()
            shutil.rmtree(self.location, ignore_errors=True)


def run_machine(machine: type[VersionsMachine], examples: int, *, steps: int = 40, **attributes: Any) -> None:
    """Run a machine with some of its attributes set."""
    chosen = settings(max_examples=examples * EFFORT, stateful_step_count=steps)
    run_state_machine_as_test(type("Machine", (machine,), attributes), settings=chosen)

"""The provider against a plain dict, through everything that may happen to a store."""

from __future__ import annotations

import shutil
import tempfile
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.effort import EFFORT
from tests.spark.harness import CLEAN_AT_ONCE, Provider, RowIterator, Store

RETAINED = 4

# Few keys, so that what is done to one meets what was done to it before.
PREFIXES = ["", "größe"]
keys = st.tuples(st.sampled_from(PREFIXES), st.integers(0, 2))
# A number stands for a text of that length. Some values are larger than what stays inside the
# metadata, and a few of the largest ones make a state large enough for background snapshots.
values = st.tuples(
    st.integers(-(2**63), 2**63 - 1),
    st.one_of(st.none(), st.text(max_size=8), st.sampled_from([1_500, 30_000])),
)


class ProviderMachine(RuleBasedStateMachine):
    """Opens, writes, commits, aborts, loses and reloads one store; a dict says what it must hold."""

    spark: Any = None
    prefix_columns = 0
    checkpoint_format = 1
    storage = "filesystem"

    iterators = Bundle("iterators")

    def __init__(self) -> None:
        super().__init__()
        self.location = tempfile.mkdtemp(prefix="statestore-machine-")
        self.providers: list[Provider] = []
        # Of every version that may be asked for: what it holds, and its id in format v2.
        self.committed: dict[int, dict[Any, Any]] = {0: {}}
        self.ids: dict[int, str | None] = {0: None}
        self.highest = 0
        self.store: Store | None = None
        self.version = 0
        self.rows: dict[Any, Any] = {}

    def new_provider(self) -> Provider:
        provider = Provider(
            self.spark,
            f"file:{self.location}",
            prefix_columns=self.prefix_columns,
            checkpointFormatVersion=str(self.checkpoint_format),
            backend__storage=self.storage,
            backend__snapshotInterval="2",
            backend__numRetained=str(RETAINED),
            backend__fileStateThreshold="1k",
            **CLEAN_AT_ONCE,
        )
        self.providers.append(provider)
        return provider

    @initialize()
    def start(self) -> None:
        self.new_provider()

    @property
    def provider(self) -> Provider:
        return self.providers[-1]

    def begin(self, store: Store, version: int) -> None:
        self.store = store
        self.version = version
        self.rows = dict(self.committed[version])
        self.check_all(store, self.rows)

    def check_all(self, store: Store, rows: dict[Any, Any]) -> None:
        found = store.rows()
        assert len(found) == len(rows)
        assert dict(found) == rows
        if self.prefix_columns:
            for prefix in PREFIXES:
                found = store.prefix_rows(prefix)
                wanted = {k: v for k, v in rows.items() if k[0] == prefix}
                assert len(found) == len(wanted)
                assert dict(found) == wanted

    # Opening

    def pick(self, data: st.DataObject) -> int:
        newest = max(self.committed)
        lowest = max(0, self.highest - RETAINED)
        older = [v for v in sorted(self.committed) if v >= lowest]
        return data.draw(st.sampled_from([newest, newest, newest, *older]))

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
            read = self.provider.open_read(version, checkpoint_id)
            self.check_all(read, self.committed[version])
            self.begin(self.provider.upgrade(read, version, checkpoint_id), version)
            read.release()

    @precondition(lambda self: self.store is None)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        version = self.pick(data)
        read = self.provider.open_read(version, self.ids[version])
        self.check_all(read, self.committed[version])
        read.release()

    @precondition(lambda self: self.store is None)
    @rule(rows=st.dictionaries(keys, values), removed=st.sets(keys, max_size=2), seen=st.booleans())
    def batch(self, rows: dict[Any, Any], removed: set[Any], seen: bool) -> None:
        # What a query does most of the time, in one step, so that runs get to many versions.
        version = max(self.committed)
        self.begin(self.provider.open(version, self.ids[version]), version)
        self.put(rows)
        self.remove(removed)
        if seen:
            self.check_all(self.store, self.rows)
        self.commit()

    # Writing and reading

    @precondition(lambda self: self.store is not None)
    @rule(rows=st.dictionaries(keys, values, min_size=1))
    def put(self, rows: dict[Any, Any]) -> None:
        for key, value in rows.items():
            self.store.put(key, value)
        self.rows |= rows

    @precondition(lambda self: self.store is not None)
    @rule(removed=st.sets(keys, min_size=1, max_size=3))
    def remove(self, removed: set[Any]) -> None:
        for key in removed:
            self.store.remove(key)
            self.rows.pop(key, None)

    @precondition(lambda self: self.store is not None)
    @rule(key=keys)
    def check(self, key: Any) -> None:
        assert self.store.get(key) == self.rows.get(key)
        assert self.store.exists(key) == (key in self.rows)
        self.check_all(self.store, self.rows)

    @precondition(lambda self: self.store is not None)
    @rule(key=keys)
    def churn(self, key: Any) -> None:
        # Enough dead bytes for a compaction when the store is opened next.
        for i in range(12):
            self.store.put(key, (i, 60_000))
        self.store.put(key, (0, "small"))
        self.rows[key] = (0, "small")

    # Iterators that live on while the store is written to

    @precondition(lambda self: self.store is not None)
    @rule(target=iterators, key=keys, by_prefix=st.booleans())
    def open_iterator(self, key: Any, by_prefix: bool) -> Any:
        if by_prefix and self.prefix_columns:
            rows = {k: v for k, v in self.rows.items() if k[0] == key[0]}
            return (self.store, self.store.prefix_iterator(key[0]), rows)
        return (self.store, self.store.iterator(), dict(self.rows))

    @rule(target=iterators, opened=consumes(iterators), remove=st.booleans(), drain=st.booleans())
    def step(self, opened: Any, remove: bool, drain: bool) -> Any:
        store, iterator, expected = opened
        if store is not self.store:
            # Its store was committed or aborted: nobody asks it any more.
            iterator.close()
            return multiple()
        going = self.advance(iterator, expected, remove=remove)
        while drain and going:
            going = self.advance(iterator, expected, remove=remove)
        return opened

    def advance(self, iterator: RowIterator, expected: dict[Any, Any], *, remove: bool) -> bool:
        row = iterator.next_removed() if remove else iterator.next()
        if row is None:
            assert not expected
            return False
        key, value = row
        assert expected.pop(key) == value
        if remove:
            self.rows.pop(key, None)
        return True

    # Ending

    @precondition(lambda self: self.store is not None)
    @rule()
    def commit(self) -> None:
        assert self.store.commit() == self.version + 1
        assert self.store.has_committed
        assert self.store.metrics["numKeys"] == len(self.rows)
        assert self.store.metrics["memoryUsedBytes"] > 0
        checkpoint_id = self.store.checkpoint_id
        assert (checkpoint_id is None) == (self.checkpoint_format == 1)
        assert self.store.base_checkpoint_id == self.ids[self.version]
        self.committed = {v: rows for v, rows in self.committed.items() if v <= self.version}
        self.committed[self.version + 1] = self.rows
        self.ids[self.version + 1] = checkpoint_id
        self.highest = max(self.highest, self.version + 1)
        self.store = None

    @precondition(lambda self: self.store is not None)
    @rule()
    def abort(self) -> None:
        self.store.abort()
        self.store.abort()
        assert not self.store.has_committed
        self.store = None

    # What else may happen at any moment

    @precondition(lambda self: len(self.committed) > 1)
    @rule()
    def move_to_another_instance(self) -> None:
        # The task that held the store, if any, is gone without a word.
        self.store = None
        if len(self.providers) > 2:
            self.providers.pop(0).close()
        self.new_provider()

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
                        read = fresh.open_read(version, self.ids[version])
                        self.check_all(read, self.committed[version])
                        read.release()
        finally:
            for provider in self.providers:
                provider.close()
            shutil.rmtree(self.location, ignore_errors=True)


def run_machine(examples: int, **attributes: Any) -> None:
    machine = type("Machine", (ProviderMachine,), attributes)
    chosen = settings(max_examples=examples * EFFORT, stateful_step_count=40)
    run_state_machine_as_test(machine, settings=chosen)


@pytest.mark.parametrize("prefix_columns", [0, 1], ids=["hash", "prefix"])
@pytest.mark.parametrize("checkpoint_format", [1, 2], ids=["v1", "v2"])
def test_provider_is_a_versioned_dict(spark: Any, checkpoint_format: int, prefix_columns: int) -> None:
    run_machine(60, spark=spark, prefix_columns=prefix_columns, checkpoint_format=checkpoint_format)


@pytest.mark.parametrize("checkpoint_format", [1, 2], ids=["v1", "v2"])
def test_so_it_is_with_state_in_memory(spark: Any, checkpoint_format: int) -> None:
    run_machine(40, spark=spark, checkpoint_format=checkpoint_format, storage="memory")

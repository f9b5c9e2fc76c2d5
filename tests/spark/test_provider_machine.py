"""The provider against a plain dict, through generated sequences of a store's operations and failures."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import Bundle, consumes, initialize, multiple, precondition, rule

from spark_statestore.options import StorageOptions
from spark_statestore.storage import CheckpointName
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.metadata import StoreId
from tests.spark.harness import RowIterator, Store
from tests.spark.versions_machine import VersionsMachine, run_machine

# Few keys, so that operations meet earlier ones on the same key.
PREFIXES = ["", "größe"]
keys = st.tuples(st.sampled_from(PREFIXES), st.integers(0, 2))
# A number represents a text of that length. Some values are larger than the limit inside
# metadata, and a few of the largest ones make a state large enough for background snapshots.
values = st.tuples(
    st.integers(-(2**63), 2**63 - 1),
    st.one_of(st.none(), st.text(max_size=8), st.sampled_from([1_500, 120_000])),
)


class ProviderMachine(VersionsMachine):
    """Writes and reads the rows of one store; a dict has the expected rows."""

    prefix_columns = 0

    iterators = Bundle("iterators")

    def empty(self) -> dict[Any, Any]:
        return {}

    def copied(self, content: dict[Any, Any]) -> dict[Any, Any]:
        return dict(content)

    def provider_options(self) -> dict[str, Any]:
        return {"prefix_columns": self.prefix_columns}

    def number_of_keys(self) -> int:
        return len(self.content)

    def check_all(self, store: Store, content: dict[Any, Any], *, writing: bool = True) -> None:
        script = store.script()
        script.rows()
        for prefix in PREFIXES if self.prefix_columns else []:
            script.prefix_rows(prefix)
        found, *by_prefix = script.run()
        assert len(found) == len(content)
        assert dict(found) == content
        for prefix, found in zip(PREFIXES, by_prefix, strict=False):
            wanted = {k: v for k, v in content.items() if k[0] == prefix}
            assert len(found) == len(wanted)
            assert dict(found) == wanted

    @precondition(lambda self: self.store is None)
    @rule(rows=st.dictionaries(keys, values), removed=st.sets(keys, max_size=2), seen=st.booleans())
    def batch(self, rows: dict[Any, Any], removed: set[Any], seen: bool) -> None:
        # The usual batch of a query in one step, so that runs reach many versions.
        self.open_newest()
        self.put(rows)
        self.remove(removed)
        if seen:
            self.check_all(self.store, self.content)
        self.commit()

    # Writing and reading

    @precondition(lambda self: self.store is not None)
    @rule(rows=st.dictionaries(keys, values, min_size=1))
    def put(self, rows: dict[Any, Any]) -> None:
        script = self.store.script()
        for key, value in rows.items():
            script.put(key, value)
        script.run()
        self.content |= rows

    @precondition(lambda self: self.store is not None)
    @rule(removed=st.sets(keys, min_size=1, max_size=3))
    def remove(self, removed: set[Any]) -> None:
        script = self.store.script()
        for key in removed:
            script.remove(key)
            self.content.pop(key, None)
        script.run()

    @precondition(lambda self: self.store is not None)
    @rule(key=keys)
    def check(self, key: Any) -> None:
        assert self.store.get(key) == self.content.get(key)
        assert self.store.exists(key) == (key in self.content)
        self.check_all(self.store, self.content)

    @precondition(lambda self: self.store is not None)
    @rule(key=keys)
    def churn(self, key: Any) -> None:
        # Enough dead bytes for a compaction when the store is opened next.
        script = self.store.script()
        for i in range(12):
            script.put(key, (i, 60_000))
        script.put(key, (0, "small"))
        script.run()
        self.content[key] = (0, "small")

    # Iterators that stay open while the store is written to

    @precondition(lambda self: self.store is not None)
    @rule(target=iterators, key=keys, by_prefix=st.booleans())
    def open_iterator(self, key: Any, by_prefix: bool) -> Any:
        if by_prefix and self.prefix_columns:
            rows = {k: v for k, v in self.content.items() if k[0] == key[0]}
            return (self.store, self.store.prefix_iterator(key[0]), rows)
        return (self.store, self.store.iterator(), dict(self.content))

    @rule(target=iterators, opened=consumes(iterators), remove=st.booleans(), drain=st.booleans())
    def step(self, opened: Any, remove: bool, drain: bool) -> Any:
        store, iterator, expected = opened
        if store is not self.store:
            # Its store was committed or aborted: it is no longer used.
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
            self.content.pop(key, None)
        return True


class LargeStateMachine(ProviderMachine):
    """A state that is so large that its changes are merged into runs in the background."""

    # Without compression the base stays larger than the changes.
    settings = {"backend__compression": "none"}  # noqa: RUF012 - a constant
    runs = 0

    @initialize()
    def start(self) -> None:
        super().start()
        self.open_newest()
        self.put({("filling", number): (number, 120_000) for number in range(8)})
        self.commit()

    @precondition(lambda self: self.store is None)
    @rule(rows=st.lists(st.tuples(keys, st.one_of(st.none(), st.integers(0, 9))), min_size=3, max_size=8))
    def batches(self, rows: list[Any]) -> None:
        """Commit several small batches, of which the last ones may be merged."""
        for place, (key, number) in enumerate(rows):
            self.open_newest()
            if number is None:
                self.remove({key})
            elif place % 4 == number % 4:
                # After two of them a batch begins with a compaction, which moves all records.
                self.churn(key)
            else:
                self.put({key: (number, "")})
            self.commit()
        self.provider.snapshot()

    @precondition(lambda self: self.store is not None)
    @rule()
    def commit(self) -> None:
        super().commit()
        version = max(self.committed)
        store = StoreDirectory(StoreId(0, 0), f"file:{self.location}/state/0/0", StorageOptions())
        handle = store.load(CheckpointName(version, self.ids[version])).handle
        LargeStateMachine.runs += any(entry.since is not None for entry in handle)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("checkpoint_format", "prefix_columns"), [(1, 1), (2, 0)], ids=["v1-prefix", "v2-hash"]
)
def test_provider_with_runs_equals_a_versioned_dict(
    spark: Any, checkpoint_format: int, prefix_columns: int
) -> None:
    LargeStateMachine.runs = 0
    run_machine(
        LargeStateMachine, 15, spark=spark, prefix_columns=prefix_columns, checkpoint_format=checkpoint_format
    )
    assert LargeStateMachine.runs > 20


@pytest.mark.parametrize(
    ("checkpoint_format", "prefix_columns"),
    [
        pytest.param(1, 0, id="v1-hash"),
        pytest.param(1, 1, id="v1-prefix"),
        pytest.param(2, 0, id="v2-hash"),
        pytest.param(2, 1, id="v2-prefix", marks=pytest.mark.first),
    ],
)
def test_provider_equals_a_versioned_dict(spark: Any, checkpoint_format: int, prefix_columns: int) -> None:
    run_machine(
        ProviderMachine, 40, spark=spark, prefix_columns=prefix_columns, checkpoint_format=checkpoint_format
    )


@pytest.mark.parametrize("checkpoint_format", [1, 2], ids=["v1", "v2"])
def test_provider_with_memory_storage_equals_a_versioned_dict(spark: Any, checkpoint_format: int) -> None:
    memory = {"backend__storage": "memory"}
    run_machine(ProviderMachine, 25, spark=spark, checkpoint_format=checkpoint_format, settings=memory)

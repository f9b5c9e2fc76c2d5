"""The change feed of generated writes: the net change of each key, in the change types of RocksDB's feed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tests.spark.change_feeds import by_key, net_changes
from tests.spark.families import LISTS, OURS, created, open_provider, value
from tests.spark.harness import ROCKSDB, Family, Open, Provider, Row
from tests.support.effort import EFFORT

PLAIN = Family("plain")
FAMILIES = {family.name: family for family in (PLAIN, LISTS)}

# Rows that no step changes: a batch then changes less than the whole state, and commits a delta.
BALLAST = [(("ballast", i), value(i, "x" * 500)) for i in range(20)]

Write = tuple[str, str, Row, Any]

KEY = ("a", 1)
keys = st.sampled_from([KEY, ("b", 2)])
values = st.sampled_from([value(1), value(2)])
several = st.lists(values, min_size=1, max_size=3)
writes = st.one_of(
    st.tuples(st.just("plain"), st.just("put"), keys, values),
    st.tuples(st.just("lists"), st.sampled_from(["put", "merge", "merge"]), keys, values),
    st.tuples(st.just("lists"), st.sampled_from(["put_list", "merge_list"]), keys, several),
    st.tuples(st.sampled_from(["plain", "lists"]), st.just("remove"), keys, st.none()),
)


@dataclass(frozen=True)
class Batch:
    """The writes of one batch, and what its task does."""

    writes: list[Write]
    aborted: list[Write]
    moves: bool = False
    forced: bool = False


batches = st.builds(
    Batch, st.lists(writes, max_size=8), st.lists(writes, max_size=3), st.booleans(), st.booleans()
)


def write(store: Any, writes: list[Write]) -> None:
    script = store.script()
    for family, operation, key, data in writes:
        arguments = (key,) if operation == "remove" else (key, data)
        getattr(script, operation)(*arguments, family=family)
    script.run()


def run(open_instance: Open, history: list[Batch]) -> Provider:
    """Commit a batch after the other; return the last instance."""
    provider = open_instance()
    for version, batch in enumerate([Batch([], []), *history]):
        if batch.moves:
            provider.end_stores()
            provider.close()
            provider = open_instance()
        if version and batch.aborted:
            store = created(provider.open(version), *FAMILIES.values())
            write(store, batch.aborted)
            store.abort()
        opened = (provider.open_forced if batch.forced else provider.open)(version)
        store = created(opened, *FAMILIES.values())
        if not version:
            write(store, [("plain", "put", key, row) for key, row in BALLAST])
            write(store, [("lists", "put", key, row) for key, row in BALLAST])
        write(store, batch.writes)
        store.commit()
    return provider


def rows_of(provider: Provider, version: int) -> list[list[tuple[Row, Row]]]:
    """Return the rows of both families, ordered by key."""
    store = provider.open_read(version)
    try:
        families = [store.scan("all", family="plain"), store.scan("allValues", family="lists")]
    finally:
        store.release()
    return [sorted(rows, key=lambda pair: pair[0]) for rows in families]


@contextmanager
def ran(spark: Any, provider_class: str, history: list[Batch]) -> Iterator[Provider]:
    place = Path(mkdtemp(prefix="statestore-feed-"))
    last = run(
        lambda: open_provider(spark, place, provider_class, minDeltasForSnapshot="100"),
        history,
    )
    try:
        yield last
    finally:
        last.end_stores()
        last.close()
        shutil.rmtree(place, ignore_errors=True)


@pytest.mark.slow
@settings(max_examples=5 * EFFORT)
@given(history=st.lists(batches, min_size=1, max_size=5))
def test_change_feed_is_the_net_change_of_rocksdbs_feed(spark: Any, history: list[Batch]) -> None:
    newest = len(history) + 1
    full = {0} | {batch for batch, entry in enumerate(history, 1) if entry.forced}
    with ran(spark, ROCKSDB, history) as rocksdb, ran(spark, OURS, history) as own:
        for family in FAMILIES:
            every, net = (provider.changes(family, 1, newest) for provider in (rocksdb, own))
            assert by_key(net) == net_changes(every, full=full), family
        assert rows_of(own, newest) == rows_of(rocksdb, newest)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ([], [("merge", value(1)), ("merge", value(2))], [("append", value(1)), ("append", value(2))]),
        ([], [("merge_list", [value(1), value(2)])], [("append", value(1)), ("append", value(2))]),
        ([], [("put_list", [value(1), value(2)])], [("update", value(1)), ("append", value(2))]),
        ([("put", value(1))], [("merge", value(2))], [("append", value(2))]),
        (
            [("merge", value(1))],
            [("remove", None), ("merge", value(2)), ("merge", value(1))],
            [("delete", None), ("append", value(2)), ("append", value(1))],
        ),
    ],
    ids=["merge to a new key", "merge a list", "put a list", "merge to a key", "merge to a removed key"],
)
@pytest.mark.parametrize("forced", [False, True], ids=["delta", "full snapshot"])
def test_change_feed_of_lists_equals_rocksdbs(
    spark: Any,
    forced: bool,
    before: list[tuple[str, Any]],
    now: list[tuple[str, Any]],
    expected: list[tuple[str, Row | None]],
) -> None:
    history = [
        Batch([("lists", operation, KEY, data) for operation, data in operations], [], forced=forced)
        for operations in (before, now)
    ]
    with ran(spark, ROCKSDB, history) as rocksdb, ran(spark, OURS, history) as own:
        feeds = [provider.changes("lists", 3, 3) for provider in (rocksdb, own)]
    assert feeds[0] == feeds[1] == [(2, kind, KEY, data) for kind, data in expected]

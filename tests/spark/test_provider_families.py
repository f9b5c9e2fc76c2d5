"""Contract of a provider with column families, for this one and Spark's own."""

from __future__ import annotations

import time

import pytest

from tests.spark.families import (
    LISTS,
    MAPS,
    MISSING,
    TIMES,
    A,
    B,
    C,
    created,
    numbers,
    ours_alone,
    value,
)
from tests.spark.harness import Family, Open, Store

pytestmark = pytest.mark.first

# Families belong to a version


def test_version_has_exactly_its_families(instance: Open) -> None:
    provider = instance()
    store = created(provider.open(0), MAPS)
    store.put(A, value(1), "maps")
    store.commit()
    store = created(provider.open(1), MAPS, LISTS)
    store.merge(A, value(2), "lists")
    assert store.families() == {"default", "maps", "lists"}
    store.commit()
    store = created(provider.open(2), MAPS, LISTS)
    assert store.remove_family("maps")
    assert not store.remove_family("maps")
    assert store.refusal("get", A, family="maps").kind == MISSING
    store.commit()
    for opened in (provider, instance()):
        names = []
        for version in (3, 2, 1, 0):
            read_store = opened.open_read(version)
            names.append(read_store.families())
            read_store.release()
        assert names == [{"default", "lists"}, {"default", "maps", "lists"}, {"default", "maps"}, {"default"}]


@ours_alone
def test_run_has_all_rows_of_a_family_that_was_declared_again(instance: Open) -> None:
    options = {"backend__compression": "none", "minDeltasForSnapshot": "2"}
    provider = instance(**options)
    store = provider.open(0)
    for i in range(20):
        store.put(("filling", i), value(i, 50_000))
    store.commit()
    # More rows than the family has once it is declared again, in a delta that is larger than all later ones.
    store = created(provider.open(1), MAPS)
    for i in range(200):
        store.put(("a", i), value(i), "maps")
    store.commit()
    store = provider.open(2)
    assert store.remove_family("maps")
    store.commit()
    store = created(provider.open(3), MAPS)
    store.put(A, value(3), "maps")
    store.commit()
    for version in (4, 5, 6):
        store = provider.open(version)
        store.put(B, value(version), "maps")
        store.commit()
    provider.snapshot()
    store = provider.open(7)
    store.put(C, value(7), "maps")
    store.commit()
    # The base, the delta of the first declaration, a run, and one delta.
    assert store.metrics["checkpointMaxChainLength"] == 4
    read_store = created(instance(**options).open(8), MAPS)
    assert sorted(read_store.rows("maps")) == [(A, value(3)), (B, value(6)), (C, value(7))]


def test_abort_restores_families_and_rows(instance: Open) -> None:
    provider = instance()
    hidden = Family("$hidden", internal=True)
    store = created(provider.open(0), TIMES, LISTS, MAPS, hidden)
    store.put(A, value(1), "$hidden")
    for i in range(5):
        store.put((i, "x"), value(i), "times")
    store.put_list(A, [value(1), value(2)], "lists")
    store.put(A, value(1), "maps")
    store.commit()
    before = None
    for end in (True, False):
        store = created(provider.open(1), TIMES, LISTS, MAPS, hidden)
        contents = [
            store.rows("$hidden"),
            store.rows("times"),
            store.values(A, "lists"),
            store.rows("lists"),
            store.prefix_rows("a", family="maps"),
        ]
        assert before in (None, contents)
        before = contents
        if end:
            created(store, Family("new")).put(A, value(1), "new")
            store.put(B, value(2), "$hidden")
            store.delete_range((1, "x"), (4, "x"), "times")
            store.put((9, "x"), value(9), "times")
            store.merge(A, value(3), "lists")
            store.put_list(B, [value(4)] * 3, "lists")
            store.put(("a", 2), value(5), "maps")
            assert store.remove_family("maps")
        assert store.families() == ({"default", "times", "lists", "$hidden"} | ({"new"} if end else {"maps"}))
        store.abort()


def test_family_of_an_aborted_store_is_declared_again(instance: Open) -> None:
    provider = instance()
    new = Family("new")
    aborted = created(provider.open(0), new)
    aborted.put(A, value(1), "new")
    aborted.abort()
    store = created(provider.open(0), new)
    store.put(B, value(2), "new")
    store.commit()
    assert created(instance().open(1), new).rows("new") == [(B, value(2))]


def test_register_in_a_read_store_creates_no_family(instance: Open) -> None:
    provider = instance()
    created(provider.open(0), MAPS).commit()
    fresh = instance()
    read_store = fresh.open_read(1)
    read_store.register(MAPS)
    read_store.register(LISTS)
    read_store.register(LISTS)
    read_store.release()
    # Another store of the same provider, without a declaration of the families.
    read_store = fresh.open_read(1)
    assert read_store.rows("maps") == read_store.rows("lists") == read_store.values(A, "lists") == []
    read_store.release()
    read_store.release()
    read_store = instance().open_read(1)
    assert read_store.families() == {"default", "maps"}
    read_store.release()


# Several values per key, iterators, threads


def test_key_count_excludes_internal_families(instance: Open) -> None:
    store = created(instance().open(0), LISTS, MAPS, Family("$hidden", internal=True))
    store.put(A, value(1))
    store.put_list(A, [value(1)] * 5, "lists")
    store.merge(A, value(2), "lists")
    store.merge(B, value(2), "lists")
    store.put(A, value(1), "$hidden")
    store.commit()
    assert store.metrics["numKeys"] == 3


def test_multi_get_is_a_snapshot_of_its_call(store: Store) -> None:
    created(store, MAPS)
    for key, number in ((A, 1), (B, 2)):
        store.put(key, value(number), "maps")
    iterator = store.open_iterator("multiGet", [A, C, B, A], family="maps")
    store.put(A, value(10), "maps")
    store.put(C, value(11), "maps")
    assert iterator.take(1) == [value(1)]
    assert store.get(A, "maps") == value(10)
    store.remove(B, "maps")
    assert iterator.take(9) == [None, value(2), value(1)]
    assert store.multi_get([A, C, B], "maps") == [value(10), value(11), None]


# A scan of few timers copies where they are, one of many walks the order.
@pytest.mark.parametrize("count", [10, 60])
def test_timer_scan_excludes_timers_set_meanwhile(store: Store, count: int) -> None:
    created(store, TIMES)
    for i in range(count):
        store.put((i, "a"), value(i), "times")
    fired = []
    due = count - 2
    timers = store.open_iterator("range", (0, ""), (due, ""), family="times")
    for (at, who), row in timers:
        fired.append(row[0])
        store.remove((at, who), "times")
        store.put((at - 2 * count, who), value(at), "times")
        store.put((due - 1, f"again {at}"), value(at), "times")
    assert fired == list(range(due))
    assert len(store.rows("times")) == 2 * due + 2
    assert timers.next() is None
    timers.close()


def test_reusable_iterator_sees_writes_before_each_seek(store: Store) -> None:
    created(store, TIMES)
    for i in (1, 2, 3):
        store.put((i, "a"), value(i), "times")
    iterator = store.open_iterator("reusable", family="times")
    assert numbers(iterator.take(1)) == [1]
    store.put((0, "a"), value(0), "times")
    store.put((5, "a"), value(5), "times")
    assert numbers(iterator.take(9)) == [2, 3]
    results = []
    for at in (0, 3, 9, -4, None):
        iterator.seek(at)
        results.append(numbers(iterator.take(9)))
    assert results == [[0, 1, 2, 3, 5], [3, 5], [], [0, 1, 2, 3, 5], []]
    iterator.seek(3)
    store.remove((3, "a"), "times")
    assert numbers(iterator.take(9)) == [3, 5]
    iterator.seek(3)
    assert numbers(iterator.take(9)) == [5]
    iterator.close()


@ours_alone
def test_open_stores_end_with_their_task(instance: Open) -> None:
    provider = instance()
    created(provider.open(0), LISTS).commit()
    provider.begin_task()
    read_store, store = provider.open_read(1), provider.open(1)
    store.create(MAPS)
    provider.end_task()
    assert "released" in read_store.refusal("rows").message
    assert "aborted" in store.refusal("rows").message
    assert provider.open_read(1).families() == {"default", "lists"}


def test_prefix_can_be_empty_or_null(store: Store) -> None:
    created(store, MAPS)
    for i, text in enumerate(["", None, "a", ""]):
        store.put((text, i), value(i), "maps")
    assert sorted(numbers(store.prefix_rows("", family="maps"))) == [0, 3]
    assert numbers(store.prefix_rows(None, family="maps")) == [1]
    assert store.prefix_rows("b", family="maps") == []


@ours_alone
def test_put_of_an_empty_list_removes_the_key(store: Store) -> None:
    """Deviates from Spark, whose JVM crashes on reading one."""
    created(store, LISTS)
    store.merge_list(A, [], "lists")
    assert not store.exists(A, "lists")
    store.put_list(A, [value(1)], "lists")
    store.merge_list(A, [], "lists")
    assert store.values(A, "lists") == [value(1)]
    store.put_list(A, [], "lists")
    assert store.rows("lists") == []


@ours_alone
def test_put_replaces_a_list_by_its_last_value(store: Store) -> None:
    created(store, LISTS)
    store.put_list(A, [value(1), value(2)], "lists")
    store.put(A, value(2), "lists")
    assert store.values(A, "lists") == [value(2)]


@ours_alone
def test_delete_range_with_reversed_bounds_deletes_nothing(store: Store) -> None:
    """Deviates from RocksDB, which accepts no writes afterwards."""
    created(store, TIMES)
    for i in range(3):
        store.put((i, "a"), value(i), "times")
    store.delete_range((2, "a"), (0, "a"), "times")
    store.delete_range((1, "a"), (1, "a"), "times")
    assert numbers(store.rows("times")) == [0, 1, 2]


@ours_alone
def test_merge_time_is_independent_of_list_length(instance: Open) -> None:
    store = created(instance().open(0), LISTS)

    def append(count: int) -> float:
        script = store.script()
        for i in range(count):
            script.merge(A, value(i), "lists")
        started = time.perf_counter()
        script.run()
        return time.perf_counter() - started

    append(5_000)
    short = append(5_000)
    append(35_000)
    # The same number of appends to a list that is nine times as long.
    assert append(5_000) < 5 * short + 1
    started = time.perf_counter()
    store.commit()
    assert time.perf_counter() - started < 20
    assert store.metrics["numKeys"] == 1
    values = created(instance().open(1), LISTS).values(A, "lists")
    assert len(values) == 50_000
    assert [row[0] for row in values[45_000:]] == list(range(5_000))

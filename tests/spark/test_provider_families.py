"""What a provider with column families has to do, this one and Spark's own."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tests.spark.families import (
    EVENTS,
    EXPIRIES,
    LISTS,
    MAPS,
    MISSING,
    TIMES,
    A,
    B,
    created,
    numbers,
    ours_alone,
    value,
)
from tests.spark.harness import Family, Open, Store


@ours_alone
def test_a_removed_family_may_come_back_as_another(instance: Open) -> None:
    store = created(instance().open(0), TIMES)
    store.put((1, "a"), value(1), "times")
    store.commit()
    store = created(instance().open(1), TIMES)
    assert store.remove_family("times")
    again = Family("times", multiple=True)
    created(store, again).merge(A, value(2), "times")
    store.commit()
    store = created(instance().open(2), again)
    assert store.scan("allValues", family="times") == [(A, value(2))]
    assert numbers(created(instance().open(1), TIMES).rows("times")) == [1]


# Families belong to a version


def test_a_version_has_its_families_and_no_others(instance: Open) -> None:
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
        found = []
        for version in (3, 2, 1, 0):
            read = opened.open_read(version)
            found.append(read.families())
            read.release()
        assert found == [{"default", "lists"}, {"default", "maps", "lists"}, {"default", "maps"}, {"default"}]


def test_a_removed_family_stays_removed(instance: Open) -> None:
    # So much beside it that its rows stay in the chain that a version is read from.
    options = {"backend__compression": "none", "backend__snapshotInterval": "100"}
    provider = instance(**options)
    store = created(provider.open(0), MAPS, LISTS)
    script = store.script()
    for i in range(20):
        script.put(("filling", i), value(i, 5_000))
        script.put(("a", i), value(i), "maps")
    script.run()
    store.commit()
    store = created(provider.open(1), MAPS, LISTS)
    assert store.remove_family("maps")
    assert store.commit() == 2
    store = created(instance(**options).open(2), MAPS)
    assert store.rows("maps") == []
    store.put(A, value(1), "maps")
    store.commit()
    store = created(instance(**options).open(3), MAPS)
    assert store.rows("maps") == [(A, value(1))]


def test_an_abort_undoes_everything(instance: Open) -> None:
    provider = instance()
    store = created(provider.open(0), TIMES, LISTS, MAPS)
    for i in range(5):
        store.put((i, "x"), value(i), "times")
    store.put_list(A, [value(1), value(2)], "lists")
    store.put(A, value(1), "maps")
    store.commit()
    before = None
    for end in (True, False):
        store = created(provider.open(1), TIMES, LISTS, MAPS)
        found = [
            store.rows("times"),
            store.values(A, "lists"),
            store.rows("lists"),
            store.prefix_rows("a", family="maps"),
        ]
        assert before in (None, found)
        before = found
        if end:
            created(store, Family("new")).put(A, value(1), "new")
            store.delete_range((1, "x"), (4, "x"), "times")
            store.put((9, "x"), value(9), "times")
            store.merge(A, value(3), "lists")
            store.put_list(B, [value(4)] * 3, "lists")
            store.put(("a", 2), value(5), "maps")
            assert store.remove_family("maps")
        assert store.families() == (
            {"default", "times", "lists", "new"} if end else {"default", "times", "lists", "maps"}
        )
        store.abort()


def test_a_reader_describes_families_without_making_them(instance: Open) -> None:
    provider = instance()
    created(provider.open(0), MAPS).commit()
    fresh = instance()
    read = fresh.open_read(1)
    read.register(MAPS)
    read.register(LISTS)
    read.register(LISTS)
    read.release()
    # Another store of the same provider, and nobody says again what the families are.
    read = fresh.open_read(1)
    assert read.rows("maps") == read.rows("lists") == read.values(A, "lists") == []
    read.release()
    read.release()
    read = instance().open_read(1)
    assert read.families() == {"default", "maps"}
    read.release()


# Several values per key, iterators, threads


def test_keys_are_counted_and_internal_families_are_not(instance: Open) -> None:
    store = created(instance().open(0), LISTS, MAPS, Family("$hidden", internal=True))
    store.put(A, value(1))
    store.put_list(A, [value(1)] * 5, "lists")
    store.merge(A, value(2), "lists")
    store.merge(B, value(2), "lists")
    store.put(A, value(1), "$hidden")
    store.commit()
    assert store.metrics["numKeys"] == 3


def test_values_can_be_read_while_their_key_is_written_anew(store: Store) -> None:
    created(store, LISTS)
    store.put_list(A, [value(i) for i in range(6)], "lists")
    iterator = store.open_iterator("values", A, family="lists")
    kept = []
    store.remove(A, "lists")
    while (row := iterator.next()) is not None:
        if row[0] % 2:
            store.merge(A, row, "lists")
            kept.append(row)
    assert [row[0] for row in kept] == [1, 3, 5]
    assert store.values(A, "lists") == kept
    assert store.get(A, "lists") == value(1)


def test_a_scan_of_timers_does_not_see_those_that_it_sets(store: Store) -> None:
    created(store, TIMES)
    for i in range(10):
        store.put((i, "a"), value(i), "times")
    fired = []
    timers = store.open_iterator("range", (0, ""), (8, ""), family="times")
    for (at, who), row in timers:
        fired.append(row[0])
        store.remove((at, who), "times")
        store.put((at - 20, who), value(at), "times")
        store.put((7, f"again {at}"), value(at), "times")
    assert fired == list(range(8))
    assert len(store.rows("times")) == 18
    assert timers.next() is None
    timers.close()


@pytest.mark.parametrize(
    ("family", "scan"),
    [
        (LISTS, ("allValues",)),
        (MAPS, ("prefix", ("a",))),
        (TIMES, ("range", None, None)),
        (EXPIRIES, ("range", None, None)),
        (EVENTS, ("prefix", ("a",))),
    ],
    ids=lambda given: given.name if isinstance(given, Family) else given[0],
)
def test_rows_outlive_their_keys(store: Store, family: Family, scan: Any) -> None:
    created(store, family)
    keys = [(i, "a") if family is TIMES else ("a", i) for i in range(8)]
    for i, key in enumerate(keys):
        store.put(key, value(i, "x" * 50), family.name)
    iterator = store.open_iterator(*scan, family=family.name)
    found = [iterator.next_removed() for _ in keys]
    assert sorted(found) == [(key, value(i, "x" * 50)) for i, key in enumerate(keys)]
    assert store.rows(family.name) == []


def test_one_iterator_serves_a_whole_task(store: Store) -> None:
    created(store, TIMES)
    for i in (1, 2, 3):
        store.put((i, "a"), value(i), "times")
    iterator = store.open_iterator("reusable", family="times")
    assert numbers(iterator.take(1)) == [1]
    store.put((0, "a"), value(0), "times")
    store.put((5, "a"), value(5), "times")
    assert numbers(iterator.take(9)) == [2, 3]
    found = []
    for at in (0, 3, 9, -4, None):
        iterator.seek(at)
        found.append(numbers(iterator.take(9)))
    assert found == [[0, 1, 2, 3, 5], [3, 5], [], [0, 1, 2, 3, 5], []]
    iterator.seek(3)
    store.remove((3, "a"), "times")
    assert numbers(iterator.take(9)) == [3, 5]
    iterator.seek(3)
    assert numbers(iterator.take(9)) == [5]
    iterator.close()


def test_threads_see_each_others_writes(instance: Open) -> None:
    provider = instance()
    provider.begin_task()
    store = provider.open(0)
    seen: list[Any] = []

    def state_server() -> None:
        created(store, LISTS, TIMES)
        for i in range(50):
            store.merge(A, value(i), "lists")
            store.put((i, "a"), value(i), "times")
        seen.append(len(store.values(A, "lists")))

    def state_server_again() -> None:
        seen.append(numbers(store.rows("times")))
        store.merge(A, value(50), "lists")

    for work in (state_server, state_server_again):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        for (at, who), _ in store.range_rows((0, ""), (49, ""), "times"):
            store.remove((at, who), "times")
    assert seen == [50, [49]]
    assert len(store.values(A, "lists")) == 51
    store.commit()
    provider.end_task()
    assert numbers(created(instance().open(1), LISTS, TIMES).rows("times")) == [49]


@ours_alone
def test_what_a_task_leaves_open_ends_with_it(instance: Open) -> None:
    provider = instance()
    created(provider.open(0), LISTS).commit()
    provider.begin_task()
    read, store = provider.open_read(1), provider.open(1)
    store.create(MAPS)
    provider.end_task()
    assert "released" in read.refusal("rows").message
    assert "aborted" in store.refusal("rows").message
    assert provider.open_read(1).families() == {"default", "lists"}


def test_keys_of_no_bytes_and_rows_of_nothing(store: Store) -> None:
    created(store, Family("total", key="", multiple=True), Family("limit", key="k void", value="n void"))
    store.merge((), value(1), "total")
    store.merge((), value(2), "total")
    store.put((None,), (None,), "limit")
    assert store.scan("allValues", family="total") == [((), value(1)), ((), value(2))]
    assert store.rows("limit") == [((None,), (None,))]
    assert store.multi_get([(None,)] * 2, "limit") == [(None,)] * 2
    store.remove((), "total")
    assert store.rows("total") == []


def test_a_prefix_may_be_empty_or_null(store: Store) -> None:
    created(store, MAPS)
    for i, text in enumerate(["", None, "a", ""]):
        store.put((text, i), value(i), "maps")
    assert sorted(numbers(store.prefix_rows("", family="maps"))) == [0, 3]
    assert numbers(store.prefix_rows(None, family="maps")) == [1]
    assert store.prefix_rows("b", family="maps") == []


@ours_alone
def test_an_empty_list_is_no_list(store: Store) -> None:
    """Spark's JVM dies of reading one."""
    created(store, LISTS)
    store.merge_list(A, [], "lists")
    assert not store.exists(A, "lists")
    store.put_list(A, [value(1)], "lists")
    store.merge_list(A, [], "lists")
    assert store.values(A, "lists") == [value(1)]
    store.put_list(A, [], "lists")
    assert store.rows("lists") == []


@ours_alone
def test_a_range_that_ends_before_it_starts_deletes_nothing(store: Store) -> None:
    """RocksDB takes no writes any more after that."""
    created(store, TIMES)
    for i in range(3):
        store.put((i, "a"), value(i), "times")
    store.delete_range((2, "a"), (0, "a"), "times")
    store.delete_range((1, "a"), (1, "a"), "times")
    assert numbers(store.rows("times")) == [0, 1, 2]


@ours_alone
def test_appends_to_a_long_list_do_not_slow_down(instance: Open) -> None:
    store = created(instance().open(0), LISTS)

    def append(count: int) -> float:
        script = store.script()
        for i in range(count):
            script.merge(A, value(i), "lists")
        started = time.perf_counter()
        script.run()
        return time.perf_counter() - started

    append(10_000)
    short = append(10_000)
    append(70_000)
    # The same number of appends behind a list that is nine times as long.
    assert append(10_000) < 5 * short + 1
    started = time.perf_counter()
    store.commit()
    assert time.perf_counter() - started < 20
    assert store.metrics["numKeys"] == 1
    found = created(instance().open(1), LISTS).values(A, "lists")
    assert len(found) == 100_000
    assert [row[0] for row in found[90_000:]] == list(range(10_000))

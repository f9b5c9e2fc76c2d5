"""Callers of scans that write their own rows into the pair, as Spark's StateStoreSuite does."""

from __future__ import annotations

from typing import Any

import pytest

from tests.spark.families import LISTS, MAPS, TIMES, created, ours_alone, value
from tests.spark.harness import Family, Open, Row, Store

pytestmark = ours_alone

# A range scan of fewer rows reads cached offsets, of more it walks the tree.
FEW, MANY = 8, 100

EVENT_LISTS = Family("events", spec=("timestampPostfix",), multiple=True)
EXPIRY_LISTS = Family("expiries", spec=("timestampPrefix",), multiple=True)

# Each kind of iterator; those of the other families are in test_provider_families_machine.py.
SCANS = [
    (Family(), ("all",)),
    (LISTS, ("allValues",)),
    (MAPS, ("prefix", ("a",))),
    (EVENT_LISTS, ("prefixValues", ("a",))),
    (TIMES, ("range", None, None)),
    (EVENT_LISTS, ("rangeValues", ("a", 0), ("a", MANY))),
    (EXPIRY_LISTS, ("rangeValues", None, None)),
]


def filled(store: Store, family: Family, count: int) -> Store:
    if family.name != "default":
        created(store, family)
    script = store.script()
    for i in range(count):
        key: Row = (i, "a") if family.key == TIMES.key else ("a", i)
        script.put(key, value(i, "x" * (i % 7)), family.name)
        if family.multiple:
            script.merge(key, value(i, "more"), family.name)
    script.run()
    return store


def check(store: Store, family: Family, scan: Any, count: int) -> None:
    expected = store.scan(*scan, family=family.name)
    assert len(expected) == count * (2 if scan[0].endswith("Values") else 1)
    iterator = store.open_iterator(*scan, family=family.name)
    pairs = iterator.take_overwritten(1) + iterator.take_overwritten(len(expected))
    assert pairs == expected
    assert iterator.take_overwritten(1) == []
    iterator.close()


@pytest.mark.parametrize(
    ("family", "scan"), SCANS, ids=[f"{kind} {family.name}" for family, (kind, *_) in SCANS]
)
def test_iterator_returns_each_row_once_if_its_pair_is_overwritten(
    instance: Open, family: Family, scan: Any
) -> None:
    provider = instance()
    for version, count in enumerate((FEW, MANY)):
        store = filled(provider.open(version), family, count)
        check(store, family, scan, count)
        store.commit()
        check(created(provider.open_read(version + 1)), family, scan, count)
    check(provider.open_replay(1, 2), family, scan, MANY)


def test_reusable_iterator_returns_each_row_once_if_its_pair_is_overwritten(store: Store) -> None:
    filled(store, TIMES, FEW)
    expected = store.rows("times")
    iterator = store.open_iterator("reusable", family="times")
    assert iterator.take_overwritten(MANY) == expected
    for start in (0, 5):
        iterator.seek(start)
        assert iterator.take_overwritten(MANY) == expected[start:]
    iterator.close()


def test_iterator_pair_is_independent_of_other_reads(store: Store) -> None:
    filled(store, TIMES, FEW)
    expected = store.rows("times")
    first, second = (store.open_iterator("all", family="times") for _ in range(2))
    pairs = []
    for _ in range(FEW):
        pairs += first.take_overwritten(1)
        assert store.get((0, "a"), "times") == value(0)
        assert second.take(1) == pairs[-1:]
    assert pairs == expected

"""Order of keys in ordered column families, in this provider and in Spark's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from tests.spark.families import (
    EVENTS,
    EXPIRIES,
    OURS,
    TIMES,
    created,
    numbers,
    open_provider,
    ours_alone,
    value,
)
from tests.spark.families_model import FamilyModel, order_key, prefix_of
from tests.spark.harness import ROCKSDB, Family, Row, Store
from tests.support.effort import EFFORT

BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64, "float": 32, "double": 64}
# By their bits: zeros, ones, infinities and NaNs of either sign, and subnormal numbers.
FLOATS = [0x00000000, 0x3F800000, 0x7F800000, 0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0x00000001]
DOUBLES = [bits << 32 for bits in (0x00000000, 0x3FF00000, 0x7FF00000, 0x7FF80000)] + [0x7FF0000000000001, 1]


def signed(bits: int, width: int) -> int:
    return bits - (1 << width) if bits >> (width - 1) else bits


def column(kind: str) -> st.SearchStrategy[int | None]:
    width = BITS[kind]
    special = {"float": FLOATS, "double": DOUBLES}.get(kind, [0, 1, 2])
    special = [signed(bits ^ sign, width) for bits in special for sign in (0, 1 << (width - 1))]
    anything = st.integers(-(1 << (width - 1)), (1 << (width - 1)) - 1)
    return st.none() | st.sampled_from(special) | anything


@st.composite
def ordered_keys(draw: st.DrawFn) -> tuple[Family, list[Row]]:
    kinds = draw(st.lists(st.sampled_from(list(BITS)), min_size=1, max_size=3))
    types = [*kinds, "string"]
    spec = ("range", *draw(st.permutations(range(len(kinds)))))
    family = Family("ordered", key=", ".join(f"c{i} {kind}" for i, kind in enumerate(types)), spec=spec)
    key = st.tuples(*map(column, kinds), st.sampled_from([None, "", "a"]))
    return family, draw(st.lists(key, min_size=3, max_size=12, unique=True))


@pytest.fixture
def both(spark: Any, tmp_path: Path) -> Iterator[list[Store]]:
    """Return a store of each kind."""
    providers = [open_provider(spark, tmp_path / name[-20:], name) for name in (OURS, ROCKSDB)]
    stores = [provider.open(0) for provider in providers]
    yield stores
    for provider in providers:
        provider.end_stores()
        provider.close()


def test_range_order_of_every_type_equals_rocksdb(both: list[Store]) -> None:
    used = iter(range(10**9))

    @settings(max_examples=60 * EFFORT, suppress_health_check=list(HealthCheck))
    @given(drawn=ordered_keys())
    def check(drawn: tuple[Family, list[Row]]) -> None:
        family, keys = drawn
        # RocksDB never reassigns the id of a name.
        family = Family(f"ordered{next(used)}", key=family.key, spec=family.spec)
        model = FamilyModel(family)
        for i, key in enumerate(keys):
            model.put(key, value(i))
        scans = [("all",), *(("range", start, end) for start in (None, keys[0]) for end in (None, keys[1]))]
        scans += [("prefix", prefix_of(family, key)) for key in keys[:2]]
        for store in both:
            script = store.script()
            script.create(family)
            for i, key in enumerate(keys):
                script.put(key, value(i), family.name)
            for scan in scans:
                script.scan(*scan, family=family.name)
            script.remove_family(family.name)
            results = script.run()[len(keys) + 1 : -1]
            assert results == [model.scan(*scan) for scan in scans]

    check()


def test_range_scan_is_half_open(store: Store) -> None:
    created(store, TIMES)
    for i in range(-2, 3):
        store.put((i, "x"), value(i), "times")
    results = [
        numbers(store.range_rows(start, end, "times"))
        for start, end in [
            (None, None), ((-1, "x"), (2, "x")), ((1, "x"), (1, "x")), ((2, "x"), (-2, "x")),
            ((9, "x"), None), (None, (-9, "x")), ((2, "x"), (None, "x")), ((None, "x"), None),
        ]
    ]  # fmt: skip
    assert results == [[-2, -1, 0, 1, 2], [-1, 0, 1], [], [], [], [], [2], []]


@pytest.mark.parametrize("family", [EXPIRIES, EVENTS], ids=lambda family: family.name)
def test_timestamp_order_is_signed(store: Store, family: Family) -> None:
    created(store, family)
    times = [2**63 - 1, 0, -(2**63), 5, -1, 1]
    for at in times:
        store.put(("a", at), value(at), family.name)
    assert numbers(store.range_rows(("a", -(2**63)), ("a", 2**63 - 1), family.name)) == sorted(times)[:-1]
    assert numbers(store.rows(family.name)) == sorted(times)
    assert order_key(family, ("a", -1)) < order_key(family, ("a", 0))


@ours_alone
def test_half_bounded_range_stays_within_its_group(store: Store) -> None:
    created(store, EVENTS)
    for name in "abc":
        for time in (-5, 0, 7):
            store.put((name, time), value(time), "events")
    assert numbers(store.range_rows(("b", 0), None, family="events")) == [0, 7]
    assert numbers(store.range_rows(None, ("b", 0), family="events")) == [-5]
    assert len(store.range_rows(None, None, family="events")) == 9
    refused = store.refusal("range_rows", ("a", 0), ("b", 0), family="events")
    assert refused is not None
    assert "both ends of a range" in refused.message

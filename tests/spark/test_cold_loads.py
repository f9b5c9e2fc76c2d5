"""Cold loads: the JVM decodes stored streams, newest first."""

from __future__ import annotations

import tempfile
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tests.spark.harness import Family, Provider, Row
from tests.support.effort import EFFORT

KINDS = [
    Family(),
    Family(spec=("prefix", 1)),
    Family(key="t bigint, a string", spec=("range", 0)),
    Family(key="a string, t bigint", spec=("timestampPostfix",)),
]
# Few keys, so that batches update the keys of other batches.
numbers = st.integers(0, 5)
batches = st.lists(
    st.dictionaries(numbers, st.one_of(st.none(), st.sampled_from([0, 40, 120_000])), max_size=5),
    min_size=1,
    max_size=6,
)


def reading(spark: Any) -> Any:
    return spark._jvm.org.apache.spark.sql.statestore.arrow.StoredReading


def key_of(family: Family, number: int) -> Row:
    return (number - 3, "k") if family.key.startswith("t ") else ("aab"[number % 3], number)


def run_batch(provider: Provider, version: int, family: Family, changes: dict[int, int | None]) -> None:
    script = (store := provider.open(version)).script()
    for number, size in changes.items():
        if size is None:
            script.remove(key_of(family, number))
        else:
            script.put(key_of(family, number), (version, size))
    script.run()
    assert store.commit() == version + 1


def rows_at(provider: Provider, version: int) -> list[tuple[Row, Row]]:
    store = provider.open_read(version)
    rows = store.rows()
    store.release()
    return rows


@pytest.mark.parametrize("storage", ["files", "driver"])
@settings(max_examples=8 * EFFORT)
@given(
    family=st.sampled_from(KINDS),
    batches=batches,
    codec=st.sampled_from(["none", "zstd"]),
    later=st.dictionaries(numbers, st.none() | st.just(1), max_size=3),
)
def test_cold_load_returns_the_committed_rows(
    spark: Any,
    storage: str,
    family: Family,
    batches: list[dict[int, int | None]],
    codec: str,
    later: dict[int, int | None],
) -> None:
    confs = {"backend__compression": codec, "minDeltasForSnapshot": "100"}
    if storage == "driver":
        confs |= {"backend__storage": "memory"}
    before = reading(spark).decodedLoads()
    with tempfile.TemporaryDirectory() as directory:

        def instance() -> Provider:
            return Provider(spark, f"file:{directory}", default=family, **confs)

        writer = instance()
        expected: dict[Row, Row] = {}
        for version, changes in enumerate([*batches, later]):
            if version == len(batches):
                # The next version is committed on top of a load.
                writer.close()
                writer = instance()
            run_batch(writer, version, family, changes)
            for number, size in changes.items():
                key = key_of(family, number)
                if size is None:
                    expected.pop(key, None)
                else:
                    expected[key] = (version, "x" * size if isinstance(size, int) else size)
            cold = instance()
            rows = rows_at(cold, version + 1)
            assert {key: value[0] for key, value in rows} == {k: v[0] for k, v in expected.items()}
            assert len(rows) == len(expected)
            if family.spec[0] == "range":
                assert [key for key, _ in rows] == sorted(expected)
            cold.close()
        writer.close()
    assert reading(spark).decodedLoads() == before

"""The table that holds a store's rows in the JVM, against a map."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize("lists", [False, True], ids=["one value", "lists"])
@pytest.mark.parametrize(
    ("keys", "largest", "steps"),
    [(12_000, 200, 25_000), (300, 700_000, 10_000)],
    ids=["many rows", "rows larger than a page"],
)
def test_a_table_is_a_map_whatever_is_done_to_it(
    spark: Any, keys: int, largest: int, steps: int, lists: bool
) -> None:
    trial = spark._jvm.org.apache.spark.sql.statestore.table.TableTrial
    for seed in range(2):
        trial(seed, keys, largest, lists).run(steps)

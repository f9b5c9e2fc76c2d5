"""The table that holds a store's rows in the JVM, against a map."""

from __future__ import annotations

from typing import Any

import pytest

MANY_ROWS = {"keys": 12_000, "largest": 200, "steps": 20_000}
LARGER_THAN_A_PAGE = {"keys": 300, "largest": 700_000, "steps": 8_000}


@pytest.mark.parametrize("heap", [2**40, 0], ids=["heap", "files"])
@pytest.mark.parametrize("lists", [False, True], ids=["one value", "lists"])
@pytest.mark.parametrize("rows", [MANY_ROWS, LARGER_THAN_A_PAGE], ids=["many rows", "larger than a page"])
def test_a_table_is_a_map_whatever_is_done_to_it(
    spark: Any, rows: dict[str, int], lists: bool, heap: int
) -> None:
    trial = spark._jvm.org.apache.spark.sql.statestore.table.TableTrial
    for seed in range(2):
        in_files = trial(seed, rows["keys"], rows["largest"], lists, heap).run(rows["steps"])
        assert in_files > 0 or heap > 0

"""Deduplication, joins and group functions, restarted once, with the output and state of Spark's own store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.test_operators import compare


@pytest.mark.first
def test_deduplication_and_joins_equal_sparks_store(spark: Any, tmp_path: Path) -> None:
    compare(spark, tmp_path, ("dropDuplicates", "dropDuplicatesWithinWatermark", "outer join"))


@pytest.mark.first
def test_group_functions_equal_sparks_store(spark: Any, tmp_path: Path) -> None:
    compare(spark, tmp_path, ("pandas state with event-time timeout", "Scala's state of groups"))

"""Spark's signatures that the shim rests on are those that were recorded for its minor version.

A patch release that changes one needs a look at the shim: a jar is compiled against one patch release and
used with all of its minor version.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.spark.signatures import CLASSES, RECORDED, signatures

pytestmark = [pytest.mark.first, pytest.mark.spark]


def test_signatures_of_spark_are_the_recorded_ones(spark: Any) -> None:
    lines = signatures(spark._jvm)
    assert len(lines) > len(CLASSES)
    assert lines == RECORDED.read_text().splitlines(), (
        "Spark's signatures have changed, or the shim names other ones: see whether the shim still fits, "
        "then record "
        f"them in {RECORDED.name} with python -m tests.spark.signatures"
    )

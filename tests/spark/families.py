"""Column families of every kind, and a provider that supports them: this one or Spark's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import spark_statestore
from tests.spark.harness import IMMEDIATE_CLEANUP, Family, Provider, Row, Store

OURS = spark_statestore.PROVIDER_CLASS

A, B, C = ("a", 1), ("b", 1), ("c", 1)
TIMES = Family("times", key="t bigint, a string", spec=("range", 0))
LISTS = Family("lists", multiple=True)
MAPS = Family("maps", spec=("prefix", 1))
EXPIRIES = Family("expiries", spec=("timestampPrefix",))
EVENTS = Family("events", spec=("timestampPostfix",))

# The condition of an error.
MISSING = "STATE_STORE_UNSUPPORTED_OPERATION_ON_MISSING_COLUMN_FAMILY"

# For operations that crash Spark's own store.
ours_alone = pytest.mark.parametrize("provider_class", [OURS], ids=["ours"])


def value(number: int, text: str | int = "") -> Row:
    return (number, text)


def numbers(pairs: list[tuple[Row, Row]]) -> list[int]:
    return [row[0] for _, row in pairs]


def open_provider(spark: Any, location: Path, provider_class: str, **options: Any) -> Provider:
    chosen = (
        {"families": True, "rocksdb__changelogCheckpointing__enabled": "true"} | IMMEDIATE_CLEANUP | options
    )
    return Provider(spark, f"file:{location}", provider=provider_class, **chosen)


def created(store: Store, *families: Family) -> Store:
    for family in families:
        store.create(family)
    return store

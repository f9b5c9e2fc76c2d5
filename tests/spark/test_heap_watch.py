"""Warnings of a heap that is nearly full, with state in a large part of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.spark.counting import Program
from tests.support.class_archive import WITH_USERS_COLLECTOR

MIB = 1 << 20

USERS_JVM = {"JDK_JAVA_OPTIONS": WITH_USERS_COLLECTOR}


class Watch:
    """A watch of a heap of 1000 MiB."""

    def __init__(self, spark: Any, state: int) -> None:
        self._provider = spark._jvm.org.apache.spark.sql.statestore.provider
        self._watch = self._provider.HeapWatch()
        self._use = self._provider.StateUse(state * MIB, 500 * MIB, 30 * MIB, 6_000_000, 2, True)

    def collected(self, used: int) -> str | None:
        warning = self._watch.collected(used * MIB, 1000 * MIB, self._use)
        return str(warning.get()) if warning.isDefined() else None


def test_heap_watch_warns_once_for_each_share(spark: Any) -> None:
    watch = Watch(spark, 400)
    used = [790, *[850] * 5, 790, *[850] * 6]
    assert [watch.collected(usage) is not None for usage in used] == [False] * 12 + [True]
    assert [watch.collected(880) for _ in range(9)] == [None] * 9
    assert [watch.collected(930) is not None for _ in range(9)] == [False] * 5 + [True] + [False] * 3
    # The heap is empty again.
    watch.collected(400)
    assert [watch.collected(850) is not None for _ in range(7)] == [False] * 5 + [True, False]


def test_heap_watch_is_silent_if_something_else_fills_the_heap(spark: Any) -> None:
    watch = Watch(spark, 240)
    assert [watch.collected(990) for _ in range(9)] == [None] * 9


def test_heap_warning_has_rows_bytes_limit_and_remedy(spark: Any) -> None:
    watch = Watch(spark, 400)
    warning = [watch.collected(850) for _ in range(6)][-1]
    assert warning is not None
    for part in (
        "the driver is 85 % full",
        "takes 400 MiB of it (stores: 2, with 6000000 rows at their last commits)",
        "and 30 MiB of mapped files",
        "Of the heap, 500 MiB are left for state at present",
        "set spark.driver.memory to more, such as 2000m",
    ):
        assert part in warning


@pytest.mark.slow
def test_state_gives_way_to_other_objects(built: Path, tmp_path: Path) -> None:
    with Program("heap", USERS_JVM, directory=str(tmp_path), has_disk=True) as program:
        before, after = program.next("full")
        program.end()
    assert after < 0.75 * before


@pytest.mark.slow
@pytest.mark.soak
def test_application_whose_heap_fills_logs_a_warning(built: Path, tmp_path: Path) -> None:
    with Program("heap", USERS_JVM, directory=str(tmp_path), has_disk=False) as program:
        before, after = program.next("full")
        program.end()
        assert after == before
        warnings = re.findall(r"WARN HeapWatch: (the heap of the driver is .*)", program._printed())
    # One for each share that it has reached.
    assert 1 <= len(warnings) <= 2
    assert re.search(
        r"takes \d+ MiB of it \(stores: 2, with [1-9]\d+ rows at their last commits\)", warnings[-1]
    )

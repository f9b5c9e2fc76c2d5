"""State that gives way to Spark's own memory: cached tables, sorts and joins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.counting import wait_until
from tests.spark.harness import Provider
from tests.spark.test_state_table import memory, put

pytestmark = pytest.mark.usefixtures("no_other_tables")

MIB = 1 << 20
GIB = 1 << 30


@pytest.mark.parametrize(
    ("spark_uses", "heap", "available"),
    [
        # PySpark's default: Spark may take 434 MiB of it.
        (0, 1 * GIB, 724 * MIB),
        (434 * MIB, 1 * GIB, 290 * MIB),
        (0, 512 * MIB, 212 * MIB),
        # A tenth for the garbage collector.
        (10 * GIB, 30 * GIB, 17 * GIB),
    ],
)
def test_available_heap_is_what_spark_and_others_leave(
    spark: Any, spark_uses: int, heap: int, available: int
) -> None:
    pressure = spark._jvm.org.apache.spark.sql.statestore.provider.MemoryPressure
    assert pressure.availableBeside(spark_uses, heap) == available


def test_other_objects_are_counted_from_their_own_collections(spark: Any) -> None:
    objects = spark._jvm.org.apache.spark.sql.statestore.provider.OtherObjects()
    assert objects.bytesLeft(1000) == 2**63 - 1
    objects.collected(700, 300)
    assert objects.bytesLeft(1000) == 400
    # The same collection, after rows were moved.
    objects.collected(700, 100)
    assert objects.bytesLeft(1000) == 400
    # The moved pages may not be free yet.
    objects.collected(690, 100)
    assert objects.bytesLeft(1000) == 410
    objects.collected(500, 100)
    assert objects.bytesLeft(1000) == 400
    # No figure yet, as the JVM gives it.
    objects.collected(0, 100)
    assert objects.bytesLeft(1000) == 400


def test_pages_move_to_files_under_readers_of_snapshots(spark: Any) -> None:
    assert trial(spark).run(60) > 0


def test_moved_pages_leave_the_heap_while_snapshots_are_in_use(spark: Any) -> None:
    assert trial(spark).frees()


def test_state_leaves_the_heap_once_no_task_uses_it(spark: Any, tmp_path: Path) -> None:
    rows = {("k", number): (number, "x" * 400) for number in range(4_000)}
    table_memory = spark._jvm.org.apache.spark.sql.statestore.table.TableMemory
    provider = Provider(spark, f"file:{tmp_path}")
    try:
        provider.begin_task()
        put(provider, 0, rows)
        writer = provider.open(1)
        before = table_memory.mappedBytes()
        table_memory.limitHeap(MIB)
        assert not wait_until(lambda: table_memory.mappedBytes() > before, 0.5)
        writer.put(("k", 1), (2, "y"))
        writer.commit()
        provider.end_task()
        assert wait_until(lambda: table_memory.mappedBytes() > before, 10)
        assert dict(provider.open_read(2).rows()) == rows | {("k", 1): (2, "y")}
    finally:
        memory(spark).resetHeapLimit()
        provider.end_stores()
        provider.close()


def trial(spark: Any) -> Any:
    return spark._jvm.org.apache.spark.sql.statestore.table.MovedPagesTrial(20_000)

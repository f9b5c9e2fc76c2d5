"""The JVM's state table under random operations, compared with a map."""

from __future__ import annotations

import gc
import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.spark.counting import wait_until
from tests.spark.harness import Provider, Row
from tests.support.effort import EFFORT

ROWS = {
    "many rows": {"keys": 12_000, "largest": 200, "steps": 20_000},
    "larger than a page": {"keys": 300, "largest": 700_000, "steps": 8_000},
    "few keys": {"keys": 30, "largest": 40_000, "steps": 60_000},
}

# True for a table with lists; the number of prefixes.
TABLES = {"one value": (False, 0), "lists": (True, 0), "prefixes": (False, 40), "both": (True, 40)}

# Limits of the heap in bytes, each with its number of random sequences.
HEAPS = {"heap": (2**40, 2), "files": (0, 1), "moved pages": (2**20, 1), "changing": (-1, 1)}

# make soak has all combinations.
CHOSEN = {
    ("many rows", "one value", "heap"),
    ("many rows", "both", "heap"),
    ("many rows", "lists", "files"),
    ("many rows", "one value", "moved pages"),
    ("many rows", "prefixes", "changing"),
    ("larger than a page", "one value", "heap"),
    ("larger than a page", "both", "files"),
    ("larger than a page", "prefixes", "moved pages"),
    ("larger than a page", "lists", "changing"),
    *(("few keys", table, "heap") for table in TABLES),
    ("few keys", "one value", "files"),
    ("few keys", "both", "moved pages"),
    ("few keys", "both", "changing"),
}

pytestmark = pytest.mark.usefixtures("no_other_tables")


@pytest.mark.parametrize(
    ("rows", "table", "heap"),
    [
        pytest.param(*case, marks=[] if case in CHOSEN else pytest.mark.soak)
        for case in itertools.product(ROWS, TABLES, HEAPS)
    ],
)
def test_table_equals_a_map_after_random_operations(spark: Any, rows: str, table: str, heap: str) -> None:
    trial = spark._jvm.org.apache.spark.sql.statestore.table.TableTrial
    limit, seeds = HEAPS[heap]
    for seed in range(seeds * EFFORT):
        before = memory(spark).mappedBytes()
        used, freed, rewritten = trial(
            seed, ROWS[rows]["keys"], ROWS[rows]["largest"], *TABLES[table], limit
        ).run(ROWS[rows]["steps"])
        assert used > before or limit not in (0, 2**20) or rewritten > 0
        assert freed <= before
        assert rewritten > 0 or (rows, heap) != ("few keys", "heap")


def test_table_returns_own_rows_to_concurrent_readers(spark: Any) -> None:
    spark._jvm.org.apache.spark.sql.statestore.table.ReadersTrial(400, 3).run(100_000)


def test_read_stores_of_one_version_have_rows_of_their_own(spark: Any, tmp_path: Path) -> None:
    provider = Provider(spark, f"file:{tmp_path}")
    put(provider, 0, {("k", number): (number, "x") for number in range(2)})
    readers = [provider.open_read(1) for _ in range(2)]
    assert readers[0].get_before(("k", 0), readers[1], ("k", 1)) == (0, "x")


def test_table_takes_keys_that_were_chosen_to_collide(spark: Any) -> None:
    trial = spark._jvm.org.apache.spark.sql.statestore.table.ChosenKeysTrial
    assert trial.putKeysOfOneWord() == 8_192
    assert trial.putKeysOfPairs() == 8_192


def test_table_has_a_row_for_each_key_whose_hashes_agree(spark: Any) -> None:
    # An index entry has 28 bits of a hash: about 75 pairs of so many keys agree in all of them.
    assert memory(spark).keysBesideRolledBack(200_000, 0) == 200_000


def test_table_has_its_keys_after_a_rollback_of_many_others(spark: Any) -> None:
    # The index grows meanwhile, which mixes its entries.
    assert memory(spark).keysBesideRolledBack(3_000, 100_000) == 3_000


def test_table_stays_small_when_a_batch_writes_few_keys_often(spark: Any) -> None:
    # 2,000,000 records have at least 96 MB.
    assert memory(spark).overwrite(2_000_000) < 40 << 20


def test_ordered_table_has_each_key_once(spark: Any) -> None:
    assert memory(spark).keysInOrder(5_000) == 2_500


def test_heap_of_ordered_rows_is_accounted_for(spark: Any) -> None:
    assert 24 < memory(spark).heapOfOrder(200_000) / 200_000 < 32


@pytest.mark.parametrize(
    ("limit", "size"), [("20k", 20 << 10), ("5M", 5 << 20), ("2gb", 2 << 30), ("1048576", 1 << 20)]
)
def test_heap_limit_of_an_option_has_a_unit(spark: Any, tmp_path: Path, limit: str, size: int) -> None:
    try:
        Provider(spark, f"file:{tmp_path}", backend__maxHeapBytes=limit).close()
        assert spark._jvm.org.apache.spark.sql.statestore.table.TableMemory.mostHeap() == size
    finally:
        memory(spark).resetHeapLimit()


def test_table_refuses_a_row_that_no_batch_has_room_for(spark: Any) -> None:
    # A record batch has less than 2 GiB, and other rows before this one.
    assert memory(spark).takes(2_031 << 20)
    assert not memory(spark).takes(2_032 << 20)


def test_failed_compaction_is_tried_again(spark: Any) -> None:
    assert spark._jvm.org.apache.spark.sql.statestore.provider.CompactionTrial.isRepeated()


def test_rows_are_rolled_back_after_only_one_family_was_compacted(spark: Any) -> None:
    assert spark._jvm.org.apache.spark.sql.statestore.provider.CompactionTrial.rowsAfterRollback() == 100


def test_table_memory_is_freed_under_concurrent_readers(spark: Any) -> None:
    trial = spark._jvm.org.apache.spark.sql.statestore.table.LeaseTrial(20_000, 3)
    growth, rows = trial.run(100)
    assert growth <= 0
    assert rows > 20_000


def test_mapped_memory_is_freed_when_its_last_task_ends(spark: Any, tmp_path: Path) -> None:
    before = memory(spark).mappedBytes()
    rows = {("k", number): (number, "x" * 400) for number in range(4_000)}
    provider = Provider(spark, f"file:{tmp_path}", backend__maxHeapBytes="0")
    try:
        provider.begin_task()
        put(provider, 0, rows)
        provider.end_task()
        one_version = memory(spark).mappedBytes()
        # Unlinked while they are used, none is left behind however the JVM ends.
        local = Path(spark.sparkContext.getConf().get("spark.local.dir"))
        assert not list(local.rglob("statestore-*.pages"))
        for version in range(1, 12):
            provider.begin_task()
            put(provider, version, dict.fromkeys(rows, (version, "y" * 400)))
            provider.end_task()
        # The replaced logs of compactions are freed without a garbage collection.
        assert memory(spark).mappedBytes() - before < 8 * (one_version - before)
        provider.begin_task()
        reader = provider.open_read(12)
        iterator = reader.iterator()
        shown = iterator.take(10)
        provider.close()
        assert memory(spark).mappedBytes() > before
        assert dict(shown + iterator.take(len(rows))) == dict.fromkeys(rows, (11, "y" * 400))
        unread = reader.iterator()
        provider.end_task()
        assert memory(spark).mappedBytes() <= before
        with pytest.raises(Exception, match="the task of this state store has ended"):
            unread.take(1)
    finally:
        memory(spark).resetHeapLimit()


def test_iterator_stays_valid_when_a_spilled_store_is_rewritten_and_closed(
    spark: Any, tmp_path: Path
) -> None:
    before = memory(spark).mappedBytes()
    first = {("k", number): (number, "x" * 400) for number in range(4_000)}
    provider = Provider(spark, f"file:{tmp_path}", backend__maxHeapBytes="0")
    try:
        put(provider, 0, first)
        reader = provider.open_read(1)
        rows = reader.iterator()
        shown = rows.take(10)
        reader.release()
        # Everything is superseded twice, so that the log is compacted and the pages of `first` are dropped.
        for version in (1, 2, 3):
            metrics = put(provider, version, dict.fromkeys(first, (version, "y" * 400)))
            assert metrics["stateTableMappedBytes"] > 1 << 20
        provider.close()
        del provider
        spark._jvm.System.gc()
        assert dict(shown + rows.take(len(first))) == first
    finally:
        memory(spark).resetHeapLimit()
    rows.close()
    del rows, reader

    def is_unmapped() -> bool:
        gc.collect()
        spark._jvm.System.gc()
        return bool(memory(spark).mappedBytes() <= before)

    assert wait_until(is_unmapped, 20)


def memory(spark: Any) -> Any:
    return spark._jvm.org.apache.spark.sql.statestore.table.TableTrial


def put(provider: Provider, version: int, rows: dict[Row, Row]) -> dict[str, int]:
    script = (store := provider.open(version)).script()
    for key, value in rows.items():
        script.put(key, value)
    script.run()
    store.commit()
    return store.metrics

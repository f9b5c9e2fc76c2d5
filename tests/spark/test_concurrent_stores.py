"""Several stores of one partition and version, each through the real provider.

They are of jobs and stages of one batch.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, SparkRuntimeException

import spark_statestore
from tests.spark.families import LISTS, MAPS, TIMES, A, B, C, created, open_provider, value
from tests.spark.harness import IMMEDIATE_CLEANUP, Family, Open, Provider, Row, Script, Store, instances, read
from tests.spark.test_error_conditions import INVALID_STAMP
from tests.support.effort import EFFORT

pytestmark = pytest.mark.first


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def checkpoint_format(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def instance(spark: Any, tmp_path: Path, checkpoint_format: int) -> Iterator[Open]:
    with instances(
        spark, tmp_path, checkpointFormatVersion=str(checkpoint_format), **IMMEDIATE_CLEANUP
    ) as opens:
        yield opens


def commit(
    provider: Provider, version: int, checkpoint_id: str | None, *rows: tuple[Row, Row | None]
) -> Store:
    store = provider.open(version, checkpoint_id)
    for key, row in rows:
        if row is None:
            store.remove(key)
        else:
            store.put(key, row)
    assert store.commit() == version + 1
    return store


@pytest.mark.parametrize("checkpoint_format", [2], ids=["v2"])
def test_readers_at_once_have_the_rows_of_their_attempts(instance: Open) -> None:
    ids = [commit(instance(), 0, None, (A, value(number))).checkpoint_id for number in range(2)]
    provider = instance()
    readers = [provider.open_read(1, attempt) for attempt in ids]
    assert [reader.rows() for reader in readers] == [[(A, value(0))], [(A, value(1))]]
    for reader in readers:
        reader.release()


def test_stores_open_at_once_both_commit(instance: Open, checkpoint_format: int) -> None:
    provider = instance()
    first = commit(provider, 0, None, (A, value(1)), (B, value(1))).checkpoint_id
    stores = [provider.open(1, first) for _ in range(2)]
    for number, store in enumerate(stores):
        assert store.get(A) == value(1)
        store.put(A, value(10 + number))
    for store in stores:
        assert store.commit() == 2
    ids = [store.checkpoint_id for store in stores]
    # Without ids the last attempt counts, with ids the one that Spark accepts.
    for number in [1] if checkpoint_format == 1 else [0, 1]:
        expected = {A: value(10 + number), B: value(1)}
        assert read(instance(), 2, ids[number]) == expected
        assert read(provider, 2, ids[number]) == expected
        third = commit(provider, 2, ids[number], (C, value(3))).checkpoint_id
        assert read(instance(), 3, third) == expected | {C: value(3)}


def test_store_that_finds_the_state_in_use_leaves_it_in_memory(instance: Open) -> None:
    provider = instance()
    first = commit(provider, 0, None, (A, value(1))).checkpoint_id
    longest = provider.open(1, first)
    longest.put(A, value(2))
    shorter = provider.open(1, first)
    assert dict(shorter.rows()) == {A: value(1)}
    shorter.abort()
    longest.commit()
    # The state was not loaded again.
    assert commit(provider, 2, longest.checkpoint_id, (B, value(3))).metrics["checkpointLoadBytes"] == 0


@pytest.mark.spark
@pytest.mark.oldest
def test_readers_open_at_once_each_write_and_commit(instance: Open) -> None:
    provider = instance()
    first = commit(provider, 0, None, (A, value(1)), (B, value(1))).checkpoint_id
    readers = [provider.open_read(1, first) for _ in range(2)]
    stores = [provider.upgrade(reader, 1, first) for reader in readers]
    for number, (reader, store) in enumerate(zip(readers, stores, strict=True)):
        # Not what the other one has written.
        assert reader.get(A) == reader.get(B) == value(1)
        store.put(A, value(10 + number))
    for store in stores:
        store.commit()
    assert read(instance(), 2, stores[1].checkpoint_id) == {A: value(11), B: value(1)}


def test_store_cannot_commit_once_a_later_version_was_opened(instance: Open) -> None:
    provider = instance()
    first = commit(provider, 0, None, (A, value(1))).checkpoint_id
    late = provider.open(1, first)
    late.put(A, value(2))
    second = commit(provider, 1, first, (A, value(3))).checkpoint_id
    newest = provider.open(2, second)
    with pytest.raises(SparkRuntimeException, match="a store was opened at a later version") as refused:
        late.commit()
    assert refused.value.getCondition() == INVALID_STAMP
    late.abort()
    newest.put(B, value(4))
    newest.commit()
    assert read(instance(), 3, newest.checkpoint_id) == {A: value(3), B: value(4)}


@pytest.mark.parametrize("checkpoint_format", [2], ids=["v2"], indirect=True)
def test_first_of_two_attempts_in_turn_needs_no_load(instance: Open, checkpoint_format: int) -> None:
    """With ids Spark accepts the first attempt if a batch runs its stage twice."""
    provider = instance()
    rows = [((f"k{i}", i), value(i)) for i in range(50)]
    first = commit(provider, 0, None, *rows).checkpoint_id
    changes = (rows[0][0], value(100)), (rows[1][0], None), (A, value(1))
    accepted = commit(provider, 1, first, *changes).checkpoint_id
    commit(provider, 1, first, (B, value(5)), (rows[2][0], None))
    store = commit(provider, 2, accepted, (rows[1][0], value(7)))
    assert store.metrics["checkpointLoadBytes"] == 0
    expected = dict(rows) | {rows[0][0]: value(100), A: value(1), rows[1][0]: value(7)}
    assert read(provider, 3, store.checkpoint_id) == expected
    assert read(instance(), 3, store.checkpoint_id) == expected


@pytest.mark.parametrize("seed", range(2 * EFFORT))
def test_attempt_that_is_made_again_has_the_rows_of_every_family(
    spark: Any, tmp_path: Path, seed: int
) -> None:
    """Lists, prefixes and orders are those of the attempt in storage, whatever the attempt after it did."""
    chance = random.Random(seed)
    opened = []

    def open_instance() -> Provider:
        opened.append(
            open_provider(spark, tmp_path, spark_statestore.PROVIDER_CLASS, checkpointFormatVersion="2")
        )
        return opened[-1]

    def attempt(version: int, checkpoint_id: str | None) -> Store:
        store = created(provider.open(version, checkpoint_id), LISTS, MAPS, TIMES)
        script = store.script()
        for _ in range(chance.randrange(40)):
            key, number = ("k", chance.randrange(6)), value(chance.randrange(100), "x" * chance.randrange(9))
            match chance.randrange(7):
                case 0:
                    script.merge(key, number, "lists")
                case 1:
                    script.put_list(key, [number] * chance.randrange(1, 4), "lists")
                case 2:
                    script.remove(key, "lists")
                case 3:
                    script.put((f"p{chance.randrange(3)}", key[1]), number, "maps")
                case 4:
                    script.remove((f"p{chance.randrange(3)}", key[1]), "maps")
                case 5:
                    script.put((chance.randrange(-3, 3), "t"), number, "times")
                case _:
                    script.remove((chance.randrange(-3, 3), "t"), "times")
        script.run()
        store.commit()
        return store

    def content(provider: Provider, version: int, checkpoint_id: str | None) -> list[Any]:
        store = provider.open_read(version, checkpoint_id)
        for family in (LISTS, MAPS, TIMES):
            store.register(family)
        rows = [store.scan("allValues", family="lists"), store.rows("maps"), store.rows("times")]
        prefixes = [sorted(store.prefix_rows(f"p{number}", family="maps")) for number in range(3)]
        store.release()
        return [sorted(rows[0], key=lambda row: row[0]), sorted(rows[1]), rows[2], prefixes]

    provider = open_instance()
    accepted = attempt(0, None).checkpoint_id
    for version in range(1, 8):
        first = attempt(version, accepted).checkpoint_id
        attempt(version, accepted)
        accepted = first
        before = attempt(version + 1, accepted) if version % 2 else None
        assert before is None or before.metrics["checkpointLoadBytes"] == 0
        assert content(provider, version + 1, accepted) == content(open_instance(), version + 1, accepted)
    for instance in opened:
        instance.close()


def test_task_that_ends_during_an_operation_leaves_the_state_as_it_was(spark: Any, tmp_path: Path) -> None:
    lists = Family("default", multiple=True)
    provider = Provider(spark, f"file:{tmp_path}", families=True, default=lists, checkpointFormatVersion="2")
    keys = [(f"k{number}", number) for number in range(500)]
    first = provider.open(0)
    for key in keys:
        first.put(key, value(1))
    first.commit()
    many, few = [value(number) for number in range(20_000)], [value(1), value(2)]
    # Of the moment at which the task ends, about that of the operation in the other thread.
    delay, step, cut = 0.05, 0.02, 0
    for round_number in range(30 * EFFORT):
        key = (f"new{round_number}", round_number)
        provider.begin_task()
        script = provider.open(1, first.checkpoint_id).script()
        script.merge_list(key, many)
        ends: list[bool] = []

        def merge(script: Script = script, ends: list[bool] = ends) -> None:
            try:
                script.run()
                ends.append(True)
            except (Py4JJavaError, PySparkException):
                ends.append(False)

        thread = Thread(target=merge)
        thread.start()
        time.sleep(delay)
        with contextlib.suppress(Py4JJavaError, PySparkException):
            provider.end_task(failed=True)
        thread.join()
        cut += ends == [False]
        delay = max(delay - step if ends == [True] else delay + step, 0.001)
        step = max(step * 0.8, 0.002)
        provider.begin_task()
        again = provider.open(1, first.checkpoint_id)
        assert sorted(row_key for row_key, _ in again.rows()) == sorted(keys)
        again.put_list(key, few)
        assert again.values(key) == few
        provider.end_task(failed=True)
    assert cut

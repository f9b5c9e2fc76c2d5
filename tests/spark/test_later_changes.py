"""A state in memory at an earlier version becomes a later one by the changes in between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from tests.spark.harness import Family, Open, Provider, Row, Store, instances, read

A, B, C = ("a", 1), ("b", 2), ("c", 3)

ROWS: dict[Row, Row] = {("row", i): (i, "x" * 20) for i in range(2000)}


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def instance(request: pytest.FixtureRequest, spark: Any, tmp_path: Path) -> Iterator[Open]:
    with instances(
        spark,
        tmp_path,
        checkpointFormatVersion=str(request.param),
        backend__localRecovery="off",
        **{"spark.sql.streaming.minBatchesToRetain": "10"},
    ) as opened:
        yield opened


def commit_rows(provider: Provider, version: int, checkpoint_id: str | None, rows: dict[Row, Row]) -> Store:
    script = (store := provider.open(version, checkpoint_id)).script()
    for key, row in rows.items():
        script.put(key, row)
    script.run()
    store.commit()
    return store


def commit(provider: Provider, version: int, checkpoint_id: str | None, rows: dict[Row, Row]) -> str | None:
    return commit_rows(provider, version, checkpoint_id, rows).checkpoint_id


def opened(provider: Provider, version: int, checkpoint_id: str | None) -> tuple[dict[Row, Row], int]:
    """Return the rows of a version, and the bytes that were loaded for them."""
    store = provider.open(version, checkpoint_id)
    rows = dict(store.rows())
    store.commit()
    return rows, store.metrics["checkpointLoadBytes"]


def test_changes_of_later_versions_alone_are_loaded(instance: Open) -> None:
    first, second = instance(), instance()
    first_id = commit(first, 0, None, ROWS)
    second_id = commit(second, 1, first_id, {A: (1, "a"), ("row", 7): (7, "changed")})
    third_id = commit(second, 2, second_id, {B: (2, "b"), A: (1, "again")})
    rows, loaded = opened(first, 3, third_id)
    assert rows == ROWS | {A: (1, "again"), B: (2, "b"), ("row", 7): (7, "changed")}
    _, whole = opened(instance(), 3, third_id)
    assert 0 < loaded < whole / 10
    assert read(instance(), 3, third_id) == rows


def test_attempt_in_memory_that_was_not_accepted_is_left(instance: Open) -> None:
    first, second = instance(), instance()
    first_id = commit(first, 0, None, ROWS)
    commit(first, 1, first_id, {A: (1, "not accepted")})
    second_id = commit(second, 1, first_id, {B: (2, "accepted")})
    third_id = commit(second, 2, second_id, {C: (3, "later")})
    rows, _ = opened(first, 3, third_id)
    assert rows == ROWS | {B: (2, "accepted"), C: (3, "later")}


def test_values_of_a_key_keep_their_order(spark: Any, tmp_path: Path) -> None:
    lists = Family("lists", multiple=True)
    with instances(spark, tmp_path, families=True, backend__localRecovery="off") as instance:
        first, second = instance(), instance()

        def put(provider: Provider, version: int, *values: Row) -> Store:
            store = provider.open(version)
            store.create(lists)
            script = store.script()
            for value in values:
                script.merge(A, value, "lists")
            script.run()
            store.commit()
            return store

        put(first, 0, *[(i, "x" * 50) for i in range(500)])
        put(second, 1, (500, "later"))
        put(second, 2, (501, "later"), (502, "later"))
        store = first.open(3)
        store.create(lists)
        assert [value[0] for value in store.values(A, "lists")] == list(range(503))
        store.commit()
        assert 0 < store.metrics["checkpointLoadBytes"] < 4000


def test_family_that_was_created_anew_is_not_the_one_in_memory(spark: Any, tmp_path: Path) -> None:
    family = Family("other")

    def put(provider: Provider, version: int, key: Row, row: Row) -> None:
        store = provider.open(version)
        store.create(family)
        store.put(key, row, "other")
        store.commit()

    with instances(spark, tmp_path, families=True, backend__localRecovery="off") as instance:
        first, second = instance(), instance()
        store = first.open(0)
        store.create(family)
        script = store.script()
        for key, row in ROWS.items():
            script.put(key, row)
        script.run()
        store.put(A, (1, "old"), "other")
        store.commit()
        put(second, 1, B, (2, "removed"))
        store = second.open(2)
        assert store.remove_family("other")
        store.commit()
        put(second, 3, A, (1, "new"))
        # The family in memory has as many rows, but not the same history.
        put(first, 4, A, (1, "newer"))
        store = instance().open_read(5)
        assert store.rows("other") == [(A, (1, "newer"))]
        assert dict(store.rows()) == ROWS
        store.release()


def test_state_that_always_returns_is_compacted(instance: Open) -> None:
    providers = instance(), instance()
    rows: dict[Row, Row] = {("row", i): (0, "x" * 2000) for i in range(1000)}
    checkpoint_id = commit(providers[0], 0, None, rows)
    used, compactions = [], 0
    for version in range(1, 30):
        changed: dict[Row, Row] = {("row", i): (version, "x" * 2000) for i in range(150)}
        store = commit_rows(providers[version % 2], version, checkpoint_id, changed)
        rows |= changed
        checkpoint_id = store.checkpoint_id
        used.append(store.metrics["memoryUsedBytes"])
        compactions += store.metrics["stateTableCompactions"]
    assert compactions > 0
    assert max(used) < 3 * used[0]
    assert read(instance(), 30, checkpoint_id) == rows


def test_state_is_whole_after_a_load_of_later_changes_that_failed(instance: Open, tmp_path: Path) -> None:
    first, second = instance(backend__fileStateThreshold="0"), instance(backend__fileStateThreshold="0")
    first_id = commit(first, 0, None, ROWS)
    second_id = commit(second, 1, first_id, {("row", i): (i, "changed") for i in range(0, 2000, 2)})
    third_id = commit(second, 2, second_id, {("row", i): (i, "again") for i in range(0, 2000, 3)})
    (stream,) = tmp_path.glob("state/0/0/shared/3-*")
    data = stream.read_bytes()
    # The last bytes: most of the changes are applied before the damage shows.
    stream.write_bytes(data[:-9] + bytes(9))
    with pytest.raises(Py4JJavaError):
        first.open(3, third_id)
    assert read(first, 2, second_id) == ROWS | {("row", i): (i, "changed") for i in range(0, 2000, 2)}
    stream.write_bytes(data)
    rows, _ = opened(first, 3, third_id)
    assert rows == read(instance(), 3, third_id)

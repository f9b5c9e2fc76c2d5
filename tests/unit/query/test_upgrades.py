"""Tests of the Spark versions that can continue a query, found from its checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_statestore._version import SUPPORTED_SPARK
from spark_statestore.errors import CheckpointNotFoundError
from spark_statestore.query import QueryCheckpoint
from spark_statestore.query.upgrades import obstacles_by_spark
from spark_statestore.store.metadata import ColumnFamily
from tests.unit.query import stored_query
from tests.unit.query.stored_query import COUNTS, WORDS, StoredQuery, schema


@pytest.fixture
def query(tmp_path: Path) -> StoredQuery:
    stored_query = StoredQuery(tmp_path / "checkpoint")
    stored_query.run(ann=1)
    return stored_query


def able(query: StoredQuery) -> tuple[str, ...]:
    """Return the versions that can continue a query; each of the others has a reason."""
    obstacles = obstacles_by_spark(QueryCheckpoint(query.url))
    assert tuple(obstacles) == SUPPORTED_SPARK
    return tuple(spark for spark, reasons in obstacles.items() if not reasons)


def set_operator(query: StoredQuery, name: str) -> None:
    metadata = (query.directory / "state/0/_metadata/metadata").read_text()
    query.put("state/0/_metadata/metadata", metadata.replace("stateStoreSave", name))


def set_commit_version(query: StoredQuery, version: str) -> None:
    query.put("commits/0", (query.directory / "commits/0").read_text().replace("v2", version, 1))


def set_offsets(query: StoredQuery, batch: int, version: str = "v1", **conf: str) -> None:
    metadata: dict[str, Any] = {"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": conf}
    query.put(f"offsets/{batch}", f"{version}\n{json.dumps(metadata)}\n{{}}")


def write_with(query: StoredQuery, operator: str, encoder: str = "hash", keys: str = WORDS) -> None:
    """Commit a batch of another operator, whose column family has other keys."""

    def family(name: str, rows: int, *_: Any) -> ColumnFamily:
        return ColumnFamily(name, rows, keys, COUNTS, encoder, 0)

    set_operator(query, operator)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_query, "ColumnFamily", family)
        query.run(ann=2)


def deduplicate(query: StoredQuery, columns: int, **setting: str) -> None:
    write_with(query, "dedupe", keys=schema(**{f"c{number}": "string" for number in range(columns)}))
    set_offsets(query, 1, **setting)


ORDER = "spark.sql.dropDuplicates.deterministicKeyOrder.enabled"

CASES: dict[str, tuple[Callable[[StoredQuery], None], tuple[str, ...]]] = {
    "plain state": (lambda query: None, SUPPORTED_SPARK),
    "Python by rows": (
        lambda query: set_operator(query, "transformWithStateInPySparkExec"),
        ("4.1", "4.2", "4.3"),
    ),
    # The entry of a batch that was planned, but not committed, is what the query starts from.
    "offset log with names of sources": (lambda query: set_offsets(query, 1, "v2"), ("4.2", "4.3")),
    "another commit log": (lambda query: set_commit_version(query, "v3"), ("4.2", "4.3")),
    "join": (lambda query: set_operator(query, "symmetricHashJoin"), ("4.1", "4.2", "4.3")),
    "join by time": (lambda query: write_with(query, "symmetricHashJoin", "timestampPrefix"), ("4.3",)),
    "keys with times": (
        lambda query: write_with(query, "transformWithStateExec", "timestampPrefix"),
        ("4.2", "4.3"),
    ),
    "five ordered columns": (lambda query: deduplicate(query, 5, **{ORDER: "true"}), ("4.3",)),
    "four ordered columns": (lambda query: deduplicate(query, 4, **{ORDER: "true"}), SUPPORTED_SPARK),
    "columns in another order": (lambda query: deduplicate(query, 5, **{ORDER: "false"}), SUPPORTED_SPARK),
    "columns without a setting": (lambda query: deduplicate(query, 5), SUPPORTED_SPARK),
}


@pytest.mark.parametrize(("change", "minors"), CASES.values(), ids=CASES)
def test_query_continues_on_each_spark_that_reads_its_formats(
    query: StoredQuery, change: Callable[[StoredQuery], None], minors: tuple[str, ...]
) -> None:
    change(query)
    assert able(query) == minors


def test_state_of_another_provider_continues_nowhere(query: StoredQuery) -> None:
    name = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    set_offsets(query, 0, **{"spark.sql.streaming.stateStore.providerClass": name})
    obstacles = obstacles_by_spark(QueryCheckpoint(query.url))
    assert all(name in reason for reasons in obstacles.values() for reason in reasons)
    assert able(query) == ()


def test_damaged_checkpoint_is_an_error(query: StoredQuery) -> None:
    for path in (query.directory / "state").rglob("_metadata"):
        if path.is_file():
            path.unlink()
    with pytest.raises(CheckpointNotFoundError):
        obstacles_by_spark(QueryCheckpoint(query.url))

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
    made = StoredQuery(tmp_path / "checkpoint")
    made.run(ann=1)
    return made


def able(query: StoredQuery) -> tuple[str, ...]:
    """Return the versions that can continue a query; each of the others has a reason."""
    found = obstacles_by_spark(QueryCheckpoint(query.url))
    assert tuple(found) == SUPPORTED_SPARK
    return tuple(spark for spark, reasons in found.items() if not reasons)


def set_operator(query: StoredQuery, name: str) -> None:
    metadata = (query.directory / "state/0/_metadata/metadata").read_text()
    query.put("state/0/_metadata/metadata", metadata.replace("stateStoreSave", name))


def set_commit_version(query: StoredQuery, version: str) -> None:
    query.put("commits/0", (query.directory / "commits/0").read_text().replace("v2", version, 1))


def set_offsets(query: StoredQuery, batch: int, version: str = "v1", **conf: str) -> None:
    metadata: dict[str, Any] = {"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": conf}
    query.put(f"offsets/{batch}", f"{version}\n{json.dumps(metadata)}\n{{}}")


def test_plain_state_continues_on_every_spark(query: StoredQuery) -> None:
    assert able(query) == SUPPORTED_SPARK


@pytest.mark.parametrize(
    ("change", "sparks"),
    [
        pytest.param(
            lambda query: set_operator(query, "transformWithStateInPySparkExec"),
            ("4.1", "4.2", "4.3"),
            id="Python by rows",
        ),
        # The entry of a batch that was planned, but not committed, is what the query starts from.
        pytest.param(lambda query: set_offsets(query, 1, "v2"), ("4.2", "4.3"), id="names of sources"),
        pytest.param(lambda query: set_commit_version(query, "v3"), ("4.2", "4.3"), id="other commit log"),
    ],
)
def test_later_format_needs_a_later_spark(
    query: StoredQuery, change: Callable[[StoredQuery], None], sparks: tuple[str, ...]
) -> None:
    change(query)
    assert able(query) == sparks


def test_state_of_another_provider_continues_nowhere(query: StoredQuery) -> None:
    name = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    set_offsets(query, 0, **{"spark.sql.streaming.stateStore.providerClass": name})
    found = obstacles_by_spark(QueryCheckpoint(query.url))
    assert all(name in reason for reasons in found.values() for reason in reasons)
    assert able(query) == ()


def test_joins_of_later_state_formats_need_later_sparks(query: StoredQuery) -> None:
    set_operator(query, "symmetricHashJoin")
    assert able(query) == ("4.1", "4.2", "4.3")
    write_with(query, encoder="timestampPrefix")
    assert able(query) == ("4.3",)


def test_keys_with_times_need_the_spark_that_introduced_them(query: StoredQuery) -> None:
    set_operator(query, "transformWithStateExec")
    write_with(query, encoder="timestampPrefix")
    assert able(query) == ("4.2", "4.3")


@pytest.mark.parametrize(
    ("columns", "setting", "sparks"),
    [
        (5, {"spark.sql.dropDuplicates.deterministicKeyOrder.enabled": "true"}, ("4.3",)),
        (4, {"spark.sql.dropDuplicates.deterministicKeyOrder.enabled": "true"}, SUPPORTED_SPARK),
        (5, {"spark.sql.dropDuplicates.deterministicKeyOrder.enabled": "false"}, SUPPORTED_SPARK),
        (5, {}, SUPPORTED_SPARK),
    ],
)
def test_order_of_many_deduplicated_columns_needs_the_same_rule(
    query: StoredQuery, columns: int, setting: dict[str, str], sparks: tuple[str, ...]
) -> None:
    set_operator(query, "dedupe")
    write_with(query, keys=schema(**{f"c{number}": "string" for number in range(columns)}))
    set_offsets(query, 1, **setting)
    assert able(query) == sparks


def write_with(query: StoredQuery, encoder: str = "hash", keys: str = WORDS) -> None:
    """Commit a batch whose column family has other keys."""

    def family(name: str, rows: int, *_: Any) -> ColumnFamily:
        return ColumnFamily(name, rows, keys, COUNTS, encoder, 0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_query, "ColumnFamily", family)
        query.run(ann=2)


def test_damaged_checkpoint_is_an_error(query: StoredQuery) -> None:
    for path in (query.directory / "state").rglob("_metadata"):
        if path.is_file():
            path.unlink()
    with pytest.raises(CheckpointNotFoundError):
        obstacles_by_spark(QueryCheckpoint(query.url))

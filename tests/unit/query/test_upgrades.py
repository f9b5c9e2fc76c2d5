"""Tests of the Spark versions that can continue a query, found from its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_statestore._version import SUPPORTED_SPARK
from spark_statestore.errors import CheckpointNotFoundError
from spark_statestore.query import QueryCheckpoint
from spark_statestore.query.upgrades import obstacles_by_spark
from spark_statestore.store.metadata import ColumnFamily
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


def set_operator(query: StoredQuery, name: str, stores: tuple[str, ...] = ("default",)) -> None:
    node = {
        "operatorInfo": {"operatorId": 0, "operatorName": name},
        "stateStoreInfo": [
            {"storeName": store, "numColsPrefixKey": 0, "numPartitions": query.partitions} for store in stores
        ],
    }
    query.put("state/0/_metadata/metadata", f"v1\n{json.dumps(node)}")


def set_offsets(query: StoredQuery, batch: int, version: str = "v1", **conf: str) -> None:
    metadata: dict[str, Any] = {"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": conf}
    query.put(f"offsets/{batch}", f"{version}\n{json.dumps(metadata)}\n{{}}")


def test_plain_state_continues_on_every_spark(query: StoredQuery) -> None:
    assert able(query) == SUPPORTED_SPARK


def test_python_by_rows_needs_spark_4_1(query: StoredQuery) -> None:
    set_operator(query, "transformWithStateInPySparkExec")
    assert able(query) == ("4.1", "4.2", "4.3")


def test_offset_log_with_names_of_sources_needs_spark_4_2(query: StoredQuery) -> None:
    # The entry of a batch that was planned, but not committed, is what the query starts from.
    set_offsets(query, 1, "v2")
    assert able(query) == ("4.2", "4.3")


def test_another_commit_log_needs_spark_4_2(query: StoredQuery) -> None:
    query.put("commits/0", (query.directory / "commits/0").read_text().replace("v2\n", "v3\n", 1))
    assert able(query) == ("4.2", "4.3")


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
    # Keys like these in another operator need the Spark that introduced them.
    set_operator(query, "transformWithStateExec")
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
    from tests.unit.query import stored_query

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

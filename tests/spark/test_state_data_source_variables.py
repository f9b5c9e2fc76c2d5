"""Spark's state data source over variables of transformWithState: their changes, batch by batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.spark.change_feeds import Change, require_net_changes
from tests.spark.processors import OUTPUT, Interpreter
from tests.spark.processors_query import SCHEMA, batches
from tests.spark.queries import OURS, ROCKSDB, STATE_STORE, Query, configured

pytestmark = pytest.mark.slow


def interpreted(stream: Any) -> Any:
    return stream.groupBy("k").transformWithState(Interpreter("string"), OUTPUT, "Update", "None")


@pytest.fixture(scope="module")
def queries(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Query]]:
    """Return the same query on our store and on Spark's, with checkpoints of format v2."""
    confs = {STATE_STORE + "rocksdb.changelogCheckpointing.enabled": "true"}
    result = []
    for provider in (OURS, ROCKSDB):
        directory = tmp_path_factory.mktemp("variables")
        query = Query(
            spark,
            directory,
            interpreted,
            "update",
            SCHEMA,
            provider=provider,
            checkpoint_format=2,
            confs=confs,
        )
        query.feed(*batches(4))
        query.run()
        result.append(query)
    with configured(spark, {STATE_STORE + "checkpointFormatVersion": "2"}):
        yield result


def rows(query: Query, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    reader = query.spark.read.format("statestore").options(**options)
    return [row.asDict(recursive=True) for row in reader.load(str(query.checkpoint)).collect()]


def entry(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return a row's key and value."""
    key = [row[column] for column in ("partition_id", "key", "user_map_key") if column in row]
    return repr(key), repr([v for column, v in row.items() if "value" in column or "element" in column])


def state_at(query: Query, variable: str, batch: int) -> dict[str, list[str]]:
    """Return the variable after a batch: the values of each key."""
    state: dict[str, list[str]] = {}
    for row in rows(query, {"stateVarName": variable, "batchId": batch}):
        key, value = entry(row)
        state.setdefault(key, []).append(value)
    return state


def changes_of(feed: list[dict[str, Any]]) -> list[Change]:
    """Return batch, change type, key and value of each change of a feed."""
    return [(change["batch_id"], change["change_type"], *entry(change)) for change in feed]


def states_of(changes: list[Change]) -> list[dict[Any, list[Any]]]:
    """Return the state after each batch of a change feed: the values of each key."""
    state: dict[Any, list[Any]] = {}
    states = []
    for batch in sorted({change[0] for change in changes}):
        for number, kind, key, value in changes:
            if number != batch:
                continue
            if kind == "delete":
                state.pop(key, None)
            elif kind == "append":
                state.setdefault(key, []).append(value)
            else:
                state[key] = [value]
        states.append({key: list(values) for key, values in state.items()})
    return states


@pytest.mark.parametrize("variable", ["one", "many", "named"])
def test_change_feed_leads_to_the_states_of_sparks_store(queries: list[Query], variable: str) -> None:
    options = {"stateVarName": variable, "readChangeFeed": "true", "changeStartBatchId": 0}
    own_query, rocksdb_query = queries
    feed = changes_of(rows(own_query, options))
    states = states_of(feed)
    assert states == [state_at(rocksdb_query, variable, batch) for batch in range(4)]
    expected = changes_of(rows(rocksdb_query, options))
    assert states == states_of(expected)
    require_net_changes(feed, expected)
    assert all(states)


@pytest.mark.parametrize("variable", ["one", "many", "named"])
def test_replay_equals_the_version(queries: list[Query], variable: str) -> None:
    own_query, rocksdb_query = queries
    whole = {"stateVarName": variable, "batchId": 3}
    expected = Counter(map(repr, rows(rocksdb_query, whole)))
    assert Counter(map(repr, rows(own_query, whole))) == expected
    replay: Counter[str] = Counter()
    for partition in (0, 1):
        replayed = {"snapshotStartBatchId": partition, "snapshotPartitionId": partition}
        replay += Counter(map(repr, rows(own_query, whole | replayed)))
    assert replay == expected

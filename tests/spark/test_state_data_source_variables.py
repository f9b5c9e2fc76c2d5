"""The state data source over variables of transformWithState: what became of them, batch by batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.spark.processors import SAID, Interpreter
from tests.spark.processors_query import SCHEMA, batches
from tests.spark.queries import OURS, ROCKSDB, STATE_STORE, Query, configured

pytestmark = pytest.mark.slow


def interpreted(stream: Any) -> Any:
    return stream.groupBy("k").transformWithState(Interpreter("string"), SAID, "Update", "None")


@pytest.fixture(scope="module")
def queries(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Query]]:
    """The same query on our store and on Spark's, with checkpoints of format v2."""
    confs = {STATE_STORE + "rocksdb.changelogCheckpointing.enabled": "true"}
    made = []
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
        made.append(query)
    with configured(spark, {STATE_STORE + "checkpointFormatVersion": "2"}):
        yield made


def rows(query: Query, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    reader = query.spark.read.format("statestore").options(**options)
    return [row.asDict(recursive=True) for row in reader.load(str(query.checkpoint)).collect()]


def states_of(feed: list[dict[str, Any]]) -> list[dict[str, list[str]]]:
    """The variable after each batch of its change feed: the values of each key."""
    state: dict[str, list[str]] = {}
    states = []
    for batch in sorted({change["batch_id"] for change in feed}):
        for change in feed:
            if change["batch_id"] != batch:
                continue
            key = repr([change[c] for c in ("partition_id", "key", "user_map_key") if c in change])
            value = repr([v for c, v in change.items() if "value" in c or "element" in c])
            if change["change_type"] == "delete":
                state.pop(key, None)
            elif change["change_type"] == "append":
                state.setdefault(key, []).append(value)
            else:
                state[key] = [value]
        states.append({key: list(values) for key, values in state.items()})
    return states


@pytest.mark.parametrize("variable", ["one", "many", "named"])
def test_the_change_feed_makes_the_same_states_as_sparks(queries: list[Query], variable: str) -> None:
    options = {"stateVarName": variable, "readChangeFeed": "true", "changeStartBatchId": 0}
    ours, theirs = (states_of(rows(query, options)) for query in queries)
    assert ours == theirs
    assert len(ours) == 4
    assert all(ours)


@pytest.mark.parametrize("variable", ["one", "many", "named"])
def test_a_replay_gives_the_version(queries: list[Query], variable: str) -> None:
    ours, theirs = queries
    whole = {"stateVarName": variable, "batchId": 3}
    expected = Counter(map(repr, rows(theirs, whole)))
    assert Counter(map(repr, rows(ours, whole))) == expected
    found: Counter[str] = Counter()
    for partition in (0, 1):
        replayed = {"snapshotStartBatchId": partition, "snapshotPartitionId": partition}
        found += Counter(map(repr, rows(ours, whole | replayed)))
    assert found == expected

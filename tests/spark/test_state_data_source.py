"""Spark's state data source over this store: the rows of Spark's own stores, or an error with the reason."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from spark_statestore.options import OPTION_PREFIX
from tests.spark import events
from tests.spark.change_feeds import Change, require_net_changes
from tests.spark.harness import Provider
from tests.spark.queries import (
    JOIN_FORMAT,
    OURS,
    ROCKSDB,
    SPARKS,
    STATE_STORE,
    Query,
    configured,
)
from tests.spark.test_state_data_source_variables import states_of
from tests.support.spark_versions import NEWEST_JOIN_FORMAT, NEWEST_READABLE_FORMAT, is_since

pytestmark = pytest.mark.slow

Reads = Mapping[str, Mapping[str, Any]]


def busy_windows(stream: Any) -> Any:
    """Use two operators: an outer join, and a count of its output."""
    from pyspark.sql import functions as F

    timely = stream.withWatermark("ts", "10 minutes")
    left = timely.selectExpr("id % 20 as l", "ts as left_ts", "who")
    right = timely.selectExpr("id % 20 as r", "ts as right_ts", "k")
    near = F.expr("l = r and right_ts between left_ts and left_ts + interval 5 minutes")
    joined = left.join(right, near, "left_outer")
    return joined.groupBy(F.window("left_ts", "10 minutes"), "k").agg(F.count("*"), F.max("who"))


COUNTS, JOIN = {"operatorId": 0}, {"operatorId": 1}


@dataclass(frozen=True)
class Pair:
    """The same query on a store of Spark's and on this one, and the rows of its state."""

    spark_provider: str
    own_provider: str
    checkpoint_format: int
    join_format: str
    stores: Reads
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def session(self) -> dict[str, str]:
        """Return settings with which both can be read."""
        confs = {STATE_STORE + "checkpointFormatVersion": str(self.checkpoint_format)}
        return confs | {OPTION_PREFIX + name: value for name, value in self.options.items()}


PAIRS = {
    "v1, join of format 2": Pair(
        SPARKS,
        OURS,
        1,
        "2",
        {
            "counts": COUNTS,
            "numbers": JOIN | {"storeName": "left-keyToNumValues"},
            "values": JOIN | {"storeName": "right-keyWithIndexToValue"},
        },
    ),
}

_VALUES, _OTHER = {
    2: ("left-keyWithIndexToValue", "right-keyToNumValues"),
    3: ("left-keyWithIndexToValue", "right-keyToNumValues"),
    4: ("left-keyWithTsToValues", "right-tsWithKey"),
}[NEWEST_JOIN_FORMAT]

if NEWEST_READABLE_FORMAT == 2:
    PAIRS[f"v2, join of format {NEWEST_JOIN_FORMAT}"] = Pair(
        ROCKSDB,
        OURS,
        2,
        f"{NEWEST_JOIN_FORMAT}",
        {
            "counts": COUNTS,
            "values": JOIN | {"storeName": _VALUES},
            "others": JOIN | {"storeName": _OTHER},
        },
    )

with_newest_format = pytest.mark.parametrize("pair", list(PAIRS)[-1:], indirect=True)

QueryOf = Callable[..., Query]


@pytest.fixture(scope="module")
def query_of(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> QueryOf:
    """Return queries that have run; those on our store in format v2 have their state in another directory."""
    queries: dict[tuple[Any, ...], Query] = {}

    def run(pair: Pair, provider: str, **options: str) -> Query:
        key = (provider, *options.items())
        if key not in queries:
            confs = {
                JOIN_FORMAT: pair.join_format,
                STATE_STORE + "rocksdb.changelogCheckpointing.enabled": "true",
            }
            query = Query(
                spark,
                tmp_path_factory.mktemp("query"),
                busy_windows,
                "append",
                events.SCHEMA,
                provider=provider,
                checkpoint_format=pair.checkpoint_format,
                confs=confs | {OPTION_PREFIX + name: value for name, value in options.items()},
            )
            query.feed(*events.batches(4, rows=12))
            query.run()
            queries[key] = query
        return queries[key]

    return run


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("elsewhere")


# The oldest Spark reads format v1 alone, the newest is tested with both.
@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.oldest if "v1" in name else ()) for name in PAIRS],
)
def pair(request: pytest.FixtureRequest, elsewhere: Path) -> Pair:
    case = PAIRS[request.param]
    return case if case.checkpoint_format == 1 else replace(case, options={"checkpointsDir": str(elsewhere)})


@pytest.fixture
def spark_query(query_of: QueryOf, pair: Pair) -> Query:
    return query_of(pair, pair.spark_provider)


@pytest.fixture
def own_query(query_of: QueryOf, pair: Pair, spark: Any) -> Iterator[Query]:
    query = query_of(pair, pair.own_provider, **pair.options)
    with configured(spark, pair.session):
        yield query


def load(query: Query, options: Mapping[str, Any]) -> Any:
    return query.spark.read.format("statestore").options(**options).load(str(query.checkpoint))


def read(query: Query, reads: Reads) -> dict[str, list[Any]]:
    """Return the rows of several reads, keys and values as JSON, all in one job."""
    from pyspark.sql import functions as F

    def column(name: str) -> Any:
        text = F.to_json(F.struct(name), {"ignoreNullFields": "false"})
        return (text if name in ("key", "value") else F.col(name)).alias(name)

    frames = {name: load(query, options) for name, options in reads.items()}
    named = (
        frame.select(F.lit(name).alias("name"), *map(column, frame.columns)) for name, frame in frames.items()
    )
    rows_by_read: dict[str, list[Any]] = {name: [] for name in frames}
    for row in reduce(lambda first, second: first.unionByName(second), named).collect():
        rows_by_read[row.name].append(row)
    return rows_by_read


def counted(read_rows: list[Any], partition: int | None = None) -> Counter[tuple[str, str, int]]:
    rows = ((row.key, row.value, row.partition_id) for row in read_rows)
    return Counter(row for row in rows if partition in (None, row[2]))


def batches(query: Query) -> range:
    return range(int(query.commits[-1].name) + 1)


@pytest.mark.spark
def test_data_source_batch_equals_sparks_store(pair: Pair, spark_query: Query, own_query: Query) -> None:
    assert batches(spark_query) == batches(own_query)
    reads = {
        f"{name} {batch}": store | {"batchId": batch}
        for name, store in pair.stores.items()
        for batch in (0, 2, batches(own_query)[-1])
    }
    expected, actual = (read(query, reads) for query in (spark_query, own_query))
    assert {name: counted(rows) for name, rows in actual.items()} == {
        name: counted(rows) for name, rows in expected.items()
    }
    assert len({len(rows) for rows in actual.values()}) > 2
    assert {row.partition_id for rows in actual.values() for row in rows} == {0, 1}


@pytest.mark.spark
@with_newest_format
def test_replay_equals_the_version(pair: Pair, own_query: Query) -> None:
    newest = batches(own_query)[-1]
    ends = (3, newest)
    reads = {
        f"{name} {start} {end}": store
        | {"batchId": end, "snapshotStartBatchId": start, "snapshotPartitionId": start % 2}
        for name, store in pair.stores.items()
        for start, end in ((1, 3), (0, newest), (3, newest), (newest, newest))
    }
    whole = {f"{name} {end}": s | {"batchId": end} for name, s in pair.stores.items() for end in ends}
    rows_by_read = read(own_query, reads | whole)
    for name, options in reads.items():
        store, _, end = name.split()
        partition = options["snapshotPartitionId"]
        assert counted(rows_by_read[name]) == counted(rows_by_read[f"{store} {end}"], partition), name


def changes_of(feed: list[Any]) -> list[Change]:
    return [(row.batch_id, row.change_type, (row.partition_id, row.key), row.value) for row in feed]


@pytest.mark.spark
@with_newest_format
def test_change_feed_leads_to_the_states_of_sparks_store(
    pair: Pair, spark_query: Query, own_query: Query
) -> None:
    every = {"readChangeFeed": "true", "changeStartBatchId": 0}
    reads = {name: store | every for name, store in pair.stores.items()}
    all_expected, all_found = read(spark_query, reads), read(own_query, reads)
    for name, options in reads.items():
        expected, actual = changes_of(all_expected[name]), changes_of(all_found[name])
        assert states_of(actual) == states_of(expected), name
        require_net_changes(actual, expected)
        write_kind = "append" if options.get("storeName") == "right-tsWithKey" else "update"
        assert {kind for _, kind, *_ in actual} >= {write_kind, "delete"}


@with_newest_format
def test_change_feed_has_net_changes_of_each_key(pair: Pair, own_query: Query) -> None:
    every = {"readChangeFeed": "true", "changeStartBatchId": 0}
    some = every | {"changeStartBatchId": 1, "changeEndBatchId": 2}
    reads = {name: store | every for name, store in pair.stores.items()}
    rows_by_read = read(
        own_query, reads | {f"{name} some": store | some for name, store in pair.stores.items()}
    )
    for name in reads:
        feed = rows_by_read[name]
        # A key that is put and removed within a batch is not in it.
        first = Counter((c.batch_id, c.partition_id, c.key) for c in feed if c.change_type != "append")
        assert max(first.values()) == 1, name
        part = [change[1:] for change in feed if change.batch_id in (1, 2)]
        assert Counter(part) == Counter(change[1:] for change in rows_by_read[f"{name} some"])


@pytest.mark.spark
@with_newest_format
def test_state_metadata_equals_sparks_store(spark_query: Query, own_query: Query) -> None:
    rows = [
        q.spark.read.format("state-metadata").load(str(q.checkpoint)).collect()
        for q in (spark_query, own_query)
    ]
    assert sorted(rows[0]) == sorted(rows[1])
    assert {row.operatorName for row in rows[1]} == {"stateStoreSave", "symmetricHashJoin"}


@pytest.mark.spark
@pytest.mark.oldest
def test_data_source_reads_both_sides_of_a_join(query_of: QueryOf) -> None:
    pair = PAIRS["v1, join of format 2"]
    # These rows have a field more than their schema, so that they do not become JSON.
    for side in ("left", "right"):
        options = JOIN | {"joinSide": side}
        spark_rows, own_rows = (
            load(query_of(pair, p), options).collect() for p in (pair.spark_provider, pair.own_provider)
        )
        assert Counter(map(repr, own_rows)) == Counter(map(repr, spark_rows))
        replayed = options | {"snapshotStartBatchId": 1, "snapshotPartitionId": 1}
        replay = load(query_of(pair, pair.own_provider), replayed).collect()
        assert Counter(map(repr, replay)) == Counter(repr(row) for row in own_rows if row.partition_id == 1)
        assert replay


@pytest.mark.parametrize("pair", ["v2, join of format 4"], indirect=True)
def test_data_source_reads_both_sides_of_a_format_4_join(spark_query: Query, own_query: Query) -> None:
    newest = batches(own_query)[-1]
    for side in ("left", "right"):
        options = JOIN | {"joinSide": side}
        # Spark reads the event times of its own store wrong, 2**56 each.
        expected, actual = (
            Counter((row.key.field0, row.value, row.partition_id) for row in load(q, options).collect())
            for q in (spark_query, own_query)
        )
        assert actual == expected
        rows = load(own_query, options)
        stored = load(own_query, JOIN | {"storeName": f"{side}-keyWithTsToValues"})
        without = stored.withColumn("value", stored.value.dropFields("matched"))
        assert rows.schema == without.schema
        assert Counter(rows.collect()) == Counter(without.collect())
        older = {"batchId": newest - 1, "snapshotStartBatchId": 1, "snapshotPartitionId": 1}
        at = [
            row
            for row in load(own_query, options | {"batchId": newest - 1}).collect()
            if row.partition_id == 1
        ]
        assert Counter(load(own_query, options | older).collect()) == Counter(at)
        assert at


WRONG = [
    {"batchId": 99},
    {"batchId": -1},
    {"operatorId": 7},
    {"storeName": "nothing"},
    {"joinSide": "left"},
    {"joinSide": "middle"},
    {"stateVarName": "x"},
    {"readRegisteredTimers": "true"},
    {"snapshotStartBatchId": 1},
    {"snapshotPartitionId": 1},
    {"snapshotStartBatchId": 3, "snapshotPartitionId": 0, "batchId": 2},
    {"snapshotStartBatchId": 1, "snapshotPartitionId": 9},
    {"readChangeFeed": "true"},
    {"readChangeFeed": "true", "changeStartBatchId": 3, "changeEndBatchId": 2},
    {"readChangeFeed": "true", "changeStartBatchId": 0, "changeEndBatchId": 99},
    {"readChangeFeed": "true", "changeStartBatchId": 0, "batchId": 2},
    {"readChangeFeed": "true", "changeStartBatchId": 0, "joinSide": "left", "operatorId": 1},
    # For Spark's own repartitioning of state, which supports its RocksDB provider alone.
    {"_readAllColumnFamilies": "true"},
]


@pytest.mark.spark
@with_newest_format
def test_data_source_option_errors_equal_sparks_store(
    pair: Pair, spark_query: Query, own_query: Query
) -> None:
    for options in WRONG:
        if "_readAllColumnFamilies" in options and (pair.spark_provider == ROCKSDB or not is_since("4.2")):
            continue
        messages = [message(query, options) for query in (spark_query, own_query)]
        assert messages[0] == messages[1], options


def message(query: Query, options: Mapping[str, Any]) -> str:
    """Return the error message of a read, without the differences between two queries."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one is what the test is about
        load(query, options).collect()
    text = str(caught.value)
    if "[ST" not in text and "[CANNOT" not in text:
        # Before 4.2 some errors have no condition, and each store's own message.
        assert not is_since("4.2"), text
        return type(caught.value).__name__
    start = text.index("[ST" if "[ST" in text else "[CANNOT")
    text = text[start:].split("SQLSTATE")[0]
    assert "is not supported" in text or "UNSUPPORTED_PROVIDER" not in text
    for differs in (str(query.checkpoint), query._provider):
        text = text.replace(differs, "<>")
    return text


@contextmanager
def refused(*texts: str) -> Iterator[None]:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark wraps ours
        yield
    for text in texts:
        assert text in str(caught.value), str(caught.value)


def test_data_source_error_names_a_discarded_batch(query_of: QueryOf, tmp_path: Path) -> None:
    pair = PAIRS["v1, join of format 2"]
    query = query_of(pair, pair.own_provider, commit="task")
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(query.checkpoint, checkpoint)
    shutil.rmtree(checkpoint / "state" / "0" / "1" / "chk-2")
    where = "operator 0, partition 1, store default, version 2"
    reader = query.spark.read.format("statestore")
    with refused(where, "CANNOT_LOAD_STATE_STORE.CANNOT_READ_STREAMING_STATE_FILE", "minBatchesToRetain"):
        reader.options(batchId=1).load(str(checkpoint)).collect()
    missing = "CANNOT_LOAD_STATE_STORE.CANNOT_READ_MISSING_SNAPSHOT_FILE"
    replayed = {"snapshotStartBatchId": 1, "snapshotPartitionId": 1, "batchId": 3}
    fed = {"readChangeFeed": "true", "changeStartBatchId": 1, "changeEndBatchId": 3}
    for options in (replayed, fed):
        with refused(where, missing, "minBatchesToRetain"):
            query.spark.read.format("statestore").options(**options).load(str(checkpoint)).collect()


def test_data_source_reads_state_on_the_driver_without_history(query_of: QueryOf) -> None:
    pair = PAIRS["v1, join of format 2"]
    memory = query_of(pair, pair.own_provider, storage="memory")
    reads = {f"{batch}": {"batchId": batch} for batch in batches(memory)}
    with configured(memory.spark, {OPTION_PREFIX + "storage": "memory"}):
        actual = read(memory, reads)
        for options in (
            {"readChangeFeed": "true", "changeStartBatchId": 0},
            {"snapshotStartBatchId": 0, "snapshotPartitionId": 1},
        ):
            with refused("state on the driver", "batchId alone", "operator 0, partition"):
                load(memory, options).collect()
    expected = read(query_of(pair, pair.own_provider), reads)
    assert {name: counted(rows) for name, rows in actual.items()} == {
        name: counted(rows) for name, rows in expected.items()
    }
    # The data source uses the options of its session, and cannot know the query's.
    with refused("operator 0, partition", "the store has no version at all", "storage or checkpointsDir"):
        load(memory, {}).collect()


@pytest.mark.spark
@pytest.mark.skipif(NEWEST_READABLE_FORMAT == 2, reason="this Spark's data source reads checkpoint format v2")
def test_data_source_error_names_the_checkpoint_format(spark: Any, tmp_path: Path) -> None:
    query = Query(
        spark,
        tmp_path,
        lambda stream: stream.groupBy("k").count(),
        "update",
        events.SCHEMA,
        checkpoint_format=2,
    )
    query.feed(*events.batches(2, rows=12))
    query.run()
    # Before 4.1 it reads the commit log in the format of its session, and requests versions without ids.
    with refused("INVALID_LOG_VERSION"):
        load(query, {}).collect()
    format_2 = {STATE_STORE + "checkpointFormatVersion": "2"}
    with (
        configured(spark, format_2),
        refused("operator 0, partition", "format v2", "with Spark 4.1 or later"),
    ):
        load(query, {}).collect()


def test_replayed_version_can_be_written(spark: Any, tmp_path: Path) -> None:
    provider = Provider(spark, str(tmp_path))
    for version in range(3):
        store = provider.open(version)
        store.put(("k", version), (version, "v"))
        store.commit()
    none = getattr(spark._jvm, "scala.None$").__getattr__("MODULE$")
    replay = Provider(spark, str(tmp_path))._harness.provider().replayStateFromSnapshot
    for start, end in ((0, 1), (2, 1), (-1, 1)):
        with pytest.raises(Exception, match="UNEXPECTED_VERSION"):
            replay(start, end, False, none, none)
    read_only = replay(1, 2, True, none, none)
    with pytest.raises(Exception, match="this store is read-only"):
        read_only.commit()
    changed = replay(1, 2, False, none, none)
    assert changed.commit() == 3
    assert sorted(Provider(spark, str(tmp_path)).open_read(3).rows()) == [
        (("k", 0), (0, "v")),
        (("k", 1), (1, "v")),
    ]

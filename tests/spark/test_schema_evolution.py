"""Values of transformWithState change their schema as on Spark's RocksDB store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import Any

import pytest

import spark_statestore
from tests.spark.evolving_processor import LONGER, NARROW, SHORT, WIDE, Evolving
from tests.spark.golden import Recordings
from tests.spark.processors import DAY, OUTPUT
from tests.spark.processors_query import NO_EMPTY_BATCHES, ROCKS, SCHEMA, Build, Life, ProcessorQuery, life_of
from tests.spark.queries import OURS, STATE_STORE, Rows, configured, unload_all
from tests.spark.test_state_data_source_variables import changes_of, states_of
from tests.support.spark_versions import NEWEST_READABLE_FORMAT

pytestmark = pytest.mark.slow

CONFS = NO_EMPTY_BATCHES | {STATE_STORE + "rocksdb.changelogCheckpointing.enabled": "true"}
AVRO = CONFS | {STATE_STORE + "encodingFormat": "avro"}

VARIABLES = ["one", "many", "named"]


def rows(batch: int, keys: str) -> Rows:
    """Return input that changes every variable of each key."""
    ops = ["set", "append", "append", "put", "put"]
    return [
        {"k": key, "seq": seq, "op": op, "n": 10 * batch + seq, "v": f"{op} {batch % 2}", "ts": None}
        for key in keys
        for seq, op in enumerate(ops)
    ]


# Only one partition has rows in the second run's first batch.
PARTS = [[rows(0, "abcdef"), rows(1, "ab")], [rows(2, "a"), rows(3, "bc")], [rows(4, "d")]]


def in_python(*schemas: Any, ttl: int | None = None) -> Build:
    def build(stream: Any, run: int) -> Any:
        mode = "none" if ttl is None else "processingTime"
        return stream.groupBy("k").transformWithState(Evolving(schemas[run], ttl), OUTPUT, "update", mode)

    return build


def in_scala(*schemas: str) -> Build:
    def build(stream: Any, run: int) -> Any:
        from pyspark.sql import DataFrame

        session = stream.sparkSession
        processors = session._jvm.org.apache.spark.sql.statestore.transform.EvolvingProcessors
        steps = stream.select("k", "seq", "op", "n", "v")
        return DataFrame(processors.evolving(steps._jdf, schemas[run], 0), session)

    return build


def query_of(
    spark: Any, directory: Path, build: Build, provider: str = OURS, **options: Any
) -> ProcessorQuery:
    query = ProcessorQuery(
        spark, directory, build, "update", SCHEMA, provider=provider, **{"confs": AVRO} | options
    )
    query.keeps_clock = True
    return query


@pytest.mark.parametrize(
    ("build", "checkpoint_format"),
    [
        pytest.param(in_python(NARROW, WIDE, SHORT, ttl=DAY), 1, id="python, TTL"),
        pytest.param(
            in_scala("narrow", "wide", "short"), 2, id="scala", marks=[pytest.mark.spark, pytest.mark.oldest]
        ),
    ],
)
def test_output_and_state_equal_rocksdb(
    request: pytest.FixtureRequest,
    spark: Any,
    tmp_path: Path,
    recordings: Recordings,
    build: Build,
    checkpoint_format: int,
) -> None:
    def live(provider: str, checkpoint_format: int) -> Life:
        query = query_of(spark, tmp_path / provider, build, provider, checkpoint_format=checkpoint_format)
        return life_of(query, PARTS)

    life = live(OURS, min(checkpoint_format, NEWEST_READABLE_FORMAT))
    assert [number for output in life[0] for number, _ in output] == [0, 1, 2, 3, 4]
    recordings.compare(request.node.callspec.id, life, lambda: live(ROCKS, 1))


@pytest.fixture(scope="module")
def evolved(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ProcessorQuery]]:
    """Return a query with two evolutions on our store and on Spark's, with checkpoint format v2."""
    build = in_scala("narrow", "wide", "short")
    queries = []
    for provider in (OURS, ROCKS):
        query = query_of(spark, tmp_path_factory.mktemp("evolved"), build, provider, checkpoint_format=2)
        for number, part in enumerate(PARTS):
            query.number = number
            query.feed(*part)
            query.run()
        queries.append(query)
    unload_all(spark)
    with configured(spark, {STATE_STORE + "checkpointFormatVersion": "2"}):
        yield queries


def state_of(query: ProcessorQuery, **options: Any) -> list[dict[str, Any]]:
    reader = query.spark.read.format("statestore").options(**options)
    return [row.asDict(recursive=True) for row in reader.load(str(query.checkpoint)).collect()]


@pytest.mark.parametrize("variable", VARIABLES)
def test_data_source_reads_each_batch_with_its_own_schema(
    evolved: list[ProcessorQuery], variable: str
) -> None:
    own_query, rocksdb_query = evolved
    columns = []
    # The last batch with each schema.
    for batch in (1, 3, 4):
        options = {"stateVarName": variable, "batchId": batch}
        expected = Counter(map(repr, state_of(rocksdb_query, **options)))
        assert Counter(map(repr, state_of(own_query, **options))) == expected, batch
        columns.append(next(iter(expected)))
        for start in {0, batch - 1}:
            replay: Counter[str] = Counter()
            for partition in (0, 1):
                replayed = {"snapshotStartBatchId": start, "snapshotPartitionId": partition}
                replay.update(map(repr, state_of(own_query, **options, **replayed)))
            assert replay == expected, (start, batch)
    assert ["extra" in text for text in columns] == [False, True, False]


@pytest.mark.parametrize("variable", VARIABLES)
def test_change_feed_over_evolutions_leads_to_the_states_of_rocksdb(
    evolved: list[ProcessorQuery], variable: str
) -> None:
    for limits in ({}, {"changeEndBatchId": 1}):
        options = {"stateVarName": variable, "readChangeFeed": "true", "changeStartBatchId": 0, **limits}
        own_states, rocksdb_states = (states_of(changes_of(state_of(query, **options))) for query in evolved)
        assert own_states == rocksdb_states
        assert all(own_states)


def test_interrupted_evolution_changes_no_result(spark: Any, tmp_path: Path, recordings: Recordings) -> None:
    from pyspark.errors import StreamingQueryException

    def live(provider: str, checkpoint_format: int, *, interrupted: bool) -> Any:
        directory, build = tmp_path / provider, in_python(NARROW, LONGER)
        query = query_of(spark, directory, build, provider, checkpoint_format=checkpoint_format)
        query.feed(rows(0, "abcdef"))
        query.run()
        query.number = 1
        marker = directory / "failed"
        failure = {"seq": 9, "op": "fail_once", "n": 0, "v": str(marker), "ts": None}
        query.feed(rows(1, "bce") + [{"k": key} | failure for key in "bf"])
        if interrupted:
            with pytest.raises(StreamingQueryException, match="this processor fails once"):
                query.run()
            # The batch is repeated, by the former code too.
            for number in (1, 0):
                query.number = number
                query.run()
                query.forget_newest_commit()
            query.number = 1
        else:
            marker.touch()
        outputs = query.run()
        query.feed(rows(2, "ad"))
        outputs += query.run()
        return outputs, query.state()

    life = live(OURS, 2, interrupted=True)
    recordings.compare("former code", life, lambda: live(ROCKS, 1, interrupted=False))


def test_incompatible_schema_is_rejected_as_on_rocksdb(spark: Any, tmp_path: Path) -> None:
    from pyspark.errors import StreamingQueryException

    query = query_of(spark, tmp_path, in_scala("wide", "narrow"))
    query.feed(rows(0, "abc"))
    query.run()
    before = query.state()
    query.number = 1
    query.feed(rows(1, "a"))
    with pytest.raises(StreamingQueryException, match="STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION"):
        query.run()
    query.number = 0
    assert query.state() == before
    assert [number for number, _ in query.run()] == [1]


def test_query_without_avro_keeps_its_schema(spark: Any, tmp_path: Path) -> None:
    from pyspark.errors import StreamingQueryException

    query = query_of(spark, tmp_path, in_scala("narrow", "wide"), confs=CONFS)
    query.feed(rows(0, "abc"))
    query.run()
    query.number = 1
    query.feed(rows(1, "a"))
    query.session_confs = AVRO
    with pytest.raises(StreamingQueryException, match="STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE"):
        query.run()


def test_state_of_each_batch_is_read_and_copied_with_its_schema(
    evolved: list[ProcessorQuery], tmp_path: Path
) -> None:
    query = evolved[0]
    path = str(query.checkpoint)

    def read(path: str, batch: int | None = None, partition: int | None = None) -> Any:
        return spark_statestore.read_state(
            path, column_family="one", batch=batch, partition=partition, columns=["key", "value"]
        )

    def as_in_spark(table: Any) -> list[str]:
        rows = table.to_pylist()
        for row in rows:
            if "byName" in row["value"]:
                row["value"]["byName"] = dict(row["value"]["byName"])
        return sorted(map(repr, rows))

    for batch, column in ((1, "byName"), (2, "extra"), (4, "w")):
        for partition in (0, 1):
            # Also the partition that had no row in the first batch with the schema.
            assert column in read(path, batch, partition).schema.field("value").type.names
        expected = state_of(query, stateVarName="one", batchId=batch)
        assert as_in_spark(read(path, batch)) == sorted(
            repr({"key": row["key"], "value": row["value"]}) for row in expected
        )
    newest = sorted(map(repr, read(path).to_pylist()))
    rescaled = str(tmp_path / "rescaled")
    spark_statestore.rescale(path, rescaled, 3, stopped=True)
    assert sorted(map(repr, read(rescaled).to_pylist())) == newest


def test_savepoint_before_an_evolution_is_evolved_later(spark: Any, tmp_path: Path) -> None:
    original = query_of(spark, tmp_path / "original", in_scala("narrow", "wide"))
    original.feed(rows(0, "abcd"))
    original.run()
    savepoint = spark_statestore.savepoint(str(original.checkpoint), str(tmp_path / "savepoints"))
    original.number = 1
    restored = copy(original)
    restored.checkpoint = tmp_path / "restored"
    spark_statestore.restore(savepoint, str(restored.checkpoint))
    original.feed(rows(1, "a"), rows(2, "bc"))
    lives = [(query.run(), query.state()) for query in (original, restored)]
    assert len(lives[0][0]) == 2
    assert lives[1] == lives[0]

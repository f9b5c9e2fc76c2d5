"""Queries resumed from a savepoint or a copy, or rolled back, give the output of an uninterrupted run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_statestore import QueryRunningError, clone, gc, restore, rollback, savepoint
from spark_statestore.query import QueryCheckpoint
from spark_statestore.query.savepoint import Kind
from spark_statestore.query.store_snapshot import read_store
from spark_statestore.savepoints.new_location import new_location
from tests.spark import events
from tests.spark.processors_query import NO_EMPTY_BATCHES, ProcessorQuery, batches, in_scala
from tests.spark.processors_query import SCHEMA as PROCESSED
from tests.spark.queries import JOIN_FORMAT, Output, Query, configured, side_by_side
from tests.spark.test_queries import visits_until_event_time
from tests.support.spark_versions import NEWEST_JOIN_FORMAT

pytestmark = pytest.mark.slow

WATERMARK = "15 minutes"


def every_operator(stream: Any) -> Any:
    from pyspark.sql import functions as F

    timely = stream.withWatermark("ts", WATERMARK)
    left = timely.selectExpr("id % 40 as l", "ts as left_ts", "amount")
    right = timely.where("k is not null").selectExpr("id % 40 as r", "ts as right_ts", "k")
    near = F.expr("l = r and right_ts between left_ts and left_ts + interval 5 minutes")
    steps = stream.selectExpr(
        "concat(coalesce(k, 'none'), id % 3) as k",
        "id as seq",
        "element_at(array('append', 'put', 'timer'), cast(1 + id % 3 as int)) as op",
        "1200000 + id as n",
        "who.name as v",
        "ts",
    )
    return side_by_side(
        {
            "windows": timely.groupBy(F.window("ts", "10 minutes"), "k").agg(F.count("*"), F.sum("big")),
            "sessions": timely.groupBy(F.session_window("ts", "2 minutes"), "k").agg(F.count("*")),
            "joined": left.join(right, near, "left_outer"),
            "pandas": visits_until_event_time(stream, "append"),
            "processed": in_scala(["one,many,named"], [""], [0], "eventTime", "append")(steps, 0),
        }
    )


def contents(query: Query) -> dict[str, list[Any]]:
    """Return every row of every store after the newest batch."""
    checkpoint = QueryCheckpoint(str(query.checkpoint))
    rows_by_store: dict[str, list[Any]] = {}
    for version in checkpoint.stores():
        for state, rows in read_store(checkpoint, version).rows():
            keys, values = (column.to_pylist() for column in rows.columns)
            rows_by_store[f"{version.store}, {state}"] = sorted(zip(keys, values, strict=True))
    return rows_by_store


def at(query: Query, checkpoint: Path) -> Query:
    """Return the same query with another checkpoint."""
    result = copy(query)
    result.checkpoint = checkpoint
    return result


def counts(stream: Any) -> Any:
    return stream.groupBy("k").count()


@pytest.mark.parametrize(
    ("checkpoint_format", "join_format", "kind"),
    [
        pytest.param(1, "2", "pointer", marks=[pytest.mark.spark, pytest.mark.oldest]),
        (2, f"{NEWEST_JOIN_FORMAT}", "canonical"),
    ],
)
def test_restore_and_rollback_have_equal_output(
    spark: Any, tmp_path: Path, checkpoint_format: int, join_format: str, kind: Kind
) -> None:
    original = Query(
        spark,
        tmp_path,
        every_operator,
        "append",
        events.SCHEMA,
        checkpoint_format=checkpoint_format,
        confs=NO_EMPTY_BATCHES | {JOIN_FORMAT: join_format},
    )
    # Half an hour from batch to batch.
    first, second, third = events.batches(7)[::3]
    original.feed(first, second)
    outputs = original.run()
    saved_state = savepoint(str(original.checkpoint), str(tmp_path), kind)
    original.feed(third)
    outputs += original.run()
    assert [number for number, _ in outputs] == [0, 1, 2]
    for name in ("windows", "sessions", "joined", "pandas", "processed"):
        assert any(f"{name}=Row(" in row for row in outputs[2][1]), name
    expected = contents(original)

    rollback(str(original.checkpoint), 0, stopped=True)
    assert original.run() == outputs[1:]
    assert contents(original) == expected

    # The state of batch 1 in its first run: it has been repeated since.
    restored = at(original, tmp_path / "restored")
    assert restore(saved_state, str(restored.checkpoint)) == 1
    assert restored.run() == outputs[2:]
    assert contents(restored) == expected


def test_changed_query_resumes_from_a_savepoint(spark: Any, tmp_path: Path) -> None:
    original = Query(spark, tmp_path, counts, "update", events.SCHEMA, confs=NO_EMPTY_BATCHES)
    first, second = events.batches(2)
    original.feed(first)
    original.run()
    saved_state = savepoint(str(original.checkpoint), str(tmp_path), "pointer")
    changed = at(original, tmp_path / "changed")
    changed.build = lambda stream: counts(stream.where("id % 2 = 0"))
    restore(saved_state, str(changed.checkpoint))
    changed.feed(second)
    new = Counter(row["k"] for row in second if row["id"] % 2 == 0)
    previous = Counter(row["k"] for row in first)
    assert changed.run() == [(1, Counter(f"Row(k={k!r}, count={previous[k] + n})" for k, n in new.items()))]


@pytest.fixture
def often_compacted(spark: Any) -> Iterator[None]:
    # A source requests it when it first compacts.
    with configured(spark, {"spark.sql.streaming.fileSource.log.compactInterval": "3"}):
        yield


@pytest.mark.usefixtures("often_compacted")
def test_rollback_reads_compacted_input_again(spark: Any, tmp_path: Path) -> None:
    original = Query(spark, tmp_path, counts, "update", events.SCHEMA, confs=NO_EMPTY_BATCHES)
    original.feed(*events.batches(8, rows=6))
    outputs = original.run()

    # Spark purges its logs like this, and has to find the entry before the one it starts from.
    for log in ("offsets", "commits"):
        for batch in range(3):
            (original.checkpoint / log / str(batch)).unlink()
            (original.checkpoint / log / f".{batch}.crc").unlink(missing_ok=True)
    twin = at(original, tmp_path / "twin")
    assert clone(str(original.checkpoint), str(twin.checkpoint), batch=3) == 3
    assert twin.run() == outputs[4:]

    log = original.checkpoint / "sources" / "0"
    assert {path.name for path in log.glob("*.compact")} == {"2.compact", "5.compact"}
    # Spark does so once it has compacted them, and they are old.
    for name in ("0", "1", "2.compact", "3", "4"):
        (log / name).unlink()
        (log / f".{name}.crc").unlink(missing_ok=True)
    rollback(str(original.checkpoint), 3, stopped=True)
    assert {path.name for path in log.iterdir() if path.name[0] != "."} == {"3.compact"}
    assert original.run() == outputs[4:]
    assert contents(original) == contents(twin)


def test_rollback_covers_all_sources(spark: Any, tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.string())])

    def feed(source: str, number: int) -> None:
        (tmp_path / source).mkdir(exist_ok=True)
        pq.write_table(
            pa.table({"k": [source, f"{source} {number}"]}, schema), tmp_path / source / f"{number}.parquet"
        )

    def run() -> Output:
        outputs: Output = []
        reader = spark.readStream.schema("k string")
        few, many = (reader.parquet(str(tmp_path / source)) for source in ("few", "many"))
        query = (
            few.union(many).groupBy("k").count().writeStream.outputMode("update").trigger(availableNow=True)
        )
        query = query.foreachBatch(
            lambda batch, number: outputs.append((number, Counter(map(repr, batch.collect()))))
        )
        query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
        return outputs

    feed("few", 0)
    for number in range(2):
        feed("many", number)
        run()
    feed("few", 1)
    feed("many", 2)
    outputs = run()
    rollback(str(tmp_path / "checkpoint"), 1, stopped=True)
    assert run() == outputs
    assert outputs[0][0] == 2
    assert outputs[0][1].keys() == {
        "Row(k='few', count=2)",
        "Row(k='few 1', count=1)",
        "Row(k='many', count=3)",
        "Row(k='many 2', count=1)",
    }


def test_rollback_restores_removed_state_variables(spark: Any, tmp_path: Path) -> None:
    build = in_scala(["one,many", "one"], ["", "many"], [0, 0], "eventTime", "update")
    query = ProcessorQuery(spark, tmp_path, build, "update", PROCESSED, confs=NO_EMPTY_BATCHES)
    first, second = batches(2, rows=12)
    query.feed(first)
    query.run()
    twin = at(query, tmp_path / "twin")
    clone(str(query.checkpoint), str(twin.checkpoint))
    query.feed(second)
    outputs = twin.run()

    query.number = 1
    assert query.run() != outputs
    rollback(str(query.checkpoint), 0, stopped=True)
    query.number = 0
    assert query.run() == outputs
    assert query.state() == twin.state()
    assert contents(query) == contents(twin)


def test_rollback_rejects_a_running_query(spark: Any, tmp_path: Path) -> None:
    rates = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    writer = rates.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    query = writer.trigger(once=True).start()
    query.awaitTermination()
    query = writer.trigger(processingTime="1 hour").start()
    try:
        for operation in (
            lambda: rollback(str(tmp_path), 0, stopped=True),
            lambda: gc(str(tmp_path), stopped=True),
        ):
            with pytest.raises(QueryRunningError, match="runs in this process"):
                operation()
    finally:
        query.stop()
    rollback(str(tmp_path), 0, stopped=True)
    assert QueryCheckpoint(str(tmp_path)).newest_batch() == 0


def test_query_is_refused_at_a_location_that_is_reserved_for_a_copy(spark: Any, tmp_path: Path) -> None:
    target = tmp_path / "new"
    with new_location(QueryCheckpoint(str(tmp_path / "checkpoint")), str(target)):
        before = {path: path.read_bytes() for path in target.iterdir()}
        rate = spark.readStream.format("rate").load()
        with pytest.raises(Exception, match=r"(?i)\bid\b"):
            rate.writeStream.format("noop").option("checkpointLocation", str(target)).start().stop()
        assert {
            path: path.read_bytes() for path in target.iterdir() if not path.name.startswith(".")
        } == before

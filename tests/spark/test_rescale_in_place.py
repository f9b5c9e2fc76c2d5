"""Queries that are rescaled in their own checkpoint location, between one start and the next."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

import spark_statestore
from spark_statestore import rollback, verify
from spark_statestore.errors import IllegalStateError, OptionError
from spark_statestore.query import QueryCheckpoint
from tests.spark import events
from tests.spark.processors_query import NO_EMPTY_BATCHES
from tests.spark.queries import JOIN_FORMAT, SPARKS, Output, Query, unload_all
from tests.spark.test_checkpoint_formats import FORMAT, counts, counts_after
from tests.spark.test_restore import every_operator
from tests.support.effort import EFFORT
from tests.support.spark_versions import NEWEST_JOIN_FORMAT, is_since

pytestmark = pytest.mark.slow

# Spark 4.0 reads the settings of a new query before anybody can change them.
OF_NEW = is_since("4.1")

PARTITIONS = "spark.sql.streaming.stateStore.backend.partitions"


def make(
    spark: Any, directory: Path, build: Any = every_operator, mode: str = "append", **confs: str
) -> Query:
    settings = NO_EMPTY_BATCHES | {JOIN_FORMAT: f"{NEWEST_JOIN_FORMAT}"} | confs
    return Query(spark, directory, build, mode, events.SCHEMA, checkpoint_format=2, confs=settings)


def run_with(query: Query, partitions: str | None, *batches: list[dict[str, Any]]) -> Output:
    """Run a query on more input in a session that gives it a number of partitions."""
    query.feed(*batches)
    query.session_confs = {} if partitions is None else {PARTITIONS: partitions}
    unload_all(query.spark)
    return query.run()


def counts_of_partitions(query: Query) -> set[int]:
    """Return the numbers of partitions of the operators, by the commit log and by Spark's metadata."""
    checkpoint = QueryCheckpoint(str(query.checkpoint))
    ids = checkpoint.commit(checkpoint.newest_batch()).state_ids or {}
    described = {operator.partitions for operator in checkpoint.operators()}
    return {len(partitions) for partitions in ids.values()} | described


def log_of_offsets(spark: Any, query: Query) -> Any:
    """Return Spark's own log of a query."""
    streaming = spark._jvm.org.apache.spark.sql.execution.streaming
    of_class = (streaming.checkpointing if is_since("4.1") else streaming).OffsetSeqLog
    is_read_only = [True] if is_since("4.2") else []
    return of_class(spark._jsparkSession, f"{query.checkpoint}/offsets", *is_read_only)


@pytest.mark.spark
@pytest.mark.oldest
def test_query_has_another_number_of_partitions_at_each_start(spark: Any, tmp_path: Path) -> None:
    rescaled, stays = make(spark, tmp_path / "rescaled"), make(spark, tmp_path / "stays")
    numbers = (3, 7, 2, 16) if EFFORT > 1 else (2, 4, 3)
    batches = events.batches(2 * len(numbers) + 2)[::2]
    outputs = []
    # Without the option the query keeps the number.
    for number, batch in zip((*numbers, None), batches, strict=True):
        outputs += run_with(rescaled, None if number is None else str(number), batch)
        if number != numbers[0] or OF_NEW:
            assert counts_of_partitions(rescaled) == {number or numbers[-1]}, number
    assert outputs == run_with(stays, None, *batches)
    assert sum(len(rows) for _, rows in outputs) > 50
    assert verify(str(rescaled.checkpoint)).ok


def test_planned_batch_has_the_new_partitions_and_its_input(spark: Any, tmp_path: Path) -> None:
    query = make(spark, tmp_path, counts, "update")
    batches = events.batches(4)
    run_with(query, "3", batches[0])
    # The first batch of a run, which describes the operators anew.
    run_with(query, None, batches[1])
    query.forget_newest_commit()
    # The batch that was planned before the new input is repeated as it was.
    assert run_with(query, "5", *batches[2:]) == counts_after(*batches)[1:]
    assert counts_of_partitions(query) == {5}


def test_batch_before_the_rescale_has_its_own_partitions(spark: Any, tmp_path: Path) -> None:
    query = make(spark, tmp_path, counts, "update")
    batches = events.batches(6)
    outputs = run_with(query, "3", *batches[:2]) + run_with(query, "6", *batches[2:4])
    outputs += run_with(query, "2", *batches[4:])
    # A rescale is at the newest batch; those before it keep their partitions.
    for batch, number in ((3, 2), (2, 6), (0, 3)):
        rollback(str(query.checkpoint), batch, stopped=True)
        assert counts_of_partitions(query) == {number}
    assert run_with(query, None) == outputs[1:]
    assert counts_of_partitions(query) == {3}


def test_query_of_format_v1_is_taken_to_v2(spark: Any, tmp_path: Path) -> None:
    query = make(spark, tmp_path, counts, "update", **{FORMAT: "1"})
    batches = events.batches(8)[::2]
    outputs = run_with(query, "3", *batches[:2]) + run_with(query, "5", batches[2])
    outputs += run_with(query, None, batches[3])
    assert outputs == counts_after(*batches)
    assert ["stateUniqueIds" in path.read_text() for path in query.commits] == [False, *[True] * 3]
    # A batch before the rescale, which has no ids, has the partitions and the rows that it had.
    url, keys = str(query.checkpoint), set()
    for batch, number in enumerate((3, 5, 5, 5)):
        assert verify(url, batch=batch).ok, batch
        assert QueryCheckpoint(url).operators(batch)[0].partitions == number
        keys.update(row["id"] for row in batches[batch])
        assert spark_statestore.read_state(url, batch=batch).num_rows == len(keys)
    with pytest.raises(OptionError, match="has 3 partitions at batch 0 and 5 at batch 1"):
        spark_statestore.diff_state(url, 0, 1, partition=0)
    rollback(url, 0, stopped=True)
    assert run_with(query, None) == outputs[1:]


@pytest.mark.spark
@pytest.mark.oldest
def test_interrupted_rescale_is_completed_by_the_next_start(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = make(spark, tmp_path, counts, "update")
    first, second = events.batches(2)
    run_with(query, None, first)

    class Killed(BaseException):
        pass

    def kill(*arguments: Any) -> None:
        raise Killed

    with monkeypatch.context() as killing:
        killing.setattr("spark_statestore.query.journal._complete", kill)
        with pytest.raises(Killed):
            spark_statestore.rescale(str(query.checkpoint), None, 5, in_place=True, stopped=True)
    # Only the journal was written.
    with pytest.raises(IllegalStateError, match="is not complete, as the journal"):
        spark_statestore.read_state(str(query.checkpoint))
    with pytest.raises(Exception, match="spark-statestore: the journal"):
        log_of_offsets(spark, query).getLatest()
    # In a session that never had a query of this store, and whose own queries have another one.
    query.spark, query.session_provider = spark.newSession(), SPARKS
    assert run_with(query, None, second) == counts_after(first, second)[1:]
    assert counts_of_partitions(query) == {5}


def test_logs_with_other_partitions_than_each_other_are_made_to_agree(spark: Any, tmp_path: Path) -> None:
    query = make(spark, tmp_path, counts, "update")
    first, second = events.batches(2)
    run_with(query, None, first)
    # As two drivers at once could leave them.
    for path in sorted((query.checkpoint / "offsets").glob("*")):
        path.write_text(path.read_text().replace('shuffle.partitions":"2"', 'shuffle.partitions":"1"'))
    for checksum in (query.checkpoint / "offsets").glob(".*.crc"):
        checksum.unlink()
    assert run_with(query, None, second) == counts_after(first, second)[1:]
    assert counts_of_partitions(query) == {1}


def test_batch_with_the_state_of_other_partitions_is_refused(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql.streaming.listener import StreamingQueryListener

    query = make(spark, tmp_path, counts, "update")
    first, second = events.batches(2)
    run_with(query, None, first)
    entry = query.commits[-1]
    before = entry.read_text()

    class OtherDriver(StreamingQueryListener):
        """Another driver that rescales the query after this one has looked at its logs."""

        def onQueryStarted(self, event: Any) -> None:
            version, text = before.split("\n")
            node = json.loads(text)
            ids = node["stateUniqueIds"]["0"]
            node["stateUniqueIds"]["0"] = [*ids, ids[0]]
            entry.with_name(f".{entry.name}.crc").unlink(missing_ok=True)
            entry.write_text(f"{version}\n{json.dumps(node)}")

        def onQueryProgress(self, event: Any) -> None: ...

        def onQueryTerminated(self, event: Any) -> None: ...

    listener = OtherDriver()
    spark.streams.addListener(listener)
    try:
        with pytest.raises(
            StreamingQueryException, match="has the state of 3 partitions, and the batch has 2"
        ):
            run_with(query, None, second)
    finally:
        spark.streams.removeListener(listener)
    entry.write_text(before)
    assert run_with(query, None) == counts_after(first, second)[1:]


def test_query_without_grouping_columns_keeps_its_partition(spark: Any, tmp_path: Path) -> None:
    query = make(spark, tmp_path, lambda stream: stream.groupBy().count(), "update")
    for number, batch in enumerate(events.batches(2)):
        output = run_with(query, "3" if number else None, batch)
        assert output == [(number, Counter([f"Row(count={len(batch) * (number + 1)})"]))]
    entry = json.loads((query.checkpoint / "offsets" / "1").read_text().split("\n")[1])
    assert entry["conf"]["spark.sql.shuffle.partitions"] == "3"


def test_refused_rescale_fails_before_the_first_task_and_changes_no_state(spark: Any, tmp_path: Path) -> None:
    loose = "spark.sql.streaming.statefulOperator.useStrictDistribution"
    query = make(spark, tmp_path / "loose", counts, "update", **{loose: "false"})
    first, second = events.batches(2)
    outputs = run_with(query, None, first)
    before = sorted(query.checkpoint.glob("state/*/*/**/*"))
    with pytest.raises(StreamingQueryException, match="useStrictDistribution=false"):
        run_with(query, "5", second)
    assert sorted(query.checkpoint.glob("state/*/*/**/*")) == before
    assert outputs
    assert run_with(query, None)
    with pytest.raises(Exception, match="it must be a number from 1 to 32768"):
        run_with(query, "many")


def test_number_is_that_of_the_querys_name(spark: Any, tmp_path: Path) -> None:
    query = make(spark, tmp_path, counts, "update")
    query.name = "orders"
    run_with(query, None, events.batches(1)[0])
    for text, number in (("orders=5,clicks=6", 5), ("3,clicks=6", 3), ("clicks=6", 3)):
        run_with(query, text, events.batches(1)[0])
        assert counts_of_partitions(query) == {number}, text

"""Queries that are rescaled in their own checkpoint location, between one start and the next."""

from __future__ import annotations

import json
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
from tests.spark.queries import JOIN_FORMAT, Output, Query, unload_all
from tests.spark.test_checkpoint_formats import FORMAT
from tests.spark.test_restore import every_operator
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


def counts(stream: Any) -> Any:
    return stream.groupBy("id").count()


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
    batches = events.batches(10)[::2]
    expected = [run_with(stays, None, batch) for batch in batches]
    outputs = []
    for number, batch in zip((3, 7, 2, 16, 16), batches, strict=True):
        outputs.append(run_with(rescaled, str(number), batch))
        if number > 3 or OF_NEW:
            assert counts_of_partitions(rescaled) == {number}, number
    assert outputs == expected
    assert sum(len(rows) for output in outputs for _, rows in output) > 50
    verify(str(rescaled.checkpoint))
    # And without the option the query keeps the number.
    last = events.batches(12)[-1]
    assert run_with(rescaled, None, last) == run_with(stays, None, last)
    assert counts_of_partitions(rescaled) == {16}


def test_planned_batch_has_the_new_partitions_and_its_input(spark: Any, tmp_path: Path) -> None:
    rescaled, stays = (make(spark, tmp_path / name, counts, "update") for name in ("rescaled", "stays"))
    batches = events.batches(6)
    expected = run_with(stays, None, *batches)
    run_with(rescaled, "3", *batches[:2])
    # The first batch of a run, which describes the operators anew.
    run_with(rescaled, None, batches[2])
    rescaled.forget_newest_commit()
    # The batch that was planned before the new input is repeated as it was.
    assert run_with(rescaled, "5", *batches[3:]) == expected[2:]
    assert counts_of_partitions(rescaled) == {5}


def test_batch_before_the_rescale_has_its_own_partitions(spark: Any, tmp_path: Path) -> None:
    query = make(spark, tmp_path, counts, "update")
    batches = events.batches(12)[::2]
    outputs = run_with(query, "3", *batches[:2]) + run_with(query, "6", *batches[2:4])
    outputs += run_with(query, "2", *batches[4:])
    first = 3 if OF_NEW else 2
    # A rescale is at the newest batch; those before it keep their partitions.
    for batch, number in ((3, 2), (2, 6), (0, first)):
        rollback(str(query.checkpoint), batch, stopped=True)
        assert counts_of_partitions(query) == {number}
    assert run_with(query, None) == outputs[1:]
    assert counts_of_partitions(query) == {first}


@pytest.mark.skipif(not is_since("4.3"), reason="this Spark has checkpoint format v2 only where it is set")
def test_query_of_format_v1_is_taken_to_v2(spark: Any, tmp_path: Path) -> None:
    rescaled, stays = (
        make(spark, tmp_path / name, counts, "update", **{FORMAT: "1"}) for name in ("rescaled", "stays")
    )
    batches = events.batches(10)[::2]
    expected = run_with(stays, None, *batches)
    outputs = run_with(rescaled, "3", *batches[:2]) + run_with(rescaled, "5", batches[2])
    outputs += run_with(rescaled, None, batches[3]) + run_with(rescaled, "2", batches[4])
    assert outputs == expected
    assert ["stateUniqueIds" in path.read_text() for path in rescaled.commits] == [False, *[True] * 4]
    # A batch before the rescale, which has no ids, has the partitions and the rows that it had.
    url = str(rescaled.checkpoint)
    for batch, number in enumerate((3, 5, 5, 2, 2)):
        assert verify(url, batch=batch).ok, batch
        assert QueryCheckpoint(url).operators(batch)[0].partitions == number
        rows = [
            spark_statestore.read_state(str(query.checkpoint), batch=batch) for query in (rescaled, stays)
        ]
        assert len({table.num_rows for table in rows}) == 1, batch
    with pytest.raises(OptionError, match="has 3 partitions at batch 0 and 5 at batch 1"):
        spark_statestore.diff_state(url, 0, 1, partition=0)
    rollback(url, 0, stopped=True)
    assert run_with(rescaled, None) == expected[1:]


@pytest.mark.spark
@pytest.mark.oldest
def test_interrupted_rescale_is_completed_by_the_next_start(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, stays = (
        make(spark, tmp_path / "q", counts, "update"),
        make(spark, tmp_path / "s", counts, "update"),
    )
    first, second = events.batches(2)
    outputs = [run_with(each_query, None, first) for each_query in (query, stays)]
    assert outputs[0] == outputs[1]

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
    assert run_with(query, None, second) == run_with(stays, None, second)
    assert counts_of_partitions(query) == {5}


@pytest.mark.spark
@pytest.mark.oldest
def test_logs_with_other_partitions_than_each_other_are_made_to_agree(spark: Any, tmp_path: Path) -> None:
    query, stays = (
        make(spark, tmp_path / "q", counts, "update"),
        make(spark, tmp_path / "s", counts, "update"),
    )
    first, second = events.batches(2)
    assert run_with(query, None, first) == run_with(stays, None, first)
    # As two drivers at once could leave them.
    for path in sorted((query.checkpoint / "offsets").glob("*")):
        path.write_text(path.read_text().replace('shuffle.partitions":"2"', 'shuffle.partitions":"1"'))
    for checksum in (query.checkpoint / "offsets").glob(".*.crc"):
        checksum.unlink()
    assert run_with(query, None, second) == run_with(stays, None, second)
    assert counts_of_partitions(query) == {1}


def test_batch_with_the_state_of_other_partitions_is_refused(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql.streaming.listener import StreamingQueryListener

    query, stays = (make(spark, tmp_path / name, counts, "update") for name in ("query", "stays"))
    first, second = events.batches(2)
    assert run_with(query, None, first) == run_with(stays, None, first)
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
    assert run_with(query, None) == run_with(stays, None, second)


@pytest.mark.skipif(not is_since("4.1"), reason="Spark 4.0 fails such a query in checkpoint format v2")
def test_query_without_grouping_columns_keeps_its_partition(spark: Any, tmp_path: Path) -> None:
    def total(stream: Any) -> Any:
        return stream.groupBy().count()

    query, stays = make(spark, tmp_path / "q", total, "update"), make(spark, tmp_path / "s", total, "update")
    for partitions, batch in zip((None, "5", "3"), events.batches(3), strict=True):
        assert run_with(query, partitions, batch) == run_with(stays, None, batch)
    entry = json.loads((query.checkpoint / "offsets" / "2").read_text().split("\n")[1])
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
    for wrong in ("0", "-3", "32769", "many"):
        with pytest.raises(Exception, match="it must be a number from 1 to 32768"):
            run_with(query, wrong)


def test_number_is_that_of_the_querys_name(spark: Any, tmp_path: Path) -> None:
    query = make(spark, tmp_path, counts, "update")
    query.name = "orders"
    run_with(query, None, events.batches(1)[0])
    for text, number in (("4", 4), ("orders=5,clicks=6", 5), ("3,clicks=6", 3), ("clicks=6", 3)):
        run_with(query, text, events.batches(1)[0])
        assert counts_of_partitions(query) == {number}, text

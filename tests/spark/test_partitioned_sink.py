"""Operator state in each partition of a sink is exact after failures and changes of parallelism."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from spark_statestore.operator_state import QueryOperatorState
from tests.spark.programs.operator_state import start, write_batches
from tests.spark.programs.partitioned_sink import Sink, SinkSource, answer, content

# Fewer rows in some batches than there are subtasks.
BATCHES = [
    list(range(first, first + length))
    for first, length in ((0, 9), (10, 5), (20, 11), (40, 3), (50, 3), (60, 4))
]


def subtasks_of(directory: Path, batch: int) -> list[str]:
    return sorted(
        path.parent.name[-8:]
        for path in directory.glob(f"checkpoint/operator-state/sink/chk-{batch}_*/_metadata")
    )


def names(parallelism: int) -> list[str]:
    return [f"{parallelism:04x}{subtask:04x}" for subtask in range(parallelism)]


def run(
    spark: Any,
    directory: Path,
    parallelism: int,
    *,
    checkpoint: str = "checkpoint",
    difference: int = 0,
    fail: tuple[int, int] | None = None,
) -> None:
    """Run a query whose function writes each batch in tasks, of one kind or the other in turn."""

    def function(batch: Any, batch_id: int) -> None:
        sink = Sink(str(directory / "checkpoint"), parallelism, batch_id + difference, fail)
        partitions = batch.repartition(parallelism)
        if batch_id % 2:
            partitions.foreachPartition(sink.of_rows)
        else:
            assert len(partitions.mapInPandas(sink.of_frames, "done boolean").collect()) == parallelism

    start(spark, directory / "input", directory / checkpoint, function).awaitTermination()


@pytest.mark.slow
def test_partitioned_sink_is_exact_when_it_fails_and_changes_its_parallelism(
    spark: Any, tmp_path: Path
) -> None:
    location = str(tmp_path / "checkpoint")
    write_batches(tmp_path / "input", BATCHES)
    with pytest.raises(StreamingQueryException, match="this subtask fails"):
        run(spark, tmp_path, 4, fail=(2, 2))
    # Its task began when another one had published its part.
    assert set() < set(subtasks_of(tmp_path, 2)) <= {*names(4)} - {names(4)[2]}
    assert not Path(location, "commits", "2").exists()
    assert QueryOperatorState(location, "sink").batches()[-1] == 1
    assert content(location) == answer(BATCHES[:2])
    run(spark, tmp_path, 7)
    assert content(location) == answer(BATCHES)
    assert content(location, 4) == answer(BATCHES[:5])
    # Nothing is left of the failed run, and of batches that are not retained.
    assert [subtasks_of(tmp_path, batch) for batch in range(6)] == [[]] * 4 + [names(7)] * 2


@pytest.mark.slow
def test_writer_of_a_python_data_source_keeps_state_in_each_partition(spark: Any, tmp_path: Path) -> None:
    spark.dataSource.register(SinkSource)
    location = str(tmp_path / "checkpoint")
    for count, parallelism in enumerate((4, 7)):
        write_batches(tmp_path / "input", BATCHES[2 * count : 2 * count + 2], 2 * count)
        numbers = spark.readStream.schema("number long").option("maxFilesPerTrigger", 1)
        writer = numbers.csv(str(tmp_path / "input")).repartition(parallelism).writeStream
        options = {"checkpointLocation": location, "parallelism": str(parallelism)}
        query = writer.format("partitioned-sink").options(**options).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        assert content(location) == answer(BATCHES[: 2 * count + 2])
        assert len(subtasks_of(tmp_path, 2 * count + 1)) == parallelism


def test_task_of_another_batch_or_query_is_refused(spark: Any, tmp_path: Path) -> None:
    write_batches(tmp_path / "input", BATCHES[:2])
    run(spark, tmp_path, 2)
    write_batches(tmp_path / "input", BATCHES[2:3], 2)
    with pytest.raises(StreamingQueryException, match="Spark runs batch 2 in this thread"):
        run(spark, tmp_path, 2, difference=1)
    with pytest.raises(StreamingQueryException, match="belongs to the query"):
        run(spark, tmp_path, 2, checkpoint="of another query")
    location = str(tmp_path / "checkpoint")
    assert content(location) == answer(BATCHES[:2])
    run(spark, tmp_path, 2)
    assert content(location) == answer(BATCHES[:3])

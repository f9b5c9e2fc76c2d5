"""Operator state in each partition of a sink is exact after changes of parallelism and driver kills."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from spark_statestore.operator_state import QueryOperatorState
from tests.spark.counting import Program
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


@pytest.mark.slow
@pytest.mark.soak
def test_partitioned_sink_is_exact_when_it_is_killed_and_changes_its_parallelism(tmp_path: Path) -> None:
    location = str(tmp_path / "checkpoint")
    write_batches(tmp_path / "input", BATCHES)
    with Program("partitioned_sink", directory=str(tmp_path), parallelism=4, kill=[2, 2]) as program:
        assert [program.next("batch") for _ in range(2)] == [0, 1]
        assert program.process.wait(120) == -signal.SIGKILL
    # Killed when some parts of the batch were published.
    assert subtasks_of(tmp_path, 2) == names(4)[:3]
    assert not Path(location, "commits", "2").exists()
    assert QueryOperatorState(location, "sink").batches()[-1] == 1
    assert content(location) == answer(BATCHES[:2])
    with Program("partitioned_sink", directory=str(tmp_path), parallelism=7) as program:
        assert [program.next("batch") for _ in range(4)] == [2, 3, 4, 5]
        program.next("stopped")
        program.end()
    assert content(location) == answer(BATCHES)
    assert content(location, 4) == answer(BATCHES[:5])
    # Nothing is left of the killed run, and of batches that are not retained.
    assert [subtasks_of(tmp_path, batch) for batch in range(6)] == [[]] * 4 + [names(7)] * 2


@pytest.mark.slow
def test_writer_of_a_python_data_source_keeps_state_in_each_partition(spark: Any, tmp_path: Path) -> None:
    spark.dataSource.register(SinkSource)
    location = str(tmp_path / "checkpoint")
    for run, parallelism in enumerate((4, 7, 4)):
        write_batches(tmp_path / "input", BATCHES[2 * run : 2 * run + 2], 2 * run)
        numbers = spark.readStream.schema("number long").option("maxFilesPerTrigger", 1)
        writer = numbers.csv(str(tmp_path / "input")).repartition(parallelism).writeStream
        options = {"checkpointLocation": location, "parallelism": str(parallelism)}
        query = writer.format("partitioned-sink").options(**options).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        assert content(location) == answer(BATCHES[: 2 * run + 2])
        assert len(subtasks_of(tmp_path, 2 * run + 1)) == parallelism


def test_task_of_another_batch_or_query_is_refused(spark: Any, tmp_path: Path) -> None:
    from pyspark.errors import StreamingQueryException

    write_batches(tmp_path / "input", BATCHES[:2])
    own, foreign = str(tmp_path / "own"), str(tmp_path / "foreign")

    def run(location: str, sink_location: str, difference: int) -> None:
        def function(batch: Any, batch_id: int) -> None:
            batch.repartition(2).foreachPartition(Sink(sink_location, 2, batch_id + difference).of_rows)

        start(spark, tmp_path / "input", location, function).awaitTermination()

    run(own, own, 0)
    write_batches(tmp_path / "input", BATCHES[2:3], 2)
    with pytest.raises(StreamingQueryException, match="Spark runs batch 2 in this thread"):
        run(own, own, 1)
    with pytest.raises(StreamingQueryException, match="belongs to the query"):
        run(foreign, own, 0)
    assert content(own) == answer(BATCHES[:2])
    run(own, own, 0)
    assert content(own) == answer(BATCHES[:3])
